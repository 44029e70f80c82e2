"""B15: a machine that slept is a gap; a loop that lags, or a process that was stopped, is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.core.settings import QueueRule
from bridge.core.suspend import SuspendWatch
from bridge.observe.facts import Suspended
from tests.support.bells import QUEUE, Rig

HOUR = 3600.0
STEPS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 20)), max_size=50)


@given(steps=STEPS, start=st.floats(0, 1e6))
def test_every_second_slept_is_told_once_or_not_yet_worth_it(steps: list[tuple[float, float]], start: float) -> None:
    """What was told, and what is still below H, is what was slept; awake time never counts."""
    watch = SuspendWatch()
    monotonic, boottime = 0.0, start
    assert watch.observe(monotonic, boottime, 5.0) == 0.0
    told = slept = 0.0
    for awake, asleep in steps:
        monotonic += awake
        boottime += awake + asleep
        slept += asleep
        gap = watch.observe(monotonic, boottime, 5.0)
        assert gap == 0.0 or gap > 5.0
        told += gap
        assert -1e-3 <= slept - told <= 5.0 + 1e-3


def test_lag_is_no_gap() -> None:
    """An hour between two looks, with both clocks running, is a busy machine."""
    watch = SuspendWatch()
    watch.observe(0.0, 50.0, 5.0)
    assert watch.observe(HOUR, HOUR + 50.0, 5.0) == 0.0


def test_a_clock_that_comes_closer_is_taken_as_it_is() -> None:
    """A reading that was off by a little must not hide, or invent, what comes after."""
    watch = SuspendWatch()
    watch.observe(0.0, 50.0, 5.0)
    assert watch.observe(1.0, 50.5, 5.0) == 0.0
    assert watch.observe(2.0, 57.0, 5.0) == 5.5


def suspend(rig: Rig, seconds: float) -> int:
    """Have the machine sleep: the rig's clock stands still."""
    marked = rig.bell.suspended(rig.now, seconds)
    rig.drive()
    return marked


def test_every_queue_elsewhere_is_looked_at_once_and_own_ones_are_not() -> None:
    """Whatever bus feeds them; the own store slept as well and missed nothing."""
    rig = Rig()
    number = rig.join("a/nats", "a/none")
    own = rig.join("a/own", own=True)
    rig.trigger("a/nats", bus="nats")
    for queue in ("a/nats", "a/none"):
        rig.cover(number, rig.debt(queue).gen, queue)
    rig.wakes(number)
    assert suspend(rig, HOUR) == 2
    heard = []
    for _ in range(11):
        rig.wait(1.0)
        rig.beat(number, "a/none"), rig.beat(own, "a/own")
        for wake in rig.wakes(number):
            heard.append((wake.queue, wake.reason))
            rig.cover(number, wake.gen, wake.queue)
    assert sorted(heard) == [("a/nats", "resync"), ("a/none", "resync")]
    assert not rig.wakes(own)
    assert [fact for fact in rig.facts if isinstance(fact, Suspended)] == [Suspended(HOUR, 2)]


def test_nobody_dies_at_the_moment_of_resume() -> None:
    """Heartbeats that wait in our sockets get the time to be read; who sends none in that time is dead at its end."""
    rig = Rig()
    alive, dead = rig.join(), rig.join()
    rig.wait(4.0)
    rig.beat(alive), rig.beat(dead)
    suspend(rig, HOUR)
    rig.wait(7.4)
    assert not rig.ended
    rig.beat(alive)
    rig.wait(0.2)
    assert set(rig.ended) == {dead}
    rig.wait(10.0)
    assert set(rig.ended) == {dead}


def test_a_short_sleep_leaves_sessions_their_time() -> None:
    """Silent for less than D, the sleep included, a session is judged as ever."""
    rig = Rig()
    number = rig.join()
    rig.wait(1.0)
    suspend(rig, 6.0)
    rig.wait(7.9)
    assert not rig.ended
    rig.wait(0.2)
    assert number in rig.ended


def test_coverage_is_as_old_as_it_really_is() -> None:
    """L10: a listener that hears of a coverage younger than it is would put off its own look."""
    rig = Rig()
    first = rig.join()
    rig.settle_hello(first)
    rig.wait(2.0)
    suspend(rig, HOUR)
    assert rig.welcome(rig.join()).queues[0].covered_age_ms == round((HOUR + 2.0) * 1000)


def test_due_times_come_nearer_and_never_early() -> None:
    """A store elsewhere did not sleep: what is due in an hour is due an hour earlier by our clock."""
    rig = Rig()
    number = rig.join()
    rig.settle_hello(number)
    rig.trigger(not_before_ms=2 * 3_600_000)
    suspend(rig, HOUR)
    heard = []
    start = rig.now
    while rig.now < start + HOUR + 5.0:
        rig.wait(1.0)
        rig.beat(number)
        for wake in rig.wakes(number):
            heard.append((wake.reason, rig.now - start))
            rig.cover(number, wake.gen)
    assert [reason for reason, _ in heard] == ["resync", "due"]
    assert HOUR <= heard[1][1] <= HOUR + 3.0


def test_leases_of_a_session_that_dies_later_are_over_by_then() -> None:
    """B8: an end that was told before the sleep counts the sleep."""
    rig = Rig()
    first, second = rig.join(), rig.join()
    rig.settle_hello(first)
    rig.beat(second, leases=[60_000], free=31, gen=rig.debt().gen)
    suspend(rig, HOUR)
    rig.lose(second)
    for gen in rig.gens(first):
        rig.cover(first, gen)
    rig.wait(0.1)
    assert [wake.reason for wake in rig.wakes(first)] == ["lease"]


def test_the_looks_after_a_suspend_are_spread_by_each_queues_own_period() -> None:
    """A quarter of T, ten seconds at most."""
    rig = Rig(sweep_s=60.0, rules=(QueueRule(match="a/*", sweep_s=4.0),))  # type: ignore[arg-type]
    number = rig.join("b/first", "a/x", QUEUE)
    for wake in rig.wakes(number):
        rig.cover(number, wake.gen, wake.queue)
    suspend(rig, HOUR)
    agenda = rig.bell.dispatch.agenda
    # The rig draws the middle of every range.
    quick, slow = agenda.when(("due", "a/x")), agenda.when(("due", QUEUE))
    assert quick is not None and slow is not None
    assert 0.5 <= quick - rig.now < 0.6 and 5.0 <= slow - rig.now < 5.1


def test_those_that_are_left_of_a_large_fleet_beat_as_they_were_told() -> None:
    """H was 0.25 s when they heard of it: a grace by the H of the few that are left would end before they speak."""
    rig = Rig(heartbeat_s=0.1)
    numbers = [rig.join() for _ in range(100)]
    for number in numbers:
        rig.beat(number)
    for number in numbers[4:]:
        rig.bye(number)
    left = set(numbers[:4])
    rig.ended.clear()
    suspend(rig, HOUR)
    rig.wait(0.3)
    assert not rig.ended
    rig.beat(numbers[0])
    rig.wait(0.08)
    assert set(rig.ended) == left - {numbers[0]}
