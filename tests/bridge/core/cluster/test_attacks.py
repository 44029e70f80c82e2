"""What several bridges are told at their seams: sessions that went meanwhile, floods of names, an end while leaving."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from bridge.contract.cluster import QUEUES_MAX, Ability, Able
from bridge.contract.wire import BridgeHeartbeat
from bridge.core.cluster import members
from tests.support.bells import QUEUE
from tests.support.member import FIRST, LAST, MemberRig

ONE = ("producer", "1")
STAGING, PRODUCTION = "aa", "bb"
NAMES = 50


def reported(rig: MemberRig, store: str) -> int:
    """Have a session of ``store`` report an empty receive, and return it."""
    session = rig.join(store=store)
    rig.cover(session, rig.debt().gen)
    return session


def test_c4_w14_a_cover_is_told_with_the_store_of_its_session_also_when_that_has_gone() -> None:
    """C4, W14: a worker that looks once and says bye leaves before its cover is told."""
    rig = MemberRig()
    rig.peer(LAST)
    session = rig.join(store=STAGING)
    rig.settle_hello(session)
    rig.wait(0.2)
    rig.told()
    rig.trigger_all(source=ONE[0], id=ONE[1])
    rig.cover(session, rig.debt().gen)
    rig.bye(session)
    rig.wait(0.2)
    assert [(word.store, word.ids) for word in rig.told()] == [(STAGING, (ONE,))]


def test_c4_w14_covers_of_two_stores_are_not_merged() -> None:
    """C4, W14: names that one store's receive paid are not told as another's."""
    rig = MemberRig()
    rig.peer(LAST)
    session = rig.join(store=STAGING)
    rig.settle_hello(session)
    rig.wait(0.2)
    rig.told()
    rig.trigger_all(source=ONE[0], id=ONE[1])
    rig.cover(session, rig.debt().gen)
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
    assert not rig.debt().dirty
    rig.covered(ONE, name=LAST, store=STAGING)
    if comes == "before its trigger":
        session = rig.join(store=PRODUCTION)
    rig.trigger_all(source=ONE[0], id=ONE[1])
    if comes == "after its trigger":
        session = rig.join(store=PRODUCTION)
    assert len(rig.wakes(session)) == 1


def test_b11_what_the_own_store_paid_before_it_was_known_here_is_not_owed() -> None:
    """C4: the other way round it is born forgiven, for whoever comes."""
    rig = MemberRig()
    session = rig.join(store=PRODUCTION)
    rig.settle_hello(session)
    rig.bye(session)
    rig.peer(LAST, store=PRODUCTION)
    rig.covered(ONE, name=LAST, store=PRODUCTION)
    rig.trigger_all(source=ONE[0], id=ONE[1])
    assert rig.wakes(rig.join(store=PRODUCTION)) == []


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


def test_c7_what_is_left_behind_is_said_to_be_told_only_when_it_was() -> None:
    """C7: with every word until then the others have to expect that this one dies first."""
    rig = MemberRig()
    rig.turns.leave(rig.now)
    rig.drive()
    rig.wait(1.0)
    rig.turns.bequeathed(rig.now)
    rig.drive()
    said = [word.told for word in rig.says() if word.leaving]
    assert said[-1] is True
    assert not any(said[:-1])
    assert len(said) == 3


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


def test_names_that_are_forgotten_leave_no_order_behind() -> None:
    """Memory is bounded by the limit of names, however many are rung for (C2)."""
    rig = MemberRig()
    rig.bell.ledger.limit = NAMES
    rig.peer()
    for number in range(4 * NAMES):
        rig.trigger_all(queue=f"billing/queue-{number}")
    assert len(rig.turns.members._before) <= NAMES
    assert len(rig.turns._queues) <= NAMES


def test_names_without_room_are_not_kept_for_a_turn() -> None:
    """Where every name is needed, a flood of others is marked for plain subscribers and otherwise not kept (C5)."""
    rig = MemberRig()
    rig.bell.ledger.limit = NAMES
    rig.join(*[f"billing/needed-{number}" for number in range(NAMES)])
    rig.member()
    rig.echo()
    rig.hear(Able(boot=FIRST, seq=1, queues={f"billing/queue-{at}": Ability(True, 30_000) for at in range(NAMES)}))
    for number in range(NAMES):
        rig.trigger_all(queue=f"billing/queue-{number}")
    assert len(rig.bell.ledger.debts) == NAMES
    assert rig.turns.deferred == {}
    assert len(rig.turns._queues) <= NAMES
    assert len(rig.turns.members._before) <= NAMES


class Walked(dict[str, tuple[float, int]]):
    """What a member left, that counts how often it was gone through."""

    walks = 0

    def items(self) -> Any:
        """Go through all."""
        self.walks += 1
        return super().items()


def test_what_a_member_left_is_gone_through_once_a_word() -> None:
    """Once for each queue, ten thousand that are left at a stroke would hold up the loop for seconds."""
    rig = MemberRig()
    rig.member()
    queues = [f"billing/queue-{number}" for number in range(NAMES)]
    rig.hear(Able(boot=FIRST, seq=1, queues={queue: Ability(True, 1000) for queue in queues}))
    peer = rig.turns.members.peers[FIRST]
    walked = peer.left = Walked({QUEUE: (rig.now + 1.0, 1000)})
    rig.hear(Able(boot=FIRST, seq=1, queues=dict.fromkeys(queues)))
    assert walked.walks == 1
    assert list(peer.left) == [QUEUE, *queues]
    rig.keep_company(1.1)
    rig.hear(Able(boot=FIRST, seq=1, queues={QUEUE: Ability(True, 1000)}))
    assert peer.left == {}, "leases that may have lasted are over"


def test_c3_who_is_back_says_what_it_lost_meanwhile_too() -> None:
    """C3: a queue without a session here any more; the others would wait for this one at each trigger, for ever."""
    rig = MemberRig()
    session = rig.session()
    rig.peer(LAST)
    rig.turns.end(rig.now)
    rig.drive()
    rig.lose(session)
    rig.wait(0.5)
    rig.words.clear()
    rig.turns.begin(rig.now)
    rig.wait(0.2)
    assert [(word.queues, word.whole, word.asks) for word in rig.abilities()] == [({}, True, True)]


def test_c3_who_is_back_is_told_what_it_missed() -> None:
    """C3: soon, however many ask at once; the answer asks nobody."""
    rig = MemberRig()
    rig.session()
    rig.member()
    rig.member(LAST)
    rig.wait(0.2)
    rig.echo()
    rig.words.clear()
    for peer in (FIRST, LAST):
        rig.hear(Able(boot=peer, seq=1, whole=True, asks=True))
    rig.wait(0.2)
    assert [(word.queues, word.whole, word.asks) for word in rig.abilities()] == [
        ({QUEUE: Ability(True, 30_000)}, True, False)
    ]


def test_c5_a_peers_cover_is_never_yet_to_come() -> None:
    """C5: a word of ours that a peer says it knew before it was said; sessions are told no age below 0."""
    rig = MemberRig()
    session = rig.session()
    rig.peer(LAST)
    rig.covered(name=LAST, seq=rig.turns.members.seq, since_ms=1500)
    rig.beat(session)
    beat = rig.frames[session][-1]
    assert isinstance(beat, BridgeHeartbeat)
    assert beat.queues[QUEUE].covered_age_ms == 0


def test_of_a_member_that_names_queues_without_end_so_many_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """C3: memory is bounded whatever a member says; of the rest it is not heard that it is able."""
    monkeypatch.setattr(members, "KNOWN_MAX", NAMES)
    rig = MemberRig()
    rig.member()
    peer = rig.turns.members.peers[FIRST]
    for start in (0, 2 * NAMES):
        queues = [f"billing/queue-{start + number}" for number in range(2 * NAMES)]
        rig.hear(Able(boot=FIRST, seq=1, queues={queue: Ability(True, 30_000) for queue in queues}))
        assert len(peer.abilities) == NAMES
        rig.hear(Able(boot=FIRST, seq=1, queues=dict.fromkeys(queues)))
        assert len(peer.abilities) == 0
        assert len(peer.left) == NAMES
