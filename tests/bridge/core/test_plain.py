"""What plain subscribers hear (B12, O1): each put, what comes back, and again what stays."""

from __future__ import annotations

import pytest

from queuebell.bridge.core.sessions import RECENT_S, Rejections
from tests.support.bells import Rig

AGAIN_S = 60.0
LATEST_S = 75.0
SESSIONS = [None, "own", "foreign"]


def plain(sessions: str | None = None) -> Rig:
    """Return a rig with a plain subscriber, and with a session of this store, of another one, or with none."""
    rig = Rig()
    rig.scheduler.reminders.announcing(rig.now, True)
    rig.level(0)
    if sessions is not None:
        number = rig.join(own=sessions == "own")
        if sessions == "foreign":
            rig.settle_hello(number)
    rig.rung.clear()
    return rig


def heard(rig: Rig) -> list[tuple[str, int]]:
    """Return and forget what was announced: why, and of how many."""
    rung = [(announced.reason, announced.size) for announced in rig.rung]
    rig.rung.clear()
    return rung


def live(rig: Rig) -> None:
    """Let a second pass in which every session says that it lives."""
    rig.wait(1.0)
    for number in [entry.session for entry in rig.work().sessions]:
        rig.beat(number)


def cover(rig: Rig) -> None:
    """Every session finds its queue empty."""
    for number in [entry.session for entry in rig.work().sessions]:
        rig.cover(number, rig.work().gen)


@pytest.mark.parametrize("sessions", SESSIONS)
def test_o1_each_put_is_heard_and_not_only_the_rise_from_empty(sessions: str | None) -> None:
    rig = plain(sessions)
    gens: list[int] = []
    for visible in range(1, 6):
        rig.level(visible, rose=visible == 1, put=1)
        gens += [announced.gen for announced in rig.rung]
        assert heard(rig) == [("trigger", 1)]
    assert gens == sorted(set(gens))


@pytest.mark.parametrize("sessions", SESSIONS)
@pytest.mark.parametrize("before", [0, 4])
def test_what_becomes_visible_by_itself_is_heard(before: int, sessions: str | None) -> None:
    """Delays that end and leases that lapse, also on top of what was visible before."""
    rig = plain(sessions)
    if before:
        rig.level(before, rose=True, put=before)
        heard(rig)
    rig.level(before + 2, rose=not before, invisible=0)
    assert [reason for reason, _ in heard(rig)] == ["due"]


@pytest.mark.parametrize("sessions", SESSIONS)
def test_a_level_that_stays_up_is_told_again(sessions: str | None) -> None:
    """After a minute, at most a fourth of it later, for as long as it stays; with its size and its age."""
    rig = plain(sessions)
    rig.wait(7.0)
    rig.level(3, rose=True, put=3)
    risen = told_at = rig.now
    heard(rig)
    for _ in range(5 * round(LATEST_S)):
        live(rig)
        for announced in rig.rung:
            assert (announced.reason, announced.size, announced.requested_at) == ("resync", 3, risen)
            assert AGAIN_S <= rig.now - told_at <= LATEST_S + 1
            told_at = rig.now
        rig.rung.clear()
    assert rig.now - told_at <= LATEST_S + 1
    rig.level(0)
    cover(rig)
    for _ in range(3 * round(LATEST_S)):
        live(rig)
    assert heard(rig) == []


def test_repeated_rejections_are_one_with_its_count_and_times() -> None:
    told = Rejections()
    for now in (10.0, 30.0, 60.0):
        told.add(now, ["a/x", "a/y"], "staging", "store_mismatch", "another store", instance="i")
    told.add(61.0, ["a/x"], "staging", "forbidden", "not granted")
    rows = [(each.queue, each.code, each.count, each.first_at, each.last_at) for each in told.recent(70.0)]
    assert rows == [
        ("a/x", "forbidden", 1, 61.0, 61.0),
        ("a/x", "store_mismatch", 3, 10.0, 60.0),
        ("a/y", "store_mismatch", 3, 10.0, 60.0),
    ]
    assert told.recent(70.0)[1].describe(70.0) == ("the bridge rejected staging 3 times, last 10 s ago: another store")
    assert set(told.by_queue(70.0)) == {"a/x", "a/y"}


def test_a_worker_that_stopped_trying_is_forgotten() -> None:
    """After ninety seconds, three times its longest pause; one that comes back later begins at one."""
    told = Rejections()
    told.add(0.0, ["a/x"], "staging", "store_mismatch", "why")
    told.add(5.0, ["a/x"], "staging", "store_mismatch", "why")
    assert told.recent(5.0 + RECENT_S) and not told.recent(5.1 + RECENT_S)
    told.add(200.0, ["a/x"], "staging", "store_mismatch", "why")
    assert told.recent(200.0)[0].count == 1
