"""The scaler's rules: what a count is worth, what it proves, and what is said of it (Z1, Z3, Z5, Z6, Z7)."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuebell.bridge.contract.errors import BadInput
from queuebell.listeners.scaling.processes import Limits, Processes
from queuebell.listeners.scaling.scaled_queue import Audit, Count, Finish, Launch, Look, Proof, ScaledQueue, Step
from queuebell.listeners.wake.table import SendEmptyReceive, SendMore, SendRoom, SendStarted, StartReceive

BOOT = "b" * 32
T = TypeVar("T")


def scaled(*, welcomed: bool = True, proof: Proof = Proof.VISIBLE, **limits: Any) -> ScaledQueue:
    """Make the rules of one queue, in a session."""
    rules = ScaledQueue(0.0, Limits(**{"per_process": 10, **limits}), lambda: 0.5, proof=proof)
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
        steps += rules.ready(now, name) + rules.busy_changed(now, name, busy=busy)
    return steps


@pytest.mark.parametrize("told", ["by the wake", "by a heartbeat"])
def test_other_workers_are_taken_off(told: str) -> None:
    """Also by a count that no wake asked for (Z5); an older bridge says nothing."""
    rules = scaled()
    if told == "by a heartbeat":
        rules.on_heartbeat(0.0, 2, None)
        rules.on_heartbeat(0.0, None, None)
    steps = woken(rules, 1.0, 1, Count(21), workers=2 if told == "by the wake" else None)
    assert only(steps, Launch) == [Launch(1)]


def test_room_is_said_once_what_starts_is_ready() -> None:
    """Its hello must have reached the bridge, or the scaler would be woken again for the same message (Z3)."""
    rules = scaled()
    assert only(woken(rules, 0.0, 1, Count(1)), SendMore) and not only(rules.began(1.0, ["a"]), SendRoom)
    assert only(rules.ready(2.0, "a"), SendRoom)


@pytest.mark.parametrize(("due_s", "ends"), [(4.0, False), (9.0, True)])
def test_one_that_is_idle_stays_for_what_is_due_soon(due_s: float, ends: bool) -> None:
    """Another would not be ready in time (Z2)."""
    rules = scaled(idle_s=10.0, start_s=5.0)
    woken(rules, 0.0, 1, Count(1))
    ready(rules, 1.0, "a")
    steps = rules.tick(11.0) + rules.on_heartbeat(11.0, 1, due_s)
    assert only(steps, Audit)
    assert bool(only(rules.audited(11.0, Count(0, 1)), Finish)) is ends


def test_other_limits_count_from_now_on() -> None:
    """A larger maximum is told as room; what is beyond a smaller one ends when it is idle."""
    rules = scaled(maximum=2, idle_s=10.0)
    woken(rules, 0.0, 1, Count(100))
    ready(rules, 1.0, "a", "b")
    rules.retune(2.0, Limits(maximum=1, idle_s=10.0, per_process=10))
    (_,) = only(rules.tick(11.0), Audit)
    assert only(rules.audited(11.0, Count(100)), Finish) == [Finish(("a",), "idle for 10 s")]


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


@pytest.mark.parametrize(
    ("reason", "found", "starts"),
    [("sweep", False, 0), ("resync", False, 0), ("resync", True, 1), ("sweep", None, 1), ("trigger", None, 1)],
)
def test_a_rough_count_of_nothing_has_it_look_before_a_worker_starts(
    reason: str, found: bool | None, starts: int
) -> None:
    """Unless work was reported. What it finds has a worker started, and so has a look without an answer (Z7)."""
    rules, complete = scaled(proof=Proof.NONE), reason == "resync"
    (count,) = only(rules.wake(1.0, BOOT, 1, reason), StartReceive)
    steps = rules.counted(1.0, count.rid, Count(0, invisible=1))
    if reason != "trigger":
        assert steps == [Look(count.rid)]
        if found is None:
            steps = rules.look_failed(2.0, count.rid, 32.0)
            assert rules.controller.timers.returns() == [32.0]
        else:
            steps = rules.looked(2.0, count.rid, found=found, complete=complete, blocked=False)
            if not found and not complete:  # twice, where one empty answer may miss messages
                (again,) = only(steps, Look)
                assert not only(steps, SendEmptyReceive)
                steps = rules.looked(3.0, again.rid, found=False, complete=False, blocked=False)
    assert sum(each.count for each in only(steps, Launch)) == starts
    told = only(steps, SendEmptyReceive)
    assert bool(told) is (found is False)
    if told:  # a new bridge knows no leases: it has the counted message looked for early
        assert (told[0].next_visible_s is not None) is (reason == "resync")


def test_a_worker_that_finds_nothing_settles_a_count_of_what_others_hold() -> None:
    """Or a scaler whose store counts leased messages would count, and have no room, until the lease ends (Z7)."""
    rules = scaled(proof=Proof.ALL)
    woken(rules, 1.0, 1, Count(1))
    (count,) = only(ready(rules, 2.0, "a"), StartReceive)
    rules.on_empty_receive(3.0, 2.5)
    rules.counted(3.0, count.rid, Count(1))
    assert not rules.controller.pending and rules.deadline(3.0) > 10.0


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


def processes(**given_: Any) -> Processes:
    """Make the rules with chance in the middle."""
    return Processes(Limits(**given_), lambda: 0.5)


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
    with pytest.raises(BadInput, match=what):
        Limits(**wrong)


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
            each.busy_changed(now, name, busy=what == "busy")
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


def test_a_welcome_says_from_when_a_generation_is_known() -> None:
    """Its moment counts, not that of a wake which says the same (C4)."""
    rules = scaled(welcomed=False)
    rules.welcomed(0.0, BOOT, 5)
    assert rules.controller.boot == BOOT
    assert [cover.after_s for cover in only(woken(rules, 2.0, 5, Count(0)), SendEmptyReceive)] == [2.0]


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
