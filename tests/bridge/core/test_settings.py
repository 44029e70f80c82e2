"""Which numbers hold for which queue, and which rules are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import ConfigurationError
from bridge.core.settings import Periods, QueueRule, Tuning, check_rules, check_slack, check_sweep

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


def test_a_sweep_is_off_or_one_that_listeners_can_be_told_of() -> None:
    """Periods travel in whole milliseconds, and 0 of them would mean that sweeps are off."""
    check_sweep(0.0, "sweep_s")
    check_sweep(0.1, "sweep_s")
    with pytest.raises(ConfigurationError, match="sweep_s: is 0"):
        check_sweep(1e-6, "sweep_s")
    with pytest.raises(ConfigurationError, match="queue 1: sweep_s"):
        check_rules([QueueRule(match="a/b", sweep_s=1e-320)])


def test_a_slack_is_two_heartbeats_at_least() -> None:
    """Else every listener looks by itself before it hears that another one has, and the printed cost is not true."""
    check_slack(Periods(slack_s=10.0, heartbeat_s=5.0, rules=(QueueRule(match="a/b", slack_s=10.0),)))
    check_slack(Periods(slack_s=0.4, heartbeat_s=0.2))
    with pytest.raises(ConfigurationError, match=r"^slack_s: is at least 10 s"):
        check_slack(Periods(slack_s=9.9))
    with pytest.raises(ConfigurationError, match=r"^slack_s: is at least 40 s"):
        check_slack(Periods(heartbeat_s=20.0))
    with pytest.raises(ConfigurationError, match=r"^queue 2: slack_s"):
        check_slack(Periods(rules=(QueueRule(match="a/b"), QueueRule(match="a/c", slack_s=0.1))))


def calls(work: Callable[[], object]) -> int:
    """Return how many functions are called for a piece of work."""
    count = 0

    def count_one(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_one)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_thousand_rules_cost_a_new_name_no_more_calls_than_one() -> None:
    """One request may bring a thousand names, and a bridge that works on them hears nobody meanwhile."""
    rules = tuple(QueueRule(match=f"team{number}-*/orders*", sweep_s=10.0) for number in range(1000))
    one, all_of_them = Tuning(Periods(rules=rules[-1:])), Tuning(Periods(rules=rules))
    assert all_of_them.of("team999-a/orders").sweep_s == 10.0 and all_of_them.of("x/y") is all_of_them.common
    for queue in ("team999-a/orders", "x/y"):
        assert calls(lambda queue=queue: all_of_them.of(queue)) == calls(lambda queue=queue: one.of(queue))  # type: ignore[misc]


def test_rules_are_checked_in_a_time_that_grows_with_them_and_not_with_their_square() -> None:
    """A start with a thousand tables does not wait for half a million pairs."""
    rules = [QueueRule(match=f"team{number}-*/orders*") for number in range(1000)]
    check_rules(rules)
    few = calls(lambda: check_rules(rules[:100]))
    assert calls(lambda: check_rules(rules)) < 20 * few


@given(matches=st.lists(MATCH, min_size=1, max_size=6), queue=QUEUE)
def test_the_first_of_many_is_the_first_one_by_one(matches: list[str], queue: str) -> None:
    """All patterns in one expression say what each of them says alone."""
    rules = tuple(QueueRule(match=match, sweep_s=float(number + 1)) for number, match in enumerate(matches))
    alone = [float(number + 1) for number, rule in enumerate(rules) if rule.matches(queue)]
    assert Tuning(Periods(rules=rules)).of(queue).sweep_s == (alone[0] if alone else 60.0)


def test_a_rule_for_every_queue_may_follow_any_narrower_one() -> None:
    """However its pattern looks, it does not match what `*` stands for; only `*/*` does."""
    for match in ("X*/*", "a*/*", "*/X*", "a/b"):
        check_rules([QueueRule(match=match), QueueRule(match="*")])
    with pytest.raises(ConfigurationError, match="never applies"):
        check_rules([QueueRule(match="*/*"), QueueRule(match="*")])
