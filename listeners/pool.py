"""A pool of handler slots that several queues of one process share, by weight and priority."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from queuebell.bridge.contract.errors import BadInput, ConfigurationError
from queuebell.bridge.contract.names import parse_reference
from queuebell.listeners.figures import PlaceFigures, PoolFigures
from queuebell.listeners.wake.pool import SIZE_MAX, Place, Share, Sharing

_EQUAL: Final = Share()


def is_whole(given: object) -> bool:
    """Return whether a value is a whole number; True and False are none."""
    return isinstance(given, int) and not isinstance(given, bool)


def is_number(given: object) -> bool:
    """Return whether a value is a number, and not a truth value."""
    return isinstance(given, int | float) and not isinstance(given, bool)


class Pool:
    """Shares ``size`` handler slots (1 to 1000000) among all queues of the listeners that are given this pool.

    ``shares`` maps queue references to shares; a queue that is not named has ``Share()``, and a logical queue's
    share is that of each of its partitions. A slot is used by a running handler (of a batch handler: by each message)
    and by each message that a receive in flight may bring. What holds at every moment:

    - never more than ``size`` slots are in use, all queues together, and never more than ``limit`` by one queue;
    - no slot stays free while a queue that may have it knows of work it could take: only slots ``reserved`` for
      another queue, and a ``limit``, keep it away;
    - a queue gets an open slot only while no queue of a higher priority (a lower number) wants it; among those of one
      priority that all have work, the slots in use approach the weights, and none waits for ever;
    - a queue with a pending check and no slot receives as soon as it is granted one, and if `more` was sent, `room`
      follows then. Nothing polls.

    A slot is never taken back: a queue that comes gets its part as handlers of the others end. One pool may serve
    several listeners of one event loop; a handler that does not end when its listener has stopped counts no more.
    Wakes carry no messages to a listener with a pool, for the bridge cannot know what several queues have room for
    together. Raises `BadInput` or `BadQueueReference` for what cannot be.
    """

    def __init__(self, size: int = 32, shares: Mapping[str, Share] | None = None) -> None:
        if not (is_whole(size) and 1 <= size <= SIZE_MAX):
            raise BadInput("bad_parameter", f"pool: size is a whole number from 1 to {SIZE_MAX}")
        self.size = size
        self.shares = {parse_reference(queue): share for queue, share in (shares or {}).items()}
        if sum(share.reserved for share in self.shares.values()) > size:
            raise BadInput("bad_parameter", f"pool: more slots are reserved than its size, {size}")
        for queue, share in self.shares.items():
            if share.limit is not None and share.limit > size:
                raise BadInput("bad_parameter", f"pool: {queue} has a limit of {share.limit}, above its size, {size}")
        self._sharing = Sharing(size)
        self._granted: dict[Place, Callable[[], None]] = {}
        self._stuck: dict[Place, Callable[[], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dealing = False

    def join(
        self,
        queue: str,
        granted: Callable[[], None],
        stuck: Callable[[], None],
        *,
        logical: str | None = None,
        store: str | None = None,
    ) -> Place:
        """Add a queue to the pool; ``granted`` is called when it may take slots.

        ``stuck`` is called when other slots than before are held by calls that ran out of time (`Place.stuck`).
        ``logical`` is the queue that it is a partition of, ``store`` names the store that is silent for all its queues
        when it is for one (None: the queue alone). Raises `BadInput` if reserved slots leave some queue none,
        and `ConfigurationError` if another event loop uses the pool.
        """
        loop = asyncio.get_running_loop()
        if self._granted and loop is not self._loop:
            raise ConfigurationError("pool: another event loop uses it; give each loop its own pool")
        share = self.shares.get(queue) or self.shares.get(logical or queue) or _EQUAL
        place = self._sharing.join(queue, share, queue if store is None else store)
        self._loop = loop
        self._granted[place] = granted
        self._stuck[place] = stuck
        return place

    def leave(self, place: Place) -> None:
        """Remove a queue from the pool: what it used goes to the others. Calling it twice changes nothing."""
        self._granted.pop(place, None)
        self._stuck.pop(place, None)
        hung = place.hung
        self._sharing.leave(place)
        if hung:
            self._report_stuck()
        self._deal()

    def update(self, place: Place, receiving: int, wants: int, *, waits: bool = False) -> None:
        """Update what a queue has reserved and wants, and let others take the slots that this frees.

        ``waits`` means that it waits for its turn: ``granted`` is called too once it need not wait for that.
        """
        self._sharing.update(place, receiving, wants, waits=waits)
        self._deal()

    def set_hung(self, place: Place, slots: int) -> None:
        """Update how many slots of a queue are held by calls that ran out of time."""
        self._sharing.set_hung(place, slots)
        self._report_stuck()

    def _report_stuck(self) -> None:
        for stuck in [*self._stuck.values()]:
            stuck()

    def figures(self) -> PoolFigures:
        """Return the figures of the pool, all its listeners together."""
        places = self._sharing.places
        used = self._sharing.used
        return PoolFigures(
            size=self.size,
            running=sum(place.running for place in places),
            receiving=sum(place.receiving for place in places),
            free=self.size - used,
            places=[
                PlaceFigures(
                    queue=place.queue,
                    weight=place.share.weight,
                    priority=place.share.priority,
                    reserved=place.share.reserved,
                    limit=place.share.limit,
                    running=place.running,
                    receiving=place.receiving,
                    waiting=place.wants > 0,
                )
                for place in places
            ],
        )

    def _deal(self) -> None:
        """Let queues that want slots receive, one after the other, until none can take any."""
        if self._dealing:
            return  # the outer call goes on until all is dealt
        self._dealing = True
        try:
            while (place := self._sharing.next()) is not None:
                used = place.used
                self._granted[place]()
                if place.used <= used and place.wants:
                    place.wants = 0  # it could not after all, and must not keep others from it; its next event asks
            for place in self._sharing.passed_over():
                self._granted[place]()
        finally:
            self._dealing = False
