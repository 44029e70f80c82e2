"""Streams that are told whether a queue is active: all of one target share one look, and one timer serves them all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from bridge.core.agenda import Agenda
from bridge.keda.counts import KedaCounts
from bridge.keda.demand import changes_in, counted_at, look, work
from bridge.keda.scaled_object import Target
from bridge.observe.facts import Fact, MemberCame, MemberGone, SessionClosed, Suspended

if TYPE_CHECKING:
    from bridge.service.bridge import Bridge


_OF_MANY: Final = (MemberCame, MemberGone, SessionClosed, Suspended)
"""Facts that may be about any queue."""


class Stream:
    """One that is told; what it has not taken yet is replaced by what is newer, and so it never holds more than one."""

    __slots__ = ("_news", "_watching", "active", "ended", "label", "target")

    def __init__(self, watching: Watching, target: Target, label: str) -> None:
        self._watching = watching
        self._news = asyncio.Event()
        self.target = target
        self.label = label
        """What it calls itself, for people."""
        self.active: bool | None = None
        self.ended: str | None = None
        """Why nothing more is told; "" is no fault of anybody's."""

    def tell(self, active: bool) -> None:
        """Tell it."""
        self.active = active
        self._news.set()

    async def next(self) -> bool | None:
        """Wait for what is told next; None when it has ended."""
        await self._news.wait()
        self._news.clear()
        return self.active if self.ended is None else None

    def end(self, why: str = "") -> None:
        """Tell nothing more; may be called twice, and by anybody."""
        if self.ended is None:
            self.ended = why
            self._watching.left(self)
        self._news.set()


class _Watched:
    """One target, and its streams."""

    __slots__ = ("saying", "streams", "target")

    def __init__(self, target: Target, now: float) -> None:
        self.target = target
        self.saying = Saying(now)
        self.streams: dict[Stream, None] = {}


class Watching:
    """All streams of one bridge; belongs to the event loop that the bridge was started on.

    What happens to a queue is heard from the bridge's facts and its sessions' frames, and costs a look into a table
    where nobody watches that queue.
    """

    def __init__(self, bridge: Bridge, counts: KedaCounts) -> None:
        self._bridge = bridge
        self._counts = counts
        self._targets: dict[Target, _Watched] = {}
        self._of_queue: dict[str, list[_Watched]] = {}
        self._agenda: Agenda[Target] = Agenda()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._closed = False
        bridge.observe(self._fact)
        bridge.hub.session_watchers.append(self.touched)

    def streams(self) -> list[Stream]:
        """Return those that are open."""
        return [stream for watched in self._targets.values() for stream in watched.streams]

    def open(self, target: Target, label: str = "") -> Stream:
        """Begin one; it is told at once how it stands, where that is known."""
        stream = Stream(self, target, label)
        if self._closed:
            stream.end()
            return stream
        watched = self._targets.get(target)
        if watched is None:
            watched = self._targets[target] = _Watched(target, self._bridge.now())
            self._of_queue.setdefault(target.queue, []).append(watched)
        watched.streams[stream] = None
        self._look(watched)
        if watched.saying.said is not None:
            stream.tell(watched.saying.said)
        return stream

    def left(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        watched = self._targets.get(stream.target)
        if watched is None or watched.streams.pop(stream, watched) is watched or watched.streams:
            return
        del self._targets[stream.target]
        self._agenda.clear(stream.target)
        group = self._of_queue[stream.target.queue]
        group.remove(watched)
        if not group:
            del self._of_queue[stream.target.queue]
        self._arm()

    def close(self) -> None:
        """End all streams, and let no more begin; may be called twice."""
        self._closed = True
        for stream in self.streams():
            stream.end()

    def touched(self, queues: Iterable[str]) -> None:
        """Look anew at these queues, as far as somebody watches them."""
        if not self._of_queue:
            return
        now = self._bridge.now()
        for queue in queues:
            for watched in self._of_queue.get(queue, ()):
                watched.saying.touched(now)
                self._agenda.set_earlier(watched.target, watched.saying.deadline())
        self._arm()

    def _fact(self, fact: Fact) -> None:
        if self._of_queue:
            queue = getattr(fact, "queue", None)
            if queue in self._of_queue:
                self.touched((queue,))
            elif isinstance(fact, _OF_MANY):
                self.touched(self._of_queue)

    def _arm(self) -> None:
        at = self._agenda.next()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        for target in self._agenda.pop_due(self._bridge.now()):
            self._look(self._targets[target])
        self._arm()

    def _look(self, watched: _Watched) -> None:
        now, target, saying = self._bridge.now(), watched.target, watched.saying
        key = counted_at(self._bridge, target)
        count = None if key is None else self._counts.newest(key)
        if key is not None and saying.repeats(now):
            # When it is there this queue is looked at again.
            self._counts.renew(key)
        known = look(self._bridge, target, count)
        found = work(known, target.per_process, target.start_s)
        if saying.looked(now, None if found is None else found > 0, changes_in(known, target.start_s)):
            assert saying.said is not None
            for stream in watched.streams:
                stream.tell(saying.said)
        self._agenda.set(target, saying.deadline())
        self._arm()


REPEAT_S: Final = 30.0
"""How often it is said although nothing has changed."""
GAP_S: Final = 0.05
"""A queue that changes all the time is looked at so seldom; half of what a change may wait to be said."""


class Saying:
    """The rule of one target; ``now`` is of any clock that does not go back.

    Whatever happens, come back at `deadline`, look, and tell `looked` what was found.
    """

    __slots__ = ("_look_at", "_looked_at", "_said_at", "said")

    def __init__(self, now: float) -> None:
        self.said: bool | None = None
        """What was said last, None before the first time."""
        self._said_at = -math.inf
        self._looked_at = self._look_at = now

    def touched(self, now: float) -> None:
        """Something has happened that may change the answer."""
        self._look_at = min(self._look_at, max(now, self._looked_at + GAP_S))

    def deadline(self) -> float:
        """Return when to look next."""
        return self._look_at

    def repeats(self, now: float) -> bool:
        """Whether what was said is old: a count that it rests on should be made anew."""
        return now >= self._said_at + REPEAT_S

    def looked(self, now: float, active: bool | None, changes_in_s: float | None = None) -> bool:
        """Take what a look found, None where nothing can be told; whether it is to be said now.

        ``changes_in_s``: after so long it will be another, as far as is known.
        """
        self._looked_at = now
        say = active is not None and (active is not self.said or self.repeats(now))
        if say:
            self.said, self._said_at = active, now
        next_s = REPEAT_S if active is None else self._said_at + REPEAT_S - now
        self._look_at = now + max(GAP_S, min(next_s, math.inf if changes_in_s is None else changes_in_s))
        return say
