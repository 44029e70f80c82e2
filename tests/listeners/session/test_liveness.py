"""When a listener takes its bridge for gone (L9, L10)."""

from __future__ import annotations

import pytest

from queuebell.listeners.session.session import Liveness


def test_no_welcome_within_five_seconds_degrades_once() -> None:
    liveness = Liveness(100.0)
    assert liveness.deadline() == 105.0
    assert not liveness.dead(104.9)
    assert liveness.dead(105.0)
    assert liveness.degraded
    assert liveness.deadline() is None
    assert not liveness.dead(500.0)
    liveness.welcome(600.0, 5.0)
    assert not liveness.degraded


def test_an_echo_counts_from_the_welcome_on_and_up_to_a_millisecond_ahead() -> None:
    """Stamps are whole milliseconds: that of the welcome itself is ours, and rounding puts none into the future."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    assert liveness.echoed(102.0, 100_999, 0) is None
    assert liveness.echoed(102.0, 101_000, 0) == 101.0
    assert liveness.echoed(102.0, 101_050, 0) == pytest.approx(101.05)
    assert liveness.echoed(102.0, 102_000, 1) == pytest.approx(102.001)
    assert liveness.latency_s == 0.0
    assert liveness.echoed(102.0, 102_000, 2) is None


def test_a_session_that_breaks_has_five_seconds_to_come_back() -> None:
    """Counted from the first break, however often connecting fails since."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    liveness.lost(110.0)
    liveness.lost(114.0)
    assert not liveness.dead(114.9)
    assert liveness.dead(115.0)


def test_only_the_echo_of_our_own_heartbeats_keeps_the_bridge_alive() -> None:
    """Three intervals without one and it counts as gone, whatever else it sends."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    liveness.beat(106.0)
    assert liveness.echoed(106.2, 106_000, 100) == pytest.approx(106.1)
    assert liveness.latency_s == pytest.approx(0.1)
    assert not liveness.dead(121.0) and liveness.dead(121.2) and not liveness.welcomed


def test_echoes_that_cannot_be_ours_are_ignored() -> None:
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    assert liveness.echoed(102.0, 100_000, 0) is None
    assert liveness.echoed(102.0, 103_000, 0) is None
    assert liveness.echoed(102.0, 101_500, 1000) is None
    liveness.lost(103.0)
    assert liveness.echoed(103.0, 102_000, 0) is None


def test_heartbeats_follow_the_size_of_the_fleet() -> None:
    """Ten thousand sessions beat every 25 s, whenever they came; when most of them left, at once more often again."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    assert liveness.beat(101.0) == 101_000
    liveness.set_session_count(101.1, 10_000)
    assert liveness.beat(106.0) == 106_000
    assert liveness.beat(111.0) is None
    liveness.echoed(106.1, 106_000, 0)
    liveness.set_session_count(106.1, 100)
    assert liveness.deadline() == pytest.approx(111.1)
    assert liveness.beat(111.1) == 111_100


def test_an_echo_that_comes_late_proves_the_bridge_alive_when_it_was_sent() -> None:
    """Frames that stood in a buffer for ten seconds do not make it live ten seconds longer."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    liveness.beat(106.0)
    assert liveness.echoed(116.0, 106_000, 0) == pytest.approx(106.0)
    assert liveness.latency_s == pytest.approx(10.0)
    assert not liveness.dead(120.9)
    assert liveness.dead(121.0)
