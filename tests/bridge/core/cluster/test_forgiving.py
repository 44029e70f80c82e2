"""C4: when a debt may be forgiven on a peer's word, and when not. Sweeps are off: what is lost here is lost."""

from __future__ import annotations

import pytest

from bridge.contract.cluster import NAMES_MAX, Covered
from bridge.contract.wire import Cover
from bridge.core.cluster.marks import proven_until
from bridge.observe.facts import Forgiven, StoreDiffers, WordRefused
from tests.support.bells import BOOT, QUEUE
from tests.support.member import A_S, FIRST, LAST, MemberRig

ONE, TWO = ("producer", "1"), ("producer", "2")
PRODUCTION, STAGING = "aa", "bb"


def owing(*names: tuple[str, str], bare: int = 0) -> tuple[MemberRig, int]:
    """Return a member that waits for its turn with these marks, 10 ms after its newest word, and its session."""
    rig = MemberRig()
    session = rig.session()
    rig.peer()
    rig.wait(1.0)
    rig.echo()
    rig.wait(0.010)
    for source, id_ in names:
        rig.trigger_all(source=source, id=id_)
    for _ in range(bare):
        rig.trigger_all()
    return rig, session


def newest(rig: MemberRig) -> int:
    return rig.says()[-1].seq


def test_c4_a_mark_is_forgiven_by_its_name() -> None:
    """C4."""
    rig, session = owing(ONE)
    gen = rig.debt().gen
    rig.covered(ONE)
    assert not rig.debt().dirty
    assert rig.debt().gen == gen, "forgiving leaves the generation as it is"
    assert rig.facts_of(Forgiven) == [Forgiven(QUEUE, "name", FIRST)]
    rig.keep_company(10.0)
    assert rig.wakes(session) == []


def test_c4_w3_a_debt_of_several_marks_is_forgiven_only_when_each_is() -> None:
    """C4, W3."""
    rig, session = owing(ONE, TWO)
    rig.covered(ONE)
    assert rig.debt().dirty
    rig.covered(TWO)
    assert not rig.debt().dirty
    rig, session = owing(ONE, bare=1)
    rig.covered(ONE)
    assert rig.debt().dirty
    rig.keep_company(A_S + 0.3)
    assert len(rig.wakes(session)) == 1


def test_c2_what_is_left_waits_from_its_own_beginning() -> None:
    """C2."""
    rig, session = owing(ONE)
    rig.wait(1.0)
    rig.echo()
    rig.member()
    rig.trigger_all(source="producer", id="2")
    rig.covered(ONE)
    rig.keep_company(A_S)
    assert rig.wakes(session) == []
    rig.keep_company(0.3)
    assert len(rig.wakes(session)) == 1


def test_c4_a_mark_is_forgiven_by_a_receive_that_surely_began_after_it() -> None:
    """C4."""
    rig, _ = owing(bare=1)
    rig.covered(seq=newest(rig), since_ms=12, begun_age_ms=0)
    assert not rig.debt().dirty
    assert rig.facts_of(Forgiven) == [Forgiven(QUEUE, "time", FIRST)]


def test_c4_w1_w13_a_receive_that_may_have_begun_before_the_mark_forgives_nothing() -> None:
    """C4, W1, W13."""
    for since_ms, begun_age_ms in ((11, 0), (100, 90), (9, 0), (0, 0), (1000, 1000), (1500, 1600)):
        rig, session = owing(bare=1)
        rig.wait(1.4)
        rig.covered(seq=newest(rig) - 1, since_ms=since_ms, begun_age_ms=begun_age_ms)
        assert rig.debt().dirty, (since_ms, begun_age_ms)
        rig.keep_company(A_S)
        assert len(rig.wakes(session)) == 1


def test_c4_two_clocks_may_differ_by_a_thousandth() -> None:
    """C4."""
    assert proven_until(50.0, 1000, 0) == pytest.approx(50.998)
    assert proven_until(50.0, 0, 1000) == pytest.approx(48.998)
    assert proven_until(50.0, 500, 500) == pytest.approx(49.999)


def test_c4_what_was_heard_too_long_ago_proves_nothing() -> None:
    """C4."""
    rig, _ = owing(bare=1)
    rig.covered(seq=newest(rig), since_ms=1501)
    assert rig.debt().dirty
    rig.covered(seq=newest(rig), since_ms=1500)
    assert not rig.debt().dirty


def test_c4_a_seq_never_sent_and_one_of_another_boot_prove_nothing() -> None:
    """C4."""
    rig, _ = owing(bare=1)
    rig.covered(seq=newest(rig) + 1, since_ms=1000)
    rig.hear(Covered(boot=FIRST, queue=QUEUE, begun_age_ms=0, heard={LAST: (1, 1000)}))
    rig.covered(seq=newest(rig), since_ms=1000, begun_age_ms=None)
    rig.covered(seq=newest(rig), since_ms=1000, queue="billing/other")
    assert rig.debt().dirty


@pytest.mark.parametrize("what", ["suspended", "begin", "gap"])
def test_c4_w2_a_seq_from_before_a_suspend_or_a_reconnect_proves_nothing(what: str) -> None:
    """C4, W2."""
    rig, _ = owing(bare=1)
    seq = newest(rig)
    if what == "suspended":
        rig.bell.suspended(rig.now, 60.0)
    elif what == "begin":
        rig.turns.begin(rig.now)
    else:
        rig.turns.end(rig.now)
        rig.turns.begin(rig.now)
    rig.drive()
    rig.covered(seq=seq, since_ms=1000)
    assert rig.debt().dirty


def test_c4_what_was_heard_before_a_suspend_is_not_told() -> None:
    """C4."""
    rig = MemberRig()
    session = rig.session()
    rig.peer()
    rig.echo()
    rig.bell.suspended(rig.now, 60.0)
    rig.drive()
    rig.cover(session, rig.debt().gen)
    rig.wait(0.11)
    assert rig.told()[-1].heard == {}
    rig.member()
    rig.cover(session, rig.debt().gen)
    rig.wait(0.11)
    assert list(rig.told()[-1].heard) == [FIRST]


def test_c4_w2_a_sleep_too_short_to_be_a_gap_moves_no_moment() -> None:
    """C4: by our own sleep between a word and a mark, and by the teller's between a receive and the word of it."""
    rig, _ = owing()
    rig.turns.watch((0.0, 3.0), there=True)
    rig.trigger_all()
    rig.covered(seq=newest(rig), since_ms=1_000)
    assert rig.debt().dirty, "3 s passed since that word, and not 10 ms"
    rig, session = telling()
    rig.trigger_all()
    gen = rig.debt().gen
    rig.wakes(session)
    rig.turns.watch((0.0, 3.0), there=True)
    rig.member(LAST)
    rig.cover(session, gen)
    rig.wait(0.11)
    assert rig.told()[-1].begun_age_ms == 3_050


def test_c4_without_a_clock_that_goes_on_only_names_prove() -> None:
    """C4: neither here nor to others; a reading that fails once moves no moment, nor does one that jitters."""
    rig, _ = owing(bare=1)
    rig.turns.watch((0.0, 0.0019), there=True)
    rig.turns.watch(None, there=True)
    assert rig.turns.slept_s == 0.0
    rig.turns.watch(None, there=False)
    rig.covered(seq=newest(rig), since_ms=1_000)
    assert rig.debt().dirty
    rig, session = telling()
    rig.turns.watch(None, there=False)
    rig.trigger_all(source="producer", id="1")
    rig.wakes(session)
    rig.cover(session, rig.debt().gen)
    rig.wait(0.11)
    assert [(word.ids, word.begun_age_ms) for word in rig.told()] == [((ONE,), None)]


def test_c4_while_the_clocks_cannot_be_read_nothing_is_proven_by_time() -> None:
    """C4: not at that event; afterwards moments prove again, unless a sleep passed unseen in between."""
    for slept, proves in ((0.0, True), (0.5, False)):
        rig, _ = owing(bare=1)
        known = newest(rig)
        rig.turns.watch((0.0, 0.0), there=True)
        rig.turns.watch(None, there=True)
        rig.covered(seq=known, since_ms=1_000)
        assert rig.debt().dirty
        rig.turns.watch((0.0, slept), there=True)
        rig.covered(seq=known, since_ms=1_000)
        assert rig.debt().dirty is not proves
        assert rig.turns.slept_s == slept


def test_c4_what_was_shown_while_the_clocks_could_not_be_read_proves_nothing() -> None:
    """C4: the moment is of another clock once they can be; with one behind ours the receive would begin too late."""
    for readable in (True, False):
        rig, session = telling()
        rig.turns.watch((0.0, 0.0) if readable else None, there=True)
        rig.trigger_all()
        gen = rig.debt().gen
        rig.wakes(session)
        rig.turns.watch((0.0, 0.0 if readable else -7_000.0), there=True)
        rig.member(LAST)
        rig.cover(session, gen)
        rig.wait(0.11)
        assert rig.told()[-1].begun_age_ms == (50 if readable else None)


def test_c4_w4_timers_are_never_forgiven() -> None:
    """C4, W4."""
    rig, session = owing(ONE)
    rig.trigger_all(source="producer", id="2", not_before_ms=5_000)
    rig.covered(ONE, TWO, seq=newest(rig), since_ms=500)
    assert not rig.debt().dirty
    rig.keep_company(8.0)
    assert [wake.reason for wake in rig.wakes(session)] == ["due"]


def test_c4_w15_the_mark_of_a_timer_has_no_name() -> None:
    """C4, W15."""
    rig, session = owing(ONE)
    rig.trigger_all(source="producer", id="1", not_before_ms=1_000)
    rig.covered(ONE)
    rig.keep_company(1.1)
    assert rig.debt().dirty
    rig.covered(ONE)
    assert rig.debt().dirty
    rig.keep_company(3.0)
    assert len(rig.wakes(session)) == 1


def test_c4_the_second_mark_of_one_name_has_none() -> None:
    """C4."""
    rig, _ = owing(ONE, ONE)
    rig.covered(ONE)
    assert rig.debt().dirty, "a publish that is said again may be of a put that became visible later"
    rig.covered(ONE)
    assert rig.debt().dirty


def test_c4_w11_names_that_do_not_fit_are_marks_without_one() -> None:
    """C4, W11."""
    names = [("producer", str(number)) for number in range(NAMES_MAX + 1)]
    rig, _ = owing(*names)
    for name in names:
        rig.covered(name)
    assert rig.debt().dirty
    rig.covered(seq=newest(rig), since_ms=500)
    assert not rig.debt().dirty


def test_c4_a_mark_named_before_it_came_is_born_forgiven_once() -> None:
    """C4."""
    rig, session = owing()
    rig.covered(ONE)
    rig.trigger_all(source="producer", id="1")
    assert not rig.debt().dirty
    rig.trigger_all(source="producer", id="1")
    assert rig.debt().dirty, "said again: only the first is forgiven"
    rig.covered(seq=newest(rig), since_ms=500)
    rig.covered(TWO, queue="billing/other")
    rig.trigger_all(source="producer", id="2")
    assert rig.debt().dirty, "named for another queue"
    assert rig.wakes(session) == []


def test_c4_a_name_is_remembered_for_ten_seconds() -> None:
    """C4."""
    rig, _ = owing()
    rig.covered(ONE, TWO)
    rig.keep_company(9.9)
    rig.trigger_all(source="producer", id="1")
    assert not rig.debt().dirty
    rig.keep_company(0.2)
    rig.trigger_all(source="producer", id="2")
    assert rig.debt().dirty


def test_c4_w15_a_name_remembered_is_no_word_on_a_due_time() -> None:
    """C4, W15."""
    rig, session = owing()
    rig.covered(ONE)
    rig.trigger_all(source="producer", id="1", not_before_ms=1_000)
    rig.keep_company(4.0)
    assert len(rig.wakes(session)) == 1


def test_c4_a_debt_that_was_handed_out_is_forgiven_as_well_and_its_wake_is_not_sent_again() -> None:
    """C4."""
    rig = MemberRig()
    session = rig.session()
    rig.peer(LAST)
    rig.echo()
    rig.trigger_all(source="producer", id="1")
    assert len(rig.wakes(session)) == 1
    rig.covered(ONE, name=LAST)
    assert not rig.debt().dirty
    rig.keep_company(3 * A_S, LAST)
    assert rig.wakes(session) == []


def test_c4_w14_another_store_forgives_orders_and_covers_nothing() -> None:
    """C4, W14."""
    rig = MemberRig()
    session = rig.join(store=PRODUCTION)
    rig.settle_hello(session)
    rig.peer(store=STAGING)
    rig.echo()
    rig.trigger_all(source="producer", id="1")
    assert len(rig.wakes(session)) == 1, "it orders nothing"
    covered_at = rig.debt().covered_at
    rig.covered(ONE, seq=newest(rig), since_ms=1000, store=STAGING, next_ms=1)
    assert rig.debt().dirty
    assert rig.debt().covered_at == covered_at
    assert not rig.debt().any_due
    assert rig.facts_of(StoreDiffers) == [StoreDiffers(QUEUE, FIRST)]
    rig.covered(ONE, store=PRODUCTION)
    assert not rig.debt().dirty


def test_b11_what_another_store_paid_while_nobody_was_here_is_owed_to_who_comes() -> None:
    """B11, across bridges."""
    rig = MemberRig()
    rig.peer(store=STAGING)
    rig.echo()
    rig.trigger_all(source="producer", id="1")
    rig.covered(ONE, seq=newest(rig), since_ms=500, store=STAGING)
    assert not rig.debt().dirty
    assert rig.wakes(rig.join(store=STAGING)) == []
    other = MemberRig()
    other.peer(store=STAGING)
    other.echo()
    other.trigger_all(source="producer", id="1")
    other.covered(ONE, seq=newest(other), since_ms=500, store=STAGING)
    assert len(other.wakes(other.join(store=PRODUCTION))) == 1


def test_c4_strangers_are_not_believed() -> None:
    """C4."""
    rig, _ = owing(ONE)
    rig.covered(ONE, name=LAST)
    assert rig.debt().dirty
    assert rig.facts_of(WordRefused) == [WordRefused(LAST, "not a member, as far as was heard")]
    rig.hear(Covered(boot=BOOT, queue=QUEUE, ids=(ONE,)))
    assert rig.debt().dirty, "its own word"


def test_c5_w6_a_peers_cover_counts_for_the_sweep_from_when_it_surely_began() -> None:
    """C5, W6."""
    rig = MemberRig(sweep_s=60.0)
    rig.session()
    rig.peer()
    rig.wait(1.0)
    rig.echo()
    seq = newest(rig)
    sent = rig.turns.members.sent_at(seq)
    assert sent is not None
    rig.keep_company(30.0)
    rig.covered(seq=seq, since_ms=1000, begun_age_ms=0)
    assert rig.debt().covered_at == pytest.approx(proven_until(sent, 1000, 0))
    before = rig.debt().covered_at
    rig.covered(seq=seq, since_ms=500, begun_age_ms=0)
    assert rig.debt().covered_at == before, "never back"


def test_c4_what_becomes_visible_later_is_a_timer_of_all() -> None:
    """C4."""
    rig, session = owing(ONE)
    rig.covered(ONE, next_ms=3_000)
    assert not rig.debt().dirty
    rig.keep_company(3.1)
    assert rig.debt().dirty
    assert rig.wakes(session) == []
    rig.keep_company(A_S + 0.3)
    assert [wake.reason for wake in rig.wakes(session)] == ["due"]


# -- what is told ------------------------------------------------------------------------------------------------------


def telling() -> tuple[MemberRig, int]:
    rig = MemberRig()
    session = rig.session()
    rig.peer(LAST)
    rig.echo()
    return rig, session


def test_c4_covers_are_told_merged_and_after_a_twentieth_of_a_second() -> None:
    """C4."""
    rig, session = telling()
    rig.trigger_all(source="producer", id="1")
    rig.trigger_all(source="producer", id="2")
    rig.wakes(session)
    rig.cover(session, rig.debt().gen)
    rig.wait(0.049)
    assert rig.told() == []
    rig.wait(0.002)
    told = rig.told()
    assert [word.ids for word in told] == [(ONE, TWO)]
    assert told[0].heard == {LAST: (1, pytest.approx(49.5, abs=0.5))}
    assert told[0].begun_age_ms == 50


def test_c4_w12_names_of_marks_made_after_the_receive_began_are_not_told() -> None:
    """C4, W12."""
    rig, session = telling()
    rig.trigger_all(source="producer", id="1")
    gen = rig.debt().gen
    rig.wakes(session)
    rig.trigger_all(source="producer", id="2")
    rig.cover(session, gen)
    rig.wait(0.11)
    assert [word.ids for word in rig.told()] == [(ONE,)], "W16: an older cover is told too"
    rig.cover(session, rig.debt().gen)
    rig.wait(0.11)
    assert [word.ids for word in rig.told()] == [(TWO,)]


def test_c4_w13_the_receive_began_after_its_wake_was_sent_and_that_is_all_that_is_known() -> None:
    """C4, W13."""
    rig, session = telling()
    rig.trigger_all()
    gen = rig.debt().gen
    rig.wait(5.0)
    rig.member(LAST)
    rig.say(session, Cover(QUEUE, BOOT, gen, 0))
    rig.wait(0.11)
    assert rig.told()[-1].begun_age_ms == 5050, "it may have lain in a buffer since"
    rig.say(session, Cover(QUEUE, BOOT, gen, 0, after_ms=4_000))
    rig.wait(0.11)
    assert rig.told()[-1].begun_age_ms in (1164, 1165), "4 s by the listener's clock are 3.996 s at least by ours"


def test_c4_a_receive_long_after_its_wake_began_no_later_for_a_listener_whose_clock_runs_fast() -> None:
    """C4: found by the simulation; of a wake 54 s ago a clock that is 0.05 % fast made the receive 27 ms too late."""
    rig, session = telling()
    rig.trigger_all()
    gen = rig.debt().gen
    rig.wait(5.0)
    rig.member(LAST)
    rig.say(session, Cover(QUEUE, BOOT, gen, 0, after_ms=round(5_000 * 1.0005)))
    rig.wait(0.06)
    age_ms = rig.told()[-1].begun_age_ms
    assert age_ms is not None and age_ms >= 50, "it began just now, and the others are told 50 ms later"


def test_c4_a_generation_is_known_from_when_it_was_first_told_to_anybody() -> None:
    """C4."""
    rig, session = telling()
    rig.trigger_all()
    gen = rig.debt().gen
    rig.wait(1.0)
    rig.member(LAST)
    rig.join()  # its welcome tells it again
    rig.cover(session, gen)
    rig.wait(0.11)
    assert rig.told()[-1].begun_age_ms == 1050


def test_c4_the_newest_generation_told_before_bounds_one_that_is_not_known() -> None:
    """C4."""
    rig, session = telling()
    rig.trigger_all()
    gen = rig.debt().gen
    rig.cover(session, gen)
    rig.wait(0.11)
    rig.told()
    rig.cover(session, gen - 1)
    rig.wait(0.11)
    assert rig.told()[-1].begun_age_ms is not None
    rig.cover(session, 0)
    rig.wait(0.11)
    assert rig.told()[-1].begun_age_ms is None, "nothing was told before"


def test_c4_names_that_are_too_long_together_are_left_out() -> None:
    """C4."""
    rig, session = telling()
    for number in range(20):
        rig.trigger_all(source="s" * 1000, id=f"{number}".ljust(1000, "x"))
    rig.cover(session, rig.debt().gen)
    rig.wait(0.11)
    assert [len(word.ids) for word in rig.told()] == [8]


def test_c4_nothing_is_told_to_nobody() -> None:
    """C4."""
    rig = MemberRig()
    session = rig.session()
    rig.trigger_all(source="producer", id="1")
    rig.cover(session, rig.debt().gen)
    rig.wait(1.0)
    assert rig.told() == []


def test_c4_a_level_in_a_heartbeat_settles_and_is_told_by_its_generation_alone() -> None:
    """C4."""
    rig, session = telling()
    rig.trigger_all(source="producer", id="1")
    gen = rig.debt().gen
    rig.wakes(session)
    rig.wait(0.5)
    rig.beat(session, gen=gen, covered=gen, free=32)
    rig.wait(0.11)
    assert [(word.ids, word.begun_age_ms) for word in rig.told()] == [((ONE,), 550)]
