"""Which numbers hold for which queue, and which rules are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import ConfigurationError
from bridge.core.settings import Periods, QueueRule, Tuning, check_hard_look, check_rules

TOKEN = st.text("ab1", min_size=1, max_size=3)
PATTERN = st.builds(lambda token, star: token + "*" * star, TOKEN, st.booleans()) | st.just("*")
MATCH = st.builds("{}/{}".format, PATTERN, PATTERN) | st.just("*")
QUEUE = st.builds("{}/{}".format, TOKEN, TOKEN)


@pytest.mark.parametrize(
    ("match", "queue", "matches"),
    [
        ("billing/orders", "billing/orders", True),
        ("billing/orders", "billing/orders2", False),
        ("billing/*", "billing/orders", True),
        ("billing/*", "billing2/orders", False),
        ("*/orders", "a/orders", True),
        ("bill*/ord*", "billing/ord", True),
        ("bill*/ord*", "billing/or", False),
        ("*", "a/b", True),
    ],
)
def test_a_pattern_matches_token_by_token(match: str, queue: str, matches: bool) -> None:
    """A star stands for the rest of its own token and never reaches over the slash."""
    assert QueueRule(match=match).matches(queue) is matches


def test_the_first_match_wins_and_what_is_absent_is_common() -> None:
    """A rule changes what it names; the numbers of one rule are one object for all its queues."""
    tuning = Tuning(
        Periods(
            slack_s=20.0,
            rules=(QueueRule(match="a/x", sweep_s=5.0), QueueRule(match="a/*", sweep_s=7.0, wake="all", spread_s=0.0)),
        )
    )
    assert (tuning.of("a/x").sweep_s, tuning.of("a/x").wake, tuning.of("a/x").slack_s) == (5.0, "enough", 20.0)
    assert (tuning.of("a/y").sweep_s, tuning.of("a/y").wake, tuning.of("a/y").spread_s) == (7.0, "all", 0.0)
    assert tuning.of("b/x") is tuning.common and tuning.of("a/y") is tuning.of("a/z")
    assert [match for match, _ in tuning.each()] == ["a/x", "a/*", "*"]


def test_a_rule_for_every_queue_replaces_the_common_numbers() -> None:
    """`*` alone is listed once."""
    tuning = Tuning(Periods(rules=(QueueRule(match="*", sweep_s=9.0),)))
    assert [(match, numbers.sweep_s) for match, numbers in tuning.each()] == [("*", 9.0)]


@pytest.mark.parametrize("match", ["", "a", "a/b/c", "/b", "a/", "a*b/c", "**/c", "a/b c", "-a/b", "a" * 81 + "/b"])
def test_a_malformed_pattern_is_refused(match: str) -> None:
    """The table and the key are named."""
    with pytest.raises(ConfigurationError, match="queue 1: match"):
        check_rules([QueueRule(match=match)])


def test_a_rule_that_can_never_apply_is_refused() -> None:
    """An option that does nothing is a mistake of whoever wrote it."""
    check_rules([QueueRule(match="a/x"), QueueRule(match="a/*"), QueueRule(match="*")])
    with pytest.raises(ConfigurationError, match="queue 2: match: 'a/x' never applies: queue 1"):
        check_rules([QueueRule(match="a/*"), QueueRule(match="a/x")])
    with pytest.raises(ConfigurationError, match="never applies"):
        check_rules([QueueRule(match="*/*"), QueueRule(match="*")])


@given(before=MATCH, after=MATCH, queue=QUEUE)
def test_only_rules_that_can_never_apply_are_refused(before: str, after: str, queue: str) -> None:
    """A refused second rule matches nothing that the first one leaves."""
    try:
        check_rules([QueueRule(match=before), QueueRule(match=after)])
    except ConfigurationError:
        assert QueueRule(match=before).matches(queue) or not QueueRule(match=after).matches(queue)


def test_a_hard_look_is_off_or_rare() -> None:
    """Below a second it would be a poll; the key is named."""
    check_hard_look(0.0, "hard_look_s")
    check_hard_look(1.0, "hard_look_s")
    with pytest.raises(ConfigurationError, match="hard_look_s"):
        check_hard_look(0.5, "hard_look_s")
    with pytest.raises(ConfigurationError, match="queue 1: hard_look_s"):
        check_rules([QueueRule(match="a/b", hard_look_s=0.2)])
