"""C1 to C5: who acts at once, who waits for its turn, and for how long."""

from __future__ import annotations

import pytest

from bridge.contract.cluster import Ability, Able, Covered, Member
from bridge.contract.wire import SCALER
from bridge.core.cluster.members import MEMBERS_MAX, SILENT_S, WENT_S, Members, able, rank
from bridge.core.cluster.strangers import OTHER_ADDRESS, OTHER_ENGINE, OTHER_MACHINE, OTHER_NAME, TOO_MANY
from bridge.core.cluster.turns import OWN_BOOT
from bridge.observe.facts import ActedLate, Forgiven, MemberCame, MemberGone, MemberRefused, WordRefused
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


def test_c2_who_knows_of_nobody_able_before_it_acts_at_once() -> None:
    """C2."""
    rig = MemberRig()
    session = rig.session()
    rig.trigger_all()
    assert len(rig.wakes(session)) == 1
    rig.cover(session, rig.debt().gen)
    rig.peer(LAST)
    rig.trigger_all()
    assert len(rig.wakes(session)) == 1, "the other comes later in the order"
    rig.cover(session, rig.debt().gen)
    rig.member(FIRST)
    rig.trigger_all()
    assert len(rig.wakes(session)) == 1, "W8: not heard is not able"
    rig.cover(session, rig.debt().gen)
    rig.able(FIRST, room=False)
    rig.trigger_all()
    assert len(rig.wakes(session)) == 1


def test_c2_any_other_holds_the_mark_for_a_and_a_quarter_of_a_second() -> None:
    """C2."""
    rig, session = ready()
    rig.trigger_all()
    assert rig.debt().dirty
    assert rig.debt().deferred
    assert rig.wakes(session) == []
    rig.keep_company(A_S + 0.24)
    assert rig.wakes(session) == []
    rig.keep_company(0.02)
    assert [wake.reason for wake in rig.wakes(session)] == ["trigger"]
    assert rig.facts_of(ActedLate) == [ActedLate(QUEUE)]
    assert not rig.debt().deferred


def test_c2_each_place_in_the_order_is_a_quarter_of_a_second() -> None:
    """C2."""
    rig, session = ready()
    second = boot(first=True, number=1)
    rig.peer(second)
    rig.trigger_all()
    rig.keep_company(A_S + 0.49, FIRST, second)
    assert rig.wakes(session) == []
    rig.keep_company(0.02, FIRST, second)
    assert len(rig.wakes(session)) == 1


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


def test_c2_what_one_bridge_alone_knows_it_acts_on_at_once() -> None:
    """C2."""
    rig, session = ready()
    rig.trigger_all()
    rig.more(session, unannounced=True)
    rig.room(session, 4)
    assert [wake.reason for wake in rig.wakes(session)] == ["more"], "one look pays both"
    assert not rig.debt().deferred


def test_c2_a_debt_with_an_owner_is_not_deferred() -> None:
    """C2."""
    rig, session = ready()
    rig.trigger()
    assert len(rig.wakes(session)) == 1
    rig.trigger_all()
    assert len(rig.wakes(session)) == 1
    assert not rig.debt().deferred


def test_c2_what_waits_here_already_is_not_deferred_by_another_mark() -> None:
    """C2."""
    rig, session = ready()
    rig.more(session, unannounced=False)
    rig.trigger()
    assert rig.wakes(session) == [], "no room"
    rig.trigger_all()
    rig.room(session, 1)
    assert len(rig.wakes(session)) == 1


def test_c2_a_hello_gets_at_once_what_waits_for_its_turn() -> None:
    """C2."""
    rig, session = ready()
    rig.trigger_all()
    newcomer = rig.join()
    assert len(rig.wakes(session)) + len(rig.wakes(newcomer)) == 1


@pytest.mark.parametrize("change", ["leaving", "unable", "no session"])
def test_c2_a_change_of_order_or_ability_applies_at_once(change: str) -> None:
    """C2."""
    rig, session = ready()
    rig.trigger_all()
    if change == "leaving":
        rig.member(FIRST, leaving=True)
    else:
        rig.able(FIRST, room=False if change == "unable" else None)
    assert len(rig.wakes(session)) == 1, "W7"


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


def test_c1_who_does_not_hear_itself_is_alone() -> None:
    """C1."""
    rig = MemberRig(alone=True)
    session = rig.session()
    rig.peer()
    rig.trigger_all()
    assert len(rig.wakes(session)) == 1


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


def test_c1_who_stood_still_is_alone_until_a_word_said_since_comes_back() -> None:
    """C1."""
    rig, session = ready()
    rig.now += 2.5
    rig.bell.tick(rig.now)
    rig.drive()
    rig.member()
    *before, newest = rig.says()
    for word in before:
        rig.hear(word)
        assert rig.turns.members.alone(rig.now)
    rig.hear(newest)
    assert not rig.turns.members.alone(rig.now)
    rig.trigger_all()
    assert rig.wakes(session) == []


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


def test_c1_a_word_of_its_own_boot_that_it_never_said_is_refused() -> None:
    """C1."""
    rig = MemberRig()
    rig._seqs[BOOT] = 1000
    rig.member(BOOT)
    assert len(rig.facts_of(WordRefused)) == 1
    assert rig.facts_of(MemberRefused) == [MemberRefused(BOOT, "", OWN_BOOT)]


def test_c4_under_one_boot_with_a_copy_of_its_machine_nothing_is_proven_and_it_acts_at_once() -> None:
    """C4: others heard the number from the copy, which may have said it long before this one did."""
    rig, session = ready()
    rig.trigger_all()
    assert rig.debt().deferred
    said = rig.says()[-1] if rig.says() else None
    rig.wait(1.0)
    rig.echo()
    newest = rig.says()[-1]
    assert said is None or newest.seq > said.seq
    rig.hear(newest)
    assert [wake.reason for wake in rig.wakes(session)] == ["trigger"], "waits for nobody"
    rig.trigger_all()
    rig.covered(seq=newest.seq, since_ms=900, begun_age_ms=0)
    assert rig.debt().dirty
    assert rig.facts_of(Forgiven) == []
    rig.hear(newest)
    assert len(rig.facts_of(MemberRefused)) == 1, "told once"
    rig.keep_company(SILENT_S + 1.1)
    assert not rig.turns.members.alone(rig.now)
    assert rig.turns.members.refused == {}


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
    assert rig.facts_of(Forgiven)
    rig.hear(Member(boot=FIRST, seq=2, cluster="shop", store="aa", engine="22"))
    rig.wait(0.0)
    assert rig.turns.members.peers == {}
    assert rig.facts_of(MemberGone)
    assert rig.debt().due_to_all["lease"].next() == pytest.approx(rig.now + 30.0, abs=0.1)


def test_of_any_number_of_strangers_as_many_are_remembered_as_a_cluster_has_members() -> None:
    """Anybody who may publish there can make up a boot."""
    rig = MemberRig(name="shop")
    for number in range(10 * MEMBERS_MAX):
        rig.hear(Member(boot=f"{number:032x}", seq=1, cluster="stall"))
    assert len(rig.turns.members.refused) == MEMBERS_MAX


def test_c1_in_a_full_cluster_those_that_are_in_it_are_heard() -> None:
    """C1: only a newcomer is turned away."""
    rig = MemberRig()
    boots = [f"{number:032x}" for number in range(MEMBERS_MAX - 1)]
    for seq in (1, 2):
        for name in boots:
            rig.hear(Member(boot=name, seq=seq))
    assert rig.facts_of(MemberRefused) == []
    assert [peer.word.seq for peer in rig.turns.members.peers.values()] == [2] * len(boots)


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


def test_who_comes_and_goes_is_remembered_for_five_minutes() -> None:
    """C1: by its address, for each start has a boot of its own."""
    rig = MemberRig()
    for number in range(3):
        rig.hear(Member(boot=f"{number}" + 31 * "c", seq=1, address="b:8470"))
        rig.keep_company(SILENT_S + 0.5)
    assert rig.turns.members.flapping(rig.now) == {"b:8470": 3}
    rig.keep_company(WENT_S)
    assert rig.turns.members.flapping(rig.now) == {}


def test_c1_of_more_than_32_bridges_the_rest_are_turned_away() -> None:
    """C1."""
    rig = MemberRig()
    for number in range(MEMBERS_MAX + 1):
        rig.member(f"{number:032x}")
    assert len(rig.turns.members.peers) == MEMBERS_MAX - 1
    assert [fact.why for fact in rig.facts_of(MemberRefused)] == [TOO_MANY] * 2  # type: ignore[attr-defined]


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


def test_c3_the_longest_visibility_timeout_is_said() -> None:
    """C3."""
    rig = MemberRig()
    rig.join(visibility_ms=5_000)
    rig.join(visibility_ms=50_000)
    rig.wait(0.2)
    assert [word.queues for word in rig.abilities()][-1] == {QUEUE: Ability(True, 50_000)}


def test_c3_work_without_room_is_a_level_and_whoever_has_room_looks() -> None:
    """C3."""
    rig = MemberRig()
    session = rig.session()
    rig.member(FIRST)
    rig.echo()
    rig.words.clear()
    rig.trigger()
    rig.more(session, unannounced=False)
    rig.wait(0.11)
    assert rig.says()[-1].full == (QUEUE,), "at once"
    rig.wait(1.0)
    assert rig.says()[-1].full == (QUEUE,), "while it lasts"
    rig.room(session, 1)
    rig.cover(session, rig.debt().gen)
    rig.wait(1.0)
    assert rig.says()[-1].full == ()


def test_c3_another_is_helped_once_and_not_with_every_word() -> None:
    """C3."""
    rig = MemberRig()
    session = rig.session()
    rig.member(FIRST, full=(QUEUE, OTHER))
    assert [wake.reason for wake in rig.wakes(session)] == ["more"]
    rig.cover(session, rig.debt().gen)
    for _ in range(7):
        rig.wait(1.0)
        rig.echo()
        rig.member(FIRST, full=(QUEUE,))
    assert rig.wakes(session) == []
    rig.wait(1.0)
    rig.member(FIRST, full=(QUEUE,))
    assert len(rig.wakes(session)) == 1, "it stands for 4 A: the help may have been lost"


def test_c3_who_has_no_room_either_does_not_help() -> None:
    """C3."""
    rig = MemberRig()
    session = rig.session()
    rig.more(session, unannounced=False)
    rig.member(FIRST, full=(QUEUE,))
    assert not rig.debt().dirty


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
    assert OTHER not in rig.bell.ledger.debts, "its sessions had left it for longer than their leases last"


def test_c5_a_queue_that_a_lost_member_left_a_moment_ago_is_looked_at_too() -> None:
    """C5."""
    rig, session = ready()
    rig.able(FIRST, visibility_ms=9_000)
    rig.able(FIRST, room=None)
    rig.keep_company(3.6, LAST)
    rig.keep_company(9.1, LAST)
    assert [wake.reason for wake in rig.wakes(session)] == ["lease"]


def test_c7_who_leaves_in_order_leaves_no_look_behind() -> None:
    """C7."""
    rig, session = ready()
    rig.able(visibility_ms=5000)
    rig.member(FIRST, leaving=True, told=True)
    rig.keep_company(9.1, LAST)
    assert rig.wakes(session) == []
    assert rig.facts_of(MemberGone) == [MemberGone(FIRST, "", leaving=True)]


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


def test_c7_what_only_the_leaving_one_knows_is_told_at_the_end() -> None:
    """C7: debts, leases and due times, as triggers; not what all have."""
    rig, session = ready()
    rig.trigger_all(not_before_ms=60_000)
    rig.beat(session, leases=[5_000], free=3)
    rig.trigger(size=3)
    rig.turns.leave(rig.now)
    rig.lose(session)
    told = rig.turns.bequest(rig.now)
    assert [(event.queue, event.payload_size) for event in told] == [(QUEUE, 3), (QUEUE, 1), (QUEUE, 1)]
    at_once, lease, visibility = (event.not_before_ms for event in told)
    assert at_once == 0
    assert 5_000 <= lease <= 5_020
    assert 30_000 <= visibility <= 30_040


def test_c7_who_leaves_says_so_and_is_the_last_in_every_order() -> None:
    """C7."""
    rig = MemberRig()
    session = rig.session()
    rig.peer(LAST)
    rig.echo()
    rig.turns.leave(rig.now)
    rig.drive()
    assert rig.says()[-1].leaving
    rig.trigger_all()
    assert rig.wakes(session) == []
    assert rig.debt().deferred


def test_after_an_outage_of_the_broker_everybody_is_alone() -> None:
    """C1: until it hears itself again."""
    rig, session = ready()
    rig.trigger_all()
    rig.turns.end(rig.now)
    rig.drive()
    assert len(rig.wakes(session)) == 1
    rig.cover(session, rig.debt().gen)
    rig.wait(10.0)
    assert rig.says() == [], "nothing can be said"
    rig.turns.begin(rig.now)
    rig.wait(0.0)
    rig.member()
    rig.able()
    rig.trigger_all()
    assert len(rig.wakes(session)) == 1, "its own word is not back yet"


def test_c2_due_times_that_all_have_are_looked_at_in_turn() -> None:
    """C2."""
    rig, session = ready()
    rig.trigger_all(not_before_ms=5_000)
    rig.keep_company(5.1)
    assert rig.debt().dirty
    assert rig.wakes(session) == []
    rig.keep_company(A_S + 0.25)
    assert [wake.reason for wake in rig.wakes(session)] == ["due"]


T_S, LATEST_S = 60.0, 66.0


def swept(name: str) -> tuple[MemberRig, int, float]:
    """Return a member, its session, and since when its sweep counts; another is able, first or last in the order."""
    rig = MemberRig(sweep_s=T_S)
    session = rig.session()
    rig.peer(name)
    rig.echo()
    since = rig.debt().covered_at
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


def test_c5_the_first_sweeps_as_a_bridge_without_others() -> None:
    """C5, B9: at the moment that was drawn, and at once."""
    rig, session, since = swept(LAST)
    drawn = rig.bell.dispatch.agenda.when(("sweep", QUEUE))
    assert drawn is not None and since + 54.0 <= drawn <= since + LATEST_S
    pass_until(rig, session, drawn - 0.01, LAST)
    assert (reasons(rig, session), rig.debt().dirty) == ([], False)
    rig.wait(0.02)
    assert reasons(rig, session) == ["sweep"]
    assert not rig.debt().deferred
    assert rig.facts_of(ActedLate) == []


def test_c5_any_other_sweeps_when_the_first_should_have_and_marks_nothing_before() -> None:
    """C5: 1.1 T, A and its place after the last cover, however its own moment was drawn; then at once."""
    rig, session, since = swept(FIRST)
    pass_until(rig, session, since + LATEST_S + A_S + 0.24)
    assert (reasons(rig, session), rig.debt().dirty) == ([], False)
    pass_until(rig, session, since + LATEST_S + A_S + 0.26)
    assert reasons(rig, session) == ["sweep"]
    assert not rig.debt().deferred
    assert rig.facts_of(ActedLate) == [ActedLate(QUEUE)]


def test_c5_a_cover_of_the_first_ends_the_wait_of_the_others() -> None:
    """C5, I2: however late in the wait it is told, and however long before the look began."""
    rig, session, since = swept(FIRST)
    for _ in range(5):
        pass_until(rig, session, since + LATEST_S + A_S)
        rig.covered(seq=rig.turns.members.seq, since_ms=0, begun_age_ms=100)
        covered = rig.debt().covered_at
        assert covered is not None and covered > since + 60.0
        since = covered
    assert (reasons(rig, session), rig.debt().dirty) == ([], False)


@pytest.mark.parametrize("why", ["trigger", "due", "resync", "hello", "more"])
def test_c5_what_is_owed_meanwhile_waits_for_no_sweep(why: str) -> None:
    """C2, C5: a mark while the sweep waits for its turn is what it would be without, and pays for the sweep."""
    rig, session, since = swept(FIRST)
    if why == "due":
        rig.trigger_all(not_before_ms=round((since + LATEST_S - rig.now) * 1000))
    pass_until(rig, session, since + LATEST_S)
    assert not rig.debt().dirty
    seats = [session]
    if why == "trigger":
        rig.trigger_all()
    elif why == "resync":
        rig.bell.gap(rig.now)
    elif why == "more":
        rig.more(session, unannounced=True)
    elif why == "hello":
        rig.trigger_all()
        seats.append(rig.join())
    rig.wait(0.01)
    assert rig.debt().dirty
    at_once = why in ("hello", "more")
    assert rig.debt().deferred is not at_once
    pass_until(rig, session, rig.now + A_S + 0.3)
    assert any(reason != "sweep" for seat in seats for reason in reasons(rig, seat))


@pytest.mark.parametrize("how", ["leaves", "is full", "has no session", "is gone", "cannot be heard"])
def test_c5_who_becomes_the_first_sweeps_no_later_than_it_would_have(how: str) -> None:
    """C5, C2: a change of the order before its moment counts; whatever changes, the bound of the last place holds."""
    for after_s in (50.0, 67.0):
        rig, session, since = swept(FIRST)
        pass_until(rig, session, since + after_s)
        if how == "leaves":
            rig.member(FIRST, leaving=True)
        elif how == "is full":
            rig.able(FIRST, room=False)
        elif how == "has no session":
            rig.able(FIRST, room=None)
        elif how == "cannot be heard":
            rig.turns.end(rig.now)
        else:
            rig.keep_company(4.0, LAST)
        alone = how in ("is gone", "cannot be heard")
        while rig.now < since + LATEST_S:
            rig.wait(0.5)
            if not alone:
                rig.echo()
            rig.beat(session, free=32)
        early = reasons(rig, session)
        rig.wait(A_S + 0.26)
        if after_s == 50.0:
            assert early[:1] == ["sweep"], "by 1.1 T"
        else:
            assert [*early, *reasons(rig, session)][:1] == ["sweep"], "by 1.1 T, A and its place"


def test_c5_a_bridge_that_comes_before_has_its_turn_too() -> None:
    """C5: two places are half a second, and who comes first is asked when the moment comes."""
    rig, session, since = swept(FIRST)
    pass_until(rig, session, since + LATEST_S + 1.0)
    second = boot(first=True, number=1)
    rig.member(second)
    rig.able(second)
    pass_until(rig, session, since + LATEST_S + A_S + 0.26)
    assert reasons(rig, session) == []
    rig.keep_company(0.26, FIRST, second)
    assert reasons(rig, session) == ["sweep"]


def test_the_order_is_the_same_for_all_and_differs_from_queue_to_queue() -> None:
    """C2: no bridge is the first of all."""
    boots = [f"{number:032x}" for number in range(5)]
    orders = {tuple(sorted(boots, key=lambda name: rank(queue, name))) for queue in map(str, range(50))}
    assert len(orders) > 20
    members = Members(boots[0])
    assert members.before(QUEUE, 0.0) == 0
    assert not members.peers
    assert able.__doc__


def test_c2_z5_a_scaler_here_comes_after_workers_elsewhere_and_acts_where_there_are_none() -> None:
    """C2, C3, Z5: nobody starts a worker while one with room is with another bridge."""
    rig = MemberRig()
    scaler = rig.join(kind=SCALER)
    rig.settle_hello(scaler)
    rig.wait(0.2)
    assert [word.queues for word in rig.abilities()][-1] == {QUEUE: Ability(False, 30_000, starts=True)}
    rig.peer(LAST)
    rig.trigger_all()
    assert rig.wakes(scaler) == [], "the worker of the other looks, though this bridge is first in order"
    rig.able(LAST, room=False)
    assert len(rig.wakes(scaler)) == 1


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
