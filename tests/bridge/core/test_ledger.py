"""The ledger at its limit: nobody's work is refused, the least needed names go, and looking for them costs no more."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from bridge.contract.wire import Hello, Subscription
from bridge.core.ledger import Ledger
from bridge.core.receives import count_triggers
from bridge.core.settings import Periods, Tuning
from bridge.observe.slices import at_once
from bridge.service.status import crowded, findings
from tests.support.bells import Rig


class Counted(OrderedDict[str, None]):
    """Counts the names that are looked at."""

    looked = 0

    def popitem(self, last: bool = True) -> tuple[str, None]:
        Counted.looked += 1
        return super().popitem(last)

    def __iter__(self) -> object:  # type: ignore[override]
        raise AssertionError("the first of a mapping from whose front much was deleted costs a walk over the gaps")


def test_names_go_by_what_is_known_of_them() -> None:
    """First those that nothing is known of, then those with a debt, last those with due times; the oldest of each."""
    rig = Rig(queues_max=4)
    rig.trigger("a/due", not_before_ms=60_000)
    rig.trigger("a/owed")
    number = rig.join("a/clean")
    rig.cover(number, rig.debt("a/clean").gen, "a/clean")
    for _ in range(5):
        rig.wait(4.0)
        rig.beat(number, "a/clean", free=32, gen=rig.debt("a/clean").gen)
    rig.lose(number)
    rig.trigger("a/owed-too")
    known = []
    for new in range(4):
        rig.trigger(f"a/new{new}", not_before_ms=90_000)
        known.append([name for name in ("a/clean", "a/owed", "a/owed-too", "a/due") if rig.bell.ledger.find(name)])
    assert known == [["a/owed", "a/owed-too", "a/due"], ["a/owed-too", "a/due"], ["a/due"], []]
    assert rig.bell.ledger.unknown == 3
    assert ("due", "a/due") not in rig.bell.dispatch.agenda


def test_who_comes_to_a_name_that_was_forgotten_is_asked_to_look() -> None:
    """The trigger was taken and its name did not fit: the first hello finds it dirty (B10)."""
    rig = Rig(queues_max=2)
    for name in ("a/1", "a/2", "a/3"):
        rig.trigger(name)
    assert rig.bell.ledger.find("a/1") is None
    assert rig.wakes(rig.join("a/1"))


def test_nobody_who_listens_is_refused_or_forgotten() -> None:
    """With every known name needed, hellos and triggers go on: the one is let in, the other rings plain subscribers."""
    rig = Rig(queues_max=2)
    rig.bell.dispatch.announcing = True
    rig.join("a/1", "a/2", "a/3")
    rig.level(1, queue="a/own", put=1, rose=True)
    late = rig.join("a/late")
    assert rig.wakes(late)
    rig.announced.clear()
    rig.trigger("a/stranger")
    rig.trigger("a/stranger", not_before_ms=5000)
    assert rig.announced == ["trigger"]
    assert sorted(rig.bell.ledger.debts) == ["a/1", "a/2", "a/3", "a/late", "a/own"]
    assert ("due", "a/stranger") not in rig.bell.dispatch.agenda
    assert rig.bell.ledger.unknown == 2
    rig.wait(6.0)
    assert rig.wakes(rig.join("a/stranger"))


def test_a_hello_at_the_limit_seats_all_its_queues() -> None:
    """Opening one name takes no other of the same hello away, in a first hello and in a later one."""
    rig = Rig(queues_max=1)
    rig.trigger("a/other")
    number = rig.join("a/1", "a/2", instance="1" * 32)
    rig.say(number, Hello("1" * 32, "again", [Subscription(f"a/{name}", 4) for name in (2, 3, 4)]))
    assert sorted(rig.bell.ledger.debts) == ["a/2", "a/3", "a/4"]
    assert [len(rig.debt(f"a/{name}").seats) for name in (2, 3, 4)] == [1, 1, 1]
    rig.bye(number)
    for stranger in range(4):
        rig.trigger(f"b/{stranger}")
    assert len(rig.bell.ledger.debts) == 1, "what listeners left behind goes bit by bit"


def test_a_batch_at_the_limit_keeps_the_names_it_just_marked() -> None:
    """The second name of a batch takes the place of an older one, and not of the first, whose mark was made."""
    rig = Rig(queues_max=2)
    rig.trigger("a/old")
    rig.trigger("a/older")
    rig.trigger("a/1")
    rig.trigger("a/2")
    assert all(rig.debt(name).dirty for name in ("a/1", "a/2"))


@pytest.mark.parametrize("not_before_ms", [0, 60_000])
def test_a_flood_of_names_costs_each_the_same(not_before_ms: int) -> None:
    """However many are known: a name passes each lane once, and is looked at no more often."""
    size = 3000
    rig = Rig(queues_max=size)
    ledger = rig.bell.ledger
    ledger._lanes = (Counted(), Counted(), Counted())
    needed = rig.join(*(f"own/{number}" for number in range(200)))
    assert needed
    Counted.looked = 0
    for number in range(4 * size):
        rig.trigger(f"a/q{number}", not_before_ms=not_before_ms)
    assert Counted.looked <= 3 * 4 * size + 200
    assert len(ledger.debts) == size
    assert len(rig.bell.dispatch.agenda) <= 2 * size
    assert all(rig.debt(f"own/{number}").seats for number in range(200))


def test_it_is_said_that_names_did_not_fit() -> None:
    """Only where one with work announced was not kept: a clean one that went is no news."""
    rig = Rig(queues_max=1)
    rig.trigger("a/1")
    assert crowded(rig.bell) is None
    rig.trigger("a/2")
    said = crowded(rig.bell)
    assert said is not None and "at most 1 names" in said
    assert at_once(findings(rig.bell, rig.now, stalled=(), notices_suspend=True)).crowded == said


def test_a_name_has_its_turn_from_when_nobody_needs_it_any_more() -> None:
    """B10: one that its last listener left, while it still stood in the queue service, is not the next to go for it."""
    ledger = Ledger(2, Tuning(Periods()))
    stands = ledger.open("a/stands", 0.0)
    stands.exists = True
    ledger.open("a/1", 0.0)
    ledger.hear("a/2", 0.0)
    ledger.release(stands)
    ledger.hear("a/3", 0.0)
    assert sorted(ledger.debts) == ["a/3", "a/stands"]
    stands.exists = False
    ledger.release(stands)
    ledger.hear("a/4", 0.0)
    assert sorted(ledger.debts) == ["a/4", "a/stands"]
    ledger.hear("a/5", 0.0)
    assert sorted(ledger.debts) == ["a/4", "a/5"], "nobody needs it any more, and it may go like any other"


def test_a_clean_name_goes_before_an_older_one_with_a_debt() -> None:
    """B10: also one that nobody ever came to, and that was never marked."""
    ledger = Ledger(2, Tuning(Periods()))
    ledger.mark(ledger.hear("a/owed", 0.0), 0.0, "trigger", 1, foreign=True)
    ledger.hear("a/clean", 0.0)
    ledger.hear("a/new", 0.0)
    assert sorted(ledger.debts) == ["a/new", "a/owed"]


def test_no_more_than_two_go_for_one_that_comes() -> None:
    """B10: what listeners left behind goes bit by bit."""
    ledger = Ledger(2, Tuning(Periods()))
    left = [ledger.open(f"a/{number}", 0.0) for number in range(2)]
    for number in range(2, 6):
        for debt in left:
            debt.exists = True
        left.append(ledger.open(f"a/{number}", 0.0))
    for debt in left:
        debt.exists = False
        ledger.release(debt)
    assert len(ledger.debts) == 6
    ledger.open("a/new", 0.0)
    assert len(ledger.debts) == 5


def test_a_name_that_goes_is_known_by_the_generation_of_its_debt() -> None:
    """B10: where plain subscribers were told nothing of it."""
    ledger = Ledger(1, Tuning(Periods()))
    ledger.mark(ledger.hear("a/owed", 0.0), 0.0, "trigger", 1, foreign=True)
    ledger.hear("a/new", 0.0)
    assert (ledger.unknown, ledger.unknown_gen) == (1, 1)


def test_a_name_takes_little_memory() -> None:
    """What most queues have none of is shared until it changes: a bridge may know 100,000 names."""
    ledger = Ledger(10, Tuning(Periods()))
    one, two = (ledger.open(name, 0.0) for name in ("a/b", "a/c"))
    for name in ("asked", "buses", "wakes", "wake_sources"):
        assert getattr(one, name) is getattr(two, name), name
    count_triggers(one, 1.0, "http", 2)
    count_triggers(one, 2.0, "http", 1)
    assert (dict(one.buses), dict(two.buses)) == ({"http": 3}, {})
