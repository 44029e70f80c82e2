"""B9: a sweep that is overdue goes past the owner that holds the debt and does not cover it."""

from __future__ import annotations

from tests.support.bells import Rig


def swept(sessions: int) -> tuple[Rig, list[int], int]:
    """Return a rig right after a sweep, its sessions, and the owner that heard of it; overdue is 4 s later."""
    rig = Rig(sweep_s=16.0)
    numbers = [rig.join() for _ in range(sessions)]
    rig.settle_hello(numbers[0])
    rig.wait(10.0)
    for number in numbers:
        rig.beat(number)
    while not rig.debt().dirty:
        rig.wait(0.1)
    (owner,) = [number for number in numbers if [wake.reason for wake in rig.wakes(number)] == ["sweep"]]
    return rig, numbers, owner


def test_an_owner_that_began_and_does_not_end_is_passed() -> None:
    """Long before B5 gives it up, the next one looks, and may settle it."""
    rig, numbers, owner = swept(2)
    (other,) = [number for number in numbers if number != owner]
    gen = rig.debt().gen
    rig.started(owner, gen)
    rig.wait(3.8)
    assert not rig.wakes(other)
    rig.wait(0.4)
    assert rig.gens(other) == [gen] and not rig.wakes(owner)
    assert rig.debt().owner == other
    rig.cover(other, gen)
    assert not rig.debt().dirty


def test_it_is_passed_although_it_was_used_less_recently() -> None:
    """After a round of B4 the owner stands first in the order; past the owner is past it all the same."""
    rig, numbers, owner = swept(2)
    (other,) = [number for number in numbers if number != owner]
    rig.wait(2.05)
    assert rig.wakes(owner) and rig.wakes(other), "no `started` within A"
    rig.started(owner, rig.debt().gen)
    rig.wait(2.1)
    assert rig.wakes(other) and not rig.wakes(owner)


def test_where_there_is_nobody_else_the_owner_is_asked_again() -> None:
    """A debt without an owner would wait for somebody's room, and nobody needs to gain any."""
    rig, _, owner = swept(1)
    gen = rig.debt().gen
    rig.started(owner, gen)
    rig.wait(4.2)
    assert rig.gens(owner) == [gen]
    assert rig.debt().owner == owner
