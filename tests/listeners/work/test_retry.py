"""From an exception to what happens to the message."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from queuebell.bridge.contract.burial import EXHAUSTED, NO_OUTCOME, PERMANENT, UNDECODABLE
from queuebell.bridge.contract.errors import (
    BadInput,
    BlobNotFound,
    QueueNotFound,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from queuebell.listeners.work.retry import (
    ATTEMPTS_MAX,
    FACTOR_MAX,
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    DeadLetter,
    Delete,
    Failed,
    Failure,
    Outcome,
    ReplayTo,
    RetryLater,
    RetryPolicy,
    Succeeded,
    Verdict,
    WantsRetry,
    classify,
    describe_retry,
    exhausted,
    outcome_word,
    policy_of,
    reason_of,
    retry_after,
    verdict,
)


class Answered(Exception):
    """An HTTP client's error: the status stands in ``name``, its own or its response's."""

    def __init__(self, name: str, status: Any, *, response: bool = False) -> None:
        super().__init__(f"answered {status}")
        bearer = type("Response", (), {})() if response else self
        setattr(bearer, name, status)
        if response:
            self.response = bearer


class Patience(Exception):
    def __init__(self, seconds: Any) -> None:
        super().__init__("busy")
        self.retry_after = seconds


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(104, "reset"),
        OSError(113, "no route to host"),
        StoreUnavailable("x"),
        UnknownOutcome("x"),
        Answered("status", 503),
        Answered("status_code", 429),
        Answered("status_code", 500, response=True),
        RuntimeError("HTTP 503 Server Busy"),
        RuntimeError("The remote end: Connection closed by host"),
        RuntimeError("An existing connection was forcibly closed by the remote host"),
        caused(KeyError("order"), TimeoutError()),
        ExceptionGroup("two", [TimeoutError(), ConnectionAbortedError()]),
    ],
    ids=repr,
)
def test_what_passes_by_itself_is_transient(error: Exception) -> None:
    """Time-outs, connections, busy servers, also where another exception was raised from them."""
    assert classify(error) is Failure.TRANSIENT


@pytest.mark.parametrize("error", [BlobNotFound("x"), Unsupported("x"), caused(RuntimeError("x"), BlobNotFound("y"))])
def test_what_no_attempt_changes_is_permanent(error: Exception) -> None:
    assert classify(error) is Failure.PERMANENT


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        TypeError("worse"),
        KeyError("x"),
        json.JSONDecodeError("x", "y", 0),
        FileNotFoundError(2, "no such file"),
        PermissionError(13, "denied"),
        Answered("status", 404),
        Answered("status", True),
        BadInput("bad_parameter", "x"),
        QueueNotFound("x"),
        ExceptionGroup("two", [TimeoutError(), ValueError()]),
    ],
    ids=repr,
)
def test_what_does_not_tell_is_unclear(error: Exception) -> None:
    """A bug, a bad message or a missing file may be mended by the next version: they are not buried at once."""
    assert classify(error) is Failure.UNCLEAR


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(7, 7.0), (0.5, 0.5), (0, 0.0), (3600.5, 3600.0), (1e9, 3600.0), (-1, None), (True, None), ("7", None)],
)
def test_a_busy_server_says_when_to_come_back(seconds: Any, expected: float | None) -> None:
    """A number of seconds from 0 up counts, an hour at most; anything else does not."""
    assert retry_after(caused(RuntimeError(), Patience(seconds))) == expected


@pytest.mark.parametrize(
    ("status", "failure"),
    [(99, "transient"), (100, "unclear"), (404, "unclear"), (599, "unclear"), (600, "transient"), ("404", "transient")],
)
@pytest.mark.parametrize("name", ["status", "status_code"])
@pytest.mark.parametrize("response", [True, False])
def test_a_status_counts_more_than_words(status: Any, failure: str, name: str, response: bool) -> None:
    """From 100 to 599, whatever the text says beside it; what is no status leaves the word to the text."""
    error = Answered(name, status, response=response)
    error.args = ("the backend timed out",)
    assert classify(error) is Failure(failure)


FACTORS = st.just(1.0) | st.floats(1, 1.001) | st.floats(1, FACTOR_MAX)


SECONDS = st.floats(PAUSE_S_MIN, PAUSE_S_MAX)


POLICIES = st.builds(
    lambda one, other, factor, jitter: RetryPolicy(
        first_s=min(one, other), ceiling_s=max(one, other), factor=factor, jitter=jitter
    ),
    SECONDS,
    SECONDS,
    FACTORS,
    st.floats(0, 1),
)


DOUBLING = RetryPolicy(attempts=10, factor=2, ceiling_s=60)


QUICK = RetryPolicy(attempts=3, first_s=5, ceiling_s=300, factor=4, jitter=0.0)


PATIENT = RetryPolicy(attempts=2, first_s=1, ceiling_s=1, jitter=0, transient=QUICK)


@pytest.mark.parametrize(
    ("outcome", "attempt", "max_attempts", "can_bury", "expected"),
    [
        (Succeeded(), 9, 5, True, Delete()),
        (Failed("x"), 1, 5, True, RetryLater(0.5)),
        (Failed("x"), 3, 5, True, RetryLater(2.0)),
        (Failed("x"), 5, 5, True, DeadLetter("attempt 5 of 5: x", EXHAUSTED)),
        (Failed("x"), 5, 0, True, RetryLater(8.0)),
        (Failed("x"), 5, 5, False, RetryLater(8.0)),
        (Failed("x", Failure.TRANSIENT), 1, 5, True, RetryLater(0.5)),
        (Failed("x", Failure.TRANSIENT), 4, 5, True, RetryLater(4.0)),
        (Failed("x", Failure.TRANSIENT, 60.0), 4, 5, True, RetryLater(60.0)),
        (Failed("x", Failure.TRANSIENT, 1.0), 4, 5, True, RetryLater(4.0)),
        (Failed("x", Failure.TRANSIENT, 3600.0), 4, 5, True, RetryLater(3600.0)),
        (Failed("x", Failure.UNCLEAR, 60.0), 4, 5, True, RetryLater(4.0)),
        (Failed("x", Failure.TRANSIENT), 5, 5, True, DeadLetter("attempt 5 of 5: x", EXHAUSTED)),
        (Failed("x", Failure.PERMANENT), 1, 0, True, DeadLetter("x", PERMANENT)),
        (Failed("x", Failure.PERMANENT), 1, 5, False, RetryLater(30.0)),
        (WantsRetry(7.0), 1, 5, True, RetryLater(7.0)),
        (WantsRetry(0.0), 1, 5, True, RetryLater(0.0)),
        (WantsRetry(), 2, 5, True, RetryLater(1.0)),
        (WantsRetry(7.0), 5, 5, True, DeadLetter("attempt 5 of 5: asked for another attempt", EXHAUSTED)),
        (DeadLetter("y"), 1, 0, True, DeadLetter("y")),
        (DeadLetter("y"), 1, 5, False, RetryLater(30.0)),
        (DeadLetter("y", UNDECODABLE, "E", "t"), 1, 5, True, DeadLetter("y", UNDECODABLE, "E", "t")),
        (Failed("x", error="E", trace="t"), 5, 5, True, DeadLetter("attempt 5 of 5: x", EXHAUSTED, "E", "t")),
        (Failed("x", Failure.PERMANENT, error="E", trace="t"), 1, 5, True, DeadLetter("x", PERMANENT, "E", "t")),
        (ReplayTo(), 9, 5, True, ReplayTo()),
        (ReplayTo(3.0, "q"), 1, 5, False, ReplayTo(3.0, "q")),
    ],
)
def test_the_verdict(outcome: Outcome, attempt: int, max_attempts: int, can_bury: bool, expected: Verdict) -> None:
    """Delete after success only; bury by word or at the last attempt, where there is a poison queue; else give back."""
    policy = replace(DOUBLING, attempts=max_attempts)
    assert verdict(outcome, attempt, policy, can_bury, lambda: 0.5) == expected
    words = {Delete: "done", RetryLater: "retried", DeadLetter: "buried", ReplayTo: "replayed"}
    assert outcome_word(outcome, attempt, policy, can_bury) == words[type(expected)], "and there is a word for it"


def test_handed_out_too_often_is_buried_unseen() -> None:
    """More often than allowed without an outcome: its handler never lived to say anything."""
    assert exhausted(5, 5, True) is None
    assert exhausted(6, 5, True) == DeadLetter("handed out 6 times, of 5 allowed, without an outcome", NO_OUTCOME)
    assert exhausted(6, 0, True) is None
    assert exhausted(6, 5, False) is None


def test_a_store_that_counts_every_hand_out_allows_ten_more() -> None:
    """Stops and lost answers count there as well, and must not bury what no handler has failed at."""
    assert exhausted(15, 5, True, starts=False) is None
    assert exhausted(16, 5, True, starts=False) == DeadLetter(
        "handed out 16 times, of 5 allowed, without an outcome", NO_OUTCOME
    )


UNCLEAR, TRANSIENT, FOREVER = Failure.UNCLEAR, Failure.TRANSIENT, Failure.PERMANENT


FIVE = "next in about 0.5 s, then 1, 2, 4 s; dead-lettered after attempt 5, in about 7.5 s altogether"


SIX = (
    "next in about 0.5 s, then 1, 2, 4 s and longer, up to 8 s; dead-lettered after attempt 6, in about 16 s altogether"
)


TEN = (
    "next in about 0.5 s, then 1, 2, 4 s and longer, up to 60 s"
    "; dead-lettered after attempt 10, in about 184 s altogether"
)


EVER = "next in about 0.5 s, then 1, 2, 4 s and longer, up to 60 s, until it succeeds"


ASKED = "next in about 60 s, then 1 s; dead-lettered after attempt 3, in about 61 s altogether"


TWO = "next in about 0.5 s, then 1 s; dead-lettered after attempt 3, in about 1.5 s altogether"


OWN = "next in about 5 s, then 20 s; dead-lettered after attempt 3, in about 25 s altogether"


SAME = "next in about 5 s, then 5, 5, 5 s and so on; dead-lettered after attempt 10, in about 45 s altogether"


SAME_EVER = "next in about 5 s, then 5, 5, 5 s and so on, until it succeeds"


DEFAULT = "next in about 0.5 s, then 3, 18, 108 s; dead-lettered after attempt 5, in about 130 s altogether"


STEADY = RetryPolicy(attempts=10, first_s=5, factor=1)


SLOW = RetryPolicy(attempts=0, first_s=10, factor=2, ceiling_s=80)


SCHEDULES = [
    (UNCLEAR, None, 1, RetryPolicy(), True, DEFAULT),
    (TRANSIENT, None, 1, RetryPolicy(), True, DEFAULT),
    (UNCLEAR, None, 1, 10, True, TEN),
    (TRANSIENT, None, 1, 10, True, TEN),
    (UNCLEAR, None, 1, 5, True, FIVE),
    (UNCLEAR, None, 2, 5, True, "next in about 1 s, as attempt 3 of 5"),
    (UNCLEAR, None, 4, 5, True, "next in about 4 s, as attempt 5 of 5"),
    (UNCLEAR, None, 5, 5, True, "it is dead-lettered: that was attempt 5 of 5"),
    (UNCLEAR, None, 1, 1, True, "it is dead-lettered: that was attempt 1 of 1"),
    (UNCLEAR, None, 1, 0, True, EVER),
    (UNCLEAR, None, 1, 5, False, EVER),
    (UNCLEAR, None, 9, 5, False, "next in about 60 s, as attempt 10"),
    (TRANSIENT, 60.0, 1, 3, True, ASKED),
    (TRANSIENT, 60.0, 2, 3, True, "next in about 60 s, as attempt 3 of 3"),
    (UNCLEAR, None, 1, 6, True, SIX),
    (UNCLEAR, None, 1, 3, True, TWO),
    (UNCLEAR, 60.0, 1, 3, True, TWO),
    (UNCLEAR, None, 6, 5, True, "it is dead-lettered: that was attempt 6 of 5"),
    (TRANSIENT, None, 1, 0, True, EVER),
    (TRANSIENT, 0.1, 1, 5, True, FIVE),
    (TRANSIENT, 10.4, 1, 2, True, "next in about 10.4 s; dead-lettered after attempt 2, in about 10 s altogether"),
    (TRANSIENT, 9.7, 1, 2, True, "next in about 9.7 s; dead-lettered after attempt 2, in about 9.7 s altogether"),
    (TRANSIENT, None, 1, PATIENT, True, OWN),
    (UNCLEAR, None, 1, PATIENT, True, "next in about 1 s; dead-lettered after attempt 2, in about 1 s altogether"),
    (UNCLEAR, None, 1, STEADY, True, SAME),
    (UNCLEAR, None, 1, STEADY, False, SAME_EVER),
    (UNCLEAR, None, 1, SLOW, True, "next in about 10 s, then 20, 40, 80 s and so on, until it succeeds"),
    (FOREVER, None, 1, 5, True, "it is dead-lettered: no further attempt would succeed"),
    (FOREVER, None, 1, 5, False, "again in 30 s, and so on: a poison queue keeps it until it succeeds"),
]


@pytest.mark.parametrize("failure, after, attempt, policy, can_bury, words", SCHEDULES)
def test_the_schedule_that_follows_a_failure(
    failure: Failure, after: float | None, attempt: int, policy: RetryPolicy | int, can_bury: bool, words: str
) -> None:
    """In words, all of it after the first attempt; and they are what the verdicts of the attempts to come will be."""
    policy = replace(replace(DOUBLING, attempts=policy) if isinstance(policy, int) else policy, jitter=0)
    failed = Failed("no", failure, after)
    assert describe_retry(failed, attempt, policy, can_bury) == words
    pauses = []
    for number in range(attempt, attempt + (4 if attempt == 1 else 1)):
        told = failed if number == attempt else Failed("no", failure)
        decided = verdict(told, number, policy, can_bury, lambda: 0.5)
        if isinstance(decided, DeadLetter):
            break
        assert isinstance(decided, RetryLater)
        pauses.append(decided.after_s)
    if failure is not FOREVER and pauses:
        first, _, _ = re.split(r"(;|, as| and)", words, maxsplit=1)
        assert [float(number) for number in re.findall(r"\d[\d.]*", first)] == pauses


ATTEMPTS = st.integers(1, 60) | st.integers(1, 10**400)


def test_the_default_lasts_minutes() -> None:
    """Five attempts within two minutes and some seconds, as README.md and docs/how-to/handle-failures.md say."""
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
    with pytest.raises(BadInput) as refused:
        RetryPolicy(**given_)
    assert (refused.value.code, str(refused.value)) == ("bad_parameter", f"retry: {detail}")


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


@given(POLICIES, st.integers(1, 300))
def test_how_long_a_policy_lasts_is_the_sum_of_its_pauses(policy: RetryPolicy, attempts: int) -> None:
    """Without jitter, however many attempts there are."""
    policy = replace(policy, attempts=attempts)
    assert policy.lasts_s() == pytest.approx(math.fsum(map(policy.middle, range(1, attempts))))


def test_an_outcome_says_why_it_was_no_success() -> None:
    assert [reason_of(outcome) for outcome in (Failed("x"), DeadLetter("y"), WantsRetry(7.0))] == [
        "x",
        "y",
        "asked for another attempt",
    ]
