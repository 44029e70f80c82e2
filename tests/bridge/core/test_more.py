"""`more` that stands for a release, while somebody else owns the debt (B6, L7)."""

from __future__ import annotations

from tests.support.bells import Rig


def test_a_cover_begun_before_a_release_does_not_settle_it() -> None:
    """L7: the owner's empty receive is older than the other's release; its cover must not end the debt."""
    rig = Rig()
    first, second = rig.join(), rig.join()
    rig.settle_hello(first)
    rig.wakes(second)
    rig.trigger()
    owner = rig.debt().owner
    other = second if owner == first else first
    (gen,) = rig.gens(owner)
    rig.started(owner, gen)
    rig.more(other, depth=1)
    rig.cover(owner, gen)
    assert rig.debt().dirty
    assert rig.gens(owner), "the owner is asked to look again"


def test_a_more_for_a_wake_that_met_no_slot_marks_nothing() -> None:
    """I2: what is owed stays owed at its own generation, and a queue that was covered meanwhile stays clean."""
    rig = Rig()
    first, second = rig.join(), rig.join()
    rig.settle_hello(first)
    rig.wakes(second)
    rig.trigger()
    owner = rig.debt().owner
    other = second if owner == first else first
    (gen,) = rig.gens(owner)
    rig.more(owner, unannounced=False)
    assert rig.debt().gen == gen
    assert rig.gens(other) == [gen]
    rig.started(other, gen)
    rig.cover(other, gen)
    rig.more(owner, unannounced=False)
    assert not rig.debt().dirty
    assert rig.debt().gen == gen


def test_a_release_is_a_mark_whatever_depth_was_seen_last() -> None:
    """L7: an older answer that left nothing says nothing about what was released since."""
    rig = Rig()
    number = rig.join()
    rig.settle_hello(number)
    other = rig.join()
    rig.more(number, depth=0, unannounced=True)
    assert rig.debt().dirty
    assert rig.gens(other)
