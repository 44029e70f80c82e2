"""How long a call may take that is repeated until it succeeds, and the pauses in between."""

from __future__ import annotations

import pytest

from listeners.core.patience import PAUSE_CAP_S, PAUSE_FIRST_S, Patience


def test_a_try_may_take_longer_after_each_time_out_and_four_fold_at_most() -> None:
    """A store that answers with an error was in time: only time-outs ask for more of it."""
    patience = Patience(10.0)
    allowed = [patience.seconds]
    for timed_out in (False, True, False, True, True, True):
        patience.miss(lambda: 0.5, timed_out=timed_out)
        allowed.append(patience.seconds)
    assert allowed == [10.0, 10.0, 20.0, 20.0, 40.0, 40.0, 40.0]


@pytest.mark.parametrize("timed_out", [True, False])
def test_pauses_double_from_a_fifth_of_a_second_to_half_a_minute(timed_out: bool) -> None:
    """With full jitter: many that lost the same server do not come back to it in step."""
    patience = Patience(1.0)
    middle = [patience.miss(lambda: 0.5, timed_out=timed_out) for _ in range(10)]
    assert middle == pytest.approx([min(PAUSE_CAP_S, PAUSE_FIRST_S * 2**miss) / 2 for miss in range(10)])
    assert (PAUSE_FIRST_S, PAUSE_CAP_S) == (0.2, 30.0)
    assert patience.miss(lambda: 0.0, timed_out=timed_out) == 0.0
