"""Token buckets: what they allow, and how long they keep somebody away."""

from __future__ import annotations

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.core.rate import BURST_MAX, RATE_MAX, RATE_MIN, WAIT_S_MAX, TokenBuckets
from bridge.http.server.settings import WebSettings, check_settings


def test_a_burst_is_allowed_and_then_the_rate() -> None:
    """Whoever is refused is told when there is a token again."""
    buckets = TokenBuckets(0.1, 2)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [0, 0, 10]
    assert buckets.take("b", 0.0) == 0
    assert buckets.take("a", 10.0) == 0
    assert buckets.take("a", 10.0) == 10


def test_what_a_take_would_say_is_told_and_takes_nothing() -> None:
    """Also after more was charged than there was."""
    buckets = TokenBuckets(2.0, 2)
    assert [buckets.wait("a", 0.0) for _ in range(5)] == [0] * 5
    assert [buckets.charge("a", 0.0, count) for count in (1, 1, 2)] == [0.0, 0.5, 1.5]
    assert (buckets.wait("a", 1.0), buckets.wait("a", 1.5)) == (1, 0)
    assert buckets.charge("a", 1e9, 10**12) == WAIT_S_MAX


@pytest.mark.parametrize("rate", [RATE_MIN, 1e-9, 5e-324])
def test_nobody_is_kept_away_for_longer_than_an_hour(rate: float) -> None:
    """However small the rate is."""
    buckets = TokenBuckets(rate, 1)
    assert buckets.take("a", 0.0) == 0
    assert 1 <= buckets.take("a", 0.0) <= WAIT_S_MAX


@pytest.mark.parametrize(
    ("rate", "burst"),
    [
        (1e-320, 1),
        (0.0, 1),
        (-1.0, 1),
        (float("inf"), 1),
        (float("nan"), 1),
        (RATE_MAX * 2, 1),
        (1.0, 0),
        (1.0, BURST_MAX + 1),
    ],
)
def test_a_rate_that_is_none_is_refused(rate: float, burst: int) -> None:
    """Before anything is served by it."""
    with pytest.raises(ConfigurationError, match="requests_per_second"):
        check_settings(WebSettings(requests_per_second=rate, request_burst=burst))


def test_the_least_and_the_greatest_are_accepted() -> None:
    """The bounds themselves."""
    for rate, burst in ((RATE_MIN, 1), (RATE_MAX, BURST_MAX)):
        check_settings(WebSettings(requests_per_second=rate, request_burst=burst))


def test_whoever_was_not_heard_of_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for one more: an address costs memory, and there are very many of them."""
    monkeypatch.setattr("bridge.core.rate.ADDRESSES_MAX", 3)
    buckets = TokenBuckets(0.01, 1)
    assert [buckets.take(key, 0.0) for key in "abc"] == [0, 0, 0]
    assert [buckets.take(key, 0.0) for key in "bad"] == [100, 100, 0]
    assert [buckets.take(key, 0.0) for key in "badc"] == [100, 100, 100, 0]


def test_more_than_there_is_may_be_taken_of_what_was_let_in() -> None:
    """Also of an empty bucket: whoever comes next waits for all of it, and no longer."""
    buckets = TokenBuckets(1.0, 1)
    assert buckets.take("a", 0.0) == 0
    buckets.charge("a", 0.0, 3)
    assert buckets.take("a", 0.0) == 4
    assert buckets.take("a", 3.0) == 1
    assert buckets.take("a", 4.0) == 0
