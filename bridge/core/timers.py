"""Request wakes by time: due times, gaps, sweeps of queues in external stores, and rounds (B2, B9, B17)."""

from __future__ import annotations

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.wire import Reason
from queuebell.bridge.core.agenda import DueTimes
from queuebell.bridge.core.dispatch import Dispatch
from queuebell.bridge.core.embedded_queues import EmbeddedQueues
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.round import SWEEP_JITTER, Round
from queuebell.bridge.observe.facts import ActedLate

GAP_SPREAD_S = 10.0
SHIFT_MARGIN_S = 0.1


class Timers:
    """Apply the rules of due times, gaps and sweeps on top of Dispatch."""

    def __init__(self, dispatch: Dispatch, own: EmbeddedQueues) -> None:
        self._d = dispatch
        self._own = own
        self.rounds: list[Round] = []

    def is_embedded(self, work: PendingWork) -> bool:
        """Return whether a queue is the bridge's own, so that it needs no sweep (O5)."""
        return self._own.is_embedded(work)

    def gap(self, now: float) -> int:
        """Check every queue in an external store once after triggers may have been missed, spread over 10 s at most.

        This includes queues that never used the affected bus: the lost trigger may be their first. Return how many.
        """
        checked = 0
        for work in self._d.pending.by_queue.values():
            if self._own.is_embedded(work) and not work.sessions.any_foreign:
                continue
            checked += 1
            if checked == 1:
                # The first check need not wait: with one queue there is nothing to spread.
                self._d.request_wake(work, now, "resync", foreign=True, shared=True)
            else:
                period = work.numbers.sweep_s
                spread = min(period / 4 if period else GAP_SPREAD_S, GAP_SPREAD_S)
                self.arm_due(work, now, spread * self._d.draw(), "resync", 1, shared=True)
        return checked

    def suspended(self, now: float, gap_s: float) -> int:
        """Handle a suspend in which the clock stopped for ``gap_s`` (B15); return how many queues are checked.

        External stores, their leases and delays continued meanwhile. The embedded store's clock stopped too (O2). So
        known times are older, due times are nearer, and every queue in an external store is checked.
        """
        # Never early: a gap measured from two clocks is less exact than a due time.
        nearer = max(0.0, gap_s - SHIFT_MARGIN_S)
        for each in self.rounds:
            each.suspended(now)
        for work in self._d.pending.by_queue.values():
            if work.found_empty_at is not None:
                # Otherwise listeners would be sent too recent an empty receive and check too late (L10).
                work.found_empty_at -= gap_s
            work.born_at -= gap_s
            work.visible_since -= gap_s
            if work.counted is not None:
                work.counted = work.counted.older(gap_s)
            if self._own.is_embedded(work) and not work.sessions.any_foreign:
                continue
            for times in (*work.due.values(), *work.due_to_all.values()):
                times.bring_nearer(nearer)
                when = times.next()
                if when is not None:
                    self._d.agenda.set_earlier(("due", work.queue), max(when, now))
            for entry in work.sessions:
                entry.leases = [end - nearer for end in entry.leases]
        return self.gap(now)

    def arm_due(
        self, work: PendingWork, now: float, delay_s: float, reason: Reason, size: int, *, shared: bool = False
    ) -> None:
        """Keep a due time that requests a wake when it comes; no empty receive settles it before.

        ``shared``: other bridges keep it too, so they check in turn (C2).
        """
        kept = work.due_to_all if shared else work.due
        times = kept.get(reason)
        if times is None:
            times = DueTimes()
            # Replaced and not changed: queues without due times share an empty one.
            if shared:
                work.due_to_all = {**kept, reason: times}
            else:
                work.due = {**kept, reason: times}
        times.add(now, delay_s, size=size)
        when = times.next()
        if when is not None:
            self._d.agenda.set_earlier(("due", work.queue), when)

    def due(self, work: PendingWork, now: float) -> None:
        """Request wakes for what is due now."""
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
        """Schedule the next sweep from the last empty receive (B9); embedded queues need none (O5)."""
        period = work.numbers.sweep_s
        if period <= 0 or self._own.is_embedded(work) or not work.sessions:
            self._d.agenda.clear(("sweep", work.queue))
            return
        due = next_sweep(self._swept_from(work), period, self._d.draw)
        self._d.agenda.set(("sweep", work.queue), max(due, now))

    def found_empty_at(self, work: PendingWork) -> float | None:
        """Return when the newest receive began that found the queue empty, or the newest round that did (B17)."""
        times = [work.found_empty_at, None if work.round is None else work.round.found_empty_at(work.queue, work.place)]
        return max((at for at in times if at is not None), default=None)

    def _swept_from(self, work: PendingWork) -> float:
        empty_at = self.found_empty_at(work)
        return work.born_at if empty_at is None else max(empty_at, work.born_at)

    def on_hello(self, work: PendingWork, now: float, store: str | None) -> None:
        """Note which round a queue belongs to; all its listeners use the same store (B11)."""
        if store is not None and self.rounds:
            work.round = next((each for each in self.rounds if each.is_of(work.queue, store)), None)
            self._want_round(work, now)

    def _want_round(self, work: PendingWork, now: float) -> None:
        if work.round is not None:
            work.round.wanted_at = now

    def round_found(self, work: PendingWork, now: float, began: float) -> None:
        """Check a queue in which a round found a message that nobody announced (B17)."""
        newer = work.found_empty_at is not None and work.found_empty_at >= began
        if not (newer or work.dirty or self._own.is_embedded(work)) and work.sessions and work.numbers.sweep_s > 0:
            shared = work.round is not None and work.round.told
            self._d.request_wake(work, now, "sweep", foreign=True, shared=shared)

    def sweep(self, work: PendingWork, now: float) -> None:
        """Check a queue that had no recent receive; being overdue requests no further wakes (B9)."""
        if self._own.is_embedded(work) or not work.sessions:
            return
        self._want_round(work, now)
        empty_at = None if work.round is None else work.round.found_empty_at(work.queue, work.place)
        if empty_at is not None:
            # Unless another round follows.
            later = empty_at + work.numbers.sweep_s * (1 + SWEEP_JITTER * self._d.draw())
            if later > now:
                self._d.agenda.set(("sweep", work.queue), later)
                return
        if not work.dirty:
            delay_s = self._d.coordinator.sweep_delay_s(work, now)
            due_at = latest_sweep(self._swept_from(work), work.numbers.sweep_s) + delay_s
            if delay_s and now < due_at:
                # C5: wait before the wake request. Only a check that began after a request settles it, so two sweeps
                # that meet would cost two checks.
                self._d.agenda.set(("sweep", work.queue), due_at)
                return
            if delay_s:
                self._d.emit(ActedLate(work.queue))
            self._d.request_wake(work, now, "sweep", foreign=True)
        elif work.owner is not None:
            # Overdue by A already without an empty receive: skip the owner and wake the next session (B9).
            owner = work.owner
            self._d.release_owner(work, owner)
            if not self._d.wake_sessions(work, now, excluding=(owner,)):
                self._d.wake_sessions(work, now)
        self._d.agenda.set(("sweep", work.queue), now + max(work.numbers.start_ack_s, work.numbers.sweep_s / 4))


def next_sweep(found_empty_at: float, period_s: float, draw: Draw) -> float:
    """Return when the next sweep of a queue is due, counted from its last empty receive.

    Counted from its own attempt, a sweep would drift to gaps of two periods whenever its receive takes time, and would
    trigger dead-man timers. The jitter of 10 % spreads the queues.
    """
    return found_empty_at + period_s * (1 - SWEEP_JITTER + 2 * SWEEP_JITTER * draw())


def latest_sweep(found_empty_at: float, period_s: float) -> float:
    """Return the latest time at which the sweep is due; bridges later in the order wait for it (C5)."""
    return found_empty_at + period_s * (1 + SWEEP_JITTER)
