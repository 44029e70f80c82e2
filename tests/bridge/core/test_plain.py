"""What plain subscribers hear (B12, O1): each put, what comes back, and again what stays."""

from __future__ import annotations

import pytest

from bridge.core.bell import Bell
from bridge.core.commands import Announce
from tests.bridge.core.test_own import hand
from tests.support.bells import QUEUE, Rig

AGAIN_S = 60.0
LATEST_S = 75.0
SESSIONS = [None, "own", "foreign"]


def plain(sessions: str | None = None) -> Rig:
    """Return a rig with a plain subscriber, and with a session of this store, of another one, or with none."""
    rig = Rig()
    rig.bell.reminders.announcing(rig.now, True)
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
    for number in [seat.session for seat in rig.debt().seats]:
        rig.beat(number)


def cover(rig: Rig) -> None:
    """Every session finds its queue empty."""
    for number in [seat.session for seat in rig.debt().seats]:
        rig.cover(number, rig.debt().gen)


@pytest.mark.parametrize("sessions", SESSIONS)
def test_o1_each_put_is_heard_and_not_only_the_rise_from_empty(sessions: str | None) -> None:
    """With and without sessions; each under a name of its own, newer than the last."""
    rig = plain(sessions)
    gens: list[int] = []
    for visible in range(1, 6):
        rig.level(visible, rose=visible == 1, put=1)
        gens += [announced.gen for announced in rig.rung]
        assert heard(rig) == [("trigger", 1)]
    assert gens == sorted(set(gens))


def test_o1_a_put_that_others_took_in_its_own_commit_is_heard() -> None:
    """A busy worker beside them leaves nothing visible; a bus elsewhere would ring all the same."""
    rig = plain("own")
    rig.level(0, rose=True, put=3)
    assert heard(rig) == [("trigger", 3)]


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


def test_a_delayed_put_is_heard_when_it_is_due() -> None:
    """Nothing is visible before."""
    rig = plain()
    rig.level(0, put=1, invisible=1, next_s=30.0)
    assert heard(rig) == []
    rig.level(1, rose=True)
    assert heard(rig) == [("due", 1)]


def test_a_paused_queue_is_silent_until_it_is_resumed() -> None:
    """Puts meanwhile are told with the level that the resume lets rise; reminders stop as well."""
    rig = plain()
    rig.level(2, rose=True, put=2)
    heard(rig)
    rig.level(0, invisible=2)
    rig.level(0, put=3, invisible=5)
    rig.wait(3 * LATEST_S)
    assert heard(rig) == []
    rig.level(5, rose=True)
    assert heard(rig) == [("due", 5)]


@pytest.mark.parametrize(
    ("put", "visible", "told"), [(2, 0, [("trigger", 2)]), (5, 3, [("trigger", 2), ("trigger", 3)])]
)
def test_o7_carried_messages_are_told_once(put: int, visible: int, told: list[tuple[str, int]]) -> None:
    """The wake that carries two of a put tells of those two, the commit of the rest."""
    rig = plain("own")
    (seat,) = rig.debt().seats
    hand(rig, seat.session, "m1", "m2")
    rig.level(visible, rose=True, put=put)
    assert heard(rig) == told
    rig.level(visible + 1, rose=not visible, put=1)
    assert [reason for reason, _ in heard(rig)] == ["trigger"]


def test_o7_what_is_not_taken_up_is_heard_when_it_comes_back() -> None:
    """The session that was handed it is gone: it is visible, and nobody was told that."""
    rig = plain("own")
    (seat,) = rig.debt().seats
    hand(rig, seat.session, "m1")
    rig.level(0, rose=True, put=1)
    heard(rig)
    rig.lose(seat.session)
    rig.level(1, rose=True)
    assert heard(rig) == [("due", 1)]


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
            assert (announced.reason, announced.size, announced.marked_at) == ("resync", 3, risen)
            assert AGAIN_S <= rig.now - told_at <= LATEST_S + 1
            told_at = rig.now
        rig.rung.clear()
    assert rig.now - told_at <= LATEST_S + 1
    rig.level(0)
    cover(rig)
    for _ in range(3 * round(LATEST_S)):
        live(rig)
    assert heard(rig) == []


def test_a_put_puts_the_reminder_off() -> None:
    """Who hears a put every ten seconds needs no reminder."""
    rig = plain()
    for visible in range(1, 31):
        rig.level(visible, rose=visible == 1, put=1)
        rig.wait(10.0)
    assert heard(rig) == [("trigger", 1)] * 30


@pytest.mark.parametrize(("session", "told"), [(True, True), (False, False)])
def test_elsewhere_reminders_are_for_work_that_somebody_would_settle(session: bool, told: bool) -> None:
    """A debt that a session will cover is told again; without a session nobody would ever say that it is done."""
    rig = Rig()
    rig.bell.reminders.announcing(rig.now, True)
    number = rig.join() if session else None
    if number is not None:
        rig.settle_hello(number)
    rig.trigger(size=4)
    gen = rig.debt().gen
    heard(rig)
    for _ in range(round(LATEST_S)):
        live(rig)
    assert heard(rig) == ([("resync", 4)] if told else [])
    if number is not None:
        rig.cover(number, gen)
        for _ in range(3 * round(LATEST_S)):
            live(rig)
        assert heard(rig) == []


def test_who_comes_late_finds_the_level_and_its_reminders() -> None:
    """It is caught up as it comes, and told again a period later; when the last one goes, nothing is done."""
    rig = Rig()
    rig.level(2, rose=True, put=2)
    for pause in (1000.0, 1000.0):
        rig.wait(pause)
        heard(rig)
        rig.bell.reminders.announcing(rig.now, True)
        rig.wait(AGAIN_S - 1.0)
        assert heard(rig) == []
        rig.wait(LATEST_S - AGAIN_S + 1.0)
        assert heard(rig) == [("resync", 2)]
        rig.bell.reminders.announcing(rig.now, False)
    rig.bell.reminders.announcing(rig.now, False)
    assert rig.bell.deadline() is None
    rig.level(3, put=1)
    assert heard(rig) == []


def test_what_rings_only_for_them_wakes_no_session() -> None:
    """I2: neither a put on top of work nor a reminder costs a receive, and no generation is owed for it."""
    rig = plain("own")
    (seat,) = rig.debt().seats
    rig.level(1, rose=True, put=1)
    owed = rig.debt().gen
    assert rig.gens(seat.session) == [owed]
    rig.started(seat.session, owed)
    rig.level(2, put=1)
    assert rig.gens(seat.session) == []
    assert rig.debt().gen == owed
    assert heard(rig)[-1] == ("trigger", 1)


def test_levels_tell_from_where_a_resume_goes_on() -> None:
    """The newest generation told is what a stream compares its last id with."""
    rig = plain()
    rig.level(1, rose=True, put=1)
    rig.level(2, put=1)
    newest: Announce = rig.rung[-1]
    assert rig.debt().rung == newest.gen > rig.debt().gen
    assert isinstance(rig.bell, Bell)
    assert newest.queue == QUEUE
