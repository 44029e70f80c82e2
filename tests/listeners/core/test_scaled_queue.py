"""The scaler's rules: what a count is worth, what it proves, and what is said of it (Z1, Z3, Z5, Z6, Z7)."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from listeners.core.commands import SendCover, SendMore, SendRoom, SendStarted, StartReceive
from listeners.core.processes import Limits
from listeners.core.scaled_queue import Audit, Count, Finish, Launch, Proof, ScaledQueue, Step
from listeners.core.scaling import StepScaling

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


@pytest.mark.parametrize(("count", "wanted"), [(0, 1), (1, 1), (10, 1), (11, 2), (40, 4), (41, 4), (10_000, 4)])
def test_wanted_is_work_by_what_a_process_is_worth_within_the_limits(count: int, wanted: int) -> None:
    """Z1: ceil(work / per_process), from the minimum to the maximum."""
    assert scaled(minimum=1, maximum=4).worth(0.0, Count(count)) == wanted


def test_steps_may_say_it_instead() -> None:
    """The white paper's table: by depth, so many."""
    rules = scaled(maximum=64, scaling=StepScaling(((100, 10), (1000, 50)), 100))
    assert [rules.worth(0.0, Count(visible)) for visible in (0, 1, 100, 5000)] == [0, 10, 50, 64]


def test_leased_messages_are_work_and_delayed_ones_are_not() -> None:
    """A store counts both as invisible: no more of them are leased than those who hold any can hold."""
    rules = scaled()
    assert rules.worth(0.0, Count(0, 500)) == 0, "nobody is there to hold one"
    woken(rules, 0.0, 1, Count(15))
    ready(rules, 1.0, "a", "b", busy=True)
    assert rules.worth(1.0, Count(5, 500)) == 3
    rules.says(2.0, "b", busy=False)
    assert rules.worth(2.0, Count(5, 500)) == 2
    assert rules.worth(2.0, Count(5, 3)) == 1


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


def test_an_idle_process_stays_while_something_is_due() -> None:
    """It would be missed before another is ready; later it ends (Z2)."""
    rules = scaled(idle_s=10.0)
    woken(rules, 0.0, 1, Count(1))
    ready(rules, 1.0, "a")
    rules.heard(10.0, 1, 4.0)
    (_,) = only(rules.tick(11.0), Audit)
    assert not only(rules.audited(11.0, Count(0, 1)), Finish)
    rules.heard(12.0, 1, 60.0)
    (_,) = only(rules.tick(14.0), Audit)
    assert only(rules.audited(14.0, Count(0, 1)), Finish) == [Finish(("a",), "idle for 10 s")]


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


def test_a_wake_that_can_start_nobody_is_not_counted() -> None:
    """In a back-off, and at the maximum: what is owed is counted when there is room again."""
    rules = scaled(maximum=1)
    woken(rules, 0.0, 1, Count(1))
    assert not only(rules.wake(0.1, BOOT, 2, "trigger"), Audit), "it is starting"
    rules.refused(0.2, 1, "no such program")
    assert not only(rules.wake(0.3, BOOT, 3, "trigger"), Audit)
    steps = rules.tick(1.2)
    assert only(steps, StartReceive) and not only(steps, Audit)
    assert not only(woken(rules, 1.3, 4, Count(0)), Audit)


def test_a_wake_that_comes_during_a_count_is_one_without_room_after_it() -> None:
    """What was put since that count began is not in it."""
    rules = scaled()
    (first,) = only(rules.wake(0.0, BOOT, 1, "trigger"), StartReceive)
    rules.wake(0.1, BOOT, 2, "trigger")
    steps = rules.counted(0.2, first.rid, Count(1))
    assert only(steps, Launch) == [Launch(1)] and only(steps, Audit)
    assert only(rules.audited(0.3, Count(12)), Launch) == [Launch(1)]


def test_heartbeats_tell_of_other_workers_too() -> None:
    """A count that no wake asked for takes them off as well (Z5); an older bridge says nothing."""
    rules = scaled()
    rules.heard(0.0, 2, None)
    assert rules.others == 2
    rules.heard(1.0, None, None)
    assert rules.others == 2


def test_a_wake_is_counted_and_nothing_there_is_a_cover() -> None:
    """`started` as the count begins, and nothing is started (L4, B7)."""
    steps = woken(scaled(), 1.0, 7, Count(0))
    assert only(steps, SendStarted) == [SendStarted(BOOT, 7)]
    assert [cover.gen for cover in only(steps, SendCover)] == [7]
    assert not only(steps, Launch)


def test_work_starts_processes_and_the_debt_is_handed_back() -> None:
    """`more`, so that the first worker's hello takes it; `room` once all of them are ready, and no sooner (Z3)."""
    rules = scaled()
    steps = woken(rules, 1.0, 7, Count(15))
    assert only(steps, Launch) == [Launch(2)]
    assert only(steps, SendMore)
    assert not only(steps, SendCover)
    rules.began(1.1, ["a", "b"])
    assert not only(rules.ready(2.0, "a"), SendRoom)
    steps = rules.ready(2.5, "b")
    assert [room.free for room in only(steps, SendRoom)] == [6 - 1], "one of them for the count that begins"


def test_a_wake_during_a_count_is_taken_after_it() -> None:
    """One count at a time: the newer one begins when the older is answered, with the newest generation."""
    rules = scaled()
    (first,) = only(rules.wake(0.0, BOOT, 1, "trigger"), StartReceive)
    assert only(rules.wake(0.1, BOOT, 2, "trigger"), StartReceive) == []
    assert only(rules.wake(0.1, BOOT, 3, "trigger"), StartReceive) == []
    steps = rules.counted(0.2, first.rid, Count(0))
    (second,) = only(steps, StartReceive)
    assert only(steps, SendStarted) == [SendStarted(BOOT, 3)]
    assert [cover.gen for cover in only(rules.counted(0.3, second.rid, Count(0)), SendCover)] == [3]


def test_what_others_run_is_taken_off() -> None:
    """Wanted is for all machines (Z5)."""
    assert not only(woken(scaled(), 0.0, 1, Count(15), workers=2), Launch)
    assert only(woken(scaled(), 0.0, 1, Count(15), workers=1), Launch) == [Launch(1)]
    rules = scaled()
    woken(rules, 0.0, 1, Count(15), workers=0)
    (again,) = only(ready(rules, 1.0, "a", "b", busy=True), StartReceive)
    rules.counted(1.0, again.rid, Count(0, 20))
    assert rules.others == 0
    steps = woken(rules, 2.0, 2, Count(10, 20), workers=3)
    assert rules.others == 1
    assert rules.wanted == 3
    assert not only(steps, Launch), "two of its own and one elsewhere"


def test_enough_elsewhere_is_no_cover_and_no_wake_loop() -> None:
    """It says `more`, and counts again after a back-off that grows."""
    rules, now, pauses = scaled(), 0.0, []
    steps = woken(rules, now, 1, Count(15), workers=2)
    assert only(steps, SendMore)
    assert not only(steps, SendCover)
    for _ in range(3):
        at = rules.deadline(now)
        assert at is not None
        pauses.append(at - now)
        now = at
        (count,) = only(rules.tick(now), StartReceive)
        rules.counted(now, count.rid, Count(15))
    assert pauses == pytest.approx([1.0, 2.0, 4.0])


def test_a_count_that_fails_starts_one_and_ends_nobody() -> None:
    """Z6: while the queue may hold work, max(min, 1); the reason stays until it can be counted."""
    rules = scaled(idle_s=1.0)
    (count,) = only(rules.wake(0.0, BOOT, 1, "trigger"), StartReceive)
    steps = rules.count_failed(0.0, count.rid, "no answer")
    assert only(steps, Launch) == [Launch(1)]
    assert rules.counting_failed == "no answer"
    ready(rules, 1.0, "a")
    now = 50.0
    (_,) = only(rules.tick(now), Audit)
    assert not only(rules.audited(now, None), Finish)
    now += 5.0
    (_,) = only(rules.tick(now), Audit)
    assert only(rules.audited(now, Count(0)), Finish) == [Finish(("a",), "idle for 1 s")]


def test_the_minimum_is_kept_without_a_wake() -> None:
    """From the start, and after one of them has ended."""
    rules = ScaledQueue(0.0, Limits(minimum=2), lambda: 0.5)
    assert only(rules.start(0.0), Launch) == [Launch(2)]
    ready(rules, 1.0, "a", "b")
    assert only(rules.ended(31.0, "a", 0, "exit code 0"), Launch) == [Launch(1)]


def test_a_start_that_fails_is_tried_again_after_the_back_off() -> None:
    """The debt was handed back before; `room` afterwards asks for it, and the count begins anew."""
    rules = scaled()
    assert only(woken(rules, 0.0, 1, Count(1)), SendMore)
    assert not only(rules.refused(0.0, 1, "no such program"), SendRoom)
    assert rules.deadline(0.0) == 1.0
    steps = rules.tick(1.0)
    (count,) = only(steps, StartReceive)
    assert only(steps, SendRoom)
    assert only(rules.counted(1.0, count.rid, Count(1)), Launch) == [Launch(1)]


def test_idle_processes_end_after_a_count_that_does_not_want_them() -> None:
    """A trickle keeps one of three, and nothing at all keeps none (Z2, Z4)."""
    rules = scaled(idle_s=60.0)
    woken(rules, 0.0, 1, Count(25))
    ready(rules, 1.0, "a", "b", "c")
    rules.says(30.0, "c", busy=True)
    rules.says(31.0, "c", busy=False)
    assert rules.deadline(61.0) is not None
    (_,) = only(rules.tick(61.0), Audit)
    assert only(rules.audited(61.0, Count(1)), Finish) == [Finish(("a", "b"), "idle for 60 s")]
    rules.ended(61.1, "a", 0, "exit code 0")
    rules.ended(61.1, "b", 0, "exit code 0")
    (_,) = only(rules.tick(91.0), Audit)
    assert only(rules.audited(91.0, Count(0)), Finish) == [Finish(("c",), "idle for 60 s")]


def test_all_that_a_lapsed_lease_may_hide_has_to_be_zero() -> None:
    """JetStream: messages whose lease has lapsed stay pending until somebody pulls (Z7)."""
    assert not only(woken(scaled(Proof.ALL), 0.0, 1, Count(0, 1)), SendCover)
    assert only(woken(scaled(Proof.ALL), 0.0, 1, Count(0, 0)), SendCover)
    assert only(woken(scaled(Proof.ALL), 0.0, 1, Count(0, 1)), Launch) == [Launch(1)]


def test_a_rough_zero_is_no_proof() -> None:
    """Azure, SQS: one worker is started for the wake; its cover ends the matter, and is not said once more (Z7)."""
    rules = scaled(Proof.NONE)
    steps = woken(rules, 0.0, 1, Count(0))
    assert not only(steps, SendCover)
    assert only(steps, Launch) == [Launch(1)]
    (again,) = only(ready(rules, 1.0, "a"), StartReceive)
    rules.covered_elsewhere(0.9, 0.9)
    steps = rules.counted(1.1, again.rid, Count(0))
    assert not only(steps, SendCover)
    assert not rules.controller.owed


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


def test_without_a_bridge_it_counts_by_a_back_off() -> None:
    """L9 holds for a scaler as it stands: work is found by nobody's wake."""
    rules = scaled(welcomed=False)
    rules.lost(5.0)
    at = rules.deadline(5.0)
    assert at is not None and at <= 35.0
    (count,) = only(rules.tick(at), StartReceive)
    assert only(rules.counted(at, count.rid, Count(3)), Launch) == [Launch(1)]


def test_stopping_ends_all_and_starts_none() -> None:
    """Also those that begin only then; a wake is handed back at once (L12)."""
    rules = scaled()
    woken(rules, 0.0, 1, Count(15))
    rules.began(0.1, ["a"])
    steps = rules.stop(0.2)
    assert only(steps, Finish) == [Finish(("a",), "the scaler stops")]
    assert only(steps, SendMore)
    assert only(rules.began(0.3, ["b"]), Finish) == [Finish(("b",), "the scaler stops")]
    assert only(rules.wake(0.4, BOOT, 2, "trigger"), SendMore)
    assert not only(rules.tick(100.0), Launch)


def test_other_limits_count_from_now_on() -> None:
    """A larger maximum is told as room; what is beyond a smaller one ends when it is idle."""
    rules = scaled(maximum=2, idle_s=10.0)
    woken(rules, 0.0, 1, Count(100))
    ready(rules, 1.0, "a", "b")
    rules.retune(2.0, Limits(maximum=1, idle_s=10.0, per_process=10))
    (_,) = only(rules.tick(11.0), Audit)
    assert only(rules.audited(11.0, Count(100)), Finish) == [Finish(("a",), "idle for 10 s")]


def test_why_no_more_are_started_is_a_word() -> None:
    """What keeps it from starting comes before what it waits for; None where nobody is missing."""
    rules = scaled(maximum=2)
    assert rules.held(0.0) is None
    woken(rules, 0.0, 1, Count(100), workers=0)
    assert rules.held(0.0) == "starting"
    ready(rules, 1.0, "a", "b", busy=True)
    assert rules.held(1.0) == "maximum"
    rules.heard(1.0, 3, None)
    (count,) = only(rules.ended(2.0, "a", 0, "exit code 0"), StartReceive)
    assert rules.held(2.0) == "elsewhere"
    rules.heard(2.0, 1, None)
    assert rules.held(2.0) is None, "one is missing, and asked for as soon as somebody counts"
    rules.ended(3.0, "b", 1, "exit code 1")
    assert rules.held(3.0) == "backoff"
    rules.tick(4.0)
    rules.count_failed(4.0, count.rid, "no answer")
    assert rules.held(4.0) == "uncounted"
    rules.stop(5.0)
    assert rules.held(5.0) == "stopping"


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


def test_one_that_never_says_ends_only_after_a_quiet_time() -> None:
    """In which every count found nothing: not visible, not leased, not due, and none of them failed (Z2)."""
    rules = scaled(idle_s=10.0)
    woken(rules, 0.0, 1, Count(1))
    rules.began(0.1, ["mute"])
    (again,) = only(rules.ready(1.0, "mute"), StartReceive)
    rules.counted(1.0, again.rid, Count(0))
    rules.heard(1.0, 1, 23.9)
    story: list[tuple[float, Count | None]] = [
        (11.0, Count(0, 1)), (13.5, Count(0)), (16.0, Count(2)), (18.5, Count(0)), (21.0, Count(0)), (23.5, Count(0)),
        (26.0, None), (28.5, Count(0)), (31.0, Count(0)), (33.5, Count(0)), (36.0, Count(0)),
    ]  # fmt: skip
    for now, count in story:
        assert not only(rules.tick(now - 0.1), Audit)
        assert only(rules.tick(now), Audit), now
        assert not only(rules.tick(now), Audit), "one at a time"
        assert not only(rules.audited(now, count), Finish), now
    assert only(rules.tick(38.5), Audit)
    assert only(rules.audited(38.5, Count(0)), Finish) == [Finish(("mute",), "idle for 10 s")]


def test_a_quiet_time_since_the_last_count_that_found_something_is_enough() -> None:
    """To the very second."""
    rules = scaled(idle_s=10.0)
    woken(rules, 0.0, 1, Count(1))
    rules.began(0.1, ["mute"])
    (again,) = only(rules.ready(1.0, "mute"), StartReceive)
    rules.counted(1.0, again.rid, Count(0))
    assert only(rules.tick(11.0), Audit)
    assert only(rules.audited(11.0, Count(0)), Finish) == [Finish(("mute",), "idle for 10 s")]


def test_an_idle_process_of_a_rough_store_ends() -> None:
    """A 0 that proves nothing keeps nobody: what it hides the next wake finds. It is counted once a second at most."""
    rules = scaled(Proof.NONE, idle_s=1.0)
    woken(rules, 0.0, 1, Count(0))
    ready(rules, 1.0, "a", "b")
    rules.covered_elsewhere(1.5, 1.5)
    assert only(rules.tick(2.0), Audit)
    rules.audited(2.0, None)
    assert rules.deadline(2.0) == 3.0
    assert only(rules.tick(3.0), Audit)
    assert only(rules.audited(3.0, Count(0)), Finish) == [Finish(("a", "b"), "idle for 1 s")]


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


def test_what_others_run_is_counted_again_up_to_every_half_minute() -> None:
    """The back-off of a debt that starts nobody has an end."""
    rules, now, pauses = scaled(), 0.0, []
    woken(rules, now, 1, Count(15), workers=2)
    for _ in range(7):
        at = rules.deadline(now)
        assert at is not None
        pauses.append(at - now)
        now = at
        (count,) = only(rules.tick(now), StartReceive)
        rules.heard(now, 2, None)
        rules.counted(now, count.rid, Count(15))
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0])


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


def test_only_a_receive_since_the_wake_answers_it() -> None:
    """One from before, or of the same moment, knows nothing of it; the newest counts, however they are heard."""
    for covered, launched in (((0.5,), True), ((1.0,), True), ((1.1, 0.2), False)):
        rules = scaled(Proof.NONE)
        (count,) = only(rules.wake(1.0, BOOT, 1, "trigger"), StartReceive)
        for at in covered:
            rules.covered_elsewhere(at, at)
        steps = rules.counted(1.2, count.rid, Count(0))
        assert bool(only(steps, Launch)) is launched, covered
        if launched:
            assert [more.depth for more in only(steps, SendMore)] == [1]


def test_what_is_due_soon_has_one_started_ahead() -> None:
    """If somebody counts then: one, however few messages it is worth."""
    rules = scaled(per_process=1)
    rules.heard(0.0, 0, 3.0)
    assert only(woken(rules, 0.0, 1, Count(0)), Launch) == [Launch(1)]


def test_a_burst_is_counted_for_more_after_a_failure_too() -> None:
    """Once its back-off is over; and the minimum alone, at the start, is counted by nobody."""
    rules = scaled()
    woken(rules, 0.0, 1, Count(1))
    rules.refused(0.1, 1, "no quota")
    (count,) = only(rules.tick(1.1), StartReceive)
    assert only(rules.counted(1.1, count.rid, Count(1)), Launch)
    assert only(rules.wake(1.2, BOOT, 2, "trigger", 1, 0), Audit)
    assert only(rules.audited(1.3, Count(25)), Launch) == [Launch(2)]
    rules.wake(1.4, BOOT, 3, "trigger", 1, 0)
    assert rules.deadline(1.4) == 2.3
    fresh = ScaledQueue(0.0, Limits(minimum=1), lambda: 0.5)
    assert not only(fresh.start(0.0) + fresh.welcomed(0.0, BOOT, 0) + fresh.tick(0.1), Audit)


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


def test_one_who_was_busy_ends_the_quiet_time_of_those_that_never_say() -> None:
    """There was work since the last count found none."""
    rules = scaled(idle_s=10.0)
    woken(rules, 0.0, 1, Count(15))
    rules.began(0.1, ["mute", "loud"])
    (again,) = only(rules.ready(1.0, "mute") + rules.ready(1.0, "loud"), StartReceive)
    rules.counted(1.0, again.rid, Count(0))
    rules.says(5.0, "loud", busy=True)
    rules.says(5.5, "loud", busy=False)
    assert only(rules.tick(11.0), Audit)
    assert not only(rules.audited(11.0, Count(0)), Finish)


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


def test_a_count_for_who_is_idle_is_none_for_more() -> None:
    """Nobody asked for more by it."""
    rules = scaled(idle_s=5.0)
    woken(rules, 0.0, 1, Count(1))
    (again,) = only(ready(rules, 1.0, "a"), StartReceive)
    rules.counted(1.0, again.rid, Count(0))
    assert only(rules.tick(6.0), Audit)
    assert not only(rules.audited(6.0, Count(100)), Launch)
    rules.says(6.1, "a", busy=True)
    rules.heard(6.5, 1, None)
    assert only(woken(rules, 7.0, 2, Count(15), workers=1), Launch) == [Launch(1)]
    assert not only(rules.tick(9.0), Audit)


def test_a_welcome_says_from_when_a_generation_is_known() -> None:
    """Its moment counts, not that of a wake which says the same (C4)."""
    rules = scaled(welcomed=False)
    rules.welcomed(0.0, BOOT, 5)
    assert rules.controller.boot == BOOT
    assert [cover.after_s for cover in only(woken(rules, 2.0, 5, Count(0)), SendCover)] == [2.0]


def test_a_count_that_fails_ends_the_quiet_time() -> None:
    """Nobody knows what was there meanwhile (Z6); after a failed start one that finds nothing is a cover."""
    rules = scaled(idle_s=10.0)
    woken(rules, 0.0, 1, Count(1))
    rules.refused(0.1, 1, "no quota")
    (count,) = only(rules.tick(1.1), StartReceive)
    assert only(rules.counted(1.1, count.rid, Count(0)), SendCover)
    woken(rules, 2.0, 2, Count(1))
    rules.began(2.1, ["mute"])
    (count,) = only(rules.ready(3.0, "mute"), StartReceive)
    rules.counted(3.0, count.rid, Count(0))
    (count,) = only(rules.wake(5.0, BOOT, 3, "trigger"), StartReceive)
    rules.count_failed(5.0, count.rid, "no answer")
    (count,) = only(rules.tick(6.0), StartReceive)
    rules.counted(6.0, count.rid, Count(0))
    assert only(rules.tick(13.0), Audit)
    assert not only(rules.audited(13.0, Count(0)), Finish)


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


def test_a_large_maximum_is_reached() -> None:
    """However many a listener's own rule would have at once; and just enough elsewhere is enough."""
    assert scaled(maximum=40).worth(0.0, Count(10_000)) == 40
    rules = scaled()
    woken(rules, 0.0, 1, Count(15), workers=2)
    assert rules.held(0.0) == "elsewhere"
