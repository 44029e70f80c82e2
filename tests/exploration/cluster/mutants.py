"""The wrong turns of several bridges, planted in the real rules one at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from queuebell.bridge.contract.cluster import Covered, Member, Name
from queuebell.bridge.core.cluster import coordinator
from queuebell.bridge.core.cluster.coordinator import Coordinator, _Queue
from queuebell.bridge.core.cluster.members import Members, Peer, rank
from queuebell.bridge.core.cluster.wake_requests import RESOLUTION_S, WakeRequests
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.timers import Timers
from queuebell.bridge.core.wake_scheduler import WakeScheduler


class _Planted(Coordinator):
    """Turns with other marks, or other members."""

    marks: type[WakeRequests] = WakeRequests
    kind: type[Members] = Members

    def __init__(self, *arguments: Any, **about: Any) -> None:
        super().__init__(*arguments, **about)
        self.members = self.kind(self.members.boot)

    def _queue(self, queue: str) -> _Queue:
        kept = self.queues.get(queue)
        if kept is None:
            kept = self.queues[queue] = _Queue(self.marks())
        return kept


class ForgivesByArrival(Coordinator):
    """W1: what was marked before a `covered` came is forgiven."""

    def _settle_by_peer(self, now: float, work: PendingWork, word: Covered, proven: float | None) -> None:
        covered_at = work.found_empty_at
        super()._settle_by_peer(now, work, word, self.at(now))
        work.found_empty_at = covered_at


class _Remembers(Members):
    def missed_messages(self) -> None:
        kept = dict(self._sent)
        super().missed_messages()
        self._sent.update(kept)


class StandsStill(_Planted):
    """W2: moments are told by a clock that stands still in a sleep, and those from before it count."""

    kind = _Remembers

    def at(self, now: float) -> float:
        return now


class SleepsThrough(Coordinator):
    """W2, its first half: moments are told by a clock that stands still in a sleep."""

    def at(self, now: float) -> float:
        return now


class Remembers(_Planted):
    """W2, its second half: numbers from before a sleep count."""

    kind = _Remembers


class _One(WakeRequests):
    def settle_by_name(self, name: Name) -> bool:
        if name not in self.named:
            return False
        self.settle()
        return True


class ForgivesTheDebt(_Planted):
    """W3: a debt is forgiven when one of its marks was named."""

    marks = _One


class ForgivesTimers(Coordinator):
    """W4: timers are forgiven with the marks."""

    def _settle_by_peer(self, now: float, work: PendingWork, word: Covered, proven: float | None) -> None:
        dirty = work.dirty
        super()._settle_by_peer(now, work, word, proven)
        if dirty and not work.dirty:
            work.due.clear()
            work.due_to_all.clear()
            self._d.agenda.clear(("due", work.queue))


class PushesOut(Coordinator):
    """W5: a new mark pushes the deferral out."""

    def on_wake_request(self, work: PendingWork, now: float, name: Name | None, *, shared: bool, fresh: bool) -> None:
        super().on_wake_request(work, now, name, shared=shared, fresh=fresh)
        if work.deferred:
            self._d.agenda.set(("turn", work.queue), now + self.waits_s(work, 1))


class CoversFromArrival(Coordinator):
    """W6: a peer's cover counts for the sweep from its arrival."""

    def _settle_by_peer(self, now: float, work: PendingWork, word: Covered, proven: float | None) -> None:
        super()._settle_by_peer(now, work, word, proven)
        work.found_empty_at = now
        self._timers.arm_sweep(work, now)


class _Unmoved(Members):
    def on_member(self, now: float, word: Member) -> bool:
        return super().on_member(now, msgspec.structs.replace(word, leaving=False))


class OrdersWhoLeaves(_Planted):
    """W7: members that leave stay in the order."""

    kind = _Unmoved


class _Trusting(Members):
    def bridges_ahead(self, queue: str, now: float, *store: Any, ready: bool = True, **starts: bool) -> int:
        if self.alone(now):
            return 0
        mine = rank(queue, self.boot) if ready and not self.leaving else -1
        unknown = sum(
            rank(queue, peer.boot) > mine
            for peer in self.peers.values()
            if queue not in peer.abilities and not peer.member.leaving
        )
        return super().bridges_ahead(queue, now, *store, ready=ready, **starts) + unknown


class TakesUnknownForAble(_Planted):
    """W8: a member that said nothing of a queue is taken for able."""

    kind = _Trusting


class _Shrugs(WakeRequests):
    def add(self, now: float, gen: int, name: Name | None) -> None:
        if name is not None and name not in self.named and len(self.named) >= coordinator.NAMES_MAX:
            self.names.append((name, gen))
            return
        super().add(now, gen, name)


class ForgetsWhatDidNotFit(_Planted):
    """W11: marks whose ids did not fit are taken for forgiven."""

    marks = _Shrugs


class _Generous(WakeRequests):
    def take_settled_names(self, gen: int) -> list[Name]:
        return super().take_settled_names(10**9)


class NoLook(_Planted):
    """Without the look of C5 for a member that went, which would turn losses into waits."""

    def _lost(self, now: float, peer: Peer) -> None:
        peer.member = msgspec.structs.replace(peer.member, leaving=True, told=True)
        super()._lost(now, peer)


class NamesWhatCameAfter(NoLook):
    """W12: ids are told of marks that came after the receive began."""

    marks = _Generous


class BeganWhenItCame(Coordinator):
    """W13: a receive is taken to have begun when its cover came."""

    def on_empty_receive(self, work: PendingWork, now: float, gen: int, after_s: float, *rest: Any) -> None:
        learned = self._queue(work.queue).requests.known_since(gen)
        late = 0.0 if learned is None else self.at(now) - learned
        super().on_empty_receive(work, now, gen, late, *rest)


class _AnyStore(Members):
    def bridges_ahead(self, queue: str, now: float, store: str | None = None, **how: bool) -> int:
        return super().bridges_ahead(queue, now, None, **how)


class MixesStores(_Planted):
    """W14: stores of two bridges are not compared."""

    kind = _AnyStore

    def _on_peer_empty_receive(self, now: float, word: Covered) -> None:
        super()._on_peer_empty_receive(now, msgspec.structs.replace(word, store=None))


class NamesTheDue(Coordinator):
    """W15: a due mark has the name of its immediate twin."""

    def on_wake_request(self, work: PendingWork, now: float, name: Name | None, *, shared: bool, fresh: bool) -> None:
        if work.reason == "due":
            name = ("producer", "0")
        super().on_wake_request(work, now, name, shared=shared, fresh=fresh)


class TellsWhenSettled(Coordinator):
    """W16: `covered` is told where the newest generation is covered alone."""

    def on_empty_receive(self, work: PendingWork, now: float, gen: int, *rest: Any) -> None:
        if gen >= work.gen:
            super().on_empty_receive(work, now, gen, *rest)


class _Only:
    def __init__(self, timers: Timers, queues: set[str]) -> None:
        self._timers = timers
        self._queues = queues

    def arm_due(self, work: PendingWork, *arguments: Any, **more: Any) -> None:
        if work.queue in self._queues:
            self._timers.arm_due(work, *arguments, **more)


class LooksWhereItWasAble(Coordinator):
    """W17: of a member that went only what it was able for when it was last heard is looked at."""

    def _lost(self, now: float, peer: Peer) -> None:
        peer.possible_leases = {}
        timers = self._timers
        self._timers = _Only(timers, set(peer.abilities))  # type: ignore[assignment]
        super()._lost(now, peer)
        self._timers = timers


class TellsNobodyWithoutASession(Coordinator):
    """W18: a debt without any session is told nobody."""

    def on_no_room(self, work: PendingWork, now: float) -> None:
        if len(work.sessions):
            super().on_no_room(work, now)

    def _lacks_room(self, queue: str) -> bool:
        work = self._d.pending.find(queue)
        return work is not None and bool(len(work.sessions)) and super()._lacks_room(queue)


class ActsOnTheRise(Coordinator):
    """W19: a level is acted upon when it rises alone."""

    def _on_member(self, now: float, word: Member) -> None:
        before = self.members.peers.get(word.boot)
        known = () if before is None else before.member.full
        for queue in known:
            if queue not in word.full:
                self._queue(queue).full_at = -math.inf
        rose = tuple(queue for queue in word.full if queue not in known)
        super()._on_member(now, msgspec.structs.replace(word, full=rose))
        peer = self.members.peers.get(word.boot)
        if peer is not None and peer.member.seq == word.seq:
            peer.member = msgspec.structs.replace(peer.member, full=word.full)


class NoMillisecond(Coordinator):
    """W21: what is forgiven by time has no millisecond to spare."""

    def _proven(self, now: float, heard_by_boot: Mapping[str, tuple[int, int]], age_ms: int) -> float | None:
        proven = super()._proven(now, heard_by_boot, age_ms)
        return None if proven is None else proven + RESOLUTION_S


class SweepsInItsOwnTime(Coordinator):
    """W22: a bridge sweeps when its own moment comes, whoever comes first."""

    def sweep_delay_s(self, work: PendingWork, now: float) -> float:
        return 0.0


class LeavesSweepsToTheFirst(Coordinator):
    """W23: a bridge does not sweep while another comes first, whether that one does or not."""

    def sweep_delay_s(self, work: PendingWork, now: float) -> float:
        return 1e6 * super().sweep_delay_s(work, now)


class Believes(WakeScheduler):
    """W10: `own` of a hello and of a cover is believed although the bridges work on an engine."""

    def __init__(self, boot: str, periods: Any, draw: Any, engine: Any = None) -> None:
        super().__init__(boot, periods, draw)
