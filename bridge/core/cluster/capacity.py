"""What a bridge reports of the workers it could wake, queue by queue: each change soon, and all to a newcomer (C3)."""

from __future__ import annotations

import math
from typing import Final

from bridge.contract.cluster import QUEUES_MAX, Ability, Able
from bridge.core.cluster.members import Members
from bridge.core.dispatch import Dispatch, Timer

SAY_EVERY_S: Final = 0.1
"""Nothing is reported more often of one queue."""
FULL_FOR_S: Final = 0.02
"""A session that is full while a receive is under way has room again in a moment; only what lasts is reported."""
ABLE: Final[Timer] = ("able", 0)


class CapacityReports:
    """Which queues the others believe this bridge has workers for, and which changes are still to be reported."""

    def __init__(self, dispatch: Dispatch, members: Members) -> None:
        self.stirred: set[str] = set()
        """Queues that changed since the last report; the ledger adds to it."""
        dispatch.pending.stirred = self.stirred
        self._d = dispatch
        self._members = members
        self.reported: dict[str, Ability] = {}
        self._reported_at: dict[str, float] = {}
        self._full_since: dict[str, float] = {}
        """Queues without room here of which the others believe otherwise."""
        self._held: set[str] = set()
        """Queues whose change may be reported only later."""

    def due(self) -> None:
        """Take the queues whose report had to wait."""
        self.stirred |= self._held
        self._held.clear()

    def changes(self, now: float) -> list[Able]:
        """Return the reports that are due now; others wait for the timer."""
        queues = sorted(self.stirred)
        self.stirred.clear()
        found: dict[str, Ability | None] = {}
        for queue in queues:
            ability = self._ability(queue)
            if self.reported.get(queue) == ability:
                self._full_since.pop(queue, None)
                continue
            may = self._may_report_at(queue, ability, now)
            if now < may:
                self._held.add(queue)
                self._d.agenda.set_earlier(ABLE, may)
                continue
            self._report(found, queue, ability, now)
        return self._words(found)

    def all(self, now: float, *, asks: bool) -> list[Able]:
        """Return reports of all queues at once; ``asks`` requests the same of the others."""
        self._d.agenda.clear(ABLE)
        self.reported.clear()
        self.stirred.clear()
        self._held.clear()
        found: dict[str, Ability | None] = {}
        for queue in sorted(work.queue for work in self._d.pending.by_queue.values() if len(work.sessions)):
            self._report(found, queue, self._ability(queue), now)
        return self._words(found, whole=True, asks=asks)

    def _report(self, found: dict[str, Ability | None], queue: str, ability: Ability | None, now: float) -> None:
        self._full_since.pop(queue, None)
        found[queue] = ability
        if ability is None:
            self.reported.pop(queue, None)
            self._reported_at.pop(queue, None)
        else:
            self.reported[queue], self._reported_at[queue] = ability, now

    def _words(self, found: dict[str, Ability | None], *, whole: bool = False, asks: bool = False) -> list[Able]:
        items, words = list(found.items()), []
        for at in range(0, len(items) or whole, QUEUES_MAX):
            begins = whole and not at
            part = dict(items[at : at + QUEUES_MAX])
            words.append(
                Able(boot=self._d.boot, seq=self._members.seq, queues=part, whole=begins, asks=begins and asks)
            )
        return words

    def _may_report_at(self, queue: str, ability: Ability | None, now: float) -> float:
        """Return from when on a change may be reported."""
        may, before = self._reported_at.get(queue, -math.inf) + SAY_EVERY_S, self.reported.get(queue)
        if before is not None and before.room and ability is not None and not ability.room:
            return max(may, self._full_since.setdefault(queue, now) + FULL_FOR_S)
        self._full_since.pop(queue, None)
        return may

    def _ability(self, queue: str) -> Ability | None:
        work = self._d.pending.find(queue)
        if work is None or not len(work.sessions):
            return None
        longest = max(entry.visibility_s for entry in work.sessions)
        # Z5: a bridge that would have to start a worker comes after all that have one with room.
        ready = work.sessions.any_worker_ready
        return Ability(ready, round(longest * 1000), work.sessions.store, not ready and work.sessions.any_starter)
