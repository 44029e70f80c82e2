"""The processes of a scaled queue: how fast they start, what fails, who may end (Z2, Z3, Z4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import BadInput
from bridge.contract.wire import TALLIED
from listeners.core.processes import BACKOFF_CAP_S, Limits, Processes


def processes(**given_: Any) -> Processes:
    """Make the rules with chance in the middle."""
    return Processes(Limits(**given_), lambda: 0.5)


def begin(each: Processes, now: float, *names: str, ready: bool = True) -> None:
    """Have processes started, and be ready at once."""
    each.ask(now, len(names))
    assert each.launch(now) == len(names)
    each.began(now, list(names))
    for name in names if ready else ():
        each.became_ready(now, name)
        each.says(now, name, busy=False)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"maximum": 0}, "max"),
        ({"minimum": 3, "maximum": 2}, "min"),
        ({"minimum": -1}, "min"),
        ({"per_process": 0}, "per_process"),
        ({"start_rate": 0}, "start_rate"),
        ({"idle_s": -1.0}, "idle"),
        ({"start_timeout_s": 0.0}, "start_timeout"),
        ({"start_s": -1.0}, "start"),
    ],
)
def test_limits_that_cannot_work_are_refused(wrong: dict[str, Any], what: str) -> None:
    """And the word that a person wrote is in the message."""
    with pytest.raises(BadInput, match=what):
        Limits(**wrong)


def test_never_more_than_the_maximum_with_those_that_end() -> None:
    """One that was asked to end takes its place until it has."""
    each = processes(maximum=2)
    begin(each, 0.0, "a", "b")
    each.end(["a"])
    assert each.ask(1.0, 5) == 0
    assert each.free(1.0) == 0
    assert not each.ended(2.0, "a", -15, "SIGTERM"), "it was asked to"
    assert each.free(2.0) == 1
    assert each.ask(2.0, 5) == 1


def test_starts_are_spread_by_the_rate() -> None:
    """Three a second: the other two follow a second later, and the deadline says so."""
    each = processes(maximum=5, start_rate=3)
    each.ask(10.0, 5)
    assert each.launch(10.0) == 3
    assert each.launch(10.5) == 0
    assert each.deadline(10.5) == 11.0
    assert each.launch(11.0) == 2
    assert each.coming == 5


def test_no_slot_is_free_before_all_that_was_asked_for_are_ready() -> None:
    """A start is no readiness, and one of two is not both (Z3)."""
    each = processes()
    begin(each, 0.0, "a", "b", ready=False)
    assert each.free(0.0) == 0
    each.became_ready(1.0, "a")
    assert each.free(1.0) == 0
    each.became_ready(2.0, "b")
    assert each.free(2.0) == 6


def test_one_that_says_that_it_is_busy_is_ready() -> None:
    """A worker that polls for want of a bridge has no session, and works all the same."""
    each = processes(start_timeout_s=30.0)
    begin(each, 0.0, "a", ready=False)
    each.says(1.0, "a", busy=True)
    assert each.ready == 1
    assert each.overdue(40.0) == []


def test_one_that_is_not_ready_in_time_ends_and_counts_as_failed() -> None:
    """Its back-off bars the next start; that it then ends is no second failure."""
    each = processes(start_timeout_s=30.0)
    begin(each, 0.0, "a", ready=False)
    assert each.overdue(29.9) == []
    assert each.deadline(29.9) == 30.0
    assert each.overdue(30.0) == ["a"]
    assert each.overdue(30.0) == []
    assert each.failure == "not ready within 30 s"
    assert each.ask(30.0, 1) == 0
    retry_at = each.retry_at
    assert not each.ended(31.0, "a", -9, "killed")
    assert each.retry_at == retry_at == 31.0


def test_a_deadline_that_was_slept_through_is_put_off_until_what_was_said_is_read() -> None:
    """A scaler that was frozen may have processes that are at work; one that has said nothing by then is late (Z2)."""
    each = processes(start_timeout_s=30.0)
    begin(each, 0.0, "ready", "silent", ready=False)
    assert each.overdue(31.0 + 0.001) == []
    assert each.deadline(31.001) == pytest.approx(33.001)
    each.became_ready(32.0, "ready")
    assert each.overdue(33.0) == []
    assert each.overdue(33.002) == ["silent"]
    again = processes(start_timeout_s=30.0)
    begin(again, 0.0, "a", ready=False)
    assert again.overdue(31.0) == ["a"]


def test_failures_in_a_row_are_further_apart_each_time() -> None:
    """From a second, doubling, to a minute at most; a while without failure begins anew."""
    each, now, pauses = processes(start_timeout_s=30.0), 0.0, []
    for _ in range(10):
        begin(each, now, "a", ready=False)
        assert each.ended(now, "a", 1, "exit code 1")
        assert each.retry_at is not None
        pauses.append(each.retry_at - now)
        now = each.retry_at
    assert pauses[:4] == pytest.approx([1.0, 2.0, 4.0, 8.0])
    assert pauses[-1] == BACKOFF_CAP_S
    begin(each, now + 60.0, "a", ready=False)
    each.ended(now + 60.0, "a", 1, "exit code 1")
    assert each.retry_at == now + 61.0


def test_of_many_that_fail_together_one_counts_and_what_was_asked_is_given_up() -> None:
    """Eight that die of one cause are one failure, and the ninth is not started."""
    each = processes(maximum=10, start_rate=8)
    each.ask(0.0, 9)
    each.began(0.0, [str(number) for number in range(each.launch(0.0))])
    for number in range(8):
        each.ended(0.1, str(number), 1, "exit code 1")
    assert each.retry_at == pytest.approx(1.1)
    assert each.asked == 0
    assert each.free(1.0) == 0
    assert each.free(1.1) == 10


def test_a_start_that_was_refused_leaves_nothing_but_the_back_off() -> None:
    """A command that does not exist: no process is counted."""
    each = processes()
    each.ask(0.0, 2)
    each.refused(0.0, each.launch(0.0), "no such program")
    assert each.own == 0
    assert each.failure == "no such program"
    assert each.free(0.9) == 0
    assert each.free(1.0) == 8


def test_one_that_crashes_after_it_was_ready_backs_off_too() -> None:
    """But one that leaves by itself with exit code 0 has done nothing wrong."""
    each = processes()
    begin(each, 0.0, "a", "b")
    assert not each.ended(35.0, "b", 0, "exit code 0")
    assert each.retry_at is None
    assert each.ended(36.0, "a", -11, "SIGSEGV")
    assert each.retry_at == 37.0


def test_the_longest_idle_end_first_and_busy_ones_never() -> None:
    """Down to what is wanted, and never below the minimum (Z4)."""
    each = processes(minimum=1, idle_s=60.0)
    begin(each, 0.0, "a", "b", "c", "d")
    each.says(10.0, "b", busy=False)
    each.says(20.0, "c", busy=True)
    assert each.idle(59.9) == []
    assert each.deadline(59.9) == 60.0
    assert each.idle(200.0) == ["a", "d", "b"]
    assert each.spare(200.0, 2, quiet=False) == ["a", "d"]
    assert each.spare(200.0, 0, quiet=False) == ["a", "d", "b"]
    begin(each, 200.0)
    each.says(200.0, "c", busy=False)
    assert each.spare(300.0, 0, quiet=True) == ["a", "d", "b"], "one is kept"


def test_one_that_never_says_ends_only_while_the_queue_is_quiet() -> None:
    """Nobody knows if it holds a message."""
    each = processes(idle_s=60.0)
    begin(each, 0.0, "a", ready=False)
    each.became_ready(0.0, "a")
    assert each.idle(60.0) == ["a"]
    assert each.spare(60.0, 0, quiet=False) == []
    assert each.spare(60.0, 0, quiet=True) == ["a"]
    assert each.holders == 1


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "launch", "refused", "ready", "busy", "idle", "end", "ended", "time"]),
        st.integers(0, 9),
    ),
    max_size=80,
)


@given(EVENTS, st.integers(1, 5), st.integers(1, 4))
def test_whatever_happens_the_bounds_hold(events: list[tuple[str, int]], maximum: int, rate: int) -> None:
    """Never more than the maximum, never more starts a second than the rate, nobody busy is spared, free is no lie."""
    each, now, names, launches = processes(maximum=maximum, start_rate=rate), 0.0, 0, []
    for what, number in events:
        ids = each.ids
        name = ids[number % len(ids)] if ids else "nobody"
        if what == "ask":
            each.ask(now, number)
        elif what in ("launch", "refused"):
            count = each.launch(now)
            launches += [now] * count
            if what == "refused" and count:
                each.refused(now, count, "no")
                assert each.ask(now, 1) == 0
            else:
                each.began(now, [str(names + step) for step in range(count)])
                names += count
        elif what == "ready":
            each.became_ready(now, name)
        elif what in ("busy", "idle"):
            each.says(now, name, busy=what == "busy")
            if what == "busy" and ids:
                assert name not in each.spare(now + 1e6, 0, quiet=True)
        elif what == "end":
            each.end(each.spare(now, 0, quiet=True))
        elif what == "ended":
            each.ended(now, name, number % 2, "over")
        else:
            now += number / 4
        assert len(each) + each.asked + each.launching <= maximum
        assert sum(now - 1.0 < at for at in launches) <= rate
        assert 0 <= each.free(now) <= maximum - len(each)
        deadline = each.deadline(now)
        assert deadline is None or deadline > now


def test_one_that_leaves_soon_without_having_taken_a_message_has_failed() -> None:
    """The next would do the same, at once and for ever; one that worked, or stayed, or never says, has not."""
    each = processes(maximum=20, start_timeout_s=10.0)
    begin(each, 0.0, "soon", "worked", "stayed", "mute")
    each.says(1.0, "worked", busy=True)
    each.says(2.0, "worked", busy=False)
    begin(each, 2.0, "silent", ready=False)
    each.became_ready(2.0, "silent")
    assert not each.ended(2.5, "worked", 0, "exit code 0")
    assert not each.ended(2.5, "silent", 0, "exit code 0"), "nobody knows whether it worked"
    assert not each.ended(10.0, "stayed", 0, "exit code 0")
    assert each.failure is None
    begin(each, 11.0, "again")
    assert each.ended(20.9, "again", 0, "exit code 0")
    assert each.failure == "exit code 0; it took no message"
    assert each.backs_off(20.9)
    assert each.tally["left"] == 3 and each.tally["broke"] == 1


def test_starts_failures_and_ends_are_tallied_by_reason() -> None:
    """What was late or broke has failed as well; one that nobody knows has not ended."""
    each = processes(maximum=20, idle_s=5.0, start_timeout_s=10.0)
    begin(each, 0.0, "idle", "left", "broke", "stops", "hung")
    begin(each, 0.5, "late", ready=False)
    each.says(0.6, "left", busy=True)
    each.end(["idle"])
    each.ended(1.0, "idle", 0, "exit code 0")
    each.ended(1.0, "left", 0, "exit code 0")
    each.ended(1.0, "broke", 1, "exit code 1")
    each.ended(1.0, "nobody", 1, "exit code 1")
    assert each.overdue(10.5) == ["late"]
    each.ended(11.0, "late", -15, "SIGTERM")
    each.refused(12.0, 2, "no quota")
    each.end(["stops"], "stopping")
    each.ended(13.0, "stops", 0, "exit code 0")
    assert dict(each.tally) == {
        "started": 6, "failed": 3, "idle": 1, "left": 1, "broke": 1, "late": 1, "stopping": 1,
    }  # fmt: skip
    assert set(each.tally) <= set(TALLIED)


def test_what_is_found_counts_from_then_on() -> None:
    """As started now, and once however often it is found; more than the maximum leave no room and are to spare."""
    each = processes(maximum=2, idle_s=10.0)
    each.found(5.0, ["a", "b", "c"])
    each.found(6.0, ["a"])
    assert (len(each), each.coming, each.ask(6.0, 1)) == (3, 3, 0)
    for name in ("a", "b", "c"):
        each.became_ready(7.0, name)
    assert (each.free(7.0), each.ready) == (0, 3)
    assert each.spare(17.0, 2, quiet=True) == ["a"]
    assert each.spare(17.0, 2, quiet=False) == [], "nobody knows who is busy"


def test_what_is_found_and_never_ready_is_overdue() -> None:
    """From the moment that it was found."""
    each = processes(start_timeout_s=30.0)
    each.found(5.0, ["a"])
    assert each.overdue(34.9) == []
    assert each.overdue(35.0) == ["a"]


def test_limits_at_their_bounds_are_taken() -> None:
    """The first and the last that can work; one more is refused, with the stable code."""
    Limits(maximum=10_000, minimum=10_000, per_process=1_000_000, start_rate=10_000)
    Limits(maximum=1, minimum=1, per_process=1, start_rate=1, idle_s=0.0, start_timeout_s=0.5, start_s=0.0)
    for wrong in ({"maximum": 10_001}, {"per_process": 1_000_001}, {"start_rate": 10_001}):
        with pytest.raises(BadInput) as refused:
            Limits(**wrong)
        assert refused.value.code == "bad_parameter"


def test_how_they_stand_is_counted() -> None:
    """What is asked for takes its place; who is there, who was ready, and how many are beyond the minimum."""
    each = processes(maximum=5, minimum=1, start_rate=2)
    assert each.failure is None and each.surplus() == 0
    begin(each, 0.0, "a")
    assert each.surplus() == 0
    begin(each, 2.0, "b", "c", ready=False)
    assert ("a" in each, "x" in each) == (True, False)
    assert (each.is_ready("a"), each.is_ready("b"), each.is_ready("x")) == (True, False, False)
    assert each.ask(2.0, 1) == 1
    assert each.left(2.0) == 1
    each.became_ready(3.0, "b")
    assert each.surplus() == 1
    assert not each.ended(3.0, "x", 1, "exit code 1")


def test_the_back_off_begins_anew_after_twice_the_time_of_a_start() -> None:
    """What failed just before counts, what failed long ago does not."""
    each = processes(start_timeout_s=10.0)
    each.refused(0.0, 1, "no")
    each.refused(20.0, 1, "no")
    assert each.retry_at == 22.0
    each.refused(42.0, 1, "no")
    assert each.retry_at == 43.0


def test_the_deadline_is_the_first_of_all_that_time_changes() -> None:
    """Who is late, who is idle long enough, what the rate put off, the end of a back-off; and nothing of the past."""
    each = processes(minimum=1, idle_s=60.0, start_timeout_s=30.0, start_rate=2)
    begin(each, 0.0, "a")
    assert each.deadline(1.0) is None, "the minimum stays, and it is ready"
    begin(each, 2.0, "b", ready=False)
    assert each.deadline(3.0) == 32.0
    each.became_ready(4.0, "b")
    each.says(4.0, "b", busy=False)
    assert each.deadline(5.0) == 60.0
    assert each.deadline(60.0) == 64.0
    assert each.deadline(64.0) is None
    begin(each, 10.0, "c", ready=False)
    assert each.deadline(11.0) == 40.0, "before the idle ones"
    each.end(["c"])
    each.says(12.0, "a", busy=True)
    assert each.deadline(13.0) == 64.0, "neither one that ends nor one that is busy"
    each.end(["b"])
    assert each.deadline(13.0) is None
    each.ask(20.0, 1)
    each.launch(20.0)
    each.ask(20.5, 2)
    assert each.launch(20.5) == 1
    assert each.deadline(20.5) == 21.0
    busy = processes(idle_s=60.0)
    begin(busy, 0.0, "a", "b")
    busy.says(1.0, "a", busy=True)
    busy.end(["b"])
    assert busy.deadline(2.0) is None
