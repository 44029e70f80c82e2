"""The edges of the rules of turns: bounds to the digit, what is forgotten, and what every word says."""

from __future__ import annotations

import pytest

from bridge.contract.cluster import NAMES_BYTES_MAX, QUEUES_MAX, Ability, Able, Member
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import Cover
from bridge.core.cluster.marks import Marks
from bridge.core.cluster.members import SILENT_S, SINCE_MAX_MS, Members, Peer, able, rank
from bridge.core.cluster.turns import EARLY_MAX, EARLY_S, NEVER_SAID, STOOD_STILL_S
from bridge.observe.facts import Forgiven, WordRefused
from tests.support.bells import BOOT, QUEUE
from tests.support.member import A_S, FIRST, LAST, MemberRig, boot

ONE, TWO = ("producer", "1"), ("producer", "2")
OTHER = "billing/refunds"


def test_bare_marks_are_as_old_as_their_first_and_forgiven_with_their_last() -> None:
    """C2, C4: only the two ends of them are kept."""
    marks = Marks()
    assert marks.oldest() is None
    marks.mark(1.0, 1, None)
    marks.mark(1.5, 2, None)
    marks.mark(2.0, 2, None)
    marks.mark(3.0, 3, ONE)
    assert marks.oldest() == 1.0
    assert not marks.forgive_until(1.999)
    assert marks
    assert marks.forgive_until(2.0)
    assert marks.oldest() == 3.0
    assert marks.forgive_until(3.0)
    assert not marks


def test_a_member_hears_itself_by_numbers_that_it_said() -> None:
    """C1: none before the first, none beyond the newest; the newest that came back counts, and for so long."""
    members = Members("a" * 32)
    assert members.leaving is False
    assert members.alone(0.0)
    assert not members.heard_self(0)
    for number in range(1, 4):
        assert members.next_seq(float(number)) == number
    assert not members.heard_self(4)
    assert members.heard_self(2)
    assert not members.alone(2.0 + SILENT_S)
    assert members.alone(2.0 + SILENT_S + 0.001)
    assert not members.heard_self(1)
    assert not members.heard_self(2), "each comes back once, and in order"
    assert not members.alone(2.0 + SILENT_S), "an older one takes nothing back"
    members.stood_still()
    assert members.heard_self(3)
    assert members.alone(3.0), "said before it stood still"
    members.next_seq(5.0)
    assert members.heard_self(4)
    assert not members.alone(5.0)


def test_the_first_word_alone_is_enough_to_be_no_longer_alone() -> None:
    """C1."""
    members = Members("a" * 32)
    members.next_seq(0.5)
    members.heard_self(1)
    assert not members.alone(0.5)


def test_moments_of_64_words_are_kept() -> None:
    """C4: what is older proves nothing."""
    members = Members("a" * 32)
    for number in range(1, 66):
        members.next_seq(float(number))
    assert members.sent_at(1) is None
    assert members.sent_at(2) == 2.0
    assert members.sent_at(65) == 65.0


def test_an_old_word_of_a_member_changes_nothing() -> None:
    """C1: they come in any order."""
    members = Members("a" * 32)
    assert members.hear(1.0, Member(boot=FIRST, seq=5))
    assert not members.hear(2.0, Member(boot=FIRST, seq=5, leaving=True))
    assert members.peers[FIRST].heard_at == 1.0
    assert members.heard(1.0 + SINCE_MAX_MS / 1000) == {FIRST: (5, SINCE_MAX_MS)}
    assert members.heard(1.0 + SINCE_MAX_MS / 1000 + 0.0011) == {}
    members.lost_touch()
    assert members.peers[FIRST].timed is False


def test_how_long_a_word_is_known_is_rounded_down() -> None:
    """C4: what is told too much would prove too much."""
    members = Members("a" * 32)
    members.hear(0.0, Member(boot=FIRST, seq=1))
    assert members.heard(0.9999) == {FIRST: (1, 999)}


def test_who_is_able_by_store() -> None:
    """B11: unknown fits every store."""
    peer = Peer(boot=FIRST, word=Member(boot=FIRST, seq=1), heard_at=0.0)
    for mine, theirs, fits in (
        (None, None, True),
        (None, "aa", True),
        ("aa", None, True),
        ("aa", "aa", True),
        ("aa", "bb", False),
    ):
        peer.abilities = {QUEUE: Ability(True, 1, theirs)}
        assert able(peer, QUEUE, mine) is fits


def test_the_order_is_a_hash_that_all_versions_have_to_share() -> None:
    """C2: two that reckon it in different ways would both wait, or both act."""
    assert rank("billing/orders", "0" * 32) == 0xC77761CF3BAE8BFB
    members = Members(LAST)
    members.hear(0.0, Member(boot=FIRST, seq=1))
    members.hear_able(0.0, Able(boot=FIRST, seq=1, queues={QUEUE: Ability(True, 1)}))
    members.next_seq(0.0)
    members.heard_self(1)
    assert members.before(QUEUE, 0.0) == 1
    assert members.before(QUEUE, 0.0) == 1
    assert members.before(QUEUE, 0.0, "aa") == 1
    members.hear_able(0.0, Able(boot=FIRST, seq=1, queues={QUEUE: Ability(True, 1, "bb")}))
    assert members.before(QUEUE, 0.0, "aa") == 0
    assert members.before(QUEUE, 0.0, "bb") == 1


def test_who_has_no_room_comes_after_every_able_one() -> None:
    """C3: the last in the order is before it, too."""
    members = Members(FIRST)
    members.hear(0.0, Member(boot=LAST, seq=1))
    members.hear_able(0.0, Able(boot=LAST, seq=1, queues={QUEUE: Ability(True, 1)}))
    members.next_seq(0.0)
    members.heard_self(1)
    assert members.before(QUEUE, 0.0) == 0
    assert members.before(QUEUE, 0.0, ready=False) == 1
    assert members.before(QUEUE, 0.0) == 0


def test_what_sessions_left_is_kept_for_as_long_as_their_leases_may_last() -> None:
    """C5."""
    members = Members("a" * 32)
    members.hear(0.0, Member(boot=FIRST, seq=1))
    for now, queue in ((0.0, QUEUE), (3.0, OTHER), (5.0, "a/bcd")):
        members.hear_able(now, Able(boot=FIRST, seq=1, queues={queue: Ability(True, 5_000)}))
        members.hear_able(now, Able(boot=FIRST, seq=1, queues={queue: None}))
    assert members.peers[FIRST].left == {OTHER: (8.0, 5_000), "a/bcd": (10.0, 5_000)}


def test_a_word_says_who_says_it() -> None:
    """C1: number, version, address, engine, and the hash of its webhooks."""
    rig = MemberRig(name="shop", store="aa")
    first = rig.says()[0]
    assert first == Member(boot=BOOT, seq=1, cluster="shop", version="1.0", address="here", store="aa")
    assert rig.turns.name == "shop"
    assert rig.turns.about.seq == 0
    other = MemberRig()
    plain = other.bell.join(webhooks="h")
    assert plain.about == Member(boot=BOOT, seq=0, webhooks="h")


def test_a_strangers_word_is_named_with_what_is_wrong() -> None:
    """C1: so that somebody finds who says it."""
    rig = MemberRig()
    rig.hear(Member(boot=BOOT, seq=99))
    assert rig.facts_of(WordRefused) == [WordRefused(BOOT, NEVER_SAID)]


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


def test_help_is_given_in_turn() -> None:
    """C3: one bridge with room looks, not all."""
    rig = MemberRig()
    session = rig.session()
    rig.peer(FIRST)
    rig.member(LAST, full=(QUEUE,))
    assert rig.wakes(session) == []
    assert rig.debt().deferred
    rig.keep_company(A_S + 0.3, FIRST, LAST)
    assert [wake.reason for wake in rig.wakes(session)] == ["more"]


def test_a_member_without_sessions_tells_a_newcomer_so() -> None:
    """C3: whole, so that nothing is believed of before."""
    rig = MemberRig()
    rig.words = rig.says()
    rig.member(FIRST)
    assert rig.abilities() == [Able(boot=BOOT, seq=rig.says()[-1].seq, whole=True)]


def test_many_queues_are_said_in_parts_of_which_the_first_is_whole() -> None:
    """C3: a word has its limit."""
    rig = MemberRig()
    number = rig.join(*(f"a/q{at:04d}" for at in range(QUEUES_MAX)))
    rig.join("b/one", store="aa")
    assert number
    rig.wait(0.2)
    rig.words.clear()
    rig.member(FIRST)
    said = rig.abilities()
    assert [(len(word.queues), word.whole) for word in said] == [(QUEUES_MAX, True), (1, False)]
    assert said[1].queues == {"b/one": Ability(True, 30_000, "aa")}


def test_of_several_that_changed_those_that_may_be_said_are() -> None:
    """C3: one whose tenth of a second is not over keeps back no other."""
    rig = MemberRig()
    one, two = rig.join("a/one"), rig.join("a/two")
    rig.wait(0.2)
    rig.abilities()
    rig.more(one, "a/one", unannounced=False)
    rig.wait(0.02)
    rig.abilities()
    rig.room(one, 1, "a/one")
    rig.more(two, "a/two", unannounced=False)
    rig.wait(0.02)
    assert [word.queues for word in rig.abilities()] == [{"a/two": Ability(False, 30_000)}]
    rig.wait(0.1)
    assert [word.queues for word in rig.abilities()] == [{"a/one": Ability(True, 30_000)}]


def waiting(*names: tuple[str, str]) -> tuple[MemberRig, int]:
    rig = MemberRig()
    session = rig.session()
    rig.peer()
    rig.echo()
    for source, id_ in names:
        rig.trigger_all(source=source, id=id_)
    return rig, session


def test_when_a_queue_acts_is_told_and_forgotten_with_its_debt() -> None:
    """C2: from its oldest mark; what was paid leaves no timer that would act later."""
    rig, session = waiting(ONE)
    began = rig.now
    assert rig.turns.acts_at(QUEUE) == pytest.approx(began + A_S + 0.25)
    rig.wait(0.5)
    rig.trigger_all(source="producer", id="2")
    assert rig.turns.acts_at(QUEUE) == pytest.approx(began + A_S + 0.25)
    rig.wait(0.25)
    rig.covered(ONE)
    assert rig.turns.acts_at(QUEUE) == pytest.approx(began + 0.5 + A_S + 0.25)
    rig.covered(TWO)
    assert rig.turns.acts_at(QUEUE) is None
    assert list(rig.turns.deferred) == []
    assert rig.debt().deferred is False
    assert rig.wakes(session) == []


def test_a_queue_that_is_forgotten_leaves_nothing_behind() -> None:
    """B14: neither a turn, nor a cover to tell, nor a level; somebody who comes later begins anew."""
    rig = MemberRig()
    rig.peer()
    rig.able(queue=OTHER)
    rig.echo()
    rig.trigger_all(OTHER, source="producer", id="1")
    assert rig.debt(OTHER).deferred
    assert rig.bell.forget(OTHER)
    assert rig.turns.acts_at(OTHER) is None
    assert list(rig.turns.deferred) == []
    rig.keep_company(5.0)
    assert rig.says()[-1].full == ()
    gone = rig.join(OTHER)
    rig.settle_hello(gone, OTHER)
    rig.trigger(OTHER)
    rig.cover(gone, rig.debt(OTHER).gen, OTHER)
    rig.lose(gone)
    rig.bell.forget(OTHER)
    rig.words.clear()
    rig.keep_company(1.0)
    assert rig.told() == [], "what was to be told is forgotten with it"


def test_names_that_were_early_are_bounded_by_number_and_age() -> None:
    """C4: the oldest go first."""
    rig, _ = waiting()
    for number in range(EARLY_MAX + 1):
        rig.covered(("flood", str(number)))
    assert len(rig.turns._early) == EARLY_MAX
    assert ("flood", "0") not in rig.turns._early
    rig.trigger_all(source="flood", id="0")
    assert rig.debt().dirty
    rig, _ = waiting()
    rig.covered(ONE)
    at = rig.now
    rig.now = at + EARLY_S
    assert rig.turns.early(rig.now, ONE, QUEUE)
    rig.now = at
    rig.covered(ONE)
    rig.now = at + EARLY_S + 0.001
    rig.member()
    rig.covered(TWO)
    assert list(rig.turns._early) == [TWO]


def test_what_forgave_is_named_by_time_where_a_name_was_not_enough() -> None:
    """C4."""
    rig, _ = waiting(ONE)
    rig.trigger_all()
    rig.wait(0.010)
    rig.covered(ONE, seq=rig.says()[-1].seq, since_ms=1000)
    assert rig.facts_of(Forgiven) == [Forgiven(QUEUE, "time", FIRST)]


def test_what_becomes_visible_is_told_as_the_earliest_of_all_and_never_early() -> None:
    """C4, B2."""
    rig = MemberRig()
    session = rig.join(store="aa")
    rig.settle_hello(session)
    rig.peer(LAST)
    rig.wait(0.2)
    rig.told()
    gen = rig.debt().gen
    rig.say(session, Cover(QUEUE, BOOT, gen, 0, next_visible_in_ms=9_000))
    rig.say(session, Cover(QUEUE, BOOT, gen, 0, next_visible_in_ms=3_000))
    rig.say(session, Cover(QUEUE, BOOT, gen, 0, next_visible_in_ms=5_000))
    rig.wait(0.11)
    (word,) = rig.told()
    assert 2_950 <= (word.next_visible_in_ms or 0) <= 2_951
    assert word.store == "aa"
    rig.say(session, Cover(QUEUE, BOOT, gen, 0, next_visible_in_ms=0))
    rig.wait(0.11)
    assert rig.told()[-1].next_visible_in_ms == 0


def test_names_take_so_many_bytes_and_not_one_more() -> None:
    """C4."""
    rig = MemberRig()
    session = rig.session()
    rig.peer(LAST)
    rig.echo()
    for number in range(NAMES_BYTES_MAX // 2048 + 1):
        rig.trigger_all(source="s" * 1024, id=f"{number:04d}".ljust(1024, "x"))
    rig.cover(session, rig.debt().gen)
    rig.wait(0.11)
    assert [len(word.ids) for word in rig.told()] == [NAMES_BYTES_MAX // 2048]


def test_two_covers_that_are_merged_tell_the_names_of_both_and_the_later_beginning() -> None:
    """C4: an older one that comes after takes nothing back."""
    rig = MemberRig()
    session = rig.session()
    rig.peer(LAST)
    rig.echo()
    rig.trigger_all(source="producer", id="1")
    first = rig.debt().gen
    rig.wakes(session)
    rig.wait(0.4)
    rig.trigger_all(source="producer", id="2")
    rig.cover(session, rig.debt().gen)
    rig.cover(session, first)
    rig.wait(0.11)
    (word,) = rig.told()
    assert set(word.ids) == {ONE, TWO}
    assert word.begun_age_ms == 50


def test_who_stood_still_for_exactly_that_long_did_not() -> None:
    """C1."""
    rig = MemberRig()
    due = rig.bell.deadline()
    assert due is not None
    rig.now = due + STOOD_STILL_S
    rig.bell.tick(rig.now)
    rig.drive()
    assert not rig.turns.members.alone(rig.now)


def test_what_was_lost_with_a_member_is_looked_at_in_turn() -> None:
    """C5, C2: every other one does the same."""
    rig = MemberRig()
    session = rig.join(visibility_ms=1_500)
    rig.settle_hello(session)
    second = boot(first=True, number=1)
    rig.peer(second)
    rig.member(LAST)
    rig.able(LAST, visibility_ms=2_000)
    rig.echo()
    rig.keep_company(3.6, second)
    rig.beat(session, free=32)
    rig.keep_company(2.2, second)
    assert rig.debt().deferred
    assert rig.debt().size == 1
    rig.keep_company(A_S + 0.3, second)
    assert [wake.reason for wake in rig.wakes(session)] == ["lease"]


def test_a_bequest_says_at_least_one_message_and_how_many_are_due() -> None:
    """C7."""
    rig = MemberRig()
    rig.trigger_all(OTHER, payload_size=1)
    rig.trigger(QUEUE, size=4, not_before_ms=1_000)
    told = rig.turns.bequest(rig.now)
    assert told[0] == CloudQueueWorkDetected("billing", "refunds")
    assert (told[1].queue, told[1].payload_size) == (QUEUE, 4)
    rig.now += 5.0
    assert rig.turns.bequest(rig.now)[1].not_before_ms == 0


def test_a_bridge_too_many_is_no_newcomer() -> None:
    """C1."""
    members = Members("a" * 32)
    assert all(members.hear(0.0, Member(boot=f"{number:032x}", seq=1)) for number in range(31))
    assert not members.hear(0.0, Member(boot="f" * 32, seq=1))


def test_a_debt_without_room_before_the_first_word_was_said() -> None:
    """C3."""
    rig = MemberRig(alone=True)
    session = rig.join()
    rig.settle_hello(session)
    rig.more(session, unannounced=False)
    rig.trigger()
    rig.wait(0.0)
    assert rig.says()[-1].full == (QUEUE,)


def test_who_is_back_says_anew_for_what_it_is_able() -> None:
    """C3: the others may have missed it."""
    rig = MemberRig()
    rig.session()
    rig.turns.begin(rig.now)
    rig.wait(0.2)
    assert [word.queues for word in rig.abilities()] == [{QUEUE: Ability(True, 30_000)}]


def test_a_pair_of_clocks_is_their_difference() -> None:
    """C4, B15."""
    rig = MemberRig()
    rig.turns.watch((10.0, 13.0), there=True)
    assert rig.turns.slept_s == 3.0
    rig.turns.watch((20.0, 23.001), there=True)
    assert rig.turns.slept_s == 3.0
    rig.turns.watch((0.0, 0.0), there=True)
    rig.turns.watch((0.0, 0.002), there=True)
    assert rig.turns.slept_s == 0.0


def test_each_queue_without_room_is_helped() -> None:
    """C3."""
    rig = MemberRig()
    one = rig.session()
    two = rig.join(OTHER)
    rig.settle_hello(two, OTHER)
    rig.member(FIRST, full=(QUEUE, OTHER))
    assert len(rig.wakes(one)) == 1
    assert len(rig.wakes(two)) == 1


def test_a_hello_with_a_store_where_nothing_was_forgiven_marks_nothing() -> None:
    """B10, B11."""
    rig = MemberRig()
    rig.session()
    assert rig.wakes(rig.join(store="aa")) == []
    assert not rig.debt().dirty


def test_of_names_that_are_too_many_the_newest_are_told_with_when_the_last_look_began() -> None:
    """C4: what older ones name is proven by its time, or looked at late; under load no word is said for each cover."""
    for more, first in ((12, 0), (13, 1)):
        rig = MemberRig()
        session = rig.session()
        rig.peer(LAST)
        rig.echo()
        names = [str(number) for number in range(20 + more)]
        for part in (names[:20], names[20:]):
            for name in part:
                rig.trigger_all(source="producer", id=name)
            rig.wakes(session)
            rig.cover(session, rig.debt().gen)
        rig.wait(0.04)
        assert rig.told() == []
        rig.wait(0.02)
        (told,) = rig.told()
        assert [name for _, name in told.ids] == names[first:]
        assert told.begun_age_ms is not None


def test_covers_of_a_queue_are_told_ten_times_a_second_at_most() -> None:
    """C4: soon after a rest, and then together."""
    rig = MemberRig()
    session = rig.session()
    rig.peer(LAST)
    rig.echo()
    told = 0
    for _ in range(100):
        rig.trigger_all()
        rig.wakes(session)
        rig.cover(session, rig.debt().gen)
        rig.wait(0.01)
        told += len(rig.told())
    assert told == 10


def test_what_others_tell_becomes_due_for_one_message_and_no_tick_early() -> None:
    """B2."""
    rig, _ = waiting(ONE)
    rig.covered(ONE, next_ms=4_000)
    rig.keep_company(3.998)
    assert not rig.debt().dirty
    rig.keep_company(0.02)
    assert rig.debt().dirty
    assert rig.debt().size == 1


def test_a_queue_that_only_the_lost_one_had_is_known_like_any_other() -> None:
    """C5, B9: no tick early, and swept once somebody comes."""
    rig = MemberRig(sweep_s=60.0)
    rig.member(FIRST)
    rig.able(FIRST, queue=OTHER, visibility_ms=4_000)
    rig.echo()
    rig.keep_company(3.501, LAST)
    lost = rig.now
    assert rig.debt(OTHER).any_due
    rig.keep_company(3.99, LAST)
    assert rig.now - lost < 4.0
    assert not rig.debt(OTHER).dirty
    rig.keep_company(0.2, LAST)
    assert rig.debt(OTHER).dirty
    assert len(rig.wakes(rig.join(OTHER))) == 1


def test_silence_is_noticed_to_the_moment_also_after_a_sleep() -> None:
    """C1."""
    rig = MemberRig()
    rig.turns.watch((0.0, 100.0), there=True)
    rig.member(FIRST)
    rig.wait(0.9)
    rig.wait(2.599)
    assert list(rig.turns.members.peers) == [FIRST]
    rig.wait(0.002)
    assert list(rig.turns.members.peers) == []


def test_a_queue_of_which_nothing_changed_keeps_back_no_other() -> None:
    """C3."""
    rig = MemberRig()
    one, two = rig.join("a/one"), rig.join("a/two")
    rig.wait(0.2)
    rig.abilities()
    rig.more(one, "a/one", unannounced=False)
    rig.room(one, 1, "a/one")
    rig.more(two, "a/two", unannounced=False)
    rig.wait(0.02)
    assert [word.queues for word in rig.abilities()] == [{"a/two": Ability(False, 30_000)}]


def test_who_leaves_a_queue_and_comes_back_is_said_anew() -> None:
    """C3."""
    rig = MemberRig()
    session = rig.session()
    rig.abilities()
    rig.lose(session)
    rig.wait(0.2)
    rig.join()
    rig.wait(0.2)
    assert [word.queues for word in rig.abilities()] == [{QUEUE: None}, {QUEUE: Ability(True, 30_000)}]


def test_work_that_somebody_has_room_for_is_said_no_more() -> None:
    """C3: it is still owed, and a level that is said for too long costs others a look."""
    rig = MemberRig()
    number = rig.session()
    rig.more(number)
    rig.peer(LAST, room=False)
    rig.trigger()
    rig.keep_company(1.0, LAST)
    assert rig.says()[-1].full == (QUEUE,)
    rig.room(number, 1)
    assert rig.debt().dirty
    rig.keep_company(1.0, LAST)
    assert rig.debt().dirty
    assert rig.says()[-1].full == ()


def test_of_a_name_that_is_gone_nothing_is_kept() -> None:
    """C3, C4: neither its marks, nor when it was last spoken of."""
    rig = MemberRig()
    number = rig.session()
    rig.bye(number)
    rig.wait(0.2)
    assert QUEUE not in rig.turns._abilities._reported_at
    assert QUEUE in rig.turns._queues
    rig.bell.dispatch.drop(rig.debt())
    assert QUEUE not in rig.turns._queues


def test_a_peers_cover_moves_the_sweep() -> None:
    """C5, B9: it counts from when the receive surely began, and the sweep is set anew."""
    rig = MemberRig(sweep_s=60.0)
    rig.session()
    rig.peer()
    before = rig.bell.dispatch.agenda.when(("sweep", QUEUE))
    rig.keep_company(10.0)
    rig.covered(seq=rig.turns.members.seq, since_ms=0, begun_age_ms=0)
    after = rig.bell.dispatch.agenda.when(("sweep", QUEUE))
    assert before is not None and after is not None
    assert after - before > 5.0


def test_times_of_an_hour_are_kept_to_a_thousandth() -> None:
    """C4, C5: what becomes visible, and leases of who went, which a sum in thousandths must not bring nearer."""
    hour_s, hour_ms = 3600.0, 3_600_000
    told = MemberRig()
    told.session()
    told.peer()
    told.covered(next_ms=hour_ms)
    went = MemberRig()
    went.session()
    went.member()
    went.able(visibility_ms=hour_ms)
    went.keep_company(SILENT_S, LAST)
    here = MemberRig()
    here.settle_hello(here.join(visibility_ms=hour_ms))
    here.member()
    here.keep_company(SILENT_S, LAST)
    for rig in (told, went, here):
        at = rig.bell.dispatch.agenda.when(("due", QUEUE))
        assert at is not None
        assert hour_s - 1.0 <= at - rig.now <= hour_s * 1.0003
