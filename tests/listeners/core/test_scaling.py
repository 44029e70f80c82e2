"""How many dequeue tasks a depth is worth."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listeners.core.scaling import DepthScaling, StepScaling


@pytest.mark.parametrize(("depth", "tasks"), [(0, 2), (1, 2), (64, 2), (65, 3), (100, 4), (10_000, 5)])
def test_depth_over_batch_within_limits(depth: int, tasks: int) -> None:
    """ceil(depth / 32), from 2 to 5."""
    assert DepthScaling(32, 2, 5).tasks(depth) == tasks


@pytest.mark.parametrize(("depth", "tasks"), [(0, 10), (99, 10), (100, 50), (999, 50), (1000, 100), (10**6, 100)])
def test_the_white_papers_steps(depth: int, tasks: int) -> None:
    """Below 100 messages 10 tasks, below 1000 50, else 100."""
    assert StepScaling().tasks(depth) == tasks


@given(st.integers(1, 32), st.integers(1, 10), st.integers(0, 50), st.integers(0, 10**6))
def test_enough_tasks_to_carry_all_unless_the_limit_is_reached(batch: int, low: int, more: int, depth: int) -> None:
    """Never fewer than carry the depth at once, but for the maximum; never one too many, but for the minimum."""
    tasks = DepthScaling(batch, low, low + more).tasks(depth)
    assert low <= tasks <= low + more
    assert tasks * batch >= depth or tasks == low + more
    assert (tasks - 1) * batch < depth or tasks == low


def test_rules_that_make_no_sense_are_refused() -> None:
    """Limits the wrong way round, steps out of order, no task at all."""
    for wrong in ((0, 1, 1), (1, 0, 1), (1, 2, 1), (math.nan, 1, 1)):
        with pytest.raises(ValueError, match="depth scaling"):
            DepthScaling(*wrong)
    for steps, beyond in ((((10, 1), (5, 2)), 3), (((10, 0),), 3), (((10, 1),), 0), ((), math.nan)):
        with pytest.raises(ValueError, match="steps"):
            StepScaling(steps, beyond)


def test_one_task_is_enough_for_a_rule() -> None:
    """The least of every number is allowed, and the defaults carry 16 batches of 32."""
    assert [StepScaling(((10, 1),), 1).tasks(depth) for depth in (9, 10)] == [1, 1]
    assert DepthScaling(1, 1, 1).tasks(9) == 1
    assert [DepthScaling().tasks(depth) for depth in (0, 32, 33, 512, 513)] == [1, 1, 2, 16, 16]
