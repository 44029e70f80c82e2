"""The scaler's rules: what a count is worth, what it proves, and what is said of it (Z1, Z3, Z5, Z6, Z7)."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import BadInput
from bridge.contract.wire import TALLIED
from listeners.core.commands import SendCover, SendMore, SendRoom, SendStarted, StartReceive
from listeners.core.processes import Limits, Processes
from listeners.core.scaled_queue import Audit, Count, Finish, Launch, Proof, ScaledQueue, Step

BOOT = "b" * 32
T = TypeVar("T")


def scaled(proof: Proof = Proof.VISIBLE, *, scaling: Any = None, welcomed: bool = True, **limits: Any) -> ScaledQueue:
    """Make the rules of one queue, in a session."""
    rules = ScaledQueue(0.0, Limits(**{"per_process": 10, **limits}), lambda: 0.5, proof=proof, scaling=scaling)
    rules.start(0.0)
    if welcomed:
        rules.welcomed(0.0, BOOT, 0)
    return rules


def only(steps: list[Step], kind: type[T]) -> list[T]:
    """Return the steps of a kind."""
    return [step for step in steps if isinstance(step, kind)]


def woken(rules: ScaledQueue, now: float, gen: int, count: Count, workers: int | None = None) -> list[Step]:
    """Have a wake come and its count answered; return all steps."""
    steps = rules.wake(now, BOOT, gen, "trigger", 1, workers)
    for receive in only(steps, StartReceive):
        steps += rules.counted(now, receive.rid, count)
    return steps


def ready(rules: ScaledQueue, now: float, *names: str, busy: bool = False) -> list[Step]:
    """Have what was launched begin and be ready."""
    steps = rules.began(now, list(names))
    for name in names:
        steps += rules.ready(now, name) + rules.says(now, name, busy=busy)
    return steps


def test_what_is_due_before_a_start_is_over_is_work() -> None:
    """And what is due later is not, nor what became visible since, for that is counted; the bridge says it (Z2)."""
    rules = scaled(start_s=5.0)
    rules.heard(10.0, None, 5.0)
    assert [rules.worth(at, Count(0, 1)) for at in (9.9, 10.0, 15.0, 15.1)] == [0, 1, 1, 0]
    rules.heard(11.0, None, None)
    assert rules.worth(12.0, Count(0, 1)) == 0
    rules.heard(11.0, None, 2.0)
    rules.lost(11.5)
    assert rules.worth(12.0, Count(0, 1)) == 0, "who could tell is gone"


def test_a_wake_while_others_start_is_counted_for_more_of_them() -> None:
    """Those were asked for before it came: all that it needs is not put off until they are there (Z5)."""
    rules = scaled()
    woken(rules, 0.0, 1, Count(1))
    steps = rules.wake(0.1, BOOT, 2, "trigger", 1, 0)
    assert only(steps, Audit) and only(steps, SendMore) and not only(steps, SendStarted)
    assert only(rules.audited(0.2, Count(25)), Launch) == [Launch(2)]
    assert not only(rules.wake(0.3, BOOT, 3, "trigger", 1, 0), Audit), "once a second, however many there are"
    assert rules.deadline(0.3) == 1.2
    (_,) = only(rules.tick(1.2), Audit)
    rules.wake(1.3, BOOT, 4, "trigger", 1, 0)
    rules.audited(1.4, None)
    assert only(rules.tick(2.4), Audit), "what came during a count is not in it; and a count that fails ends nothing"
    assert not only(rules.audited(2.5, Count(25)), Launch)
    assert not only(rules.tick(10.0), Audit), "nothing came since"


def test_heartbeats_tell_of_other_workers_too() -> None:
    """A count that no wake asked for takes them off as well (Z5); an older bridge says nothing."""
    rules = scaled()
    rules.heard(0.0, 2, None)
    assert rules.others == 2
    rules.heard(1.0, None, None)
    assert rules.others == 2


def test_all_that_a_lapsed_lease_may_hide_has_to_be_zero() -> None:
    """JetStream: messages whose lease has lapsed stay pending until somebody pulls (Z7)."""
    assert not only(woken(scaled(Proof.ALL), 0.0, 1, Count(0, 1)), SendCover)
    assert only(woken(scaled(Proof.ALL), 0.0, 1, Count(0, 0)), SendCover)
    assert only(woken(scaled(Proof.ALL), 0.0, 1, Count(0, 1)), Launch) == [Launch(1)]


@pytest.mark.parametrize(("begun_at", "answers"), [(1.0, False), (1.05, True)])
def test_a_worker_that_looked_since_a_wake_came_has_answered_it(begun_at: float, answers: bool) -> None:
    """Also where that wake waits for the end of a count; its pause ends then, or no put would be heard of (Z5, Z7)."""
    rules = scaled(Proof.NONE)
    woken(rules, 0.0, 1, Count(0))
    (count,) = only(ready(rules, 1.0, "a"), StartReceive)
    assert not only(rules.wake(1.0, BOOT, 1, "more", 1, 1), StartReceive)
    (again,) = only(rules.counted(1.1, count.rid, Count(0)), StartReceive)
    assert only(rules.counted(1.2, again.rid, Count(0)), SendMore)
    steps = rules.covered_elsewhere(1.3, begun_at)
    assert bool(only(steps, SendRoom)) is answers
    for newest in only(steps, StartReceive):
        rules.counted(1.4, newest.rid, Count(0))
    assert rules.controller.owed is not answers


def test_other_limits_count_from_now_on() -> None:
    """A larger maximum is told as room; what is beyond a smaller one ends when it is idle."""
    rules = scaled(maximum=2, idle_s=10.0)
    woken(rules, 0.0, 1, Count(100))
    ready(rules, 1.0, "a", "b")
    rules.retune(2.0, Limits(maximum=1, idle_s=10.0, per_process=10))
    (_,) = only(rules.tick(11.0), Audit)
    assert only(rules.audited(11.0, Count(100)), Finish) == [Finish(("a",), "idle for 10 s")]


def test_what_runs_already_is_not_started_once_more() -> None:
    """The minimum is there, and what is beyond a smaller maximum ends when it is idle."""
    rules = ScaledQueue(0.0, Limits(minimum=2, maximum=2, idle_s=5.0), lambda: 0.5, outlive=True)
    assert only(rules.found(0.0, ["a", "b", "c"]), Launch) == []
    assert only(rules.start(0.0), Launch) == []
    for name in ("a", "b", "c"):
        rules.ready(1.0, name)
    assert only(rules.tick(6.0), Audit) == [Audit()]
    rules.audited(6.0, Count(0))
    assert only(rules.tick(11.0), Audit) == [Audit()]
    assert [step.ids for step in only(rules.audited(11.0, Count(0)), Finish)] == [("a",)]


def test_a_stop_ends_nobody_who_outlives_it() -> None:
    """And starts nobody."""
    rules = ScaledQueue(0.0, Limits(minimum=1), lambda: 0.5, outlive=True)
    assert only(rules.start(0.0), Launch) == [Launch(1)]
    rules.began(0.0, ["a"])
    assert only(rules.stop(1.0), Finish) == []
    assert only(rules.ended(2.0, "a", 1, "exit code 1"), Launch) == []
    mortal = ScaledQueue(0.0, Limits(minimum=1), lambda: 0.5)
    mortal.start(0.0)
    mortal.began(0.0, ["a"])
    assert [step.ids for step in only(mortal.stop(1.0), Finish)] == [("a",)]


def test_without_a_bridge_for_good_it_counts_at_once_and_then_by_a_back_off() -> None:
    """From 1 to 30 s, as workers poll; and nothing else ever looks."""
    rules = ScaledQueue(0.0, Limits(), lambda: 0.5, pull_only=True)
    rules.start(0.0)
    (count,) = only(rules.pull_only(0.0), StartReceive)
    now, pauses = 0.0, []
    for _ in range(7):
        rules.counted(now, count.rid, Count(0))
        at = rules.deadline(now)
        assert at is not None
        pauses.append(at - now)
        now = at
        (count,) = only(rules.tick(now), StartReceive)
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0])
    assert only(rules.counted(now, count.rid, Count(3)), Launch) == [Launch(1)]


def test_the_newest_of_the_wakes_during_a_count_is_taken_with_its_reason() -> None:
    """Of another boot whatever its number; of one boot the highest, and of equal ones the last."""
    other = "c" * 32
    rules = scaled()
    (first,) = only(rules.wake(0.0, BOOT, 5, "due"), StartReceive)
    assert first.source == "due"
    rules.wake(0.1, BOOT, 7, "trigger")
    rules.wake(0.1, BOOT, 6, "trigger")
    rules.wake(0.1, other, 1, "trigger")
    rules.wake(0.1, other, 1, "lease", 40)
    steps = rules.counted(0.2, first.rid, Count(0))
    (second,) = only(steps, StartReceive)
    assert only(steps, SendStarted) == [SendStarted(other, 1)]
    assert second.source == "lease"
    assert rules.controller.depth == 40


def test_a_wake_during_a_count_that_fails_is_not_forgotten() -> None:
    """Its generation is known when the next count begins."""
    rules = scaled()
    (first,) = only(rules.wake(0.0, BOOT, 1, "trigger"), StartReceive)
    rules.wake(0.1, BOOT, 2, "trigger")
    steps = rules.count_failed(0.2, first.rid, "no answer")
    (second,) = only(steps, StartReceive)
    assert [cover.gen for cover in only(rules.counted(4.5, second.rid, Count(0)), SendCover)] == [2]


def test_one_that_is_late_is_ended_and_said() -> None:
    """With the reason, for the log and for the bridge; and each failure with its own words."""
    rules = scaled(start_timeout_s=20.0)
    woken(rules, 0.0, 1, Count(1))
    rules.began(0.1, ["a"])
    assert rules.held(1.0) == "starting"
    assert only(rules.tick(20.1), Finish) == [Finish(("a",), "not ready within 20 s")]
    rules.ended(20.2, "a", -15, "ended by SIGTERM")
    rules.refused(90.0, 1, "no quota")
    assert rules.processes.failure == "no quota"
    rules.began(95.0, ["b"])
    rules.ended(96.0, "b", 1, "exit code 1")
    assert rules.processes.failure == "exit code 1"


def test_what_stops_is_tallied_and_told_once() -> None:
    """Nothing is due any more."""
    rules = scaled()
    woken(rules, 0.0, 1, Count(1))
    ready(rules, 1.0, "a")
    assert only(rules.stop(2.0), Finish)
    assert not only(rules.tick(2.1), Finish)
    assert rules.deadline(2.1) is None
    rules.ended(3.0, "a", 0, "exit code 0")
    assert rules.processes.tally["stopping"] == 1


def test_the_minimum_that_is_idle_is_not_counted() -> None:
    """Nobody of it could end; and enough of one's own is nobody missing, whoever else runs."""
    rules = scaled(minimum=1, idle_s=5.0)
    ready(rules, 1.0, "a")
    assert not only(rules.tick(50.0), Audit)
    rules.heard(50.0, 5, None)
    assert rules.held(50.0) is None
    rules.retune(51.0, Limits(maximum=3, minimum=1))
    assert rules.controller.capacity == 3


def test_a_wake_without_room_is_forgotten_once_there_is_room() -> None:
    """The count that begins then knows of it."""
    rules = scaled(maximum=3)
    woken(rules, 0.0, 1, Count(1))
    assert only(rules.wake(0.1, BOOT, 2, "trigger", 1, 0), Audit)
    rules.audited(0.1, Count(1))
    rules.wake(0.2, BOOT, 3, "trigger", 1, 0)
    (count,) = only(ready(rules, 0.5, "a"), StartReceive)
    assert only(rules.counted(0.6, count.rid, Count(15)), Launch) == [Launch(1)]
    assert not only(rules.tick(2.0), Audit)


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


def test_a_welcome_says_from_when_a_generation_is_known() -> None:
    """Its moment counts, not that of a wake which says the same (C4)."""
    rules = scaled(welcomed=False)
    rules.welcomed(0.0, BOOT, 5)
    assert rules.controller.boot == BOOT
    assert [cover.after_s for cover in only(woken(rules, 2.0, 5, Count(0)), SendCover)] == [2.0]


def test_a_silent_bridge_does_not_keep_it_from_looking() -> None:
    """The dead-man's timer of a listener is a scaler's too (L10); and an own queue is told as such (O0)."""
    rules = ScaledQueue(0.0, Limits(), lambda: 0.5, own=True)
    rules.start(0.0)
    rules.welcomed(0.0, BOOT, 0)
    at = rules.deadline(0.0)
    assert at is not None and 96.0 <= at <= 106.0
    (count,) = only(rules.tick(at), StartReceive)
    assert count.source == "deadman"
    assert rules.controller.own is True
