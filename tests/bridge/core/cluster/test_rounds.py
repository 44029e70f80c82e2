"""C11: one member of a cluster asks a store about all queues, and its answer stands for the others' questions."""

from __future__ import annotations

from typing import Any

import pytest

from queuebell.bridge.contract.cluster import ROUND_QUEUES_MAX, Asked
from queuebell.bridge.core.round import HERE, TRUSTED, Round
from tests.support.bells import BOOT, QUEUE
from tests.support.member import MemberRig, boot

T, EVERY_S, AGAIN_S, PLACE, SCOPE = 60.0, 54.0, 3.0, "p" * 32, "5c"


def store(queue: str) -> str:
    """Return the fingerprint of a queue in the store that is asked."""
    return queue.encode().hex()


AHEAD, BEHIND = boot(first=True), boot(first=False)


class Asking(MemberRig):
    """A member that asks a store, which it last did 30 s ago, and has a listener of one queue there."""

    def __init__(self, place: str = PLACE, *, here: bool = False, scope: str = SCOPE) -> None:
        super().__init__(sweep_s=T)
        self.round: Round = self.scheduler.add_round(store, scope=scope, here=here)
        self.number = self.join(QUEUE, store=store(QUEUE))
        self.settle_hello(self.number)
        self.work().place, self.work().found_empty_at = place, self.now
        self.ask()
        for _ in range(6):
            self.keep_company(5.0, AHEAD, BEHIND)
            self.beat(self.number)
        self.words.clear()

    def ask(self, *found: str) -> None:
        self.scheduler.round_begins(self.now, self.round)
        self.scheduler.round_answered(self.now, self.round, found, PLACE)
        self.drive()

    def told_of_round(self, name: str = AHEAD, age_ms: int = 500, since_ms: int = 700, **other: Any) -> None:
        """Another tells of a round; it had heard the newest word of this member ``since_ms`` before it told."""
        heard = {BOOT: (self.turns.members.seq, since_ms)}
        said = {"store": SCOPE, "place": PLACE, "heard": heard, **other}
        self.hear(Asked(boot=name, begun_age_ms=age_ms, **said))

    def due_s(self) -> float:
        """In how many seconds it asks."""
        return self.scheduler.round_due(self.now, self.round) - self.now

    def empty_for_s(self) -> float:
        """For how long the queue counts as empty."""
        at = self.scheduler.timers.found_empty_at(self.work())
        assert at is not None
        return self.now - at


def test_a_peers_round_postpones_ones_own_from_the_proven_moment() -> None:
    """Not from its arrival: it may have been under way for long. The sweep of a queue goes with it."""
    rig = Asking()
    assert rig.due_s() == pytest.approx(EVERY_S - 30 + AGAIN_S * 2 / 3)
    rig.wait(0.9)
    said_at = rig.turns.members.sent_at(rig.turns.members.seq)
    assert said_at is not None
    rig.told_of_round()
    # 200 ms after that word was heard; nobody knows for how long it was under way.
    assert rig.empty_for_s() == pytest.approx(rig.now - said_at - 0.2, abs=0.01)
    assert rig.due_s() == pytest.approx(EVERY_S - rig.empty_for_s() + AGAIN_S / 2, abs=0.01)
    before = rig.empty_for_s()
    rig.told_of_round(age_ms=5_000)
    assert rig.empty_for_s() == before, "one that is older says nothing"


@pytest.mark.parametrize(
    ("rig", "told"),
    [
        ({}, {"place": "q" * 32}), ({}, {"store": "5eed"}), ({}, {"heard": {}}), ({}, {"since_ms": 1_501}),
        ({}, {"heard": {BOOT: (10_000, 0)}}), ({}, {"name": "5" * 32}), ({"place": "q" * 32}, {}),
        ({"place": HERE}, {}), ({"scope": ""}, {"store": ""}),
    ],
    ids=["other tables", "another store", "it heard nothing", "long ago", "never said", "no member",
         "other tables here", "through the bridge", "no scope"],
)  # fmt: skip
def test_a_round_that_proves_nothing_here(rig: dict[str, Any], told: dict[str, Any]) -> None:
    """Another store, other tables, or a time that is not proven: the queue stays as old as it was."""
    asking = Asking(**rig)
    before = asking.empty_for_s()
    asking.told_of_round(**told)
    assert asking.empty_for_s() == before >= 30.0


def test_receives_through_a_bridge_are_of_the_store_that_all_members_have() -> None:
    """C8: it is one, or they are no members."""
    asking = Asking(HERE, here=True)
    asking.told_of_round()
    assert asking.empty_for_s() < 2.0


def test_what_a_peers_round_finds_is_checked() -> None:
    rig = Asking()
    other = rig.join("billing/others", store="ab")
    rig.settle_hello(other, "billing/others")
    for number in (rig.number, other):
        rig.frames[number].clear()
    rig.told_of_round(queues=(QUEUE, "billing/others", "nobody/knows"))
    (wake,) = rig.wakes(rig.number)
    assert (wake.reason, rig.wakes(other)) == ("sweep", [])
    assert rig.empty_for_s() == 30.0


def test_whose_last_question_is_oldest_asks_next() -> None:
    """So each reads the place itself; the others wait, and never as long as a repetition. Who leaves is last."""
    rig = Asking()
    rig.told_of_round(BEHIND, age_ms=0, since_ms=0)
    assert rig.empty_for_s() < 2.0
    # The other was never heard to ask. This member asked 30 s ago, and the one that has just asked is behind it.
    due_s = EVERY_S - rig.empty_for_s()
    assert rig.due_s() == pytest.approx(due_s + AGAIN_S / 2)
    rig.told_of_round(AHEAD, age_ms=0, since_ms=0)
    assert rig.due_s() == pytest.approx(EVERY_S - rig.empty_for_s())
    rig.ask()
    assert rig.due_s() == pytest.approx(EVERY_S + AGAIN_S * 2 / 3)
    rig.member(AHEAD, leaving=True)
    assert rig.due_s() == pytest.approx(EVERY_S + AGAIN_S / 2)
    rig.turns.leave(rig.now)
    assert rig.due_s() == pytest.approx(EVERY_S + AGAIN_S / 2)
    rig.wait(4.0)
    assert rig.due_s() == pytest.approx(EVERY_S - 4.0), "those who are gone are not waited for"


def test_a_place_that_it_has_not_read_for_some_periods_is_believed_no_more() -> None:
    """Its own address may lead elsewhere by now; and so after a suspend, in which its own clock stood still."""
    rig = Asking()
    for _ in range(TRUSTED * 60 - 31):
        rig.keep_company(1.0, AHEAD, BEHIND)
        rig.told_of_round(age_ms=0, since_ms=0)
    assert rig.empty_for_s() < 2.0
    rig.keep_company(2.0, AHEAD, BEHIND)
    rig.told_of_round(age_ms=0, since_ms=0)
    assert rig.empty_for_s() > 2.0
    rig.ask()
    rig.scheduler.suspended(rig.now, 1000.0)
    rig.keep_company(2.0, AHEAD, BEHIND)
    rig.told_of_round(age_ms=0, since_ms=0)
    assert rig.empty_for_s() >= 1000.0


def test_what_all_have_heard_of_is_checked_in_turn() -> None:
    """C2: not by a worker at each of them."""
    rig = Asking()
    rig.able(AHEAD, room=True)
    rig.frames[rig.number].clear()
    rig.told_of_round(queues=(QUEUE,))
    assert rig.wakes(rig.number) == [] and rig.work().deferred
    rig.keep_company(3.0, AHEAD, BEHIND)
    assert len(rig.wakes(rig.number)) == 1


def test_what_it_finds_is_told_with_its_age_and_as_far_as_it_fits() -> None:
    """Of more queues than one message names nobody is told: they ask themselves."""
    rig = Asking()
    rig.scheduler.round_begins(rig.now, rig.round)
    rig.wait(0.25)
    rig.scheduler.round_answered(rig.now, rig.round, [QUEUE, "a/b"], PLACE)
    rig.drive()
    (told,) = [word for word in rig.words if isinstance(word, Asked)]
    assert (told.store, told.place, told.queues) == (SCOPE, PLACE, ("a/b", QUEUE))
    assert 250 <= told.begun_age_ms <= 251 and {AHEAD, BEHIND} == set(told.heard)
    rig.words.clear()
    for count in (ROUND_QUEUES_MAX, ROUND_QUEUES_MAX + 1):
        rig.ask(*(f"a/q{n}" for n in range(count)))
        assert len([word for word in rig.words if isinstance(word, Asked)]) == 1


@pytest.mark.parametrize("clocks", [None, (0.0, 5.0)], ids=["no clock", "slept"])
def test_a_round_whose_age_is_not_known_is_told_to_nobody(clocks: tuple[float, float] | None) -> None:
    """Its own bridge knows it: what it began is newer than the newest sleep."""
    rig = Asking()
    rig.turns.watch(None, there=False)
    rig.ask()
    rig.turns.watch(clocks, there=clocks is not None)
    rig.scheduler.round_answered(rig.now, rig.round, [], PLACE)
    rig.drive()
    assert not [word for word in rig.words if isinstance(word, Asked)]
    alone = MemberRig(sweep_s=T)
    made = alone.scheduler.add_round(store, scope=SCOPE)
    alone.scheduler.round_begins(alone.now, made)
    alone.scheduler.round_answered(alone.now, made, [], PLACE)
    alone.drive()
    assert not [word for word in alone.words if isinstance(word, Asked)]
