"""Turns: who acts at once, who waits, and what is forgiven on a peer's word (C2 to C5).

The first in a queue's order acts at once, every other holds the same mark for A and a quarter of a second for each
place. Waiting is always safe, for the mark stands; acting is always safe, for it costs one receive. Only forgiving
could lose a wake, and all that is forgiven passes `_take_covered`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from bridge.contract.cluster import (
    NAMES_BYTES_MAX,
    NAMES_MAX,
    QUEUES_MAX,
    Able,
    ClusterMessage,
    Covered,
    Member,
    Name,
    Sent,
)
from bridge.contract.event import CloudQueueWorkDetected
from bridge.core.agenda import TURN_MAX
from bridge.core.cluster.capacity import SAY_EVERY_S, CapacityReports
from bridge.core.cluster.handover import left_behind
from bridge.core.cluster.members import (
    SAY_S,
    SILENT_S,
    SINCE_MAX_MS,
    STOOD_STILL_S,
    TOO_MANY,
    Members,
    Peer,
    able,
    why_not,
)
from bridge.core.cluster.subscribers import PLACE_S, SubscriberCoordinator
from bridge.core.cluster.wake_requests import DRIFT, WakeRequests, proven_until
from bridge.core.commands import Broadcast
from bridge.core.dispatch import Dispatch, Timer
from bridge.core.pending_work import PendingWork
from bridge.core.single_node import SingleNode
from bridge.core.timers import Timers
from bridge.observe.facts import ActedLate, Forgiven, MemberCame, MemberGone, MemberRefused, StoreDiffers, WordRefused

JITTER_S: Final = 0.002
"""By how much two readings of a pair of clocks may differ although nobody slept."""
MERGE_S: Final = 0.05
"""Covers of one queue within this time are told together."""
EARLY_S: Final = 10.0
EARLY_MAX: Final = 10_000
NEVER_SAID: Final = "a word of this bridge's own boot that it never said, or said once"
OWN_BOOT: Final = "it speaks under this bridge's own boot: one of the two is a copy of the other's machine"
FULL_AGAIN: Final = 4
"""After how many A another's level of work without room is looked at again, should it still stand."""

MEMBER: Final[Timer] = ("member", 0)
AGAIN: Final[Timer] = ("again for turns", 0)


class _Queue(msgspec.Struct, eq=False):
    """What is kept of one queue."""

    requests: WakeRequests
    telling: EmptyReceiveReport | None = None
    told_at: float = -math.inf
    """When covers were last told."""
    forgiven_store: str | None = None
    """The store whose receive paid the newest debt here, while no session here had said which it uses."""
    full_at: float = -math.inf


def _unknown() -> str | None:
    """Name no engine; not a lambda, for the rules are copied to try every order of what may happen."""
    return None


class Coordinator(SingleNode):
    """Turns of one bridge among others.

    ``name`` is the cluster's, ``store`` the fingerprint of the engine behind its own queue API, ``address`` where it is
    reached.
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
        self.outward = SubscriberCoordinator(dispatch, self.members, webhooks)
        self.deferred: dict[str, None] = {}
        """Queues whose debt waits for its turn."""
        self._again: list[str] = []
        """Those of them that may not have to wait any more."""
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
        self._queues: dict[str, _Queue] = {}
        self._early: OrderedDict[Name, tuple[str, float, str | None]] = OrderedDict()
        self._abilities = CapacityReports(dispatch, self.members)
        self._waiting: OrderedDict[str, None] = OrderedDict()
        """Queues with work left and, when last looked at, nobody with room."""
        self.slept_s: float | None = 0.0
        """How far the clock that events are told by has fallen behind one that goes on while the machine sleeps; None
        where there is no such clock."""
        self._unread = False
        """Whether the clocks could not be read at the newest event: a sleep may have passed unseen."""
        self._said_at = -math.inf
        self._due_at: float | None = None
        self._bequeathed = False
        self._anew = self._asks = False
        self.identity: Callable[[], str | None] = _unknown
        """What the engine behind the own queue API says it is; None where that is not known (C8)."""

    def at(self, now: float) -> float:
        """Return a moment by the clock that goes on while the machine sleeps.

        C4: by one that stood still for even a second, a receive would seem to have begun later than it did.
        """
        return now + (self.slept_s or 0.0)

    @property
    def name(self) -> str:
        """The name of the cluster."""
        return self._about.cluster

    @property
    def about(self) -> Member:
        """What is said of this bridge."""
        return self._about

    def acts_at(self, queue: str) -> float | None:
        """Return when a queue that waits for its turn is looked at, should nothing be heard."""
        return self._d.agenda.when(("turn", queue))

    # -- the life of a member ----------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Words can be said from now on, also again: what was heard before proves nothing any more."""
        self.members.lost_touch()
        self._due_at = None
        self._d.agenda.set(MEMBER, now)
        self._anew = self._asks = True

    def end(self, now: float) -> None:
        """No words can be said or heard; be alone."""
        self.members.lost_touch()
        self._d.agenda.clear(MEMBER)
        self._reconsider_all(now)

    def leave(self, now: float) -> None:
        """This bridge is going to stop: others act on what they hold (C7)."""
        self.members.left()
        self._say_member(now)

    def handed_over(self, now: float) -> None:
        """All that this bridge leaves behind was told: nobody needs to look for it when it is gone (C5, C7)."""
        self._bequeathed = True
        self._say_member(now)

    def others(self, now: float) -> int:
        """Return how many bridges are there to take over what is here."""
        if self.members.alone(self.at(now)):
            return 0
        return sum(not peer.word.leaving for peer in self.members.peers.values())

    def handover(self, now: float, by_queue: Iterable[PendingWork] | None = None) -> list[CloudQueueWorkDetected]:
        """Return, as triggers, what is owed and due here alone, of ``debts`` or all, once all sessions have ended (C7).

        What the others have as well is theirs already. Its sessions went one after the other, and their workers go on:
        the ends of their leases are told as one, or each would be a look at the same queue. Of more due times of a
        queue than `BEQUEST_MAX` the sweep finds the last.
        """
        return left_behind(self._d.pending.by_queue.values() if by_queue is None else by_queue, now)

    def watch(self, clocks: tuple[float, float] | None, *, there: bool) -> None:
        """Take a reading of the clock that events are told by and of one that goes on, before each event.

        Without one (``there``) nothing is proven by time. None: it could not be read just now, and nothing is proven at
        this event. Two readings of one moment differ a little, which must not move the moments that are known.
        """
        if not there:
            self.slept_s = None
        elif clocks is None:
            self._unread = True
        else:
            behind = clocks[1] - clocks[0]
            if self.slept_s is None or abs(behind - self.slept_s) > JITTER_S:
                if self._unread:
                    # Marks of the events in between seem older than they are, by this sleep.
                    self.members.lost_touch()
                self.slept_s = behind
            self._unread = False

    @property
    def _dated(self) -> bool:
        """Whether moments can be told at this event by the clock that goes on."""
        return self.slept_s is not None and not self._unread

    def suspended(self) -> None:
        """The clock stood still (B15): no moment from before proves anything."""
        self.members.lost_touch()

    def hear(self, now: float, word: ClusterMessage) -> None:
        """Take a word from the cluster's subjects, decoded and checked."""
        if word.boot == self._d.boot:
            if isinstance(word, Member) and not self.members.heard_self(word.seq):
                self.members.heard_double(self.at(now))
                self._d.emit(WordRefused(word.boot, NEVER_SAID))
                self._refuse(now, word, OWN_BOOT)
                self._reconsider_all(now)
            return
        if isinstance(word, Member):
            self._hear_member(now, word)
        elif word.boot not in self.members.peers:
            self._d.emit(WordRefused(word.boot, "not a member, as far as was heard"))
        elif isinstance(word, Able):
            if word.asks:
                self._anew = True
                self._d.agenda.set_earlier(MEMBER, max(now, self._said_at + SAY_EVERY_S))
            for queue in self.members.hear_able(self.at(now), word):
                self._reconsider(now, [queue])
        elif isinstance(word, Sent):
            self.outward.hear(now, self.at(now), word, self._proven(now, word.heard, word.age_ms))
        else:
            self._hear_covered(now, word)

    def _hear_member(self, now: float, word: Member) -> None:
        why = why_not(self._about, self.identity(), word)
        if why is not None:
            # C8: two engines under one name would each be looked at in turn, and every other put be late.
            self._refuse(now, word, why)
            return
        if not self.members.has_room(word.boot):
            self._refuse(now, word, TOO_MANY)
            return
        before = self.members.peers.get(word.boot)
        leaving = before is not None and before.word.leaving
        if self.members.hear(self.at(now), word):
            self._d.emit(MemberCame(word.boot, word.address or "", word.version))
            # It knows of nobody and acts alone until it hears of us; and not heard is not able.
            self._say_member(now)
            self._say_all_abilities(now)
        elif word.leaving is not leaving:
            if before is not None and before.word.leaving:
                self.outward.succeed(now, self.at(now), before)
            self._reconsider_all(now)
        for queue in word.full:
            self._help(now, queue, self.members.peers.get(word.boot))

    def _refuse(self, now: float, word: Member, why: str) -> None:
        peer = self.members.peers.get(word.boot)
        if peer is not None:
            # It was believed until now, and what was forgiven on its word may not be paid: at once as if it were gone.
            peer.heard_at, peer.timed = self.at(now) - SILENT_S, False
            self._d.agenda.set(MEMBER, now)
        if self.members.refuse(self.at(now), word, why):
            self._d.emit(MemberRefused(word.boot, word.address or "", why))

    def before(self, work: PendingWork, now: float) -> int:
        """Return how many bridges that are able come before this one."""
        entries = work.sessions
        starts = not entries.any_worker_ready and entries.any_starter
        return self.members.before(
            work.queue, self.at(now), entries.store, ready=entries.any_worker_ready, starts=starts
        )

    def _help(self, now: float, queue: str, peer: Peer | None) -> None:
        """Another has work left for a queue and nobody with room: whoever has room looks, in turn (C3).

        While somebody is being started there nobody else is started here (Z5).
        """
        work = self._d.pending.find(queue)
        if work is None or work.dirty or not work.sessions.any_ready:
            return
        starts = peer is not None and able(peer, queue, work.sessions.store, starts=True)
        if starts and not work.sessions.any_worker_ready:
            return
        kept = self._queue(queue)
        if now - kept.full_at >= FULL_AGAIN * work.numbers.start_ack_s:
            kept.full_at = now
            self._d.request_wake(work, now, "more", foreign=True, shared=True)

    # -- what the bridge's own rules tell ----------------------------------------------------------------------------

    def on_wake_request(self, work: PendingWork, now: float, name: Name | None, *, shared: bool, fresh: bool) -> None:
        """Take note of a mark, and decide whether it waits for its turn (C2)."""
        if self._d.pending.find(work.queue) is not work:
            return  # there is no room for its name: nothing is kept of it, and nobody is here to look
        self._queue(work.queue).requests.add(self.at(now), work.gen, name)
        if work.deferred:
            if not shared:
                self.stop_waiting(work)  # one look pays all marks, and this one is nobody else's
        elif fresh and shared and work.owner is None:
            entry = self.before(work, now)
            if entry:
                work.deferred = True
                self.deferred[work.queue] = None
                self._wait(work, now, entry)

    def sweep_delay_s(self, work: PendingWork, now: float) -> float:
        """Return how much later than whoever comes first this bridge sweeps a queue (C5); 0 where nobody does."""
        entry = self.before(work, now)
        return self.waits_s(work, entry) if entry else 0.0

    @staticmethod
    def waits_s(work: PendingWork, entry: int) -> float:
        """Return how long a mark waits behind so many bridges."""
        return work.numbers.start_ack_s + PLACE_S * entry

    def _wait(self, work: PendingWork, now: float, entry: int) -> None:
        # From the oldest mark: a newer one must never push the look out, or a stream of them does so for ever (C2).
        oldest = self._queue(work.queue).requests.oldest()
        waited = 0.0 if oldest is None else self.at(now) - oldest
        self._d.agenda.set(("turn", work.queue), now - waited + self.waits_s(work, entry))

    def stop_waiting(self, work: PendingWork) -> None:
        """Wait no longer."""
        if work.deferred:
            work.deferred = False
            self.deferred.pop(work.queue, None)
            self._d.agenda.clear(("turn", work.queue))

    def on_settled(self, work: PendingWork) -> None:
        """Forget what was owed, and wait for nothing."""
        kept = self._queues.get(work.queue)
        if kept is not None:
            kept.requests.settle()
        self._waiting.pop(work.queue, None)
        self.stop_waiting(work)

    def on_generation_sent(self, work: PendingWork, now: float, gen: int) -> None:
        """Remember when a generation was first shown, which bounds every receive that knows of it."""
        self._queue(work.queue).requests.show(self.at(now) if self._dated else None, gen)

    def on_hello(self, work: PendingWork, now: float, store: str | None) -> bool:
        """A session comes: what waits here is for it (C2). Another store's receive paid nothing of its debts (B11)."""
        self.stop_waiting(work)
        kept = self._queues.get(work.queue)
        if kept is None or kept.forgiven_store is None or store is None or kept.forgiven_store == store:
            return False
        kept.forgiven_store = None
        return True

    def on_no_room(self, work: PendingWork, now: float) -> None:
        """Others may have room for it: say so, and again while it lasts (C3)."""
        if work.queue not in self._waiting:
            self._waiting[work.queue] = None
            self._d.agenda.set_earlier(MEMBER, max(now, self._said_at + SAY_EVERY_S))

    def on_empty_receive(
        self, work: PendingWork, now: float, gen: int, after_s: float, next_visible_s: float | None
    ) -> None:
        """Tell the others of an empty receive, soon (C4); of an older generation too, for it may pay their marks."""
        if not self.members.peers:
            return
        kept = self._queue(work.queue)
        learned = kept.requests.learned(gen)
        # ``after_s`` is by the listener's clock, which may run faster than ours: of a minute that is 60 ms.
        begun = None if learned is None or not self._dated else learned + after_s * (1 - DRIFT)
        if kept.telling is not None and kept.telling.store != work.sessions.store:
            # C4: what one store's receive proves is never told as another's.
            self._tell_covered(work, now)
        telling = kept.telling
        if telling is None:
            # Kept from now on: a session may go before it is told.
            telling = kept.telling = EmptyReceiveReport(work.sessions.store)
            self._d.agenda.set(("covered", work.queue), max(now + MERGE_S, kept.told_at + SAY_EVERY_S))
        visible_at = None if next_visible_s is None else now + next_visible_s
        telling.merge(begun, visible_at, kept.requests.take_settled_names(gen))

    def already_settled(self, now: float, name: Name, queue: str) -> bool:
        """Whether a peer's receive paid the first mark of this name before it is made here (C4)."""
        known = self._early.pop(name, None)
        if known is None or known[0] != queue or now - known[1] > EARLY_S:
            return False
        store, work = known[2], self._d.pending.find(queue)
        if store is not None and work is not None:
            if work.sessions.store not in (None, store):
                return False  # B11: whose sessions came since then
            if work.sessions.store is None:
                self._queue(queue).forgiven_store = store
        return True

    def forget(self, queue: str) -> None:
        """Forget a queue that the ledger forgets."""
        self._queues.pop(queue, None)
        self.members.forget(queue)
        self.deferred.pop(queue, None)
        self._waiting.pop(queue, None)
        self._abilities.stirred.add(queue)
        for kind in ("turn", "covered"):
            self._d.agenda.clear((kind, queue))

    # -- what others tell --------------------------------------------------------------------------------------------

    def _hear_covered(self, now: float, word: Covered) -> None:
        work = self._d.pending.find(word.queue)
        if work is not None and word.store is not None and work.sessions.store not in (None, word.store):
            # B11: a staging worker must not settle production's debts, of another bridge neither.
            self._d.emit(StoreDiffers(word.queue, word.boot))
            return
        proven = None if word.begun_age_ms is None else self._proven(now, word.heard, word.begun_age_ms)
        if work is not None:
            self._take_covered(now, work, word, proven)
        for name in word.ids:
            # Named before its trigger came: that first mark is born forgiven.
            self._early[name] = (word.queue, now, word.store)
            self._early.move_to_end(name)
        while self._early and (len(self._early) > EARLY_MAX or now - next(iter(self._early.values()))[1] > EARLY_S):
            self._early.popitem(last=False)

    def _proven(self, now: float, heard_by_boot: Mapping[str, tuple[int, int]], age_ms: int) -> float | None:
        """Return a moment that what a peer did ``age_ms`` before its word came after, None where nothing shows one."""
        heard = heard_by_boot.get(self._d.boot)
        if heard is None or heard[1] > SINCE_MAX_MS:
            return None
        sent = self.members.sent_at(heard[0])
        unproven = sent is None or not self._dated or self.members.doubled(self.at(now))
        if unproven or sent is None:
            return None
        # Later than now only by a wrong number, and listeners would be told of a cover that is yet to come.
        return min(self.at(now), proven_until(sent, heard[1], age_ms))

    def _take_covered(self, now: float, work: PendingWork, word: Covered, proven: float | None) -> None:
        marks = self._queue(work.queue).requests
        by_name = sum([marks.settle_by_name(name) for name in word.ids])
        by_time = False
        if proven is not None:
            by_time = marks.settle_until(proven)
            # B9 from the same lower bound: from its arrival, the sweep and every listener's dead-man would be put off.
            covered_at = now - (self.at(now) - proven)
            work.found_empty_at = covered_at if work.found_empty_at is None else max(work.found_empty_at, covered_at)
            self._timers.arm_sweep(work, now)
        if word.next_visible_in_ms is not None:
            self._timers.arm_due(work, now, word.next_visible_in_ms / 1000, "due", 1, shared=True)
        if not (by_name or by_time):
            return
        if marks:
            if work.deferred:
                self._wait(work, now, max(1, self.before(work, now)))
            return
        if work.dirty:
            self._d.settle(work)
            if work.sessions.store is None:
                self._queue(work.queue).forgiven_store = word.store
            self._d.emit(Forgiven(work.queue, "name" if by_name and not by_time else "time", word.boot))

    # -- timers ------------------------------------------------------------------------------------------------------

    @property
    def urgent(self) -> bool:
        """Whether something changed that is to be said as soon as it may; all else is in the agenda."""
        return bool(self._abilities.stirred)

    def tick(self, now: float, kind: str, work: PendingWork | None) -> None:
        """Do what is due; ``debt`` is that of a timer of one queue."""
        if kind == "member":
            self._tick_member(now)
        elif kind == "able":
            self._abilities.due()
        elif kind == AGAIN[0]:
            self._reconsider_some(now)
        elif kind == "outward":
            self.outward.tick(now, self.at(now))
        elif kind == "turn" and work is not None:
            if work.deferred:
                self.stop_waiting(work)
                self._d.emit(ActedLate(work.queue))
                self._d.wake_sessions(work, now)
        elif kind == "covered" and work is not None:
            self._tell_covered(work, now)

    def report_changes(self, now: float) -> None:
        """Say what changed of whom could be woken, at most once a queue and 100 ms (C3)."""
        for word in self._abilities.changes(now):
            self._say(word)

    def _tick_member(self, now: float) -> None:
        if self._due_at is not None and now - self._due_at > STOOD_STILL_S:
            self.members.stood_still()
        for peer in self.members.gone(self.at(now)):
            self._lost(now, peer)
        self._say_member(now)
        if self._anew:
            # C3: what changed while words were lost is neither known there nor here, and would stay so.
            self._say_all_abilities(now)
        if self.members.alone(self.at(now)):
            self._reconsider_all(now)

    def _lost(self, now: float, peer: Peer) -> None:
        """A member went: what its sessions held died with it, timers and all (C5)."""
        self._d.emit(MemberGone(peer.boot, peer.word.address or "", leaving=peer.word.leaving))
        if not (peer.word.leaving and peer.word.told):
            # Also of one that died while it left: only its last word says that others have what it knew.
            held = {queue: ability.visibility_ms for queue, ability in peer.abilities.items()}
            held |= {queue: v for queue, (until, v) in peer.left.items() if until > self.at(now) and queue not in held}
            # And wherever somebody is here to look: what it had marked may never have been told, nor what it was able
            # for (decision 0032).
            for work in self._d.pending.by_queue.values():
                if len(work.sessions):
                    held.setdefault(work.queue, max(round(entry.visibility_s * 1000) for entry in work.sessions))
            for queue, visibility_ms in held.items():
                work = self._d.pending.get_or_add(queue, now)
                if self._d.pending.find(queue) is work:
                    self._timers.arm_due(work, now, visibility_ms / 1000, "lease", 1, shared=True)
        if not peer.word.leaving:
            self.outward.succeed(now, self.at(now), peer)
        self._reconsider_all(now)

    def _reconsider_all(self, now: float) -> None:
        self._again = list(self.deferred)
        self._reconsider_some(now)
        self.outward.reconsider(now, self.at(now))

    def _reconsider_some(self, now: float) -> None:
        some, self._again = self._again[:TURN_MAX], self._again[TURN_MAX:]
        self._reconsider(now, some)
        if self._again:
            self._d.agenda.set(AGAIN, now)

    def _reconsider(self, now: float, queues: list[str]) -> None:
        """Act at once where nobody is before us any more (C2)."""
        for queue in queues:
            work = self._d.pending.find(queue)
            if work is not None and work.deferred and not self.before(work, now):
                self.stop_waiting(work)
                self._d.wake_sessions(work, now)

    # -- what is said ------------------------------------------------------------------------------------------------

    def _say(self, word: ClusterMessage) -> None:
        self._d.commands.append(Broadcast(word))

    def _say_member(self, now: float) -> None:
        full: list[str] = []
        for _ in range(len(self._waiting)):
            queue, _ = self._waiting.popitem(last=False)
            if self._lacks_room(queue):
                full.append(queue)
                if len(full) == QUEUES_MAX:
                    break  # the others come first the next time: each is said again and again (C3)
        self._waiting.update(dict.fromkeys(full))
        self._say(
            msgspec.structs.replace(
                self._about,
                seq=self.members.next_seq(self.at(now)),
                engine=self.identity(),
                full=tuple(full),
                leaving=self.members.leaving,
                told=self._bequeathed,
            )
        )
        self._said_at = now
        self._due_at = now + SAY_S
        silent = self.members.silent_at()
        if silent is not None:
            self._due_at = min(self._due_at, max(now, silent + SILENT_S - (self.slept_s or 0.0)))
        self._d.agenda.set(MEMBER, self._due_at)

    def _lacks_room(self, queue: str) -> bool:
        work = self._d.pending.find(queue)
        return work is not None and work.dirty and not work.deferred and not work.sessions.any_ready

    def _say_all_abilities(self, now: float) -> None:
        asks, self._anew, self._asks = self._asks, False, False
        for word in self._abilities.all(now, asks=asks):
            self._say(word)

    def _tell_covered(self, work: PendingWork, now: float) -> None:
        kept = self._queue(work.queue)
        telling, kept.telling = kept.telling, None
        kept.told_at = now
        self._d.agenda.clear(("covered", work.queue))
        if telling is None:
            return
        self._say(telling.word(self._d.boot, work.queue, self.at(now), now, self.members.heard(self.at(now))))

    def _queue(self, queue: str) -> _Queue:
        kept = self._queues.get(queue)
        if kept is None:
            kept = self._queues[queue] = _Queue(WakeRequests())
        return kept


class EmptyReceiveReport(msgspec.Struct):
    """What is merged: the newest begin, the names of the newest marks, and when the next message becomes visible.

    ``begun_at`` is by the clock that goes on while the machine sleeps, ``visible_at`` by the rules' own.
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
        # Under load the newest: what is older, its time alone proves (C4).
        self.ids = [*self.ids, *names][-NAMES_MAX:]

    def word(self, boot: str, queue: str, at: float, now: float, heard: dict[str, tuple[int, int]]) -> Covered:
        """Return it as a word, at the moments ``at`` and ``now`` of the two clocks."""
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
