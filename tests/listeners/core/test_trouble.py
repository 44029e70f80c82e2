"""Receives that fail: one line at once, one a minute after it, and which error ends the worker."""

from __future__ import annotations

import pytest

from bridge.contract.errors import ConfigurationError, NotPrepared, StoreError, StoreUnavailable
from listeners.core.trouble import AGAIN_S, Reach, Repeated, Trouble


def test_it_is_told_at_once_and_then_once_a_minute_with_the_number() -> None:
    """A hundred failures in a minute are two lines, and none of them goes uncounted."""
    repeated = Repeated()
    told = [count for second in range(101) if (count := repeated.failed(second * AGAIN_S / 100))]
    assert told == [1, 100]


def test_that_it_works_is_told_once_and_only_after_a_failure_was() -> None:
    """A store that comes and goes every second has one line of each kind a minute."""
    repeated = Repeated()
    assert not repeated.works()
    assert repeated.failed(0.0) == 1
    assert [repeated.works(), repeated.works()] == [True, False]
    for second in range(1, 60):
        assert repeated.failed(float(second)) == 0
        assert not repeated.works()
    assert repeated.failed(AGAIN_S) == 60
    assert repeated.works()


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ConfigurationError("its client is not installed"), True),
        (NotPrepared("the tables are missing"), False),
        (StoreUnavailable("away"), False),
        (StoreError("refused"), False),
    ],
)
def test_only_what_cannot_mend_itself_ends_a_worker(error: Exception, ends: bool) -> None:
    """Tables may be made while workers run, and a store may come back; a client that is missing stays missing."""
    assert Trouble().ends(error) is ends


def test_a_store_that_has_answered_ends_no_worker() -> None:
    """Of whichever queue the answer was: its address is right, and what changed there may change back."""
    reach = Reach()
    one, other = Trouble(reach), Trouble(reach)
    assert not one.answered()
    assert not other.ends(ConfigurationError("this user is not let in"))


def test_the_bridge_hears_since_when_receives_fail() -> None:
    """From the first failure to the next answer, whether any of it was told or not."""
    trouble = Trouble()
    assert trouble.since is None
    trouble.begins(5.0)
    trouble.begins(7.0)
    assert trouble.since == 5.0
    assert trouble.failed(1000.0) == 1
    assert trouble.failed(1000.0 + AGAIN_S - 0.1) == 0
    assert trouble.answered()
    assert trouble.since is None
    assert not trouble.answered()
    trouble.begins(9.0)
    assert trouble.since == 9.0
