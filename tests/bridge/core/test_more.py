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
