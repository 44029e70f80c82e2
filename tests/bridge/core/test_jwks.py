"""When an issuer's keys are fetched, and which times of a token hold."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.jwks import COOLDOWN_S, FRESH_S, LEEWAY_S, KeySet, expires, mistimed

NOW = 1_700_000_000.0


def test_keys_are_fetched_once_and_kept() -> None:
    """The first question fetches; then only an unknown key does, and old age."""
    keys: KeySet[str] = KeySet()
    assert keys.wants("a", NOW)
    keys.got({"a": "A", "b": "B"}, NOW)
    assert (keys.find("a"), keys.find("b"), keys.find("c"), keys.find(None)) == ("A", "B", None, None)
    # Within the moment of the fetch, and until it is old.
    assert [keys.wants("a", NOW + later) for later in (0.0, 0.5, FRESH_S - 0.001)] == [False, False, False]
    assert keys.wants("a", NOW + FRESH_S)


def test_keys_that_came_late_are_fresh_all_the_same() -> None:
    """From the moment that they came: a fetch that took longer than a cooldown is not begun again for that."""
    keys: KeySet[str] = KeySet()
    assert keys.wants("a", NOW)
    keys.got({"a": "A"}, NOW + COOLDOWN_S + 1)
    assert not keys.wants("a", NOW + COOLDOWN_S + 1)


def test_a_token_without_a_kid_has_the_only_key() -> None:
    """Where there are several nobody guesses."""
    keys: KeySet[str] = KeySet()
    assert keys.find(None) is None
    keys.got({"a": "A"}, NOW)
    assert keys.find(None) == "A"
    keys.got({None: "N"}, NOW)
    assert (keys.find(None), keys.find("a")) == ("N", None)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=200))
def test_a_flood_of_unknown_keys_fetches_once_a_cooldown(gaps: list[float]) -> None:
    """However many are asked for, and whether or not a fetch brings anything."""
    keys: KeySet[str] = KeySet()
    now, fetched = NOW, []
    for number, gap in enumerate(gaps):
        now += gap
        if keys.wants(f"kid{number}", now):
            fetched.append(now)
            if number % 2:
                keys.got({"a": "A"}, now)
    assert fetched[0] == NOW + gaps[0]
    assert all(later - earlier >= COOLDOWN_S for earlier, later in itertools.pairwise(fetched))
    assert len(fetched) >= 1 + int((now - fetched[0]) // (COOLDOWN_S + 5))


def test_the_last_good_keys_hold_while_fetches_fail() -> None:
    """A fetch that fails is tried again after the cooldown, and takes nothing away."""
    keys: KeySet[str] = KeySet()
    assert keys.wants("a", NOW)
    keys.got({"a": "A"}, NOW)
    late = NOW + 10 * FRESH_S
    assert keys.wants("a", late)
    assert keys.find("a") == "A"
    assert not keys.wants("a", late + COOLDOWN_S - 0.001)
    assert keys.wants("a", late + COOLDOWN_S)


def test_a_clock_that_goes_back_does_not_stop_fetches() -> None:
    """An hour back: what was tried in what is now the future counts as not tried."""
    keys: KeySet[str] = KeySet()
    assert keys.wants("a", NOW)
    assert not keys.wants("a", NOW)
    assert keys.wants("a", NOW - 3600)
    keys.got({"a": "A"}, NOW)
    assert keys.wants("a", NOW - 3600 - 1)


@pytest.mark.parametrize(
    ("claims", "until"),
    [
        ({"exp": NOW + 10}, NOW + 10 + LEEWAY_S),
        ({"exp": NOW - LEEWAY_S + 1}, NOW + 1),
        ({"exp": NOW - LEEWAY_S}, None),
        ({}, None),
        ({"exp": None}, None),
        ({"exp": str(NOW)}, None),
        ({"exp": True}, None),
        ({"exp": math.nan}, None),
        ({"exp": math.inf}, None),
        ({"exp": 1e15}, None),
        ({"exp": int(NOW) + 10, "nbf": NOW + LEEWAY_S}, int(NOW) + 10 + LEEWAY_S),
        ({"exp": NOW + 1000, "nbf": NOW + LEEWAY_S + 1}, None),
        ({"exp": NOW + 1000, "iat": NOW + LEEWAY_S + 1}, None),
        ({"exp": NOW + 1000, "iat": NOW + LEEWAY_S}, NOW + 1000 + LEEWAY_S),
        ({"exp": NOW + 1000, "nbf": "0"}, None),
        ({"exp": NOW + 1000, "nbf": -1e15}, None),
        ({"exp": NOW + 1000, "nbf": -1e15 + 1}, NOW + 1000 + LEEWAY_S),
        ({"exp": NOW + 1000, "iat": False}, None),
        ({"exp": NOW + 1000, "iat": None, "nbf": None}, NOW + 1000 + LEEWAY_S),
    ],
)
def test_the_times_of_a_token(claims: dict[str, Any], until: float | None) -> None:
    """It has to end, it may not be from the future, and clocks may be a minute apart."""
    assert expires(claims, NOW) == until


@given(
    st.dictionaries(st.sampled_from(["exp", "nbf", "iat"]), st.floats() | st.integers() | st.none() | st.text()),
    st.floats(-1e9, 1e9),
)
def test_what_is_said_of_times_is_said_of_times_alone(claims: dict[str, Any], now: float) -> None:
    """Words only where the times prove nothing, and always where they are times: never what came."""
    words = mistimed(claims, now)
    assert not words or expires(claims, now) is None
    assert '"' not in words and words.isprintable() and words.isascii()
    if all(isinstance(each, float) and abs(each) < 1e12 for each in claims.values()) and "exp" in claims:
        assert bool(words) == (expires(claims, now) is None)
