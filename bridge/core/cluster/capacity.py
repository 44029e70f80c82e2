"""Report, queue by queue, the workers this bridge could wake: changes soon, and everything to a newcomer (C3)."""

from __future__ import annotations

import math
from typing import Final

from queuebell.bridge.contract.cluster import QUEUES_MAX, Ability, Able
from queuebell.bridge.core.cluster.members import Members
from queuebell.bridge.core.dispatch import Dispatch, Timer

REPORT_EVERY_S: Final = 0.1
"""Minimum time between two reports of one queue."""
FULL_FOR_S: Final = 0.02
"""A session that is full during a receive soon has room again; only a longer shortage is reported."""
CAPACITY: Final[Timer] = ("capacity", 0)


class CapacityReports:
    """Track which workers the peers believe this bridge has, and which changes to report."""

    def __init__(self, dispatch: Dispatch, members: Members) -> None:
        self.changed: set[str] = set()
        """Queues that changed since the last report; PendingQueues adds to it."""
        dispatch.pending.changed = self.changed
        self._d = dispatch
        self._members = members
        self.reported: dict[str, Ability] = {}
        self.reported_at: dict[str, float] = {}
        self.full_since: dict[str, float] = {}
        """Queues without room here that the peers believe to have some."""
        self._held: set[str] = set()
        """Queues whose change must be reported later."""

    def due(self) -> None:
        """Release the queues whose report had to wait."""
        self.changed |= self._held
        self._held.clear()

    def changes(self, now: float) -> list[Able]:
        """Return the reports that are due now; the timer handles the rest."""
        queues = sorted(self.changed)
        self.changed.clear()
        found: dict[str, Ability | None] = {}
        for queue in queues:
            ability = self._ability(queue)
            if self.reported.get(queue) == ability:
                self.full_since.pop(queue, None)
                continue
            due_at = self._may_report_at(queue, ability, now)
            if now < due_at:
                self._held.add(queue)
                self._d.agenda.set_earlier(CAPACITY, due_at)
                continue
            self._report(found, queue, ability, now)
        return self._messages(found)

    def all(self, now: float, *, asks: bool) -> list[Able]:
        """Return reports of all queues; ``asks`` requests the same from the peers."""
        self._d.agenda.clear(CAPACITY)
        self.reported.clear()
        self.changed.clear()
        self._held.clear()
        found: dict[str, Ability | None] = {}
        for queue in sorted(work.queue for work in self._d.pending.by_queue.values() if len(work.sessions)):
            self._report(found, queue, self._ability(queue), now)
        return self._messages(found, whole=True, asks=asks)

    def _report(self, found: dict[str, Ability | None], queue: str, ability: Ability | None, now: float) -> None:
        self.full_since.pop(queue, None)
        found[queue] = ability
        if ability is None:
            self.reported.pop(queue, None)
            self.reported_at.pop(queue, None)
        else:
            self.reported[queue], self.reported_at[queue] = ability, now

    def _messages(self, found: dict[str, Ability | None], *, whole: bool = False, asks: bool = False) -> list[Able]:
        items, messages = list(found.items()), []
        for at in range(0, len(items) or whole, QUEUES_MAX):
            begins = whole and not at
            part = dict(items[at : at + QUEUES_MAX])
            messages.append(
                Able(boot=self._d.boot, seq=self._members.seq, queues=part, whole=begins, asks=begins and asks)
            )
        return messages

    def _may_report_at(self, queue: str, ability: Ability | None, now: float) -> float:
        """Return the earliest time at which a change may be reported."""
        due_at, previous = self.reported_at.get(queue, -math.inf) + REPORT_EVERY_S, self.reported.get(queue)
        if previous is not None and previous.room and ability is not None and not ability.room:
            return max(due_at, self.full_since.setdefault(queue, now) + FULL_FOR_S)
        self.full_since.pop(queue, None)
        return due_at

    def _ability(self, queue: str) -> Ability | None:
        work = self._d.pending.find(queue)
        if work is None or not len(work.sessions):
            return None
        longest = max(entry.visibility_s for entry in work.sessions)
        # Z5: a bridge that must start a worker first comes after all that have one with room.
        ready = work.sessions.any_worker_ready
        return Ability(ready, round(longest * 1000), work.sessions.store, not ready and work.sessions.any_starter)
