"""Heartbeats that cross a wake, and covers that are lost: faults that a search of the rules' model once found."""

from __future__ import annotations

import pytest

from tests.support.bells import Rig


def _settled(rig: Rig) -> int:
    session = rig.join(capacity=1)
    rig.settle_hello(session)
    return session


def test_b8_a_heartbeat_that_crossed_a_wake_of_a_known_generation_proves_nothing() -> None:
    """The wake repeats a generation that the listener knows already; what it then takes still gets its timer."""
    rig = Rig()
    session = _settled(rig)
    rig.trigger()
    gen = rig.debt().gen
    # B4: the same wake once more, and an idle heartbeat from before it arrives after it was sent.
    rig.wait(2.0)
    assert rig.gens(session) == [gen, gen]
    rig.beat(session, free=1, gen=gen)
    rig.lose(session)
    assert "lease" in rig.debt().due


def test_b8_an_idle_heartbeat_after_d_proves_that_nothing_is_held() -> None:
    """D after the last wake none can be on its way, and a session that then ends leaves no timer."""
    rig = Rig()
    session = _settled(rig)
    for _ in range(4):
        rig.wait(4.0)
        rig.beat(session, free=1, gen=rig.debt().gen)
    rig.lose(session)
    assert "lease" not in rig.debt().due


@pytest.mark.parametrize("busy", [False, True])
def test_b5_a_barred_session_that_is_seen_idle_is_asked_again(busy: bool) -> None:
    """Its cover was lost and it has nothing to report; only while it still receives does the bar stand."""
    rig = Rig()
    session = _settled(rig)
    rig.trigger()
    gen = rig.debt().gen
    rig.wakes(session)
    rig.started(session, gen)
    began = rig.now
    while not rig.debt().seats.get(session).stuck:  # type: ignore[union-attr]
        rig.wait(1.0)
        rig.beat(session, receiving_ms=round((rig.now - began) * 1000))
    rig.beat(session, free=1, gen=gen, receiving_ms=round((rig.now - began) * 1000) if busy else None)
    rig.drive()
    assert bool(rig.gens(session)) is not busy
