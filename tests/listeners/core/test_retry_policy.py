"""The retry policy: its pauses by attempt, class and chance, how long they last, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.contract.errors import BadInput
from listeners.core.failure import Failure
from listeners.core.retry_policy import ATTEMPTS_MAX, FACTOR_MAX, PAUSE_S_MAX, PAUSE_S_MIN, RetryPolicy, policy_of

SECONDS = st.floats(PAUSE_S_MIN, PAUSE_S_MAX)
FACTORS = st.just(1.0) | st.floats(1, 1.001) | st.floats(1, FACTOR_MAX)
ATTEMPTS = st.integers(1, 60) | st.integers(1, 10**400)
POLICIES = st.builds(
    lambda one, other, factor, jitter: RetryPolicy(
        first_s=min(one, other), ceiling_s=max(one, other), factor=factor, jitter=jitter
    ),
    SECONDS,
    SECONDS,
    FACTORS,
    st.floats(0, 1),
)


@given(POLICIES, ATTEMPTS)
def test_pauses_grow_from_the_first_to_the_ceiling(policy: RetryPolicy, attempt: int) -> None:
    """Without jitter none is shorter than the one before, the first the shortest, and none above the ceiling."""
    policy = replace(policy, jitter=0)
    pause = policy.pause(attempt, lambda: 0.5)
    assert policy.first_s <= pause <= policy.ceiling_s
    assert pause <= policy.pause(attempt + 1, lambda: 0.5)
    assert policy.pause(1, lambda: 0.5) == policy.first_s
    longer = policy.factor == 1 or pause == pytest.approx(policy.ceiling_s)
    assert longer or policy.pause(attempt + 1, lambda: 0.5) == pytest.approx(
        min(policy.ceiling_s, pause * policy.factor)
    )


@given(POLICIES, ATTEMPTS, st.floats(0, 1, exclude_max=True))
def test_jitter_spreads_a_pause_around_its_middle(policy: RetryPolicy, attempt: int, draw: float) -> None:
    """By that part of it to either side, never above the ceiling and never below nothing."""
    middle = policy.middle(attempt)
    pause = policy.pause(attempt, lambda: draw)
    assert 0 <= middle * (1 - policy.jitter) <= pause
    assert pause <= min(policy.ceiling_s, middle * (1 + policy.jitter)) * (1 + 1e-12)


@pytest.mark.parametrize(("draw", "share"), [(0.0, 0.8), (0.5, 1.0), (0.75, 1.1)])
def test_pauses_are_spread_evenly(draw: float, share: float) -> None:
    """By a fifth to either side, unless said otherwise."""
    policy = RetryPolicy()
    assert [policy.pause(attempt, lambda: draw) for attempt in (1, 2, 3)] == pytest.approx(
        [0.5 * share, 3.0 * share, 18.0 * share]
    )


def test_pauses_at_the_ceiling_are_spread_below_it() -> None:
    """So that what failed together does not come again together, time after time."""
    policy = RetryPolicy()
    assert [policy.pause(9, lambda draw=draw: draw) for draw in (0.0, 0.5)] == pytest.approx([96.0, 108.0])


@given(POLICIES, st.integers(1, 300))
def test_how_long_a_policy_lasts_is_the_sum_of_its_pauses(policy: RetryPolicy, attempts: int) -> None:
    """Without jitter, however many attempts there are."""
    policy = replace(policy, attempts=attempts)
    assert policy.lasts_s() == pytest.approx(math.fsum(map(policy.middle, range(1, attempts))))


def test_the_default_lasts_minutes() -> None:
    """Five attempts within two minutes and some seconds, as README.md and docs/failures.md say."""
    policy = RetryPolicy()
    assert (policy.attempts, policy.lasts_s()) == (5, pytest.approx(129.5))
    assert [policy.middle(attempt) for attempt in range(1, 7)] == [0.5, 3, 18, 108, 120, 120]
    assert replace(policy, attempts=0).lasts_s() == math.inf


def test_each_class_of_failure_has_its_policy() -> None:
    """Transient ones another, where one is given; what no handler said of has the most attempts of both."""
    other = RetryPolicy(attempts=20, factor=4)
    policy = RetryPolicy(transient=other)
    assert [policy.of(failure) for failure in (Failure.TRANSIENT, Failure.UNCLEAR)] == [other, policy]
    assert RetryPolicy().of(Failure.TRANSIENT) == RetryPolicy()
    assert policy.attempts_max == 20
    assert replace(policy, attempts=30).attempts_max == 30
    assert RetryPolicy(attempts=3).attempts_max == 3
    assert replace(policy, attempts=0).attempts_max == 0
    assert RetryPolicy(transient=RetryPolicy(attempts=0)).attempts_max == 0


ATTEMPTS = "attempts (max_attempts) is from 0 (never bury) to 9223372036854775807"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"attempts": -1}, ATTEMPTS),
    ({"attempts": 2.5}, ATTEMPTS),
    ({"attempts": ATTEMPTS_MAX + 1}, ATTEMPTS),
    ({"first_s": True}, "first_s is from 0.001 to 604800"),
    ({"first_s": 0}, "first_s is from 0.001 to 604800"),
    ({"first_s": math.nan}, "first_s is from 0.001 to 604800"),
    ({"first_s": "1"}, "first_s is from 0.001 to 604800"),
    ({"ceiling_s": math.inf}, "ceiling_s is from 0.001 to 604800"),
    ({"ceiling_s": 604_801}, "ceiling_s is from 0.001 to 604800"),
    ({"first_s": 121}, "first_s is at most ceiling_s, which is 120"),
    ({"factor": 0.9}, "factor is from 1 to 100"),
    ({"factor": 101}, "factor is from 1 to 100"),
    ({"jitter": True}, "jitter is from 0 to 1"),
    ({"jitter": -0.1}, "jitter is from 0 to 1"),
    ({"jitter": 1.1}, "jitter is from 0 to 1"),
    ({"transient": 5}, "transient is a RetryPolicy without another in it, or None"),
    (
        {"transient": RetryPolicy(transient=RetryPolicy())},
        "transient is a RetryPolicy without another in it, or None",
    ),
]


@pytest.mark.parametrize("given_, detail", REFUSED)
def test_a_policy_that_cannot_be_is_refused(given_: dict[str, Any], detail: str) -> None:
    """By its name and its range, with a stable code."""
    with pytest.raises(BadInput) as refused:
        RetryPolicy(**given_)
    assert (refused.value.code, str(refused.value)) == ("bad_parameter", f"retry: {detail}")


def test_the_bounds_themselves_are_allowed() -> None:
    """The smallest and the greatest of each number."""
    RetryPolicy(attempts=0, first_s=PAUSE_S_MIN, ceiling_s=PAUSE_S_MAX, factor=1, jitter=0)
    RetryPolicy(attempts=1, first_s=PAUSE_S_MAX, ceiling_s=PAUSE_S_MAX, factor=FACTOR_MAX, jitter=1)


def test_max_attempts_is_the_attempts_of_the_policy() -> None:
    """Alone it changes the default; beside a policy it may only say the same."""
    assert policy_of(None) == RetryPolicy()
    assert policy_of(None, 0) == RetryPolicy(attempts=0)
    given_ = RetryPolicy(attempts=7)
    assert policy_of(given_) is policy_of(given_, 7) is given_
    with pytest.raises(BadInput, match=r"max_attempts is 6, and attempts of the policy is 7: leave max_attempts out"):
        policy_of(given_, 6)
    with pytest.raises(BadInput, match="max_attempts"):
        policy_of(None, -1)
    with pytest.raises(TypeError, match="retry: is a RetryPolicy"):
        policy_of(5)  # type: ignore[arg-type]
