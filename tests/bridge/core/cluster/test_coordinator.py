"""C1 to C5: who acts at once, who waits for its turn, and for how long."""

from __future__ import annotations

import pytest

from queuebell.bridge.contract.cluster import Ability, Able, Covered, Member, Sent
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import SCALER, EmptyReceive
from queuebell.bridge.core.cluster.coordinator import EARLY_MAX, EARLY_S, NOT_SENT_HERE, OWN_BOOT
from queuebell.bridge.core.cluster.members import (
    DEPARTED_S,
    MEMBERS_MAX,
    OTHER_ADDRESS,
    OTHER_ENGINE,
    OTHER_MACHINE,
    OTHER_NAME,
    SILENT_S,
    TOO_MANY,
    Members,
    Peer,
    rank,
)
from queuebell.bridge.core.cluster.subscribers import (
    MERGE_S,
    PLACE_S,
    SKEW_S,
    SUBJECTS,
    SUBSCRIBERS,
    SubscriberCoordinator,
)
from queuebell.bridge.core.commands import Announce, AnnounceInTurn, Broadcast
from queuebell.bridge.observe.facts import (
    ActedLate,
    ClusterMessageRefused,
    MemberCame,
    MemberGone,
    MemberRefused,
    SettledByPeer,
)
from tests.support.bells import BOOT, QUEUE
from tests.support.member import A_S, FIRST, LAST, MemberRig, boot

OTHER = "billing/refunds"


def ready() -> tuple[MemberRig, int]:
    """Return a member whose one session has nothing to do, with a peer that comes first and is able."""
    rig = MemberRig()
    session = rig.session()
    rig.peer()
    rig.echo()
    rig.words.clear()
    return rig, session


def test_c2_any_other_holds_the_mark_for_a_and_a_quarter_of_a_second() -> None:
    """C2."""
    rig, session = ready()
    rig.trigger_all()
    assert rig.work().dirty
    assert rig.work().deferred
    assert rig.wakes(session) == []
    rig.keep_company(A_S + 0.24)
    assert rig.wakes(session) == []
    rig.keep_company(0.02)
    assert [wake.reason for wake in rig.wakes(session)] == ["trigger"]
    assert rig.facts_of(ActedLate) == [ActedLate(QUEUE)]
    assert not rig.work().deferred


def test_c2_w5_a_new_mark_never_pushes_the_look_out() -> None:
    """C2, W5."""
    rig, session = ready()
    for _ in range(8):
        rig.trigger_all()
        rig.keep_company(0.25)
    rig.trigger_all()
    rig.keep_company(0.24)
    assert rig.wakes(session) == []
    rig.keep_company(0.02)
    assert len(rig.wakes(session)) == 1


def test_c1_a_member_that_is_silent_is_gone_and_what_it_kept_us_from_is_done() -> None:
    """C1."""
    rig, session = ready()
    rig.keep_company(1.4, LAST)
    rig.trigger_all()
    rig.keep_company(2.0, LAST)
    assert rig.wakes(session) == []
    rig.keep_company(0.2, LAST)
    assert len(rig.wakes(session)) == 1, "3.5 s after its last word; A would be over 0.15 s later"
    assert rig.facts_of(MemberGone) == [MemberGone(FIRST, "", leaving=False)]


def test_c1_who_hears_itself_no_more_is_alone_and_acts_on_what_waits() -> None:
    """C1."""
    rig, session = ready()
    for _ in range(3):
        rig.wait(1.0)
        rig.member()
    rig.trigger_all()
    assert rig.wakes(session) == []
    for _ in range(2):
        rig.wait(1.0)
        rig.member()
    assert len(rig.wakes(session)) == 1


def test_c8_members_on_another_engine_or_of_another_name_are_none() -> None:
    """C8: told once, and never waited for."""
    rig = MemberRig(name="shop", store="aa")
    for _ in range(2):
        rig.hear(Member(boot=FIRST, seq=1, cluster="shop", store="bb"))
        rig.hear(Member(boot=LAST, seq=1, cluster="stall", store="aa"))
    assert rig.turns.members.peers == {}
    assert rig.facts_of(MemberRefused) == [
        MemberRefused(FIRST, "", OTHER_ENGINE),
        MemberRefused(LAST, "", OTHER_NAME),
    ]
    assert [(each.boot, each.why) for each in rig.turns.members.refused.values()] == [
        (FIRST, OTHER_ENGINE),
        (LAST, OTHER_NAME),
    ]
    rig.hear(Member(boot=FIRST, seq=1, cluster="shop", store="aa"))
    assert list(rig.turns.members.peers) == [FIRST]
    assert list(rig.turns.members.refused) == [LAST]


@pytest.mark.parametrize(
    ("mine", "store", "engine", "why"),
    [
        ("11", "aa", "11", None),
        ("11", "aa", "22", OTHER_MACHINE),
        ("11", "aa", None, None),  # an older version, and one whose engine does not say
        ("11", "bb", "11", OTHER_ADDRESS),  # or a copy of it, which says the same of itself
        ("11", "bb", "22", OTHER_ENGINE),
        ("11", "bb", None, OTHER_ENGINE),
        (None, "aa", "22", None),
        (None, "bb", "22", OTHER_ENGINE),
        (None, None, None, OTHER_ENGINE),
    ],
)
def test_c8_one_engine_is_one_address_where_nobody_says_that_it_is_another(
    mine: str | None, store: str | None, engine: str | None, why: str | None
) -> None:
    """C8: what engines say proves that they are two, and never that they are one: a copy says what it was made of."""
    rig = MemberRig(name="shop", store="aa")
    rig.turns.identity = lambda: mine
    rig.hear(Member(boot=FIRST, seq=1, cluster="shop", store=store, engine=engine))
    assert [fact.why for fact in rig.facts_of(MemberRefused)] == ([] if why is None else [why])
    assert list(rig.turns.members.peers) == ([FIRST] if why is None else [])
    rig.wait(1.0)
    assert rig.says()[-1].engine == mine


def test_c8_whoever_proves_a_stranger_is_gone_at_once_and_its_queues_are_looked_at() -> None:
    """What was forgiven on its word was paid in another engine; so is nothing that it told before it said which."""
    rig = MemberRig(name="shop", store="aa")
    rig.turns.identity = lambda: "11"
    rig.session()
    rig.hear(Member(boot=FIRST, seq=1, cluster="shop", store="aa"))
    rig.hear(Able(boot=FIRST, seq=1, queues={QUEUE: Ability(True, 30_000)}))
    rig.trigger_all(id="1", source="s")
    rig.hear(Covered(boot=FIRST, queue=QUEUE, ids=(("s", "1"),)))
    assert rig.facts_of(SettledByPeer)
    rig.hear(Member(boot=FIRST, seq=2, cluster="shop", store="aa", engine="22"))
    rig.wait(0.0)
    assert rig.turns.members.peers == {}
    assert rig.facts_of(MemberGone)
    assert rig.work().due_to_all["lease"].next() == pytest.approx(rig.now + 30.0, abs=0.1)


def test_who_comes_and_goes_is_remembered_for_five_minutes() -> None:
    """C1: by its address, for each start has a boot of its own."""
    rig = MemberRig()
    for number in range(3):
        rig.hear(Member(boot=f"{number}" + 31 * "c", seq=1, address="b:8470"))
        rig.keep_company(SILENT_S + 0.5)
    assert rig.turns.members.flapping(rig.now) == {"b:8470": 3}
    rig.keep_company(DEPARTED_S)
    assert rig.turns.members.flapping(rig.now) == {}


def test_c3_another_is_helped_once_and_not_with_every_word() -> None:
    """C3."""
    rig = MemberRig()
    session = rig.session()
    rig.member(FIRST, full=(QUEUE, OTHER))
    assert [wake.reason for wake in rig.wakes(session)] == ["more"]
    rig.cover(session, rig.work().gen)
    for _ in range(7):
        rig.wait(1.0)
        rig.echo()
        rig.member(FIRST, full=(QUEUE,))
    assert rig.wakes(session) == []
    rig.wait(1.0)
    rig.member(FIRST, full=(QUEUE,))
    assert len(rig.wakes(session)) == 1, "it stands for 4 A: the help may have been lost"


def test_c5_what_died_with_a_member_is_looked_at_when_its_leases_may_have_ended() -> None:
    """C5."""
    rig, session = ready()
    rig.able(FIRST, room=False, visibility_ms=7_000)
    rig.able(FIRST, queue=OTHER, visibility_ms=3_000)
    rig.able(FIRST, queue=OTHER, room=None)
    rig.keep_company(3.6, LAST)
    assert rig.facts_of(MemberGone) == [MemberGone(FIRST, "", leaving=False)]
    assert rig.wakes(session) == []
    rig.keep_company(7.1, LAST)
    assert [wake.reason for wake in rig.wakes(session)] == ["lease"]
    assert OTHER not in rig.scheduler.pending.by_queue, "its sessions had left it for longer than their leases last"


def test_c7_what_only_the_leaving_one_knows_is_told_at_the_end() -> None:
    """C7: debts, leases and due times, as triggers; not what all have."""
    rig, session = ready()
    rig.trigger_all(not_before_ms=60_000)
    rig.beat(session, leases=[5_000], free=3)
    rig.trigger(size=3)
    rig.turns.leave(rig.now)
    rig.lose(session)
    told = rig.turns.handover(rig.now)
    assert [(event.queue, event.payload_size) for event in told] == [(QUEUE, 3), (QUEUE, 1), (QUEUE, 1)]
    at_once, lease, visibility = (event.not_before_ms for event in told)
    assert at_once == 0
    assert 5_000 <= lease <= 5_020
    assert 30_000 <= visibility <= 30_040


T_S, LATEST_S = 60.0, 66.0


def swept(name: str) -> tuple[MemberRig, int, float]:
    """Return a member, its session, and since when its sweep counts; another is able, first or last in the order."""
    rig = MemberRig(sweep_s=T_S)
    session = rig.session()
    rig.peer(name)
    rig.echo()
    since = rig.work().found_empty_at
    assert since is not None
    return rig, session, since


def pass_until(rig: MemberRig, session: int, moment: float, name: str = FIRST) -> None:
    """Let time pass with everybody well."""
    while rig.now < moment:
        rig.keep_company(min(1.0, moment - rig.now), name)
        rig.beat(session, free=32)


def reasons(rig: MemberRig, session: int) -> list[str]:
    """Return why a session was woken since it was asked last."""
    return [wake.reason for wake in rig.wakes(session)]


def test_c5_any_other_sweeps_when_the_first_should_have_and_marks_nothing_before() -> None:
    """C5: 1.1 T, A and its place after the last cover, however its own moment was drawn; then at once."""
    rig, session, since = swept(FIRST)
    pass_until(rig, session, since + LATEST_S + A_S + 0.24)
    assert (reasons(rig, session), rig.work().dirty) == ([], False)
    pass_until(rig, session, since + LATEST_S + A_S + 0.26)
    assert reasons(rig, session) == ["sweep"]
    assert not rig.work().deferred
    assert rig.facts_of(ActedLate) == [ActedLate(QUEUE)]


@pytest.mark.parametrize("why", ["trigger", "due", "resync", "hello", "more"])
def test_c5_what_is_owed_meanwhile_waits_for_no_sweep(why: str) -> None:
    """C2, C5: a mark while the sweep waits for its turn is what it would be without, and pays for the sweep."""
    rig, session, since = swept(FIRST)
    if why == "due":
        rig.trigger_all(not_before_ms=round((since + LATEST_S - rig.now) * 1000))
    pass_until(rig, session, since + LATEST_S)
    assert not rig.work().dirty
    entries = [session]
    if why == "trigger":
        rig.trigger_all()
    elif why == "resync":
        rig.scheduler.gap(rig.now)
    elif why == "more":
        rig.more(session, unannounced=True)
    elif why == "hello":
        rig.trigger_all()
        entries.append(rig.join())
    rig.wait(0.01)
    assert rig.work().dirty
    at_once = why in ("hello", "more")
    assert rig.work().deferred is not at_once
    pass_until(rig, session, rig.now + A_S + 0.3)
    assert any(reason != "sweep" for entry in entries for reason in reasons(rig, entry))


def test_c2_z5_of_two_that_would_start_a_worker_the_first_in_order_does() -> None:
    """The next one waits A and its place, as behind one who has a worker; each would start what is missing."""
    for other, at_once in ((FIRST, 0), (LAST, 1)):
        rig = MemberRig()
        scaler = rig.join(kind=SCALER)
        rig.settle_hello(scaler)
        rig.peer(other, room=False)
        rig.able(other, room=False, starts=True)
        rig.trigger_all()
        assert len(rig.wakes(scaler)) == at_once
        if not at_once:
            rig.wait(A_S + 0.3)
            assert len(rig.wakes(scaler)) == 1


def test_c3_z5_nobody_is_started_to_help_while_somebody_is_being_started_there() -> None:
    """Its bridge has work and nobody with room for that while; where it starts nobody, a scaler here helps at once."""
    rig = MemberRig()
    scaler = rig.join(kind=SCALER)
    rig.settle_hello(scaler)
    rig.peer(LAST, room=False)
    rig.able(LAST, room=False, starts=True)
    rig.member(LAST, full=(QUEUE,))
    assert rig.wakes(scaler) == []
    rig.able(LAST, room=False)
    rig.member(LAST, full=(QUEUE,))
    assert len(rig.wakes(scaler)) == 1


SECOND = boot(first=True, number=1)
HOOK = "ab" * 16
OURS, THEIRS = "our webhooks", "other webhooks"


class TellingRig(MemberRig):
    """A member with plain subscribers by one way: `told` is what they were told, with how it came to that."""

    def __init__(self, way: str = SUBJECTS, *, alone: bool = False, webhooks: str | None = OURS) -> None:
        super().__init__(alone=alone, webhooks=webhooks)
        self.way = way
        self.turns.subscribers.routes[way] = None if way == SUBJECTS else QUEUE
        self.scheduler.reminders.announcing(self.now, True)
        self.told: list[tuple[str, float]] = []
        self._rung = len(self.rung)

    def drive(self) -> None:
        commands = self.scheduler.dispatch.commands
        for command in [each for each in commands if isinstance(each, AnnounceInTurn)]:
            assert command.route == self.way
            self.told.append((command.what, self.now))
            commands.remove(command)
        super().drive()
        if hasattr(self, "_rung"):
            rung, self._rung = self.rung[self._rung :], len(self.rung)
            for announced in rung:
                self._offer(announced)

    def _offer(self, announced: Announce) -> None:
        at = self.turns.at(self.now)
        if self.turns.subscribers.offer(self.now, at, self.way, announced.queue, shared=announced.shared):
            self.told.append(("at once", self.now))

    def how(self) -> list[str]:
        """Return and forget how they were told."""
        told, self.told = [what for what, _ in self.told], []
        return told

    def peer_with(self, name: str = FIRST, webhooks: str | None = OURS, *, leaving: bool = False) -> None:
        """Another says that it is there, and which webhooks it has."""
        self._seqs[name] = self._seqs.get(name, 0) + 1
        self.hear(Member(boot=name, seq=self._seqs[name], webhooks=webhooks, leaving=leaving))

    def keep(self, seconds: float, *names: str) -> None:
        """Let time pass in the company of these."""
        whole, rest = divmod(seconds, 1.0)
        for length in [1.0] * int(whole) + [rest]:
            self.wait(length)
            self.echo()
            for name in names:
                self.peer_with(name)

    def sent(
        self, name: str = FIRST, age_ms: int = 0, *, seq: int | None = None, since_ms: int = 0, hook: str | None = None,
        queue: str = QUEUE,
    ) -> None:  # fmt: skip
        """Another says that it told; it had heard our newest word ``since_ms`` ago unless ``seq`` says which."""
        heard = {BOOT: (self.turns.members.seq if seq is None else seq, since_ms)}
        hook = hook or (None if self.way == SUBJECTS else self.way)
        self.hear(Sent(boot=name, queue=queue, hook=hook, age_ms=age_ms, heard=heard))  # type: ignore[arg-type]

    def says_sent(self) -> list[Sent]:
        """Return and forget what it said that it told."""
        said = [word for word in self.words if isinstance(word, Sent)]
        self.words = [word for word in self.words if not isinstance(word, Sent)]
        return said


WAYS = pytest.mark.parametrize("way", [SUBJECTS, HOOK])


@WAYS
def test_the_others_hold_it_for_a_and_each_place(way: str) -> None:
    """As for a look; nobody was heard to tell."""
    for names in ((FIRST,), (FIRST, SECOND)):
        rig = TellingRig(way)
        for name in names:
            rig.peer_with(name)
        begun = rig.now
        rig.trigger_all()
        assert rig.how() == []
        rig.keep(1.0, *names)
        rig.keep(1.0, *names)
        rig.keep(1.0, *names)
        ((what, at),) = rig.told
        assert what == "held"
        assert at - begun == pytest.approx(A_S + PLACE_S * len(names))


@WAYS
def test_without_the_broker_what_is_held_is_told(way: str) -> None:
    """It is alone from now on."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.turns.end(rig.now)
    rig.drive()
    assert rig.how() == ["held"]


OTHER, HOOK_2 = "billing/refunds", "cd" * 16
NAMES = [f"{number:032x}" for number in range(20)]


class Ways:
    """The turns of several ways, fed by hand; `done` is what came of it, in order."""

    def __init__(self, **ways: str | None) -> None:
        self.rig = MemberRig()
        self.subscribers = SubscriberCoordinator(self.rig.scheduler.dispatch, self.rig.turns.members, OURS)
        self.subscribers.routes.update({SUBJECTS if way == "subjects" else way: only for way, only in ways.items()})
        self.at = self.now = self.rig.now

    def there(self, *names: str, webhooks: str | None = OURS) -> list[Peer]:
        """Have others be there, and return them."""
        members = self.rig.turns.members
        for name in names:
            members.on_member(self.at, Member(boot=name, seq=1, webhooks=webhooks))
        return [members.peers[name] for name in names]

    def go(self, peer: Peer) -> None:
        """Have one of them be gone."""
        del self.rig.turns.members.peers[peer.boot]
        self.subscribers.take_over(self.now, self.at, peer)

    def waits(self, *queues: str) -> None:
        """Have work wait."""
        for queue in queues:
            self.rig.scheduler.dispatch.request_wake(
                self.rig.scheduler.pending.get_or_add(queue, self.now), self.now, "trigger", foreign=True
            )
        self.done()

    def offer(self, way: str = SUBJECTS, queue: str = QUEUE, *, shared: bool = True) -> bool:
        """Have one to tell of a queue."""
        return self.subscribers.offer(self.now, self.at, way, queue, shared=shared)

    def later(self, seconds: float) -> None:
        """Let time pass, and do what is due then."""
        self.now += seconds
        self.at += seconds
        self.subscribers.tick(self.now, self.at)

    def done(self) -> list[tuple[str, str, str] | Sent]:
        """Return and forget what is to be done."""
        commands, self.rig.scheduler.dispatch.commands = self.rig.scheduler.dispatch.commands, []
        told = [(each.route, each.queue, each.what) for each in commands if isinstance(each, AnnounceInTurn)]
        return [
            *told,
            *(each.message for each in commands if isinstance(each, Broadcast) and isinstance(each.message, Sent)),
        ]

    def timer(self) -> float | None:
        """Return when something is due."""
        return self.rig.scheduler.dispatch.agenda.when(SUBSCRIBERS)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_held_is_told_when_nobody_of_its_own_order_comes_before(name: str) -> None:
    """C10: also where who is there has other webhooks."""
    for webhooks in (OURS, THEIRS):
        ways = Ways(subjects=None)
        first, other = ways.there(boot(first=True, queue=OTHER), name, webhooks=webhooks)
        assert not ways.offer(queue=OTHER)
        del ways.rig.turns.members.peers[first.boot]
        ways.subscribers.reconsider(ways.now, ways.at)
        waits = other.boot != first.boot and rank(OTHER, name) > rank(OTHER, BOOT)
        assert ways.done() == ([] if waits else [(SUBJECTS, OTHER, "held")])


def test_each_way_is_succeeded_by_itself_and_of_what_it_tells() -> None:
    """C10: of the webhooks that it had, each of its queue; of the broker's subscribers each queue where work waits."""
    third = "billing/others"
    ways = Ways(**{HOOK: QUEUE, "subjects": None, HOOK_2: OTHER})
    ways.rig.scheduler.pending.get_or_add("billing/idle", ways.now)
    ways.waits(QUEUE, OTHER, third)
    name = next(name for name in NAMES if all(rank(queue, name) > rank(queue, BOOT) for queue in (QUEUE, OTHER, third)))
    theirs = [(SUBJECTS, queue, "again") for queue in (QUEUE, OTHER, third)]
    (peer,) = ways.there(name, webhooks=THEIRS)
    ways.go(peer)
    assert ways.done() == theirs
    (peer,) = ways.there(name)
    ways.go(peer)
    assert ways.done() == [(HOOK, QUEUE, "again"), *theirs, (HOOK_2, OTHER, "again")]


ONE, TWO = ("producer", "1"), ("producer", "2")


def test_a_word_says_who_says_it() -> None:
    """C1: number, version, address, engine, and the hash of its webhooks."""
    rig = MemberRig(name="shop", store="aa")
    first = rig.says()[0]
    assert first == Member(boot=BOOT, seq=1, cluster="shop", version="1.0", address="here", store="aa")
    assert rig.turns.name == "shop"
    assert rig.turns.about.seq == 0
    other = MemberRig()
    plain = other.scheduler.join(webhooks="h")
    assert plain.about == Member(boot=BOOT, seq=0, webhooks="h")


def waiting(*names: tuple[str, str]) -> tuple[MemberRig, int]:
    rig = MemberRig()
    session = rig.session()
    rig.peer()
    rig.echo()
    for source, id_ in names:
        rig.trigger_all(source=source, id=id_)
    return rig, session


def test_a_queue_that_is_forgotten_leaves_nothing_behind() -> None:
    """B14: neither a turn, nor a cover to tell, nor a level; somebody who comes later begins anew."""
    rig = MemberRig()
    rig.peer()
    rig.able(queue=OTHER)
    rig.echo()
    rig.trigger_all(OTHER, source="producer", id="1")
    assert rig.work(OTHER).deferred
    assert rig.scheduler.forget(OTHER)
    assert rig.turns.acts_at(OTHER) is None
    assert list(rig.turns.deferred) == []
    rig.keep_company(5.0)
    assert rig.says()[-1].full == ()
    gone = rig.join(OTHER)
    rig.settle_hello(gone, OTHER)
    rig.trigger(OTHER)
    rig.cover(gone, rig.work(OTHER).gen, OTHER)
    rig.lose(gone)
    rig.scheduler.forget(OTHER)
    rig.words.clear()
    rig.keep_company(1.0)
    assert rig.told() == [], "what was to be told is forgotten with it"


def test_what_becomes_visible_is_told_as_the_earliest_of_all_and_never_early() -> None:
    """C4, B2."""
    rig = MemberRig()
    session = rig.join(store="aa")
    rig.settle_hello(session)
    rig.peer(LAST)
    rig.wait(0.2)
    rig.told()
    gen = rig.work().gen
    rig.say(session, EmptyReceive(QUEUE, BOOT, gen, 0, next_visible_in_ms=9_000))
    rig.say(session, EmptyReceive(QUEUE, BOOT, gen, 0, next_visible_in_ms=3_000))
    rig.say(session, EmptyReceive(QUEUE, BOOT, gen, 0, next_visible_in_ms=5_000))
    rig.wait(0.11)
    (word,) = rig.told()
    assert 2_950 <= (word.next_visible_in_ms or 0) <= 2_951
    assert word.store == "aa"
    rig.say(session, EmptyReceive(QUEUE, BOOT, gen, 0, next_visible_in_ms=0))
    rig.wait(0.11)
    assert rig.told()[-1].next_visible_in_ms == 0


def test_names_that_were_early_are_bounded_by_number_and_age() -> None:
    """C4: the oldest go first."""
    rig, _ = waiting()
    for number in range(EARLY_MAX + 1):
        rig.covered(("flood", str(number)))
    rig.trigger_all(source="flood", id="1")
    assert not rig.work().dirty
    rig.trigger_all(source="flood", id="0")
    assert rig.work().dirty
    rig, _ = waiting()
    rig.covered(ONE)
    at = rig.now
    rig.now = at + EARLY_S
    assert rig.turns.already_settled(rig.now, ONE, QUEUE)
    rig.now = at
    rig.covered(ONE)
    rig.now = at + EARLY_S + 0.001
    rig.member()
    rig.covered(TWO)
    rig.now = at
    assert not rig.turns.already_settled(rig.now, ONE, QUEUE), "gone, not only too old"


def test_c1_of_more_than_32_bridges_the_rest_are_turned_away() -> None:
    """C1."""
    rig = MemberRig()
    for number in range(MEMBERS_MAX + 1):
        rig.member(f"{number:032x}")
    assert len(rig.turns.members.peers) == MEMBERS_MAX - 1
    assert [fact.why for fact in rig.facts_of(MemberRefused)] == [TOO_MANY] * 2  # type: ignore[attr-defined]


def test_work_without_room_is_said_at_once_and_again_a_tenth_of_a_second_later_at_the_earliest() -> None:
    """C3."""
    rig = MemberRig()
    session = rig.session()
    rig.member(LAST)
    rig.echo()
    rig.wait(0.3)
    rig.words.clear()
    rig.trigger()
    rig.more(session, unannounced=False)
    rig.wait(0.0)
    assert [word.full for word in rig.says()] == [(QUEUE,)]
    rig.trigger(OTHER)
    rig.wait(0.05)
    assert len(rig.says()) == 1
    rig.wait(0.11)
    assert rig.says()[-1].full == (QUEUE, OTHER)


def test_a_strangers_word_is_named_with_what_is_wrong() -> None:
    """C1: so that somebody finds who says it."""
    rig = MemberRig()
    rig.hear(Member(boot=BOOT, seq=99))
    assert rig.facts_of(ClusterMessageRefused) == [ClusterMessageRefused(BOOT, NOT_SENT_HERE)]


def test_two_covers_that_are_merged_tell_the_names_of_both_and_the_later_beginning() -> None:
    """C4: an older one that comes after takes nothing back."""
    rig = MemberRig()
    session = rig.session()
    rig.peer(LAST)
    rig.echo()
    rig.trigger_all(source="producer", id="1")
    first = rig.work().gen
    rig.wakes(session)
    rig.wait(0.4)
    rig.trigger_all(source="producer", id="2")
    rig.cover(session, rig.work().gen)
    rig.cover(session, first)
    rig.wait(0.11)
    (word,) = rig.told()
    assert set(word.ids) == {ONE, TWO}
    assert word.begun_age_ms == 50


def test_what_others_tell_becomes_due_for_one_message_and_no_tick_early() -> None:
    """B2."""
    rig, _ = waiting(ONE)
    rig.covered(ONE, next_ms=4_000)
    rig.keep_company(3.998)
    assert not rig.work().dirty
    rig.keep_company(0.02)
    assert rig.work().dirty
    assert rig.work().size == 1


def test_c4_under_one_boot_with_a_copy_of_its_machine_nothing_is_proven_and_it_acts_at_once() -> None:
    """C4: others heard the number from the copy, which may have said it long before this one did."""
    rig, session = ready()
    rig.trigger_all()
    assert rig.work().deferred
    said = rig.says()[-1] if rig.says() else None
    rig.wait(1.0)
    rig.echo()
    newest = rig.says()[-1]
    assert said is None or newest.seq > said.seq
    rig.hear(newest)
    assert [wake.reason for wake in rig.wakes(session)] == ["trigger"], "waits for nobody"
    rig.trigger_all()
    rig.covered(seq=newest.seq, since_ms=900, begun_age_ms=0)
    assert rig.work().dirty
    assert rig.facts_of(SettledByPeer) == []
    rig.hear(newest)
    assert len(rig.facts_of(MemberRefused)) == 1, "told once"
    rig.keep_company(SILENT_S + 1.1)
    assert not rig.turns.members.alone(rig.now)
    assert rig.turns.members.refused == {}


def test_c3_room_is_said_when_it_changes_and_not_more_than_ten_times_a_second() -> None:
    """C3."""
    rig = MemberRig()
    session = rig.session()
    for _ in range(5):
        rig.more(session, unannounced=False)
        rig.wait(0.019)
        rig.room(session, 1)
        rig.wait(0.0)
    assert rig.abilities() == [], "what lasts for a moment only would have the others act"
    rig.more(session, unannounced=False)
    rig.wait(0.021)
    assert [word.queues for word in rig.abilities()] == [{QUEUE: Ability(False, 30_000)}]
    rig.room(session, 1)
    rig.wait(0.11)
    assert [word.queues for word in rig.abilities()] == [{QUEUE: Ability(True, 30_000)}]
    rig.lose(session)
    rig.wait(0.0)
    rig.wait(0.11)
    assert [word.queues for word in rig.abilities()] == [{QUEUE: None}]
    rig.wait(5.0)
    assert rig.abilities() == []


def test_a_member_hears_itself_by_numbers_that_it_said() -> None:
    """C1: none before the first, none beyond the newest; the newest that came back counts, and for so long."""
    members = Members("a" * 32)
    assert members.leaving is False
    assert members.alone(0.0)
    assert not members.own_message_returned(0)
    for number in range(1, 4):
        assert members.next_seq(float(number)) == number
    assert not members.own_message_returned(4)
    assert members.own_message_returned(2)
    assert not members.alone(2.0 + SILENT_S)
    assert members.alone(2.0 + SILENT_S + 0.001)
    assert not members.own_message_returned(1)
    assert not members.own_message_returned(2), "each comes back once, and in order"
    assert not members.alone(2.0 + SILENT_S), "an older one takes nothing back"
    members.loop_blocked()
    assert members.own_message_returned(3)
    assert members.alone(3.0), "said before it stood still"
    members.next_seq(5.0)
    assert members.own_message_returned(4)
    assert not members.alone(5.0)


@pytest.mark.parametrize("how", ["at once", "alone", "held", "again", "first"])
def test_the_others_hear_what_was_told_of_which_queue_and_when(how: str) -> None:
    """C10: whichever way it came to be told; with another's webhooks they have the broker's subscribers in common."""
    ways = Ways(subjects=None)
    ways.waits(QUEUE)
    first, last = ways.there(FIRST, LAST, webhooks=THEIRS)
    if how == "at once":
        del ways.rig.turns.members.peers[FIRST]
        assert ways.offer()
    elif how == "alone":
        assert ways.offer(shared=False)
    elif how == "again":
        ways.go(first)
    else:
        assert not ways.offer()
        if how == "first":
            del ways.rig.turns.members.peers[FIRST]
            ways.subscribers.reconsider(ways.now, ways.at)
        else:
            ways.later(A_S + PLACE_S)
    assert last.boot in ways.rig.turns.members.peers
    ways.done()
    ways.later(0.125)
    assert ways.done() == []
    ways.later(0.125)
    (said,) = ways.done()
    assert isinstance(said, Sent)
    assert (said.boot, said.queue, said.hook, said.age_ms) == (BOOT, QUEUE, None, 250)
    assert ways.timer() is None, "nothing is left to be done"


def test_c1_words_are_said_every_second_and_at_once_to_a_newcomer() -> None:
    """C1."""
    rig = MemberRig()
    rig.session()
    rig.wait(3.0)
    assert [word.seq for word in rig.says()] == [2, 3, 4]
    rig.words.clear()
    rig.member(FIRST)
    assert len(rig.says()) == 1
    assert rig.abilities() == [Able(boot=BOOT, seq=5, queues={QUEUE: Ability(True, 30_000)}, whole=True)]
    assert rig.facts_of(MemberCame) == [MemberCame(FIRST, "", "1.0")]
    rig.member(FIRST)
    assert len(rig.says()) == 1, "not to one that is known"


def test_what_forgave_is_named_by_time_where_a_name_was_not_enough() -> None:
    """C4."""
    rig, _ = waiting(ONE)
    rig.trigger_all()
    rig.wait(0.010)
    rig.covered(ONE, seq=rig.says()[-1].seq, since_ms=1000)
    assert rig.facts_of(SettledByPeer) == [SettledByPeer(QUEUE, "time", FIRST)]


@WAYS
def test_the_first_is_gone_before_it_told_and_what_it_held_is_told_again(way: str) -> None:
    """Killed between its word and the post: whoever is first now tells of what still waits."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.sent()
    assert rig.how() == ["drop"]
    rig.wait(1.0)
    rig.echo()
    rig.wait(3.0)
    assert rig.how() == ["again"]


def test_c1_a_word_of_its_own_boot_that_it_never_said_is_refused() -> None:
    """C1."""
    rig = MemberRig()
    rig._seqs[BOOT] = 1000
    rig.member(BOOT)
    assert len(rig.facts_of(ClusterMessageRefused)) == 1
    assert rig.facts_of(MemberRefused) == [MemberRefused(BOOT, "", OWN_BOOT)]


def test_a_bequest_says_at_least_one_message_and_how_many_are_due() -> None:
    """C7."""
    rig = MemberRig()
    rig.trigger_all(OTHER, payload_size=1)
    rig.trigger(QUEUE, size=4, not_before_ms=1_000)
    told = rig.turns.handover(rig.now)
    assert told[0] == CloudQueueWorkDetected("billing", "refunds")
    assert (told[1].queue, told[1].payload_size) == (QUEUE, 4)
    rig.now += 5.0
    assert rig.turns.handover(rig.now)[1].not_before_ms == 0


def test_c3_who_asks_is_answered_no_sooner_than_words_may_follow_each_other() -> None:
    """C3: many may ask at once."""
    rig = MemberRig()
    rig.session()
    rig.peer()
    said = len(rig.says())
    while len(rig.says()) == said:
        rig.wait(0.01)
    rig.abilities()
    rig.hear(Able(boot=FIRST, seq=1, queues={}, asks=True))
    rig.wait(0.09)
    assert rig.abilities() == []
    rig.wait(0.02)
    assert [word.whole for word in rig.abilities()] == [True]


def test_the_order_is_a_hash_that_all_versions_have_to_share() -> None:
    """C2: two that reckon it in different ways would both wait, or both act."""
    assert rank("billing/orders", "0" * 32) == 0xC77761CF3BAE8BFB
    members = Members(LAST)
    members.on_member(0.0, Member(boot=FIRST, seq=1))
    members.on_capacity(0.0, Able(boot=FIRST, seq=1, queues={QUEUE: Ability(True, 1)}))
    members.next_seq(0.0)
    members.own_message_returned(1)
    assert members.bridges_ahead(QUEUE, 0.0) == 1
    assert members.bridges_ahead(QUEUE, 0.0) == 1
    assert members.bridges_ahead(QUEUE, 0.0, "aa") == 1
    members.on_capacity(0.0, Able(boot=FIRST, seq=1, queues={QUEUE: Ability(True, 1, "bb")}))
    assert members.bridges_ahead(QUEUE, 0.0, "aa") == 0
    assert members.bridges_ahead(QUEUE, 0.0, "bb") == 1


@WAYS
def test_what_came_after_it_was_told_stays_held_from_then_on(way: str) -> None:
    """It was told when its age says, and a mark is heard a moment later by one than by another."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.echo()
    rig.trigger_all()
    rig.wait(0.4)
    latest = rig.now - 0.3
    rig.trigger_all()
    rig.sent(age_ms=300)
    assert rig.how() == []
    rig.keep(A_S + 1, FIRST)
    ((what, at),) = rig.told
    assert what == "held"
    assert at == pytest.approx(latest + SKEW_S + A_S + PLACE_S)


def test_help_is_given_in_turn() -> None:
    """C3: one bridge with room looks, not all."""
    rig = MemberRig()
    session = rig.session()
    rig.peer(FIRST)
    rig.member(LAST, full=(QUEUE,))
    assert rig.wakes(session) == []
    assert rig.work().deferred
    rig.keep_company(A_S + 0.3, FIRST, LAST)
    assert [wake.reason for wake in rig.wakes(session)] == ["more"]


def test_c5_who_goes_without_a_word_is_a_gap_wherever_somebody_is_here() -> None:
    """C5: it may have marked what it had no time to tell, and been able for what nobody heard."""
    rig = MemberRig()
    session = rig.join(visibility_ms=5_000)
    rig.settle_hello(session)
    rig.member(FIRST)
    rig.echo()
    rig.keep_company(3.6, LAST)
    assert rig.wakes(session) == []
    rig.keep_company(5.1, LAST)
    assert [wake.reason for wake in rig.wakes(session)] == ["lease"]


@WAYS
def test_who_leaves_holds_what_others_tell(way: str) -> None:
    """It is last in every order, and first where nobody else could."""
    rig = TellingRig(way)
    rig.peer_with(LAST)
    rig.turns.leave(rig.now)
    rig.drive()
    rig.trigger_all()
    assert rig.how() == []
    rig.peer_with(LAST, leaving=True)
    assert "again" in rig.how() or not len(rig.turns.subscribers)


@WAYS
def test_who_tells_says_so_soon_and_once_for_all_that_was_told(way: str) -> None:
    """The newest of them, by its age."""
    rig = TellingRig(way)
    rig.peer_with(LAST)
    rig.trigger_all()
    rig.wait(0.15)
    rig.trigger_all()
    assert rig.says_sent() == []
    rig.wait(MERGE_S)
    (said,) = rig.says_sent()
    assert (said.queue, said.hook) == (QUEUE, None if way == SUBJECTS else HOOK)
    assert said.age_ms in (50, 51)
    assert LAST in said.heard
    rig.keep(3.0, LAST)
    assert rig.says_sent() == []


def test_who_has_no_room_comes_after_every_able_one() -> None:
    """C3: the last in the order is before it, too."""
    members = Members(FIRST)
    members.on_member(0.0, Member(boot=LAST, seq=1))
    members.on_capacity(0.0, Able(boot=LAST, seq=1, queues={QUEUE: Ability(True, 1)}))
    members.next_seq(0.0)
    members.own_message_returned(1)
    assert members.bridges_ahead(QUEUE, 0.0) == 0
    assert members.bridges_ahead(QUEUE, 0.0, ready=False) == 1
    assert members.bridges_ahead(QUEUE, 0.0) == 0
