"""The small parts of the rules at their limits: seats, slots, sessions, silence, copies, sweeps and the agenda."""

from __future__ import annotations

import heapq
import math
from typing import Any

import pytest

from bridge.contract.wire import Subscription
from bridge.core.dedupe import Duplicates
from bridge.core.due import Agenda, DueTimes
from bridge.core.routing import CARRY_CANDIDATES, Seats
from bridge.core.sessions import Session, Sessions
from bridge.core.silence import Silence
from bridge.core.slots import Seat, Slot, seat
from bridge.core.suspend import SuspendWatch
from bridge.core.sweep import latest_sweep, next_sweep


def place(
    session: int, *, own: bool = False, accepts: bool = False, capacity: int = 4, free: int | None = None
) -> Seat:
    """Return a seat as a hello asks for it."""
    return seat(session, Subscription("a/b", capacity, own=own, free=free), accepts=accepts)


def seated(*seats: Seat) -> Seats:
    """Return seats in this order."""
    all_of_them = Seats()
    for one in seats:
        all_of_them.add(one)
    return all_of_them


def numbers(seats: list[Seat]) -> list[int]:
    return [one.session for one in seats]


def test_a_seat_is_what_its_hello_asked_for() -> None:
    """Every word of the subscription counts; free slots are all, or those it says, and never more than there are."""
    asked = Subscription("a/b", 8, visibility_ms=1500, store="aa", own=True, free=3)
    one = seat(7, asked, accepts=True)
    assert (one.session, one.queue, one.capacity, one.visibility_s) == (7, "a/b", 8, 1.5)
    assert (one.own, one.store, one.accepts, one.free) == (True, "aa", True, 3)
    assert (place(1).free, place(1, free=9).free, place(1, free=0).free) == (4, 4, 0)
    assert not place(1, capacity=0).has_room
    assert place(1, capacity=1, free=0).has_room, "no free slot is no bar: only `more` says that it is full"


def test_which_sessions_are_own_is_counted_through_every_change() -> None:
    """Seated, seated anew as the other kind, turned own by a cover, and gone: both counts are right after each."""
    seats = Seats()
    assert (seats.any_own, seats.any_foreign, seats.any_ready, len(seats)) == (False, False, False, 0)
    one, two = place(1), place(2)
    seats.add(one), seats.add(two)
    assert (seats.any_own, seats.any_foreign) == (False, True)
    seats.turns_own(one)
    seats.turns_own(one)
    assert (one.own, seats.any_own, seats.any_foreign) == (True, True, True)
    seats.turns_own(two)
    assert (seats.any_own, seats.any_foreign) == (True, False)
    seats.add(place(1))
    assert (seats.any_own, seats.any_foreign, len(seats)) == (True, True, 2)
    assert seats.remove(2) is two
    assert (seats.any_own, seats.any_foreign) == (False, True)
    assert seats.remove(2) is None
    seats.remove(1)
    assert (seats.any_own, seats.any_foreign, seats.any_ready, len(seats)) == (False, False, False, 0)
    three, four = place(3, own=True), place(4, own=True)
    seats.add(three), seats.add(four), seats.remove(3)
    assert (seats.any_own, seats.any_foreign) == (True, False)
    seats.remove(4)
    assert not seats.any_own


def test_wakes_go_round_and_a_bar_keeps_the_order() -> None:
    """Who was used goes to the end; who gains room comes to the end; who was ready stays where it was."""
    one, two, three = place(1), place(2), place(3)
    seats = seated(one, two, three)
    seats.used(one)
    assert numbers(seats.pick(9)) == [2, 3, 1]
    assert numbers(seats.pick(2, (3,))) == [2, 1]
    assert numbers(seats.pick(0)) == []
    seats.refresh(two)
    assert numbers(seats.pick(9)) == [2, 3, 1], "it had room before"
    two.full = True
    seats.refresh(two), seats.used(two)
    assert numbers(seats.pick(9)) == [3, 1]
    two.full = False
    seats.refresh(two)
    assert numbers(seats.pick(9)) == [3, 1, 2]
    assert seats.get(2) is two
    assert list(seats) == [one, two, three]
    seats.remove(3)
    assert numbers(seats.pick(9)) == [1, 2]


@pytest.mark.parametrize(
    ("size", "picked"), [(1, [1]), (2, [1]), (3, [1, 2]), (4, [1, 2, 3]), (6, [1, 2, 3]), (7, [1, 2, 3])]
)
def test_as_many_are_woken_as_their_room_is_enough_for(size: int, picked: list[int]) -> None:
    """Two slots, one that is a guess (a free count of 0 without a `more`), and three."""
    seats = seated(place(1, free=2), place(2, free=0), place(3, free=3))
    assert numbers(seats.pick_for(size)) == picked


def test_who_may_be_handed_messages() -> None:
    """Own, willing, with a slot, with nothing unsent and no look on its way; of those the least recently used."""
    slot = Slot(1, "trigger", 1, 0.0)
    unfit = [place(number, own=True, accepts=True) for number in range(1, 6)]
    unfit[0].own, unfit[1].accepts, unfit[2].granted, unfit[3].slot, unfit[4].looking = False, False, 4, slot, True
    last, after = place(6, own=True, accepts=True, free=1), place(7, own=True, accepts=True)
    assert seated(*unfit, last, after).pick_to_carry() is last
    assert seated(*unfit).pick_to_carry() is None
    plain = [place(number, own=True) for number in range(10, 10 + CARRY_CANDIDATES)]
    assert seated(*plain[1:], last).pick_to_carry() is last
    assert seated(*plain, last).pick_to_carry() is None, "no further than that, or each put would cost more"


def test_a_report_takes_off_what_crossed_it() -> None:
    """O7: messages of wakes that the reporter had heard of are in its count, those of later ones are taken off."""
    one = place(1, capacity=9)
    one.woken_gen = 7
    for gen, count in ((5, 1), (6, 2), (7, 3)):
        one.carry(gen, count)
    one.report(8, None)
    assert (one.free, one.full, one.reported_gen) == (2, False, 0)
    one.report(8, 5)
    assert (one.free, one.carried, one.reported_gen) == (3, [(6, 2), (7, 3)], 5)
    one.report(8, 4)
    assert (one.free, one.reported_gen) == (3, 5), "a late report unlearns nothing"
    one.report(4, 5)
    assert (one.free, one.full) == (0, False), "its own count says that it has room"
    one.woken_gen = 6
    one.report(99, 99)
    assert (one.free, one.carried) == (6, [(7, 3)]), "told by a welcome, and the wake is still unsent"
    one.woken_gen = 7
    one.report(99, None)
    assert (one.free, one.carried) == (9, [])
    one.report(0, None)
    assert (one.free, one.full) == (0, True)
    one.report(1, None)
    assert one.full is False


def test_a_look_is_over_with_the_first_report_after_it_began() -> None:
    """A report from before its `started` leaves it on its way."""
    one = place(1)
    one.looking = True
    one.report(4, None)
    assert (one.looking, one.began) == (True, False)
    one.began = True
    one.report(3, None)
    assert (one.looking, one.began) == (False, False)


def test_the_heartbeat_grows_with_the_sessions_that_have_a_name() -> None:
    """2.5 ms for each; and a session is given three of what it was told, or of what holds now, if that is longer."""
    sessions = Sessions(1.0)
    for number in range(1, 1201):
        session = Session(id=number, kind="test", opened_at=0.0, last_heard=0.0)
        sessions.open(session)
        assert sessions.get(number) is session
        assert len(sessions) == 0 or number > 1
        sessions.name(session, f"i{number}", "l")
        assert sessions.heartbeat_s == max(1.0, 0.0025 * number)
    assert (len(sessions), len(sessions.named()), sessions.dead_after_s) == (1200, 1200, 9.0)
    first = sessions.get(1)
    assert first is not None
    first.last_heard = 50.0
    assert sessions.alive_until(first) == 59.0
    sessions.told(first)
    for number in range(2, 1201):
        gone = sessions.get(number)
        assert gone is not None
        sessions.remove(gone)
    assert (sessions.heartbeat_s, sessions.alive_until(first), len(sessions)) == (1.0, 59.0, 1)
    sessions.told(first)
    assert sessions.alive_until(first) == 53.0


def test_who_was_replaced_takes_nothing_of_its_successor_along() -> None:
    """Removed after the instance is another session's, it leaves that one its name."""
    sessions = Sessions(5.0)
    old, new = (Session(id=number, kind="test", opened_at=0.0, last_heard=0.0) for number in (1, 2))
    for session in (old, new):
        sessions.open(session)
        sessions.name(session, "i", f"listener {session.id}")
    assert (new.instance, new.listener) == ("i", "listener 2")
    sessions.remove(old)
    assert sessions.holder("i") is new
    assert sessions.get(1) is None
    sessions.remove(new)
    assert (sessions.holder("i"), len(sessions)) == (None, 0)


def test_silence_is_judged_at_its_very_end() -> None:
    """D after the last sign of life, not before; those that pass within a tenth of H are looked up along with it."""
    sessions = Sessions(10.0)
    silence = Silence(sessions)
    assert (silence.deadline(), silence.dead(1e9)) == (None, [])
    one, two, three = (Session(id=number, kind="test", opened_at=0.0, last_heard=0.0) for number in (1, 2, 3))
    for session, heard in ((one, 0.0), (two, 1.0), (three, 1.125)):
        sessions.open(session)
        session.last_heard = heard
        silence.expect(session)
    assert (silence.deadline(), silence.dead(29.875)) == (30.0, [])
    two.last_heard = 2.0
    assert silence.dead(30.0) == [one]
    assert silence.deadline() == 31.125, "the third was not looked up, and the second set anew"
    assert silence.dead(31.125) == [three]
    silence.forget(2)
    assert silence.deadline() is None
    silence.expect(two)
    sessions.remove(two)
    assert silence.dead(40.0) == []


def test_after_a_suspend_silence_counts_the_sleep_and_gives_a_grace() -> None:
    """One and a half heartbeats for whoever was silent too long, and the rest of D for whoever was not."""
    sessions = Sessions(10.0)
    silence = Silence(sessions)
    one = Session(id=1, kind="test", opened_at=40.0, last_heard=50.0)
    sessions.open(one)
    sessions.name(one, "i", "l")
    silence.expect(one)
    silence.suspended(60.0, 8.0)
    assert (one.last_heard, one.opened_at, silence.deadline()) == (42.0, 32.0, 75.0)
    silence.suspended(56.0, 1.0)
    assert (one.last_heard, silence.deadline()) == (41.0, 71.0)


def test_a_copy_is_known_for_its_period_and_no_longer() -> None:
    """B13: at its very end it is still a copy; beyond it, or among too many, it is forgotten, the oldest first."""
    seen = Duplicates(10.0, 2)

    def copy(now: float, id_: str | None = "1", source: str = "p", *, queue: str = "a/b", due: int = 0,
             bus: str = "nats", redelivered: bool = False) -> bool:  # fmt: skip
        return seen.is_copy(now, None if id_ is None else (source, id_), queue, due, bus, redelivered)

    seen.marked(100.0, ("p", "1"), "a/b", 0, "http")
    assert copy(100.0) and copy(110.0) and not copy(110.125)
    assert (
        not copy(100.0, queue="a/c") and not copy(100.0, due=1) and not copy(100.0, "2") and not copy(100.0, "1", "q")
    )
    assert not copy(100.0, bus="http") and copy(100.0, bus="http", redelivered=True)
    seen.marked(100.0, None, "a/b", 0, "http")
    assert not copy(100.0, None) and len(seen) == 1, "what has no name is not kept"
    seen.marked(105.0, ("p", "1"), "a/b", 0, "nats")
    assert copy(105.0) and not copy(105.0, bus="http"), "the first mark counts, not its copies"
    seen.marked(110.0, ("p", "2"), "a/b", 7, "http")
    assert len(seen) == 2
    assert copy(110.0, "2", due=7) and copy(110.0)
    seen.marked(110.0, ("p", "3"), "a/b", 0, "http")
    assert (len(seen), copy(110.0)) == (2, False), "one too many: the oldest goes"
    seen.marked(120.0, ("p", "4"), "a/b", 0, "http")
    assert copy(120.0, "3") and copy(120.0, "4") and len(seen) == 2
    seen.marked(120.125, ("p", "5"), "a/b", 0, "http")
    assert len(seen) == 2 and copy(120.125, "5")
    seen.marked(130.125, ("p", "6"), "a/b", 0, "http")
    assert (len(seen), copy(130.125, "5"), copy(130.125, "4")) == (2, True, False)
    seen.marked(150.0, ("p", "7"), "a/b", 0, "http")
    assert len(seen) == 1, "all that are too old go at once"


@pytest.mark.parametrize(("draw", "due"), [(0.0, 145.0), (0.5, 150.0), (1.0, 155.0)])
def test_a_sweep_comes_a_tenth_early_or_late_at_most(draw: float, due: float) -> None:
    """Counted from the cover."""
    assert next_sweep(100.0, 50.0, lambda: draw) == pytest.approx(due, abs=1e-9)
    assert latest_sweep(100.0, 50.0) == pytest.approx(155.0, abs=1e-9)


def test_short_sleeps_add_up_and_the_limit_itself_is_none() -> None:
    """What was told begins anew; nothing is told of a clock that only runs."""
    watch = SuspendWatch()
    assert watch.observe(10.0, 50.0, 5.0) == 0.0
    assert watch.observe(11.0, 56.0, 5.0) == 0.0, "five of them are allowed"
    assert watch.observe(12.0, 57.5, 5.0) == 5.5
    assert watch.observe(13.0, 58.5, 0.0) == 0.0
    assert watch.observe(14.0, 60.0, 0.0) == 0.5


def test_an_agenda_keeps_one_deadline_a_key() -> None:
    """Set anew, set earlier, cleared: what comes out is the newest, in order, and once."""
    agenda: Agenda[str] = Agenda()
    assert (agenda.next(), agenda.when("a"), agenda.pop_due(1e9), "a" in agenda) == (None, None, [], False)
    for key, when in (("a", 3.0), ("b", 2.0), ("c", 2.0), ("d", 5.0)):
        agenda.set(key, when)
    assert (len(agenda), agenda.next(), agenda.when("a"), "a" in agenda) == (4, 2.0, 3.0, True)
    agenda.set("a", 4.0)
    agenda.set_earlier("a", 4.5)
    assert agenda.when("a") == 4.0
    agenda.set_earlier("d", 4.0)
    assert agenda.when("d") == 4.0
    agenda.set_earlier("e", 4.0)
    agenda.clear("b"), agenda.clear("never set")
    assert (agenda.pop_due(1.875), agenda.next(), len(agenda)) == ([], 2.0, 4)
    assert agenda.pop_due(2.0) == ["c"], "its time is not after now"
    assert agenda.pop_due(9.0) == ["a", "d", "e"], "of one time, first come, first served"
    assert (len(agenda), agenda.next()) == (0, None)


def test_an_earlier_deadline_of_the_same_time_keeps_its_turn() -> None:
    """Setting what stands already does not send it to the end."""
    agenda: Agenda[str] = Agenda()
    agenda.set("a", 1.0), agenda.set("b", 1.0)
    agenda.set_earlier("a", 1.0)
    assert agenda.pop_due(1.0) == ["a", "b"]


@pytest.fixture
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries were put in order anew, each time."""
    heapify, sizes = heapq.heapify, []

    def noted(entries: list[Any]) -> None:
        sizes.append(len(entries))
        heapify(entries)

    monkeypatch.setattr(heapq, "heapify", noted)
    return sizes


def test_a_deadline_that_is_moved_for_ever_leaves_little_behind(rebuilt: list[int]) -> None:
    """Stale entries are dropped once they are four times as many as those that count, and beyond 64."""
    agenda: Agenda[int] = Agenda()
    for moved in range(1000):
        for key in range(20):
            agenda.set(key, 1000.0 - moved + key / 32)
    # From 20 entries each 61 that are added are one beyond four times as many.
    assert rebuilt == [20] * ((20_000 - 20) // 61)
    assert agenda.pop_due(1.0) == list(range(20))[:1]
    assert agenda.pop_due(2000.0) == list(range(1, 20))
    few: Agenda[int] = Agenda()
    for moved in range(64):
        few.set(0, float(-moved))
    assert rebuilt[-1] == 20, "a few cost nothing, so nothing is done about them"
    few.set(0, -99.0)
    assert (rebuilt[-1], few.next()) == (1, -99.0)


@pytest.mark.parametrize("delay_s", [0.0, 0.004, 0.01, 1.0, 59.999, 3600.0, 604_800.0])
@pytest.mark.parametrize("resolution_s", [0.0, 0.5])
def test_a_due_time_is_never_early_and_late_by_its_drift_at_most(delay_s: float, resolution_s: float) -> None:
    """B2: by 1e-4 of the delay, that much again for its bucket, ten milliseconds, and the store's resolution."""
    times = DueTimes()
    ends = times.add(1000.0, delay_s, resolution_s=resolution_s, size=3)
    exact = 1000.0 + delay_s * 1.0001 + resolution_s
    assert exact <= ends <= exact + max(0.010, delay_s * 1e-4)
    assert times.next() == ends
    assert (times.pop_due(math.nextafter(ends, 0.0)), times.pop_due(ends), times.pop_due(ends)) == (0, 3, 0)
    assert (times.next(), len(times)) == (None, 0)


def test_due_times_of_one_bucket_are_one_and_their_sizes_add_up() -> None:
    """Up to a million, which is what a trigger may announce."""
    times = DueTimes()
    ends = {times.add(0.0, 0.001), times.add(0.0, 0.002, size=4), times.add(0.0, 0.001, size=999_994)}
    assert (len(ends), len(times), times.pop_due(1.0)) == (1, 1, 999_999)
    times.add(0.0, 0.001, size=600_000), times.add(0.0, 0.001, size=600_000)
    assert times.pop_due(1.0) == 1_000_000
    times.add(0.0, 1.0), times.add(0.0, 2.0, size=2), times.add(0.0, 9.0)
    assert (times.pop_due(5.0), len(times)) == (3, 1)


def test_buckets_grow_coarser_as_they_grow_many() -> None:
    """Twice as wide with each 4,096 of them."""
    times = DueTimes()
    for number in range(4095):
        times.add(-1.0 - number, 0.0)
    assert times.add(0.0, 0.012) == pytest.approx(0.02)
    assert len(times) == 4096
    assert times.add(0.0, 0.021) == pytest.approx(0.04), "there is none that ends between"
    for number in range(4096):
        times.add(-5000.0 - number, 0.0)
    assert times.add(0.0, 0.05) == pytest.approx(0.08)


def test_due_times_that_come_nearer_keep_their_sizes() -> None:
    """B15: all by the same; two that meet are one with both sizes."""
    times = DueTimes()
    first, second = times.add(0.0, 10.0, size=2), times.add(0.0, 20.0, size=3)
    times.nearer(4.0)
    for ends, size in ((first - 4.0, 2), (second - 4.0, 3)):
        assert times.next() == ends
        assert (times.pop_due(math.nextafter(ends, 0.0)), times.pop_due(ends)) == (0, size)
    times.add(1.0, 0.0, size=2), times.add(2.0, 0.0, size=3)
    # So far away a float cannot tell the one from the other.
    times.nearer(-1e17)
    assert (len(times), times.pop_due(2e17)) == (1, 5)


def test_deadlines_of_one_time_keep_their_turns_whatever_their_keys() -> None:
    """Keys are never compared: those of sessions are numbers, those of queues are names."""
    agenda: Agenda[object] = Agenda()
    keys = ["z", 7, "a", ("hello", 1), object()]
    for key in keys:
        agenda.set(key, 1.0)
    assert agenda.pop_due(1.0) == keys


def test_many_deadlines_that_stand_are_not_put_in_order_again_with_each(rebuilt: list[int]) -> None:
    """Setting one costs O(log n): the heap is made anew only where most of it is stale."""
    agenda: Agenda[int] = Agenda()
    for key in range(500):
        agenda.set(key, float(key))
    assert not rebuilt
    assert agenda.pop_due(500.0) == list(range(500))


def test_a_due_time_at_the_end_of_a_bucket_is_not_put_off() -> None:
    """B2: it needs no rounding."""
    assert DueTimes().add(1.0, 0.0) == 1.0


def test_a_due_time_is_not_early_by_a_rounding_error_either() -> None:
    """B2: three times the width of a bucket is less than this, as floats multiply."""
    exact = math.nextafter(0.03, 1.0)
    assert math.ceil(exact / 0.01) * 0.01 < exact
    assert DueTimes().add(exact, 0.0) == pytest.approx(0.04)


def test_a_bucket_is_never_wider_than_the_drift() -> None:
    """B2: delays that differ by more than the width, which is a power of two, are kept apart."""
    times = DueTimes()
    assert len({times.add(0.0, 1e6 + 64.0 * number) for number in range(8)}) == 8


def test_of_several_that_live_elsewhere_one_that_leaves_takes_none_along() -> None:
    """O0: it is counted once."""
    seats = seated(place(1), place(2), place(3, own=True))
    seats.remove(1)
    assert (seats.any_own, seats.any_foreign) == (True, True)
    seats.remove(2)
    seats.add(place(4))
    assert (seats.any_own, seats.any_foreign) == (True, True)


def test_b8_only_those_that_pass_soon_are_looked_up_along() -> None:
    """B8: within a tenth of H; one that passes later keeps its time, whatever was heard of it meanwhile."""
    sessions = Sessions(10.0)
    silence = Silence(sessions)
    one, two = (Session(id=number, kind="test", opened_at=0.0, last_heard=0.0) for number in (1, 2))
    for session, heard in ((one, 0.0), (two, 2.0)):
        sessions.open(session)
        session.last_heard = heard
        silence.expect(session)
    two.last_heard = 20.0
    assert silence.dead(30.0) == [one]
    assert silence.deadline() == 32.0
    assert silence.dead(32.0) == []
    assert silence.deadline() == 50.0


def test_b8_a_session_that_ended_meanwhile_hides_nobody_who_is_dead() -> None:
    """B8: those that are looked up after it are judged all the same."""
    sessions = Sessions(10.0)
    silence = Silence(sessions)
    one, two = (Session(id=number, kind="test", opened_at=0.0, last_heard=0.0) for number in (1, 2))
    for session in (one, two):
        sessions.open(session)
        silence.expect(session)
    sessions.remove(one)
    assert silence.dead(30.0) == [two]
