"""How several queues share one number of handler slots: how many each may take now, and which queue comes next.

Theory of operation
-------------------
A queue *uses* the slots of its running handlers and those that its receives in flight have reserved. What it may take
more (`Place.grant`) is reckoned from what all others use and *want* at that moment. ``reserved`` slots are kept for
their queue, busy or not; the rest is open to all. Of the open ones a queue of a higher priority gets all it wants.
Queues of one priority are filled up evenly by ``(used + 1) / weight``, lowest first, so that the slots in use approach
the weights whatever was in use before.

Counting what is in use alone would starve a queue whose part is less than one slot. Each slot that others of its
priority take while it wants one therefore gives it a credit, in proportion to its weight; a credit counts as a part of
a slot, one at most, and is spent with the next slot it takes.

No slot is promised before it is taken: `Sharing.next` names the queue that should try to take some, until none can.

A receive that its store leaves unanswered keeps a slot for seconds, and a store that is silent has many queues to be
asked for. So after such a receive all queues of that store come after the others of their priority (`Place.rank`),
for `BEHIND` times as long as it took: a queue with work waits for the end of one such receive at most. A
store that answers is in its turn again at once, and one that stays silent once that time is over: none waits for ever.

Slots that receives have reserved come back where these bring less. A queue that lacks a slot only because of them waits
for its turn (`Place.in_turn`), and `Sharing.passed_over` names those that waited in vain.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.wire import STARVED_BY_MAX, Starved

SIZE_MAX: Final = 1_000_000
WEIGHT_MAX: Final = 1_000
BEHIND: Final = 4
"""How many times as long as it waited for a silent store a pool prefers others."""
_HALVINGS: Final = 50
_FEW: Final = 32


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one queue gets of a pool.

    ``weight`` (1 to 1000) is its part among queues of one priority that want slots; ``priority`` (0 or more) 0 is
    served first; ``reserved`` slots are this queue's alone, also while it needs none; ``limit`` is the most it has at
    once, None as many as the pool. Raises `BadInput` for what cannot be.
    """

    weight: int = 1
    priority: int = 0
    reserved: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        for holds, detail in (
            (1 <= self.weight <= WEIGHT_MAX, f"weight is from 1 to {WEIGHT_MAX}"),
            (self.priority >= 0, "priority is 0 (served first) or more"),
            (0 <= self.reserved <= SIZE_MAX, f"reserved is from 0 to {SIZE_MAX} slots"),
            (self.limit is None or self.limit >= 1, "limit is a number of slots, 1 or more, or None"),
            (self.limit is None or self.reserved <= self.limit, "reserved is not more than limit"),
        ):
            if not holds:
                raise BadInput("bad_parameter", f"pool: {detail}")


class Place:
    """One queue's place in a pool.

    ``rank`` orders places, the lowest first: by priority, and within it those with a silent ``store`` last.
    ``running`` handlers and ``receiving``, the messages that receives in flight may bring, are the slots it uses;
    ``wants`` is how many more it would take at once, and ``waits`` whether it keeps quiet for its turn. Its shell keeps
    all four up to date (`runs`, `Sharing.update`).
    """

    def __init__(self, sharing: Sharing, queue: str, share: Share, store: str) -> None:
        self.queue = queue
        self.share = share
        self.store = store
        self.rank = 2 * share.priority
        self.running = 0
        self.receiving = 0
        self.wants = 0
        self.waits = False
        self.hung = 0
        """The running ones that ran out of time and have not ended."""
        self.stuck = False
        """Whether such calls, of whatever queue, hold every slot that it can get."""
        self.starved: Starved | None = None
        """Which other queues' calls these are, where not all are its own."""
        self.credit = 0.0
        self.used_before = 0
        """The least it used since the last `update`: what is above that was taken since."""
        self._sharing = sharing

    @property
    def capacity(self) -> int:
        """The most slots that it can ever have."""
        return min(self.share.limit or SIZE_MAX, self._sharing.size)

    @property
    def used(self) -> int:
        """The slots it uses."""
        return self.running + self.receiving

    @property
    def kept(self) -> int:
        """The slots kept for it that it does not use."""
        return max(0, self.share.reserved - self.used)

    @property
    def claim(self) -> int:
        """What it wants of the open slots, beyond those kept for it."""
        return max(0, min(self.wants, self.capacity - self.used) - self.kept)

    def runs(self, running: int) -> None:
        """Record how many handlers run, before it is asked what the queue may take."""
        self.running = running
        self.used_before = min(self.used_before, self.used)

    def grant(self, receiving: int) -> int:
        """Return how many slots it may take now, while it has reserved ``receiving``; 0 once it left."""
        return self._sharing.grant(self, receiving)

    def advance(self, now: float) -> None:
        """Advance the clock of the whole pool."""
        self._sharing.advance(now)

    def answered(self) -> None:
        """Record that its store has answered a receive."""
        self._sharing.answered(self)

    def unanswered(self, now: float, took: float) -> None:
        """Record that a receive has failed after it kept its slots for ``took`` seconds."""
        self._sharing.unanswered(self, now, took)

    def in_turn(self, receiving: int) -> bool:
        """Return whether it has no slot now, and had one if the receives of others in flight found nothing."""
        return self._sharing.in_turn(self, receiving)


class Sharing:
    """The slots of one pool, ``size`` of them, and the queues that share them."""

    __slots__ = ("_behind", "_places", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._places: list[Place] = []
        self._behind: dict[Place | str, float] = {}
        """Queues and stores that were silent, and until when others come before them."""

    @property
    def places(self) -> tuple[Place, ...]:
        """The places taken, in the order in which their queues joined."""
        return tuple(self._places)

    @property
    def used(self) -> int:
        """The slots in use, all queues together; never more than ``size``."""
        return sum(place.used for place in self._places)

    def join(self, queue: str, share: Share, store: str = "") -> Place:
        """Make a place for a queue of a store; raises `BadInput` if reserved slots leave some queue without any."""
        shares = [*(place.share for place in self._places), share]
        left = self.size - sum(each.reserved for each in shares)
        if left < 0 or (left == 0 and any(not each.reserved for each in shares)):
            raise BadInput("bad_parameter", f"pool: with {queue}, reserved slots leave none for some queue")
        place = Place(self, queue, share, store)
        self._places.append(place)
        self._order()
        if any(each.hung for each in self._places):
            self._look_for_stuck()
        return place

    def leave(self, place: Place) -> None:
        """Remove a place; what it used is free. Calling it twice changes nothing."""
        if place in self._places:
            self._places.remove(place)
        place.running = place.receiving = place.wants = 0
        place.waits = False
        self.set_hung(place, 0)

    def set_hung(self, place: Place, slots: int) -> None:
        """Record how many slots of a place are held by calls that ran out of time."""
        place.hung = slots
        self._look_for_stuck()

    def _look_for_stuck(self) -> None:
        hanging = sorted((each for each in self._places if each.hung), key=lambda each: each.hung, reverse=True)
        slots, names = sum(each.hung for each in hanging), [each.queue for each in hanging[:STARVED_BY_MAX]]
        taken = sum(max(each.hung, each.share.reserved) for each in self._places)
        for each in self._places:
            own = each.hung >= each.capacity
            none = slots > 0 and taken - max(0, each.share.reserved - each.hung) >= self.size
            each.starved = Starved(slots, names) if none and not own and slots > each.hung else None
            each.stuck = own or none

    def advance(self, now: float) -> None:
        """Advance the clock: places that were behind for long enough return to their rank."""
        if self._behind and now >= min(self._behind.values()):
            self._behind = {silent: until for silent, until in self._behind.items() if now < until}
            self._order()

    def answered(self, place: Place) -> None:
        """Record that the store of a place has answered it: neither is behind, whatever other queues of it are."""
        if self._behind:
            self._behind.pop(place, None)
            self._behind.pop(place.store, None)
            self._order()

    def unanswered(self, place: Place, now: float, took: float) -> None:
        """Record that a receive of a place has failed after ``took`` seconds: it, and all of its store, are behind."""
        # However short it was: many queues that each fail within a second keep as many slots as few that need five.
        if place in self._places:
            self._behind[place] = self._behind[place.store] = now + BEHIND * took
            self._order()

    def _order(self) -> None:
        for place in self._places:
            place.rank = 2 * place.share.priority + (place in self._behind or place.store in self._behind)

    def update(self, place: Place, receiving: int, wants: int, *, waits: bool = False) -> None:
        """Update what a place has reserved and wants, and whether it waits for its turn; no-op after `leave`."""
        if place not in self._places:
            return
        place.receiving, place.wants, place.waits = receiving, wants, waits
        taken, place.used_before = place.used - place.used_before, place.used
        if taken > 0:
            self._took(place, taken)
        if not wants:
            place.credit = 0.0

    def grant(self, place: Place, receiving: int) -> int:
        """Return how many slots ``place`` may take now; see `Place.grant`."""
        if place not in self._places:
            return 0
        others = [other for other in self._places if other is not place]
        used = place.running + receiving
        free = self.size - used - sum(other.used for other in others)
        most = min(free, place.capacity - used)
        if most <= 0:
            return 0
        kept = min(most, max(0, place.share.reserved - used))
        still_open = free - kept - sum(other.kept for other in others)
        rank = place.rank
        still_open -= sum(other.claim for other in others if other.rank < rank)
        if still_open <= 0:
            return kept
        wanted = min(most - kept, still_open)
        rivals = [other for other in others if other.rank == rank and other.claim]
        if not rivals or not wanted:
            return kept + wanted
        parts = {rival: _Part(rival, rival.used + rival.kept, rival.claim) for rival in rivals}
        parts[place] = _Part(place, used + kept, wanted)
        in_order = [parts[each] for each in self._places if each in parts]
        _fill(in_order, still_open)
        return kept + parts[place].given

    def in_turn(self, place: Place, receiving: int) -> bool:
        """Return whether only receives in flight keep ``place`` from a slot; see `Place.in_turn`."""
        if place not in self._places or place.grant(receiving) > 0 or place.running + receiving >= place.capacity:
            return False
        others = [other for other in self._places if other is not place]
        busy = sum(max(other.running, other.share.reserved) for other in others)
        return self.size - busy - place.running - receiving > 0

    def passed_over(self) -> list[Place]:
        """Return the places that wait for a turn which does not come: handlers have the slots."""
        return [place for place in self._places if place.waits and not place.in_turn(place.receiving)]

    def next(self) -> Place | None:
        """Return the place that wants slots, may take some, and comes first; None if there is none."""
        able = [place for place in self._places if place.wants > 0 and place.grant(place.receiving) > 0]
        return min(able, key=_turn, default=None)

    def _took(self, place: Place, count: int) -> None:
        place.credit = 0.0
        rivals = [other for other in self._places if other is not place and other.claim and other.rank == place.rank]
        weights = place.share.weight + sum(rival.share.weight for rival in rivals)
        for rival in rivals:
            rival.credit = min(1.0, rival.credit + count * rival.share.weight / weights)


def _turn(place: Place) -> tuple[int, float]:
    return place.rank, (place.used + 1 - place.credit) / place.share.weight


class _Part:
    """What one place gets when open slots are dealt out among rivals."""

    __slots__ = ("base", "given", "wanted", "weight")

    def __init__(self, place: Place, used: int, wanted: int) -> None:
        self.base = used - place.credit
        self.weight = place.share.weight
        self.wanted = wanted
        self.given = 0

    def at(self, level: float) -> int:
        """Return how many slots it gets while ``(used + 1) / weight`` is up to ``level``."""
        return max(0, min(self.wanted, math.floor(self.weight * level - self.base)))

    def turn(self) -> float:
        """Return the level of its next slot."""
        return (self.base + self.given + 1) / self.weight


def _fill(parts: list[_Part], still_open: int) -> None:
    """Deal out slots one by one, the lowest level first and the first of the list among equals.

    Of many, most go at one stroke, by halving the levels between which the last slot lies.
    """
    if still_open > _FEW:
        low, high = -1.0, max((part.base + part.wanted) / part.weight for part in parts)
        for _ in range(_HALVINGS):
            level = (low + high) / 2
            if sum(part.at(level) for part in parts) <= still_open:
                low = level
            else:
                high = level
        for part in parts:
            part.given = part.at(low)
    left = still_open - sum(part.given for part in parts)
    while left > 0 and (wanting := [part for part in parts if part.given < part.wanted]):
        min(wanting, key=_Part.turn).given += 1
        left -= 1
