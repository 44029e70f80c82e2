"""The wrong turns of docs/explanation/verification.md, planted in the real rules one at a time."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import msgspec

from queuebell.bridge.contract.cluster import Name
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import Hello, ListenerHeartbeat, More
from queuebell.bridge.core.dispatch import Dispatch
from queuebell.bridge.core.embedded_queues import CarriedBatch, EmbeddedQueues
from queuebell.bridge.core.pending_work import PendingQueues, PendingWork
from queuebell.bridge.core.sessions import Session, SessionQueue
from queuebell.bridge.core.timers import Timers
from queuebell.bridge.core.wake_scheduler import Duplicates, WakeScheduler
from queuebell.bridge.producer.publication import Publication, Sending
from queuebell.listeners.wake.controller import Controller, Receive
from queuebell.listeners.wake.pool import Place, Sharing
from queuebell.listeners.wake.table import SendEmptyReceive, SendRoom, SendStarted
from queuebell.listeners.wake.timers import DeadMan


class _Swaps(WakeScheduler):
    """The rules, with another class for one of their parts."""

    part: tuple[str, type]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        name, kind = self.part
        getattr(self, name).__class__ = kind


class BornClean(WakeScheduler):
    """V4: no re-sync after a restart; a queue never heard of is born clean (B10)."""

    def _hello(self, now: float, session: Session, frame: Hello) -> None:
        for sub in frame.queues:
            work = self.pending.open(sub.queue, now)
            if work.found_empty_at is None and not work.dirty:
                work.found_empty_at = now
        super()._hello(now, session, frame)


class CheckThenSubscribe(BornClean):
    """V1: what is triggered while nobody is subscribed is somebody else's to find (B1, B10)."""

    def trigger(self, now: float, event: CloudQueueWorkDetected, bus: str, *, redelivered: bool = False) -> None:
        work = self.pending.find(event.queue)
        if work is not None and len(work.sessions):
            super().trigger(now, event, bus, redelivered=redelivered)


class SnapshotAfter(Controller):
    """V2: the snapshot is taken, or the flag cleared, after the empty receive (L1)."""

    def _on_received(self, now: float, rid: int, *answer: Any) -> None:
        self.receives[rid] = msgspec.structs.replace(self.receives[rid], epoch=self.epoch, gen=self.gen, boot=self.boot)
        super()._on_received(now, rid, *answer)


class _Forgetful(Dispatch):
    def wake_sessions(self, work: PendingWork, now: float, excluding: Container[int] = ()) -> bool:
        handed = super().wake_sessions(work, now, excluding)
        if handed:
            self.settle(work)
        return handed


class WakeAndForget(_Swaps):
    """V3: one is woken, and the debt is forgotten (B3, B4)."""

    part = ("dispatch", _Forgetful)


class _Deaf(Dispatch):
    def request_wake(self, work: PendingWork, *arguments: Any, **more: Any) -> None:
        if work.owner is None:
            super().request_wake(work, *arguments, **more)


class DropsWhileOwned(_Swaps):
    """V6, the bridge's side: a trigger while somebody is at it is dropped (B1, I8)."""

    part = ("dispatch", _Deaf)


class DropsWhileBusy(Controller):
    """V6, the listener's side: a wake while a receive is in flight is dropped (L1, L2)."""

    def _on_wake(self, now: float, boot: str | None, gen: int, *wake: Any) -> None:
        if not self.receives:
            super()._on_wake(now, boot, gen, *wake)
        elif boot is not None:
            self._learn(now, boot, gen)
            self.receives = {
                rid: msgspec.structs.replace(receive, gen=self.gen) for rid, receive in self.receives.items()
            }


class _NoLeases(Timers):
    def arm_due(self, work: PendingWork, now: float, delay_s: float, reason: Any, size: int, **more: Any) -> None:
        if reason != "lease":
            super().arm_due(work, now, delay_s, reason, size, **more)


class NoTimerAtTheEnd(_Swaps):
    """V7: the end of a session arms no timer for what its listener may have held (B8)."""

    part = ("timers", _NoLeases)


class StartedOnReceipt(Controller):
    """V8: `started` is said when the wake arrives; what it then cannot do is its own affair (L4, L5)."""

    def _on_wake(self, now: float, boot: str | None, gen: int, *wake: Any) -> None:
        if boot is not None and not wake[2]:
            self._learn(now, boot, gen)
            self._out.append(SendStarted(boot, gen))
            if self.available <= 0:
                self._request_check("trigger")
                return
        super()._on_wake(now, boot, gen, *wake)


class AnyCover(WakeScheduler):
    """V9: a cover settles whatever is owed, whichever generation it knew (I3, B7)."""

    def _settle(self, work: PendingWork, entry: SessionQueue, now: float, gen: int) -> None:
        super()._settle(work, entry, now, max(gen, work.gen))


class HandlersInTheDrain(Controller):
    """V10: the next receive waits for the handlers of the one before (L2)."""

    def _wants_receive(self) -> bool:
        return self.free == self.capacity and super()._wants_receive()

    def _advance(self, now: float, woken: bool = False) -> None:
        if self.free == self.capacity:
            super()._advance(now, woken)


class _Trusting(Dispatch):
    def more(self, work: PendingWork, entry: SessionQueue, now: float, depth: int | None, starting: int = 0) -> None:
        if work.owner == entry.session:
            self.pending.clear_owner(work)
        self.wake_sessions(work, now)


class FullUntracked(_Swaps):
    """V11: `more` is passed on, but who said it is not barred (B6)."""

    part = ("dispatch", _Trusting)


class _Silent(Dispatch):
    def request_wake(self, work: PendingWork, now: float, reason: Any, *arguments: Any, **more: Any) -> None:
        if work.owner is None:
            super().request_wake(work, now, reason, *arguments, **more)
        else:
            size = arguments[0] if arguments else 1
            self.pending.request_wake(work, now, reason, size, foreign=more["foreign"])


class SilentWhileOwned(_Swaps):
    """V12: a mark while owned counts, and tells nobody (B3)."""

    part = ("dispatch", _Silent)


class ForgetsUnknown(Controller):
    """V13: a receive without an answer is taken for one that never was (L6)."""

    def _on_failed(self, now: float, rid: int, back_at: float | None) -> None:
        super()._on_failed(now, rid, None)


class _Early(Timers):
    def arm_due(self, work: PendingWork, now: float, delay_s: float, reason: Any, size: int, **more: Any) -> None:
        super().arm_due(work, now, max(0.0, delay_s - 0.05), reason, size, **more)


class EarlyTimers(_Swaps):
    """V14: a timer comes early, by the resolution it should be rounded up to (B2)."""

    part = ("timers", _Early)


class CoversSettleTimers(WakeScheduler):
    """V14: a cover settles what is not due yet (B2, B7)."""

    def _settle(self, work: PendingWork, entry: SessionQueue, now: float, gen: int) -> None:
        super()._settle(work, entry, now, gen)
        work.due.clear()


class _ByIdAlone(Duplicates):
    __slots__ = ()

    def is_copy(self, now: float, name: Name | None, *publish: Any) -> bool:
        return name in self._seen


class DedupesByBusinessId(_Swaps):
    """V15: what carries an id that was seen is a copy, though a producer may name two puts alike (B13, P5)."""

    part = ("_duplicates", _ByIdAlone)


class ClearsAfterAcknowledgement(Publication):
    """V16: the bit stays set while the publish is on its way, and the acknowledgement clears it (P3)."""

    def take(self, now: float) -> list[Sending]:
        batch = super().take(now)
        for sending in batch:
            self._queues[sending.event.queue].add(None, sending.event.payload_size, sending.event.id, sending.event)
        return batch

    def sent(self, batch: Sequence[Sending]) -> None:
        for sending in batch:
            self._queues[sending.event.queue].pending.pop(None, None)
        super().sent(batch)

    def failed(self, batch: Sequence[Sending], now: float, draw: Callable[[], float]) -> float:
        for sending in batch:
            self._queues[sending.event.queue].pending.pop(None, None)
        return super().failed(batch, now, draw)


class Inherits(WakeScheduler):
    """V17: the `started` of an instance counts for the next one of the same name (S1, B8)."""

    def _hello(self, now: float, session: Session, frame: Hello) -> None:
        before = next((s for s in self.sessions.named() if s.listener == frame.listener and s is not session), None)
        owned: dict[str, float] = {}
        if before is not None:
            for queue in before.queues:
                work = self.pending.by_queue[queue]
                if work.owner == before.id and work.started_at is not None:
                    owned[queue] = work.started_at
            self._close(now, before, "replaced")
        super()._hello(now, session, frame)
        for queue, started_at in owned.items():
            work = self.pending.by_queue[queue]
            work.owner, work.unacked, work.started_at = session.id, (), started_at
            self.agenda.clear(("start", queue))
            session.unsent.pop(queue, None)
            session.queues[queue].slot = None


class SharedReceive(Controller):
    """V18: a receive that is in flight already answers the wake (L2)."""

    def _on_wake(self, now: float, boot: str | None, gen: int, *wake: Any) -> None:
        if not self.receives or boot is None:
            super()._on_wake(now, boot, gen, *wake)
            return
        self._learn(now, boot, gen)
        self._request_check("trigger")
        self.receives = {
            rid: msgspec.structs.replace(receive, epoch=self.epoch, gen=self.gen, boot=self.boot)
            for rid, receive in self.receives.items()
        }
        self._out.append(SendStarted(boot, gen))


class _PerQueue(PendingQueues):
    def request_wake(self, work: PendingWork, *arguments: Any, **more: Any) -> None:
        before = work.gen
        super().request_wake(work, *arguments, **more)
        work.gen = before + 1


class GenPerQueue(_Swaps):
    """V19: each queue counts its own generations, from 0 again when it is forgotten and met anew (B1)."""

    part = ("pending", _PerQueue)


class _Flat(EmbeddedQueues):
    def on_commit(self, now: float, queue: str, *, rose: bool, **more: Any) -> None:
        super().on_commit(now, queue, rose=False, **more)


class RiseUnreported(_Swaps):
    """O1: empty and filled again within a commit is no newer generation."""

    part = ("embedded", _Flat)


class _Hoards(EmbeddedQueues):
    def _release(self, batch: CarriedBatch) -> None:
        pass


class NeverReclaims(_Swaps):
    """O7: what was carried to nobody is left to its lease of A, and counts as an attempt."""

    part = ("embedded", _Hoards)


class _Patient(Dispatch):
    def expect_start(self, work: PendingWork, now: float) -> None:
        work.unacked = ((work.gen, now),)
        self.agenda.set(("start", work.queue), now + self.periods.start_ack_s)


class RestartsA(_Swaps):
    """B4: every mark restarts A, so that an owner that hangs keeps its debt while triggers come."""

    part = ("dispatch", _Patient)


class SaysMoreOnce(Controller):
    """L5: a failure after another says nothing, though the first `more` may be lost."""

    def _send_more(self, again: bool = False) -> None:
        super()._send_more(again and not self.timers.retry)


class MarksForEvery(WakeScheduler):
    """I2: every `more` is taken for news, also that of a wake that met no slot."""

    def _report(self, now: float, session: Session, frame: Any) -> None:
        if isinstance(frame, More):
            frame = msgspec.structs.replace(frame, unannounced=True)
        super()._report(now, session, frame)


class MarksForNone(WakeScheduler):
    """L7: a `more` for a release, or for a lease of nobody that ended, is taken for one that a wake asked for."""

    def _report(self, now: float, session: Session, frame: Any) -> None:
        if isinstance(frame, More):
            frame = msgspec.structs.replace(frame, unannounced=False)
        super()._report(now, session, frame)


class _Keeps(Dispatch):
    beating = False

    def more(self, *arguments: Any) -> None:
        if not self.beating:
            super().more(*arguments)


class KeepsTheFullOwner(_Swaps):
    """S2: a heartbeat that tells no room, and no receive, bars its sender and leaves it the debt."""

    part = ("dispatch", _Keeps)

    def _heartbeat(self, now: float, session: Session, frame: ListenerHeartbeat) -> None:
        self.dispatch.beating = True  # type: ignore[attr-defined]
        super()._heartbeat(now, session, frame)
        self.dispatch.beating = False  # type: ignore[attr-defined]


class StaysBarred(WakeScheduler):
    """B5: a barred session whose cover was lost stays barred, although its heartbeats show that it is idle."""

    def _heartbeat(self, now: float, session: Session, frame: ListenerHeartbeat) -> None:
        barred = [
            queue
            for queue, entry in session.queues.items()
            if entry.stuck and queue in frame.queues and frame.queues[queue].receiving_ms is None
        ]
        super()._heartbeat(now, session, frame)
        for queue in barred:
            entry = session.queues[queue]
            entry.stuck = True
            self.pending.by_queue[queue].sessions.refresh(entry)


class BornEmptyHanded(WakeScheduler):
    """B8: a session is born as if its listener held nothing, although the bridge may have restarted."""

    def _hello(self, now: float, session: Session, frame: Hello) -> None:
        super()._hello(now, session, frame)
        for entry in session.queues.values():
            entry.may_hold_leases = False


class BelievesACrossedHeartbeat(WakeScheduler):
    """B8: an idle heartbeat of a known generation proves that nothing is held, although a wake may have crossed it."""

    def _heartbeat(self, now: float, session: Session, frame: ListenerHeartbeat) -> None:
        super()._heartbeat(now, session, frame)
        for queue, beat in frame.queues.items():
            entry = session.queues[queue]
            if beat.free == entry.capacity and not entry.leases and (beat.gen or 0) >= entry.woken_gen:
                entry.may_hold_leases = False


class _Attempts(Timers):
    def arm_sweep(self, work: PendingWork, now: float) -> None:
        if ("sweep", work.queue) not in self._d.agenda:
            super().arm_sweep(work, now)

    def sweep(self, work: PendingWork, now: float) -> None:
        period_s = self._d.periods.sweep_s
        if work.found_empty_at is None or now - work.found_empty_at >= period_s:
            super().sweep(work, now)
        self._d.agenda.set(("sweep", work.queue), now + period_s)


class SweepsFromTheAttempt(_Swaps):
    """The sweep's next turn counts from its last attempt: a receive that takes time makes it skip every other (B9)."""

    part = ("timers", _Attempts)


class BelievesTheNewestNews(DeadMan):
    """What a heartbeat says of coverage counts even if something newer was known: a deadline moves back (L10)."""

    __slots__ = ()

    def on_empty_receive(self, at: float) -> None:
        self.deadline = at + self.t_dead + self.spread * self._share


class FlagCleared(Controller):
    """V2, the other half: an empty answer clears whatever is owed (L1)."""

    def _on_received(self, now: float, rid: int, n: int, *answer: Any) -> None:
        super()._on_received(now, rid, n, *answer)
        if n == 0:
            self.covered = self.epoch


class CoverWithoutSnapshot(Controller):
    """V9, the listener's side: a cover names the newest generation and not the one its receive knew of (L1)."""

    def _settle_checks(self, now: float, receive: Receive, next_visible: float | None) -> None:
        self.covered = max(self.covered, receive.epoch)
        if self.boot is not None:
            self._out.append(SendEmptyReceive(self.boot, self.gen, 0.0, None))


class ForgetsAfterErrors(Controller):
    """L11: a failed receive is not tried again."""

    def _on_failed(self, now: float, rid: int, back_at: float | None) -> None:
        super()._on_failed(now, rid, back_at)
        if not self.receives:
            self.covered = self.epoch
            self.timers.cancel()


class ForgetsToSayMore(Controller):
    """L5: woken without room, it says nothing."""

    def _send_more(self, again: bool = False) -> None:
        pass


class ForgetsToSayRoom(Controller):
    """L5: room is not said again (V11 from the other side)."""

    def _advance(self, now: float, woken: bool = False) -> None:
        super()._advance(now, woken)
        self._out = [command for command in self._out if not isinstance(command, SendRoom)]


class OneEmptyIsEnough(Controller):
    """L8: an incomplete store is taken at its first word."""

    def _on_received(self, now: float, rid: int, n: int, visible: Any, then: Any, complete: bool, *rest: Any) -> None:
        super()._on_received(now, rid, n, visible, then, True, *rest)


class BlockedIsEmpty(Controller):
    """L8: an answer that a limit kept short is taken for one that shows everything."""

    def _on_received(self, now: float, rid: int, *answer: Any) -> None:
        super()._on_received(now, rid, *answer[:-1], False)


class KeepsRoomToItself(Controller):
    """L5: the bridge was told that there is no room, and is not told when another queue's handler makes some."""

    def wants(self) -> int:
        return super().wants() if self.pending else 0


class OwesAndDoesNotAsk(Controller):
    """L2: a look is owed and met no slot of the pool, and nobody asks for one."""

    def wants(self) -> int:
        return 0 if self.pending else super().wants()


class WaitsForHandlers(Controller):
    """L5: a queue keeps quiet for its turn although handlers have the slots, which may take for ever."""

    @property
    def next_in_turn(self) -> bool:
        return self.place is not None and self.available <= 0


class GrantsTwice(Sharing):
    """A queue is granted what others use."""

    def grant(self, entry: Place, receiving: int) -> int:
        return max(0, entry.capacity - entry.running - receiving)
