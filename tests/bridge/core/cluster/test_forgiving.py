"""C4: when a debt may be forgiven on a peer's word, and when not. Sweeps are off: what is lost here is lost."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queuebell.bridge.contract.cluster import (
    MEMBERS_MAX,
    QUEUES_MAX,
    Able,
    ClusterMessage,
    Covered,
    decode_cluster_message,
)
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.wire import EmptyReceive
from queuebell.bridge.core.cluster.coordinator import EARLY_MAX
from queuebell.bridge.core.cluster.members import KNOWN_MAX
from queuebell.bridge.core.cluster.wake_requests import proven_until
from queuebell.bridge.observe.facts import ClusterMessageRefused, SettledByPeer, StoreDiffers
from tests.support.bells import BOOT, QUEUE
from tests.support.member import A_S, FIRST, LAST, MemberRig
from tests.support.words import words

# Private: `_ahead_cache`, `_unreported`, `_without_room`: a bound on memory, visible
# nowhere else.

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


def test_c4_w3_a_debt_of_several_marks_is_forgiven_only_when_each_is() -> None:
    rig, session = owing(ONE, TWO)
    rig.covered(ONE)
    assert rig.work().dirty
    rig.covered(TWO)
    assert not rig.work().dirty
    rig, session = owing(ONE, bare=1)
    rig.covered(ONE)
    assert rig.work().dirty
    rig.keep_company(A_S + 0.3)
    assert len(rig.wakes(session)) == 1


def test_c4_what_was_heard_before_a_suspend_is_not_told() -> None:
    rig = MemberRig()
    session = rig.session()
    rig.peer()
    rig.echo()
    rig.scheduler.suspended(rig.now, 60.0)
    rig.drive()
    rig.cover(session, rig.work().gen)
    rig.wait(0.11)
    assert rig.told()[-1].heard == {}
    rig.member()
    rig.cover(session, rig.work().gen)
    rig.wait(0.11)
    assert list(rig.told()[-1].heard) == [FIRST]


def test_c4_without_a_clock_that_goes_on_only_names_prove() -> None:
    """C4: neither here nor to others; a reading that fails once moves no moment, nor does one that jitters."""
    rig, _ = owing(bare=1)
    rig.turns.watch((0.0, 0.0019), there=True)
    rig.turns.watch(None, there=True)
    assert rig.turns.slept_s == 0.0
    rig.turns.watch(None, there=False)
    rig.covered(seq=newest(rig), since_ms=1_000)
    assert rig.work().dirty
    rig, session = report()
    rig.turns.watch(None, there=False)
    rig.trigger_all(source="producer", id="1")
    rig.wakes(session)
    rig.cover(session, rig.work().gen)
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
        assert rig.work().dirty
        rig.turns.watch((0.0, slept), there=True)
        rig.covered(seq=known, since_ms=1_000)
        assert rig.work().dirty is not proves
        assert rig.turns.slept_s == slept


def test_c4_what_was_shown_while_the_clocks_could_not_be_read_proves_nothing() -> None:
    """C4: the moment is of another clock once they can be; with one behind ours the receive would begin too late."""
    for readable in (True, False):
        rig, session = report()
        rig.turns.watch((0.0, 0.0) if readable else None, there=True)
        rig.trigger_all()
        gen = rig.work().gen
        rig.wakes(session)
        rig.turns.watch((0.0, 0.0 if readable else -7_000.0), there=True)
        rig.member(LAST)
        rig.cover(session, gen)
        rig.wait(0.11)
        assert rig.told()[-1].begun_age_ms == (50 if readable else None)


def test_c4_w14_another_store_forgives_orders_and_covers_nothing() -> None:
    rig = MemberRig()
    session = rig.join(store=PRODUCTION)
    rig.settle_hello(session)
    rig.peer(store=STAGING)
    rig.echo()
    rig.trigger_all(source="producer", id="1")
    assert len(rig.wakes(session)) == 1, "it orders nothing"
    covered_at = rig.work().found_empty_at
    rig.covered(ONE, seq=newest(rig), since_ms=1000, store=STAGING, next_ms=1)
    assert rig.work().dirty
    assert rig.work().found_empty_at == covered_at
    assert not rig.work().any_due
    assert rig.facts_of(StoreDiffers) == [StoreDiffers(QUEUE, FIRST)]
    rig.covered(ONE, store=PRODUCTION)
    assert not rig.work().dirty


def test_c5_w6_a_peers_cover_counts_for_the_sweep_from_when_it_surely_began() -> None:
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
    assert rig.work().found_empty_at == pytest.approx(proven_until(sent, 1000, 0))
    before = rig.work().found_empty_at
    rig.covered(seq=seq, since_ms=500, begun_age_ms=0)
    assert rig.work().found_empty_at == before, "never back"


# -- what is told ------------------------------------------------------------------------------------------------------
def report() -> tuple[MemberRig, int]:
    rig = MemberRig()
    session = rig.session()
    rig.peer(LAST)
    rig.echo()
    return rig, session


def test_c4_w13_the_receive_began_after_its_wake_was_sent_and_that_is_all_that_is_known() -> None:
    rig, session = report()
    rig.trigger_all()
    gen = rig.work().gen
    rig.wait(5.0)
    rig.member(LAST)
    rig.say(session, EmptyReceive(QUEUE, BOOT, gen, 0))
    rig.wait(0.11)
    assert rig.told()[-1].begun_age_ms == 5050, "it may have lain in a buffer since"
    rig.say(session, EmptyReceive(QUEUE, BOOT, gen, 0, after_ms=4_000))
    rig.wait(0.11)
    assert rig.told()[-1].begun_age_ms in (1164, 1165), "4 s by the listener's clock are 3.996 s at least by ours"


def reported(rig: MemberRig, store: str) -> int:
    """Have a session of ``store`` report an empty receive, and return it."""
    session = rig.join(store=store)
    rig.cover(session, rig.work().gen)
    return session


def test_c4_w14_covers_of_two_stores_are_not_merged() -> None:
    """C4, W14: names that one store's receive paid are not told as another's."""
    rig = MemberRig()
    rig.peer(LAST)
    session = rig.join(store=STAGING)
    rig.settle_hello(session)
    rig.wait(0.2)
    rig.told()
    rig.trigger_all(source=ONE[0], id=ONE[1])
    rig.cover(session, rig.work().gen)
    rig.bye(session)
    reported(rig, PRODUCTION)
    rig.wait(0.2)
    assert [(word.store, word.ids) for word in rig.told()] == [(STAGING, (ONE,)), (PRODUCTION, ())]


@pytest.mark.parametrize("comes", ["before its trigger", "after its trigger"])
def test_b11_what_another_store_paid_before_it_was_known_here_is_owed_to_who_comes(comes: str) -> None:
    """B11, C4, W14: named before its trigger came, by a worker of another store."""
    rig = MemberRig()
    session = rig.join(store=PRODUCTION)
    rig.settle_hello(session)
    rig.bye(session)
    rig.peer(LAST, store=STAGING)
    assert not rig.work().dirty
    rig.covered(ONE, name=LAST, store=STAGING)
    if comes == "before its trigger":
        session = rig.join(store=PRODUCTION)
    rig.trigger_all(source=ONE[0], id=ONE[1])
    if comes == "after its trigger":
        session = rig.join(store=PRODUCTION)
    assert len(rig.wakes(session)) == 1


@pytest.mark.parametrize("told", [False, True])
def test_c5_c7_who_dies_while_it_leaves_is_looked_after_unless_it_told_all(told: bool) -> None:
    """C5, C7: what it told last of all only its last word proves told; a host that goes down may kill it before."""
    rig = MemberRig()
    session = rig.session()
    rig.peer()
    rig.able(visibility_ms=5000)
    rig.echo()
    rig.member(FIRST, leaving=True)
    if told:
        rig.member(FIRST, leaving=True, told=True)
    rig.keep_company(9.1, LAST)
    assert [wake.reason for wake in rig.wakes(session)] == ([] if told else ["lease"])


def test_c3_of_more_queues_without_room_than_a_word_holds_each_is_said() -> None:
    """C3: the last of them may be the only one that another has room for."""
    rig = MemberRig()
    rig.member()
    names = [f"billing/queue-{number:04}" for number in range(QUEUES_MAX + 1)]
    for name in names:
        rig.trigger(queue=name)
    rig.words.clear()
    rig.wait(1.0)
    rig.wait(1.0)
    words = rig.says()
    assert all(len(word.full) == QUEUES_MAX for word in words)
    assert all({*before.full, *after.full} == {*names} for before, after in pairwise(words))


def word_of(data: bytes) -> ClusterMessage | None:
    """Return what it says, where it is a word."""
    with contextlib.suppress(BadInput):
        return decode_cluster_message(data)
    return None


def say(rig: MemberRig, data: bytes) -> None:
    """Have it come in, as far as it is a word."""
    word = word_of(data)
    if word is not None:
        rig.hear(word)  # type: ignore[arg-type]


def able_for(data: bytes) -> set[str]:
    """Return of which queues it says that a member has sessions: leases there are looked after when it goes (C5)."""
    word = word_of(data)
    return set(word.queues) if isinstance(word, Able) else set()


def holds(rig: MemberRig) -> tuple[int, ...]:
    """Return how much is held that a word can bring about, of each kind."""
    turns, ledger = rig.turns, rig.scheduler.pending
    work = rig.work()
    return (
        len(ledger.by_queue), len(turns.queues), len(turns.deferred), len(turns._without_room), len(turns.subscribers),
        len(turns.subscribers._unreported), len(work.due_to_all), len(turns.members._ahead_cache),
    )  # fmt: skip


WENT: list[dict[str, Any]] = [
    {"type": "member", "boot": FIRST, "seq": 0},
    {"type": "able", "boot": FIRST, "seq": 0, "queues": {"many/q0": {"room": False, "visibility_ms": 0}}},
    {"type": "member", "boot": FIRST, "seq": 0, "store": "aa"},
]
"""A member that had sessions goes, for it is at another engine now: what they leased is looked after here (C5)."""


@settings(max_examples=10)
@given(st.lists(words, min_size=20, max_size=40), st.integers(0, 2**32))
@example(WENT, 0)
def test_what_is_held_has_an_end(said: list[dict[str, Any]], number: int) -> None:
    """S44: the same words of other queues, names and boots fifty times hold no more than their bounds.

    A queue of which a member said that it has sessions may be held, as one may that is triggered.
    """
    rig = MemberRig()
    rig.session()
    rig.peer(FIRST)
    texts = [json.dumps(word) for word in said]
    able: set[str] = set()
    for turn in range(50):
        for text in texts:
            other = text.replace("many/q", f"many/q{turn}").replace('"1"', f'"{number + turn}"')
            data = other.replace("5" * 32, f"{number + turn:032x}").encode()
            say(rig, data)
            able |= able_for(data)
        rig.wait(0.02)
        rig.echo()
    assert max(holds(rig)) <= 4 + len(able)
    members = rig.turns.members
    assert len(members.peers) < MEMBERS_MAX and len(members.refused) <= MEMBERS_MAX
    assert all(
        len(peer.abilities) <= KNOWN_MAX and len(peer.possible_leases) <= KNOWN_MAX for peer in members.peers.values()
    )
    assert len(rig.turns.settled_early) <= EARLY_MAX


def test_c4_a_seq_never_sent_and_one_of_another_boot_prove_nothing() -> None:
    rig, _ = owing(bare=1)
    rig.covered(seq=newest(rig) + 1, since_ms=1000)
    rig.hear(Covered(boot=FIRST, queue=QUEUE, begun_age_ms=0, heard={LAST: (1, 1000)}))
    rig.covered(seq=newest(rig), since_ms=1000, begun_age_ms=None)
    rig.covered(seq=newest(rig), since_ms=1000, queue="billing/other")
    assert rig.work().dirty


def test_c4_what_becomes_visible_later_is_a_timer_of_all() -> None:
    rig, session = owing(ONE)
    rig.covered(ONE, next_ms=3_000)
    assert not rig.work().dirty
    rig.keep_company(3.1)
    assert rig.work().dirty
    assert rig.wakes(session) == []
    rig.keep_company(A_S + 0.3)
    assert [wake.reason for wake in rig.wakes(session)] == ["due"]


def test_c4_strangers_are_not_believed() -> None:
    rig, _ = owing(ONE)
    rig.covered(ONE, name=LAST)
    assert rig.work().dirty
    assert rig.facts_of(ClusterMessageRefused) == [ClusterMessageRefused(LAST, "not a known member")]
    rig.hear(Covered(boot=BOOT, queue=QUEUE, ids=(ONE,)))
    assert rig.work().dirty, "its own word"


def test_c4_a_mark_is_forgiven_by_its_name() -> None:
    rig, session = owing(ONE)
    gen = rig.work().gen
    rig.covered(ONE)
    assert not rig.work().dirty
    assert rig.work().gen == gen, "forgiving leaves the generation as it is"
    assert rig.facts_of(SettledByPeer) == [SettledByPeer(QUEUE, "name", FIRST)]
    rig.keep_company(10.0)
    assert rig.wakes(session) == []


def test_c4_a_generation_is_known_from_when_it_was_first_told_to_anybody() -> None:
    rig, session = report()
    rig.trigger_all()
    gen = rig.work().gen
    rig.wait(1.0)
    rig.member(LAST)
    rig.join()  # its welcome tells it again
    rig.cover(session, gen)
    rig.wait(0.11)
    assert rig.told()[-1].begun_age_ms == 1050


def test_c4_covers_are_told_merged_and_after_a_twentieth_of_a_second() -> None:
    rig, session = report()
    rig.trigger_all(source="producer", id="1")
    rig.trigger_all(source="producer", id="2")
    rig.wakes(session)
    rig.cover(session, rig.work().gen)
    rig.wait(0.049)
    assert rig.told() == []
    rig.wait(0.002)
    told = rig.told()
    assert [word.ids for word in told] == [(ONE, TWO)]
    assert told[0].heard == {LAST: (1, pytest.approx(49.5, abs=0.5))}
    assert told[0].begun_age_ms == 50
