"""The checkers, where no planted fault of a whole run (`test_run`, `test_cluster`, `test_scalers`) asks them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from tests.simulation import events as e
from tests.simulation.checks import Checks, rule_of
from tests.simulation.plan import PRESETS, Plan
from tests.simulation.promise import promise

Q = "a/q"
OWN = PRESETS["own-wire"]
ELSEWHERE = PRESETS["elsewhere-wire"]
SOUND = msgspec.structs.replace(ELSEWHERE, faults=())


def room(at: float, worker: str = "w", *, live: bool = True, free: int = 1, reaches: bool = True) -> e.ListenerRoom:
    return e.ListenerRoom(at, worker, Q, live, True, free, reaches)


def receive(at: float) -> e.ReceiveBegan:
    return e.ReceiveBegan(at, "w", Q, 1, 1)


def judged(story: Sequence[e.Event], end: float, plan: Plan = SOUND) -> Checks:
    """The checkers after a story that ends at ``end``."""
    checks = Checks(plan)
    for event in sorted(story, key=lambda event: event.at):
        checks.hear(event)
    checks.finish(end)
    return checks


def rules(story: Sequence[e.Event], end: float, plan: Plan = SOUND) -> list[str]:
    return [rule_of(violation) for violation in judged(story, end, plan).violations]


def test_the_bounds_are_the_published_ones() -> None:
    """116 s and 67 an hour elsewhere, 0 for own queues; longer for large fleets, none without a dead-man timer."""
    bounds = promise(SOUND)
    assert (bounds.wake_s, bounds.receives_an_hour, bounds.receives_a_restart) == (pytest.approx(116.0), 67, 1)
    assert promise(msgspec.structs.replace(SOUND, workers=1000)).wake_s == pytest.approx(156.0)
    assert promise(msgspec.structs.replace(SOUND, deadman=False)).wake_s == math.inf
    assert promise(OWN).receives_an_hour == promise(OWN).receives_a_restart == promise(OWN).receives(1e6) == 0
    vague = promise(msgspec.structs.replace(SOUND, complete_receive=False))
    assert vague.receives_an_hour == 134 and vague.receives_a_restart == 2


# -- I1 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waited", "broken"), [(115.9, []), (116.1, ["I1"])], ids=["just within the bound", "just beyond it"]
)
def test_i1_a_gap_beyond_the_bound(waited: float, broken: list[str]) -> None:
    """A receive that begins too late breaks I1, and only once."""
    story = [room(0.0), e.BecameVisible(10.0, Q, 1), receive(10.0 + waited), e.BecameInvisible(10.1 + waited, Q, 0)]
    checks = judged(story, 500.0)
    assert [rule_of(violation) for violation in checks.violations] == broken
    assert max(checks.figures().worst_gap_s.values()) == pytest.approx(waited)


@pytest.mark.parametrize(
    "excuse",
    [
        [room(60.0, free=0), room(61.0)],
        [room(60.0, live=False), room(61.0)],
        [room(60.0, reaches=False), room(61.0)],
        [e.StoreDown(60.0, "test"), e.StoreUp(61.0)],
        [e.ProcessPaused(60.0, "w", False), e.ProcessResumed(61.0, "w")],
        [e.ProcessDown(60.0, "w", "worker", "killed"), room(61.0)],
        [e.BecameInvisible(60.0, Q, 0), e.BecameVisible(61.0, Q, 1)],
    ],
    ids=["no slot", "stopping", "cut off", "store down", "paused", "killed", "not visible"],
)
def test_i1_the_clock_starts_anew_after_what_excuses(excuse: list[e.Event]) -> None:
    """One listener must have been able throughout: 150 s with a break in the middle promise nothing."""
    story = [room(0.0), e.BecameVisible(10.0, Q, 1), receive(160.0)]
    assert rules(story, 161.0) == ["I1"]
    assert rules([*story, *excuse], 161.0) == []


# -- I2 and I6 ---------------------------------------------------------------------------------------------------------


def calm(plan: Plan) -> list[e.Event]:
    """A queue that is empty from 10 s on."""
    return [room(0.0), e.BecameVisible(9.0, Q, 1), e.BecameInvisible(10.0, Q, 0)]


def test_i2_one_sweep_a_minute_is_allowed_and_two_are_not() -> None:
    """An hour of calm elsewhere costs 60; at twice that the bound is broken."""
    once = [receive(float(at)) for at in range(100, 3700, 60)]
    twice = [receive(float(at)) for at in range(100, 3700, 30)]
    checks = judged([*calm(SOUND), *once], 3700.0)
    assert checks.violations == []
    assert checks.cost.receives / checks.cost.seconds * 3600 == pytest.approx(60, abs=1)
    assert rules([*calm(SOUND), *twice], 3700.0) == ["I2"]


@pytest.mark.parametrize(
    "stir",
    [
        e.ProcessUp(1950.0, "w2", "worker"),
        e.Published(1950.0, 0, Q, 1),
        e.FaultBegan(1950.0, "reset", "w>bridge", 0.0),
        e.ProcessPaused(1950.0, "w", False),
        e.BecameVisible(1950.0, Q, 1),
        e.BridgeDown(1950.0, "boot"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_i2_says_nothing_about_a_queue_that_is_not_calm(stir: e.Event) -> None:
    """What happened within T + R before, or V longer for churn, is a reason to look."""
    assert "I2" not in rules([*calm(OWN), stir, receive(2000.0)], 2001.0, OWN)


@pytest.mark.parametrize(("plan", "allowed"), [(SOUND, 1), (OWN, 0)], ids=["elsewhere", "own"])
def test_i6_a_restart_costs_one_receive_of_a_queue(plan: Plan, allowed: int) -> None:
    """One more breaks I6; one long after the restart has nothing to do with it."""
    story = [
        *calm(plan),
        e.FaultBegan(300.0, "crash", "bridge", 0.0),
        e.ProcessDown(300.0, "bridge", "bridge", "killed"),
        e.BridgeDown(300.0, "one"),
        e.ProcessUp(301.0, "bridge", "bridge"),
        e.BridgeUp(301.0, "two"),
        e.FaultEnded(301.0, "crash", "bridge"),
        *(receive(302.0 + number) for number in range(allowed)),
        receive(360.0),
    ]
    checks = judged(story, 365.0, plan)
    assert checks.violations == []
    assert (checks.cost.restarts, checks.cost.restart_receives) == (1, allowed)
    assert rules([*story, receive(310.0)], 365.0, plan) == ["I6"]


# -- I3, I4, I5, I7, I8 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wake", "empty", "broken"),
    [(None, None, []), (5.0, 5.1, []), (5.0, 5.0, []), (5.0, 4.9, ["I4"]), (5.0, None, ["I4"])],
)
def test_i4_nobody_sleeps_past_a_wake(wake: float | None, empty: float | None, broken: list[str]) -> None:
    """Idle needs an empty receive that began no earlier than the newest wake."""
    assert rules([e.ListenerIdle(6.0, "w", Q, wake, empty)], 7.0) == broken


@pytest.mark.parametrize(("waited", "broken"), [(2.9, []), (3.1, ["I1"])])
def test_i1_an_own_queue_is_prompt_while_nothing_is_wrong(waited: float, broken: list[str]) -> None:
    """Within A and the path, where everything has been standing for long; elsewhere the sweep's bound holds."""
    story = [room(0.0), e.BecameVisible(100.0, Q, 1), receive(100.0 + waited), e.BecameInvisible(100.1 + waited, Q, 0)]
    checks = judged(story, 200.0, OWN)
    assert [rule_of(violation) for violation in checks.violations] == broken
    assert checks.figures().checked["I1 prompt"] > 0
    assert rules(story, 200.0) == []


@pytest.mark.parametrize(
    "disturbance",
    [
        [e.ProcessUp(60.0, "p", "producer")],
        [e.ProcessDown(60.0, "v", "worker", "killed")],
        [e.FaultBegan(10.0, "reset", "w>bridge", 0.0)],
        [e.FaultBegan(10.0, "reset", "w>bridge", 0.0), e.FaultEnded(60.0, "reset", "w>bridge")],
        [e.ProcessPaused(10.0, "v", False)],
        [e.FaultBegan(101.0, "reset", "w>bridge", 0.0)],
    ],
    ids=["started", "killed", "under way", "mended", "paused", "in its midst"],
)
def test_i1_what_is_wrong_suspends_the_tighter_bound(disturbance: list[e.Event]) -> None:
    """For as long as it lasts, and a minute after it: back-offs are over by then."""
    story = [room(0.0), e.BecameVisible(100.0, Q, 1), receive(110.0), e.BecameInvisible(110.1, Q, 0)]
    assert rules(story, 200.0, OWN) == ["I1"]
    assert rules([*story, *disturbance], 200.0, OWN) == []


def test_i7_duplicates_only_add_receives() -> None:
    """A handler without a lease, or a generation that goes back, is more than that."""
    handled = e.HandlerBegan(2.0, "w", Q, 0, 0, 1)
    assert rules([e.StoreReceived(1.0, Q, 1, 1), handled], 3.0) == []
    assert rules([e.StoreReceived(1.0, Q, 1, 1), handled, handled], 3.0) == ["I7"]
    assert rules([e.BridgeUp(0.0, "boot"), e.Marked(1.0, Q, 5, True), e.Marked(2.0, Q, 4, True)], 3.0) == ["I7"]


def test_k1_and_k2_the_access_file_is_followed_within_a_second() -> None:
    """Nothing is accepted of a key that was revoked a second before, and nobody refused whose key is good as long."""

    def at(at: float, *, let_in: bool, may: bool) -> e.Judged:
        return e.Judged(at, "worker-0", "take", Q, let_in, may, 10.0)

    for let_in, rule in ((True, "K1"), (False, "K2")):
        wrong = {"let_in": let_in, "may": not let_in}
        assert rules([at(10.9, **wrong), at(90.0, let_in=let_in, may=let_in)], 99.0) == []
        assert rules([at(11.1, **wrong)], 99.0) == [rule]
        # A bridge that stood still could not look.
        stood = [e.ProcessPaused(10.5, "bridge", False), e.ProcessResumed(30.0, "bridge")]
        assert rules([*stood, at(30.5, **wrong)], 99.0) == []
        assert rules([*stood, at(31.5, **wrong)], 99.0) == [rule]
