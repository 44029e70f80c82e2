"""Marks that time makes: due times, gaps and sweeps of queues that live elsewhere (B2, B9)."""

from __future__ import annotations

from bridge.contract.backoff import Draw
from bridge.contract.wire import Reason
from bridge.core.agenda import DueTimes
from bridge.core.dispatch import Dispatch
from bridge.core.embedded_queues import EmbeddedQueues
from bridge.core.pending_work import PendingWork
from bridge.observe.facts import ActedLate

GAP_SPREAD_S = 10.0
SHIFT_MARGIN_S = 0.1


class Timers:
    """What becomes due without anybody saying so, on the common ground of dispatch."""

    def __init__(self, dispatch: Dispatch, own: EmbeddedQueues) -> None:
        self._d = dispatch
        self._own = own

    def gap(self, now: float) -> int:
        """Triggers may have been missed: every queue that lives elsewhere gets one look, spread over some seconds.

        Also those that never came by the bus that missed some: what it lost may be their first. Returns how many.
        """
        marked = 0
        for work in self._d.pending.by_queue.values():
            if self._own.is_embedded(work) and not work.sessions.any_foreign:
                continue
            marked += 1
            if marked == 1:
                # The first look need not wait for anybody: with one queue there is nothing to spread.
                self._d.request_wake(work, now, "resync", foreign=True, shared=True)
            else:
                period = work.numbers.sweep_s
                spread = min(period / 4 if period else GAP_SPREAD_S, GAP_SPREAD_S)
                self.arm_due(work, now, spread * self._d.draw(), "resync", 1, shared=True)
        return marked

    def suspended(self, now: float, gap_s: float) -> int:
        """The clock stood still for ``gap_s`` (B15): what was known is older, what was due is nearer, all is looked at.

        Stores elsewhere, their leases and their delays went on meanwhile; the own store's clock stood still as well
        (O2). Returns how many queues are looked at.
        """
        # Never early: what was read of two clocks is less exact than a due time.
        nearer = max(0.0, gap_s - SHIFT_MARGIN_S)
        for work in self._d.pending.by_queue.values():
            if work.found_empty_at is not None:
                # Else listeners would hear of a coverage younger than it is, and put off their own looks (L10).
                work.found_empty_at -= gap_s
            work.born_at -= gap_s
            work.visible_since -= gap_s
            if work.counted is not None:
                work.counted = work.counted.older(gap_s)
            if self._own.is_embedded(work) and not work.sessions.any_foreign:
                continue
            for times in (*work.due.values(), *work.due_to_all.values()):
                times.nearer(nearer)
                when = times.next()
                if when is not None:
                    self._d.agenda.set_earlier(("due", work.queue), max(when, now))
            for entry in work.sessions:
                entry.leases = [end - nearer for end in entry.leases]
        return self.gap(now)

    def arm_due(
        self, work: PendingWork, now: float, delay_s: float, reason: Reason, size: int, *, shared: bool = False
    ) -> None:
        """Keep a due time; it becomes a mark when it comes, and no cover settles it before.

        ``shared`` where other bridges keep it as well, so that they look in turn (C2).
        """
        kept = work.due_to_all if shared else work.due
        times = kept.get(reason)
        if times is None:
            times = DueTimes()
            # Not changed: queues without due times share one that is empty.
            if shared:
                work.due_to_all = {**kept, reason: times}
            else:
                work.due = {**kept, reason: times}
        times.add(now, delay_s, size=size)
        when = times.next()
        if when is not None:
            self._d.agenda.set_earlier(("due", work.queue), when)

    def due(self, work: PendingWork, now: float) -> None:
        """Mark what is due now."""
        for kept, shared in ((work.due, False), (work.due_to_all, True)):
            for reason, times in list(kept.items()):
                size = times.pop_due(now)
                if size:
                    self._d.request_wake(work, now, reason, size, foreign=True, shared=shared)
                when = times.next()
                if when is None:
                    del kept[reason]
                else:
                    self._d.agenda.set_earlier(("due", work.queue), when)

    def arm_sweep(self, work: PendingWork, now: float) -> None:
        """Set the next sweep from the last cover (B9); own queues need none (O5)."""
        period = work.numbers.sweep_s
        if period <= 0 or self._own.is_embedded(work) or not work.sessions:
            self._d.agenda.clear(("sweep", work.queue))
            return
        due = next_sweep(self._swept_from(work), period, self._d.draw)
        self._d.agenda.set(("sweep", work.queue), max(due, now))

    @staticmethod
    def _swept_from(work: PendingWork) -> float:
        return work.born_at if work.found_empty_at is None else max(work.found_empty_at, work.born_at)

    def sweep(self, work: PendingWork, now: float) -> None:
        """Look at a queue that nobody asked about; overdue is a level, not a new mark each time (B9)."""
        if self._own.is_embedded(work) or not work.sessions:
            return
        if not work.dirty:
            behind = self._d.coordinator.sweep_delay_s(work, now)
            turn = latest_sweep(self._swept_from(work), work.numbers.sweep_s) + behind
            if behind and now < turn:
                # C5: it waits before its mark. Once made, a mark is only forgiven for a look that began after it, and
                # two sweeps that meet would be two looks.
                self._d.agenda.set(("sweep", work.queue), turn)
                return
            if behind:
                self._d.emit(ActedLate(work.queue))
            self._d.request_wake(work, now, "sweep", foreign=True)
        elif work.owner is not None:
            # Overdue by A already and still not covered: past the owner, to the next (B9).
            owner = work.owner
            self._d.release_owner(work, owner)
            if not self._d.wake_sessions(work, now, besides=(owner,)):
                self._d.wake_sessions(work, now)
        self._d.agenda.set(("sweep", work.queue), now + max(work.numbers.start_ack_s, work.numbers.sweep_s / 4))


JITTER = 0.1


def next_sweep(covered_at: float, period_s: float, draw: Draw) -> float:
    """Return when the next sweep of a queue is due, counted from its last cover.

    Counted from the cover and never from the attempt: a sweep scheduled from its own attempt drifts to gaps of two
    periods whenever its receive takes time, and wakes dead-man timers. The jitter of 10 % keeps queues apart.
    """
    return covered_at + period_s * (1 - JITTER + 2 * JITTER * draw())


def latest_sweep(covered_at: float, period_s: float) -> float:
    """Return by when the sweep is due, however it was drawn: whoever is not first in turn waits for that (C5)."""
    return covered_at + period_s * (1 + JITTER)
