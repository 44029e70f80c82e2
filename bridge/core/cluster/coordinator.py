"""Take turns in a cluster: which member acts, which waits, and what a peer's message settles (C2 to C5).

The first member in a queue's order acts immediately. Every other holds the same wake request for A and a quarter of a
second per place. Waiting is safe, because the request stays pending; acting is safe, because it costs one receive. Only
settling by a peer could lose a wake, and all of it passes through `_settle_by_peer`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from queuebell.bridge.contract.cluster import (
    NAMES_BYTES_MAX,
    NAMES_MAX,
    QUEUES_MAX,
    ROUND_QUEUES_MAX,
    Able,
    Asked,
    Coordination,
    Covered,
    Member,
    Name,
    Sent,
)
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.core.agenda import TURN_MAX
from queuebell.bridge.core.cluster.capacity import REPORT_EVERY_S, CapacityReports
from queuebell.bridge.core.cluster.handover import handover_triggers
from queuebell.bridge.core.cluster.members import (
    BLOCKED_S,
    MEMBER_EVERY_S,
    SILENT_S,
    SINCE_MAX_MS,
    TOO_MANY,
    Members,
    Peer,
    can_wake,
    refusal_reason,
)
from queuebell.bridge.core.cluster.subscribers import PLACE_S, SubscriberCoordinator
from queuebell.bridge.core.cluster.wake_requests import DRIFT, WakeRequests, proven_until
from queuebell.bridge.core.commands import Broadcast
from queuebell.bridge.core.dispatch import Dispatch, SingleNode, Timer
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.round import Round
from queuebell.bridge.core.timers import Timers
from queuebell.bridge.observe.facts import (
    ActedLate,
    ClusterMessageRefused,
    MemberCame,
    MemberGone,
    MemberRefused,
    SettledByPeer,
    StoreDiffers,
)

CLOCK_JITTER_S: Final = 0.002
"""How much two readings of a pair of clocks may differ without a sleep."""
MERGE_S: Final = 0.05
"""Empty receives of one queue within this time are reported together."""
EARLY_S: Final = 10.0
EARLY_MAX: Final = 10_000
NOT_SENT_HERE: Final = "a message in this bridge's name that it never sent, or a second copy of one"
OWN_BOOT: Final = "it uses this bridge's own identity: one of the two machines is a copy of the other"
FULL_AGAIN: Final = 4
"""After this many A, a peer's repeated report of work without room is checked again."""

MEMBER: Final[Timer] = ("member", 0)
AGAIN: Final[Timer] = ("reconsider", 0)


class _Queue(msgspec.Struct, eq=False):
    """Hold the cluster state of one queue."""

    requests: WakeRequests
    report: EmptyReceiveReport | None = None
    reported_at: float = -math.inf
    """When empty receives were last reported."""
    settled_store: str | None = None
    """The store whose receive settled the newest work here, while no session here had reported its store."""
    full_at: float = -math.inf
    """When this bridge last checked for a peer without room."""


def _unknown() -> str | None:
    """Return no identity; not a lambda, because the rules are copied to try every order of events."""
    return None


class Coordinator(SingleNode):
    """Coordinate one bridge with the other cluster members.

    ``name`` is the cluster's, ``store`` the fingerprint of the store behind its queue API, ``address`` the bridge's
    address.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        timers: Timers,
        *,
        name: str | None = None,
        version: str | None = None,
        address: str | None = None,
        store: str | None = None,
        webhooks: str | None = None,
    ) -> None:
        self.members = Members(dispatch.boot)
        self.subscribers = SubscriberCoordinator(dispatch, self.members, webhooks)
        self.deferred: dict[str, None] = {}
        """Queues whose pending work waits for its turn."""
        self._again: list[str] = []
        """Deferred queues to reconsider."""
        self._d = dispatch
        self._timers = timers
        self._about = Member(
            boot=dispatch.boot,
            seq=0,
            cluster=name or "",
            version=version or "",
            address=address,
            store=store,
            webhooks=webhooks,
        )
        self.queues: dict[str, _Queue] = {}
        self.settled_early: OrderedDict[Name, tuple[str, float, str | None]] = OrderedDict()
        """Publishes that a peer settled before their trigger arrived here: queue, time and store."""
        self._abilities = CapacityReports(dispatch, self.members)
        self._without_room: OrderedDict[str, None] = OrderedDict()
        """Queues with pending work that had no session with room at the last check."""
        self.slept_s: float | None = 0.0
        """How far the clock of events has fallen behind one that runs while the machine sleeps; None without such a
        clock."""
        self._unread = False
        """True if the clocks could not be read at the newest event: a sleep may have gone unnoticed."""
        self.sent_at = -math.inf
        self.due_at: float | None = None
        self._handover_done = False
        self._report_all = self._ask_all = False
        self.identity: Callable[[], str | None] = _unknown
        """Returns the identity of the store behind the bridge's queue API; None if it is unknown (C8)."""

    def at(self, now: float) -> float:
        """Convert a time to the clock that runs while the machine sleeps.

        C4: on a clock that stopped for even a second, a receive would seem to have begun later than it did.
        """
        return now + (self.slept_s or 0.0)

    @property
    def name(self) -> str:
        """Return the cluster's name."""
        return self._about.cluster

    @property
    def about(self) -> Member:
        """Return this bridge's member record."""
        return self._about

    def acts_at(self, queue: str) -> float | None:
        """Return when a queue that waits for its turn is checked if no peer reports anything."""
        return self._d.agenda.when(("turn", queue))

    # -- membership ----------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Start, or restart, sending messages; what was received before proves nothing any more."""
        self.members.missed_messages()
        self.due_at = None
        self._d.agenda.set(MEMBER, now)
        self._report_all = self._ask_all = True

    def end(self, now: float) -> None:
        """Continue alone without cluster messages."""
        self.members.missed_messages()
        self._d.agenda.clear(MEMBER)
        self._reconsider_all(now)

    def leave(self, now: float) -> None:
        """Leave the cluster before a stop: the peers act on what they hold (C7)."""
        self.members.leave()
        self._send_member(now)

    def handed_over(self, now: float) -> None:
        """Report that the handover is complete: the peers need not check for it when this bridge is gone (C5, C7)."""
        self._handover_done = True
        self._send_member(now)

    def others(self, now: float) -> int:
        """Return how many peers can take over this bridge's work."""
        if self.members.alone(self.at(now)):
            return 0
        return sum(not peer.member.leaving for peer in self.members.peers.values())

    def handover(self, now: float, by_queue: Iterable[PendingWork] | None = None) -> list[CloudQueueWorkDetected]:
        """Return as triggers what is pending and due only here (``by_queue`` or all), after all sessions ended (C7).

        The peers have the rest. Sessions ended one by one and their workers go on: lease ends are merged, or each would
        cost a check. The sweep finds due times of a queue beyond `HANDOVER_MAX`.
        """
        return handover_triggers(self._d.pending.by_queue.values() if by_queue is None else by_queue, now)

    def watch(self, clocks: tuple[float, float] | None, *, there: bool) -> None:
        """Record both clocks before each event: that of events, and one that runs during sleep.

        If there is no second clock (not ``there``), time proves nothing. If ``clocks`` is None, it could not be read,
        and time proves nothing at this event. Readings differ slightly, which must not move known times.
        """
        if not there:
            self.slept_s = None
        elif clocks is None:
            self._unread = True
        else:
            behind = clocks[1] - clocks[0]
            if self.slept_s is None or abs(behind - self.slept_s) > CLOCK_JITTER_S:
                if self._unread:
                    # Wake requests between those events seem older than they are, by this sleep.
                    self.members.missed_messages()
                self.slept_s = behind
            self._unread = False

    @property
    def _dated(self) -> bool:
        """Return whether the clock that runs during sleep is known at this event."""
        return self.slept_s is not None and not self._unread

    def dated(self, now: float) -> float | None:
        """Return a time by the clock that runs while the machine sleeps, as far as it is known."""
        return self.at(now) if self._dated else None

    def suspended(self) -> None:
        """Discard known times after the clock stopped (B15): they prove nothing."""
        self.members.missed_messages()

    def on_message(self, now: float, message: Coordination) -> None:
        """Handle a decoded and validated cluster message."""
        if message.boot == self._d.boot:
            if isinstance(message, Member) and not self.members.own_message_returned(message.seq):
                self.members.boot_duplicated(self.at(now))
                self._d.emit(ClusterMessageRefused(message.boot, NOT_SENT_HERE))
                self._refuse(now, message, OWN_BOOT)
                self._reconsider_all(now)
            return
        if isinstance(message, Member):
            self._on_member(now, message)
        elif message.boot not in self.members.peers:
            self._d.emit(ClusterMessageRefused(message.boot, "not a known member"))
        elif isinstance(message, Able):
            if message.asks:
                self._report_all = True
                self._d.agenda.set_earlier(MEMBER, max(now, self.sent_at + REPORT_EVERY_S))
            for queue in self.members.on_capacity(self.at(now), message):
                self._reconsider(now, [queue])
        elif isinstance(message, Asked):
            self._on_peer_round(now, message)
        elif isinstance(message, Sent):
            self.subscribers.on_peer_notified(
                now, self.at(now), message, self._proven(now, message.heard, message.age_ms)
            )
        else:
            self._on_peer_empty_receive(now, message)

    def _on_member(self, now: float, message: Member) -> None:
        why = refusal_reason(self._about, self.identity(), message)
        if why is not None:
            # C8: with two stores under one name, each would be checked in turn and every other put be late.
            self._refuse(now, message, why)
            return
        if not self.members.has_room(message.boot):
            self._refuse(now, message, TOO_MANY)
            return
        before = self.members.peers.get(message.boot)
        leaving = before is not None and before.member.leaving
        if self.members.on_member(self.at(now), message):
            self._d.emit(MemberCame(message.boot, message.address or "", message.version))
            # The newcomer knows no peer, acts alone until it receives this message, and counts no unreported worker.
            self._send_member(now)
            self._report_all_capacity(now)
        elif message.leaving is not leaving:
            if before is not None and before.member.leaving:
                self.subscribers.take_over(now, self.at(now), before)
            self._reconsider_all(now)
        for queue in message.full:
            self._help(now, queue, self.members.peers.get(message.boot))

    def _refuse(self, now: float, message: Member, why: str) -> None:
        peer = self.members.peers.get(message.boot)
        if peer is not None:
            # It was trusted until now, and work settled by it may not be done: treat it as gone immediately.
            peer.heard_at, peer.timed = self.at(now) - SILENT_S, False
            self._d.agenda.set(MEMBER, now)
        if self.members.refuse(self.at(now), message, why):
            self._d.emit(MemberRefused(message.boot, message.address or "", why))

    def bridges_ahead(self, work: PendingWork, now: float) -> int:
        """Return how many bridges that can wake a session come before this one."""
        entries = work.sessions
        starts = not entries.any_worker_ready and entries.any_starter
        return self.members.bridges_ahead(
            work.queue, self.at(now), entries.store, ready=entries.any_worker_ready, starts=starts
        )

    def _help(self, now: float, queue: str, peer: Peer | None) -> None:
        """Check a queue for which a peer has work but no session with room, in turn (C3).

        While a worker is being started there, none is started here (Z5).
        """
        work = self._d.pending.find(queue)
        if work is None or work.dirty or not work.sessions.any_ready:
            return
        starts = peer is not None and can_wake(peer, queue, work.sessions.store, starts=True)
        if starts and not work.sessions.any_worker_ready:
            return
        kept = self._queue(queue)
        if now - kept.full_at >= FULL_AGAIN * work.numbers.start_ack_s:
            kept.full_at = now
            self._d.request_wake(work, now, "more", foreign=True, shared=True)

    # -- calls from the bridge's own rules -----------------------------------------------------------------------------

    def on_wake_request(self, work: PendingWork, now: float, name: Name | None, *, shared: bool, fresh: bool) -> None:
        """Record a wake request, and decide whether it waits for its turn (C2)."""
        if self._d.pending.find(work.queue) is not work:
            return  # no room for its name: nothing is kept, and no session is here to check it
        self._queue(work.queue).requests.add(self.at(now), work.gen, name)
        if work.deferred:
            if not shared:
                self.stop_waiting(work)  # one check settles all requests, and no peer has this one
        elif fresh and shared and work.owner is None:
            ahead = self.bridges_ahead(work, now)
            if ahead:
                work.deferred = True
                self.deferred[work.queue] = None
                self._wait(work, now, ahead)

    def sweep_delay_s(self, work: PendingWork, now: float) -> float:
        """Return how long this bridge waits after a sweep is due, so that bridges ahead of it sweep first (C5)."""
        ahead = self.bridges_ahead(work, now)
        return self.waits_s(work, ahead) if ahead else 0.0

    def round_delay_s(self, made: Round, now: float) -> float:
        """Return how long this bridge waits after a round is due, so that bridges ahead of it ask first (C11).

        Less than a round that failed waits, so that a member that cannot ask costs no sweep.
        """
        if self.members.alone(self.at(now)):
            return 0.0
        mine = made.ranks(self._d.boot, self._d.boot)
        peers = [peer.boot for peer in self.members.peers.values() if not peer.member.leaving]
        ahead = sum(self.members.leaving or made.ranks(boot, self._d.boot) < mine for boot in peers)
        return made.again_s * ahead / (ahead + 1)

    def on_round(self, made: Round, now: float) -> bool:
        """Tell the peers of an answer (C11); of one that names more queues than a message has, they ask themselves."""
        asked, at, place = made.asked_dated, self.dated(now), made.place
        if not self.members.peers or not made.scope or place is None or asked is None or at is None:
            return False
        if len(made.found) > ROUND_QUEUES_MAX:
            return False
        made.peers_asked = {boot: when for boot, when in made.peers_asked.items() if boot in self.members.peers}
        self._broadcast(
            Asked(
                boot=self._d.boot,
                store=made.scope,
                place=place,
                begun_age_ms=max(0, math.ceil((at - asked) * 1000)),
                heard=self.members.heard(at),
                queues=tuple(sorted(made.found)),
            )
        )
        return True

    @staticmethod
    def waits_s(work: PendingWork, ahead: int) -> float:
        """Return how long a wake request waits behind ``ahead`` bridges."""
        return work.numbers.start_ack_s + PLACE_S * ahead

    def _wait(self, work: PendingWork, now: float, ahead: int) -> None:
        # Counted from the oldest request: a stream of newer ones must not postpone the check (C2).
        oldest = self._queue(work.queue).requests.oldest()
        waited = 0.0 if oldest is None else self.at(now) - oldest
        self._d.agenda.set(("turn", work.queue), now - waited + self.waits_s(work, ahead))

    def stop_waiting(self, work: PendingWork) -> None:
        """Stop waiting for the turn."""
        if work.deferred:
            work.deferred = False
            self.deferred.pop(work.queue, None)
            self._d.agenda.clear(("turn", work.queue))

    def on_settled(self, work: PendingWork) -> None:
        """Forget a queue's requests and stop waiting."""
        kept = self.queues.get(work.queue)
        if kept is not None:
            kept.requests.settle()
        self._without_room.pop(work.queue, None)
        self.stop_waiting(work)

    def on_generation_sent(self, work: PendingWork, now: float, gen: int) -> None:
        """Record when a generation was first sent, which bounds every receive that knows of it."""
        self._queue(work.queue).requests.on_sent(self.at(now) if self._dated else None, gen)

    def on_hello(self, work: PendingWork, now: float, store: str | None) -> bool:
        """Stop waiting when a session connects (C2); return whether the work was settled by another store (B11)."""
        self.stop_waiting(work)
        kept = self.queues.get(work.queue)
        if kept is None or kept.settled_store is None or store is None or kept.settled_store == store:
            return False
        kept.settled_store = None
        return True

    def on_no_room(self, work: PendingWork, now: float) -> None:
        """Report that no session here has room, and repeat it while it lasts (C3)."""
        if work.queue not in self._without_room:
            self._without_room[work.queue] = None
            self._d.agenda.set_earlier(MEMBER, max(now, self.sent_at + REPORT_EVERY_S))

    def on_empty_receive(
        self, work: PendingWork, now: float, gen: int, after_s: float, next_visible_s: float | None
    ) -> None:
        """Report an empty receive to the peers soon (C4); an older generation may still settle their requests."""
        if not self.members.peers:
            return
        kept = self._queue(work.queue)
        learned = kept.requests.known_since(gen)
        # ``after_s`` is by the listener's clock, which may run 0.1 % faster.
        begun = None if learned is None or not self._dated else learned + after_s * (1 - DRIFT)
        if kept.report is not None and kept.report.store != work.sessions.store:
            # C4: never report one store's receive as another's.
            self._report_empty_receive(work, now)
        report = kept.report
        if report is None:
            # Created now, because the session and its store may be gone when the report is sent.
            report = kept.report = EmptyReceiveReport(work.sessions.store)
            self._d.agenda.set(("covered", work.queue), max(now + MERGE_S, kept.reported_at + REPORT_EVERY_S))
        visible_at = None if next_visible_s is None else now + next_visible_s
        report.merge(begun, visible_at, kept.requests.take_settled_names(gen))

    def already_settled(self, now: float, name: Name, queue: str) -> bool:
        """Return whether a peer's empty receive covered this publish before its trigger arrived here (C4)."""
        known = self.settled_early.pop(name, None)
        if known is None or known[0] != queue or now - known[1] > EARLY_S:
            return False
        store, work = known[2], self._d.pending.find(queue)
        if store is not None and work is not None:
            if work.sessions.store not in (None, store):
                return False  # B11: sessions of another store connected since then
            if work.sessions.store is None:
                self._queue(queue).settled_store = store
        return True

    def forget(self, queue: str) -> None:
        """Forget a queue that PendingQueues dropped."""
        self.queues.pop(queue, None)
        self.members.forget(queue)
        self.deferred.pop(queue, None)
        self._without_room.pop(queue, None)
        self._abilities.changed.add(queue)
        for kind in ("turn", "covered"):
            self._d.agenda.clear((kind, queue))

    # -- messages from peers -------------------------------------------------------------------------------------------

    def _on_peer_empty_receive(self, now: float, message: Covered) -> None:
        work = self._d.pending.find(message.queue)
        if work is not None and message.store is not None and work.sessions.store not in (None, message.store):
            # B11: a staging worker must not settle production's work, not even through another bridge.
            self._d.emit(StoreDiffers(message.queue, message.boot))
            return
        proven = None if message.begun_age_ms is None else self._proven(now, message.heard, message.begun_age_ms)
        if work is not None:
            self._settle_by_peer(now, work, message, proven)
        for name in message.ids:
            # Named before its trigger came: its first request is settled from the start.
            self.settled_early[name] = (message.queue, now, message.store)
            self.settled_early.move_to_end(name)
        while self.settled_early and (
            len(self.settled_early) > EARLY_MAX or now - next(iter(self.settled_early.values()))[1] > EARLY_S
        ):
            self.settled_early.popitem(last=False)

    def _on_peer_round(self, now: float, message: Asked) -> None:
        """Take a peer's round for one of this bridge, from the proven moment, if it read the same tables (C11)."""
        rounds = [each for each in self._timers.rounds if each.scope and each.scope == message.store]
        for each in rounds:
            each.peers_asked[message.boot] = now
        made = next((each for each in rounds if each.is_like(now, message.store, message.place)), None)
        proven = None if made is None else self._proven(now, message.heard, message.begun_age_ms)
        if made is None or proven is None:
            return
        began = now - (self.at(now) - proven)
        if made.answered(began, message.queues, message.place):
            made.told = True
            for queue in message.queues:
                work = self._d.pending.find(queue)
                if work is not None and work.round is made:
                    self._timers.round_found(work, now, began)

    def _proven(self, now: float, heard_by_boot: Mapping[str, tuple[int, int]], age_ms: int) -> float | None:
        """Return a time after which a peer's action, ``age_ms`` before its message, is proven; None without proof."""
        heard = heard_by_boot.get(self._d.boot)
        if heard is None or heard[1] > SINCE_MAX_MS:
            return None
        sent = self.members.sent_at(heard[0])
        unproven = sent is None or not self._dated or self.members.is_duplicated(self.at(now))
        if unproven or sent is None:
            return None
        # Only a wrong number gives a later time, and listeners would be sent an empty receive in the future.
        return min(self.at(now), proven_until(sent, heard[1], age_ms))

    def _settle_by_peer(self, now: float, work: PendingWork, message: Covered, proven: float | None) -> None:
        requests = self._queue(work.queue).requests
        by_name = sum([requests.settle_by_name(name) for name in message.ids])
        by_time = False
        if proven is not None:
            by_time = requests.settle_until(proven)
            # B9 uses the same lower bound: the time of arrival would postpone the sweep and all dead-man timers.
            covered_at = now - (self.at(now) - proven)
            work.found_empty_at = covered_at if work.found_empty_at is None else max(work.found_empty_at, covered_at)
            self._timers.arm_sweep(work, now)
        if message.next_visible_in_ms is not None:
            self._timers.arm_due(work, now, message.next_visible_in_ms / 1000, "due", 1, shared=True)
        if not (by_name or by_time):
            return
        if requests:
            if work.deferred:
                self._wait(work, now, max(1, self.bridges_ahead(work, now)))
            return
        if work.dirty:
            self._d.settle(work)
            if work.sessions.store is None:
                self._queue(work.queue).settled_store = message.store
            self._d.emit(SettledByPeer(work.queue, "name" if by_name and not by_time else "time", message.boot))

    # -- timers --------------------------------------------------------------------------------------------------------

    @property
    def urgent(self) -> bool:
        """Return whether a change must be reported as soon as possible; the agenda holds everything else."""
        return bool(self._abilities.changed)

    def tick(self, now: float, kind: str, work: PendingWork | None) -> None:
        """Run a due timer; ``work`` is that of a timer of one queue."""
        if kind == "member":
            self._tick_member(now)
        elif kind == "capacity":
            self._abilities.due()
        elif kind == AGAIN[0]:
            self._reconsider_some(now)
        elif kind == "subscribers":
            self.subscribers.tick(now, self.at(now))
        elif kind == "turn" and work is not None:
            if work.deferred:
                self.stop_waiting(work)
                self._d.emit(ActedLate(work.queue))
                self._d.wake_sessions(work, now)
        elif kind == "covered" and work is not None:
            self._report_empty_receive(work, now)

    def report_changes(self, now: float) -> None:
        """Report which sessions can be woken now, at most once per queue and 100 ms (C3)."""
        for message in self._abilities.changes(now):
            self._broadcast(message)

    def _tick_member(self, now: float) -> None:
        if self.due_at is not None and now - self.due_at > BLOCKED_S:
            self.members.loop_blocked()
        for peer in self.members.gone(self.at(now)):
            self._lost(now, peer)
        self._send_member(now)
        if self._report_all:
            # C3: changes during lost messages are known on neither side, and would stay unknown.
            self._report_all_capacity(now)
        if self.members.alone(self.at(now)):
            self._reconsider_all(now)

    def _lost(self, now: float, peer: Peer) -> None:
        """Handle a member's departure: its sessions' leases and timers are lost with it (C5)."""
        self._d.emit(MemberGone(peer.boot, peer.member.address or "", leaving=peer.member.leaving))
        if not (peer.member.leaving and peer.member.told):
            # Also if it died while leaving: only its last message proves that the peers have what it knew.
            held = {queue: ability.visibility_ms for queue, ability in peer.abilities.items()}
            held |= {
                queue: v
                for queue, (until, v) in peer.possible_leases.items()
                if until > self.at(now) and queue not in held
            }
            # Also each queue with a session here: its requests and abilities may never have been reported (decision
            # 0032).
            for work in self._d.pending.by_queue.values():
                if len(work.sessions):
                    held.setdefault(work.queue, max(round(entry.visibility_s * 1000) for entry in work.sessions))
            for queue, visibility_ms in held.items():
                work = self._d.pending.get_or_add(queue, now)
                if self._d.pending.find(queue) is work:
                    self._timers.arm_due(work, now, visibility_ms / 1000, "lease", 1, shared=True)
        if not peer.member.leaving:
            self.subscribers.take_over(now, self.at(now), peer)
        self._reconsider_all(now)

    def _reconsider_all(self, now: float) -> None:
        self._again = list(self.deferred)
        self._reconsider_some(now)
        self.subscribers.reconsider(now, self.at(now))

    def _reconsider_some(self, now: float) -> None:
        some, self._again = self._again[:TURN_MAX], self._again[TURN_MAX:]
        self._reconsider(now, some)
        if self._again:
            self._d.agenda.set(AGAIN, now)

    def _reconsider(self, now: float, queues: list[str]) -> None:
        """Act immediately if no member comes before this one any more (C2)."""
        for queue in queues:
            work = self._d.pending.find(queue)
            if work is not None and work.deferred and not self.bridges_ahead(work, now):
                self.stop_waiting(work)
                self._d.wake_sessions(work, now)

    # -- messages to peers ---------------------------------------------------------------------------------------------

    def _broadcast(self, message: Coordination) -> None:
        self._d.commands.append(Broadcast(message))

    def _send_member(self, now: float) -> None:
        full: list[str] = []
        for _ in range(len(self._without_room)):
            queue, _ = self._without_room.popitem(last=False)
            if self._lacks_room(queue):
                full.append(queue)
                if len(full) == QUEUES_MAX:
                    break  # the others come first next time: each is repeated (C3)
        self._without_room.update(dict.fromkeys(full))
        self._broadcast(
            msgspec.structs.replace(
                self._about,
                seq=self.members.next_seq(self.at(now)),
                engine=self.identity(),
                full=tuple(full),
                leaving=self.members.leaving,
                told=self._handover_done,
            )
        )
        self.sent_at = now
        self.due_at = now + MEMBER_EVERY_S
        silent = self.members.silent_at()
        if silent is not None:
            self.due_at = min(self.due_at, max(now, silent + SILENT_S - (self.slept_s or 0.0)))
        self._d.agenda.set(MEMBER, self.due_at)

    def _lacks_room(self, queue: str) -> bool:
        work = self._d.pending.find(queue)
        return work is not None and work.dirty and not work.deferred and not work.sessions.any_ready

    def _report_all_capacity(self, now: float) -> None:
        asks, self._report_all, self._ask_all = self._ask_all, False, False
        for message in self._abilities.all(now, asks=asks):
            self._broadcast(message)

    def _report_empty_receive(self, work: PendingWork, now: float) -> None:
        kept = self._queue(work.queue)
        report, kept.report = kept.report, None
        kept.reported_at = now
        self._d.agenda.clear(("covered", work.queue))
        if report is None:
            return
        self._broadcast(report.message(self._d.boot, work.queue, self.at(now), now, self.members.heard(self.at(now))))

    def _queue(self, queue: str) -> _Queue:
        kept = self.queues.get(queue)
        if kept is None:
            kept = self.queues[queue] = _Queue(WakeRequests())
        return kept


class EmptyReceiveReport(msgspec.Struct):
    """Merge empty receives: the newest begin, the newest request names and the next visible time.

    ``begun_at`` uses the clock that runs while the machine sleeps, ``visible_at`` the rules' own.
    """

    store: str | None
    begun_at: float | None = None
    ids: list[Name] = []
    visible_at: float | None = None

    def merge(self, begun: float | None, visible_at: float | None, names: list[Name]) -> None:
        """Add one empty receive."""
        if begun is not None:
            self.begun_at = begun if self.begun_at is None else max(self.begun_at, begun)
        if visible_at is not None:
            self.visible_at = visible_at if self.visible_at is None else min(self.visible_at, visible_at)
        # Under load keep the newest names: time alone proves the older ones (C4).
        self.ids = [*self.ids, *names][-NAMES_MAX:]

    def message(self, boot: str, queue: str, at: float, now: float, heard: dict[str, tuple[int, int]]) -> Covered:
        """Return the report as a cluster message, at the times ``at`` and ``now`` of the two clocks."""
        ids: list[Name] = []
        room = NAMES_BYTES_MAX
        for name in self.ids:
            room -= len(name[0]) + len(name[1])
            if room >= 0:
                ids.append(name)
        return Covered(
            boot=boot,
            queue=queue,
            store=self.store,
            begun_age_ms=None if self.begun_at is None else max(0, math.ceil((at - self.begun_at) * 1000)),
            heard=heard,
            ids=tuple(ids),
            next_visible_in_ms=None if self.visible_at is None else max(0, math.ceil((self.visible_at - now) * 1000)),
        )
