"""C1 to C5: who acts at once, who waits for its turn, and for how long."""

from __future__ import annotations

import pytest

from queuebell.bridge.contract.cluster import Ability, Able, Covered, Member, Sent
from queuebell.bridge.contract.wire import SCALER, EmptyReceive
from queuebell.bridge.core.cluster.coordinator import EARLY_MAX, EARLY_S, OWN_BOOT
from queuebell.bridge.core.cluster.members import (
    DEPARTED_S,
    MEMBERS_MAX,
    OTHER_ADDRESS,
    OTHER_ENGINE,
    OTHER_MACHINE,
    OTHER_NAME,
    SILENT_S,
    TOO_MANY,
    rank,
)
from queuebell.bridge.core.cluster.subscribers import (
    MERGE_S,
    PLACE_S,
    SKEW_S,
    SUBJECTS,
)
from queuebell.bridge.core.commands import Announce, AnnounceInTurn
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
    rig, session = ready()
    rig.keep_company(1.4, LAST)
    rig.trigger_all()
    rig.keep_company(2.0, LAST)
    assert rig.wakes(session) == []
    rig.keep_company(0.2, LAST)
    assert len(rig.wakes(session)) == 1, "3.5 s after its last word; A would be over 0.15 s later"
    assert rig.facts_of(MemberGone) == [MemberGone(FIRST, "", leaving=False)]


def test_c1_who_hears_itself_no_more_is_alone_and_acts_on_what_waits() -> None:
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
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.turns.end(rig.now)
    rig.drive()
    assert rig.how() == ["held"]


ONE, TWO = ("producer", "1"), ("producer", "2")


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


def test_c1_words_are_said_every_second_and_at_once_to_a_newcomer() -> None:
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
    rig = MemberRig()
    rig._seqs[BOOT] = 1000
    rig.member(BOOT)
    assert len(rig.facts_of(ClusterMessageRefused)) == 1
    assert rig.facts_of(MemberRefused) == [MemberRefused(BOOT, "", OWN_BOOT)]


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
    rig = TellingRig(way)
    rig.peer_with(LAST)
    rig.trigger_all()
    rig.wait(0.15)
    rig.trigger_all()
    assert rig.says_sent() == []
    rig.wait(MERGE_S)
    (said,) = rig.says_sent()
    assert (said.boot, said.queue, said.hook) == (BOOT, QUEUE, None if way == SUBJECTS else HOOK)
    assert said.age_ms in (50, 51)
    assert LAST in said.heard
    rig.keep(3.0, LAST)
    assert rig.says_sent() == []
