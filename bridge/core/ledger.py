"""What the bridge owes: per queue one debt, *dirty at generation g*, and who took it on.

There is one counter of generations per boot, not one per queue: a queue that is deleted and made again must never meet
an old cover (B1).
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from bridge.contract.errors import BadInput
from bridge.contract.wire import Reason
from bridge.core.due import DueTimes
from bridge.core.routing import Seats
from bridge.core.settings import Numbers, Tuning

SIZE_MAX = 1_000_000_000


class Debt(msgspec.Struct, eq=False):
    """One queue as the bridge knows it."""

    queue: str
    seats: Seats
    numbers: Numbers
    gen: int = 0
    dirty: bool = False
    reason: Reason = "resync"
    size: int = 0
    marked_at: float = 0.0
    traceparent: str | None = None

    owner: int | None = None
    unacked: list[tuple[int, float]] = []
    """Wakes the owner has not answered with `started`: (gen, when sent); the oldest and the newest are enough."""
    asked: set[int] = set()
    rounds: int = 0
    started_at: float | None = None
    """When the owner's newest known receive began (B5)."""

    exists: bool = False
    """Stands in the queue service (O0)."""
    paused: bool = False
    """Gives nothing out: the store counts all its messages as invisible."""
    visible: int = 0
    invisible: int = 0
    visible_since: float = 0.0
    foreign: bool = False
    """Marked by something else than the store's own level, which therefore cannot settle it."""
    covered_at: float | None = None
    read_elsewhere: bool = False
    """The newest cover came from a listener of another store than the queue service."""
    born_at: float = 0.0
    due: dict[Reason, DueTimes] = {}

    buses: frozenset[str] = frozenset()
    """The buses that triggers of this queue came by."""
    triggers: int = 0
    receives: int = 0
    empty: int = 0
    wakes: dict[str, int] = {}
    wake_sources: dict[str, int] = {}
    """Receives that found work, and wakes whose messages were taken up, by what made their listener look."""

    @property
    def own(self) -> bool:
        """Whether the queue service holds this queue, or a session says so (O0)."""
        return self.exists or self.seats.any_own

    @property
    def elsewhere(self) -> bool:
        """Whether some listener takes its messages from another store than the queue service.

        Its debts can only be settled by covers, whatever the queue service knows of a queue of the same name.
        """
        return (not self.exists and not self.seats.any_own) or self.seats.any_foreign

    @property
    def forgettable(self) -> bool:
        """Whether nothing would be lost by forgetting this queue."""
        return not (self.dirty or self.exists or self.due or len(self.seats))


class Ledger:
    """All debts of one boot."""

    def __init__(self, limit: int, tuning: Tuning) -> None:
        self.debts: dict[str, Debt] = {}
        self._tuning = tuning
        self._limit = limit
        self._gen = 0
        self._clean: OrderedDict[str, None] = OrderedDict()

    @property
    def newest_gen(self) -> int:
        """The newest generation given in this boot; whoever claims a newer one is wrong."""
        return self._gen

    def next_gen(self) -> int:
        """Return the next generation."""
        self._gen += 1
        return self._gen

    def find(self, queue: str) -> Debt | None:
        """Return the debt of a queue that was heard of."""
        return self.debts.get(queue)

    def open(self, queue: str, now: float, *, beyond: bool = False) -> Debt:
        """Return the debt of ``queue``, which may be new; ``beyond`` for queues that count against no limit here.

        Raises `BadInput` (``too_many_queues``) when the limit is reached and every known queue matters.
        """
        debt = self.debts.get(queue)
        if debt is None:
            if len(self.debts) >= self._limit and not self._forget_one() and not beyond:
                raise BadInput("too_many_queues", f"this bridge knows {self._limit} queues already, and needs them all")
            debt = self.debts[queue] = Debt(queue=queue, seats=Seats(), numbers=self._tuning.of(queue), born_at=now)
            self._clean[queue] = None
        return debt

    def forget(self, queue: str) -> None:
        """Forget a queue that is gone, if nothing is owed."""
        debt = self.debts.get(queue)
        if debt is not None and debt.forgettable:
            self.drop(queue)

    def drop(self, queue: str) -> None:
        """Forget a queue with all that is owed there; whoever comes to it later is asked to look (B10)."""
        self.debts.pop(queue, None)
        self._clean.pop(queue, None)

    def _forget_one(self) -> bool:
        # Walks over names that cannot be forgotten at most once a round: they go to the end.
        for _ in range(min(len(self._clean), 1000)):
            queue, _ = self._clean.popitem(last=False)
            debt = self.debts.get(queue)
            if debt is None:
                continue
            if debt.forgettable:
                del self.debts[queue]
                return True
            self._clean[queue] = None
        return False

    def mark(
        self, debt: Debt, now: float, reason: Reason, size: int, traceparent: str | None = None, *, foreign: bool
    ) -> None:
        """Raise the debt of a queue to a new generation (B1); never dropped, only merged (I8)."""
        debt.gen = self.next_gen()
        if not debt.dirty:
            debt.dirty = True
            debt.marked_at = now
            debt.size = 0
        debt.reason = reason
        debt.size = min(SIZE_MAX, debt.size + size)
        debt.traceparent = traceparent or debt.traceparent
        debt.foreign = debt.foreign or foreign

    def settle(self, debt: Debt) -> None:
        """Nothing is owed any more."""
        debt.dirty = False
        debt.foreign = False
        debt.size = 0
        debt.traceparent = None
        self.disown(debt)

    def disown(self, debt: Debt) -> None:
        """Nobody has taken the debt on."""
        debt.owner = None
        debt.unacked = []
        debt.asked = set()
        debt.rounds = 0
        debt.started_at = None
