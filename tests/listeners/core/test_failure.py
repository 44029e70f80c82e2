"""From an exception to whether another attempt can help."""

from __future__ import annotations

import datetime
import json
from typing import Any

import msgspec
import pytest

from bridge.contract.burial import HISTORY_MAX, Attempt
from bridge.contract.errors import BadInput, BlobNotFound, QueueNotFound, StoreUnavailable, UnknownOutcome, Unsupported
from listeners.core.failure import Failure, classify, retry_after
from listeners.core.found import Found
from listeners.core.history import MESSAGES_MAX, REASON_MAX, History
from listeners.core.record import AlreadyDone, Begin, Record, Standing, Wait, begin


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
    """What is known not to change is not tried again."""
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


def test_an_endless_chain_of_causes_ends() -> None:
    """Two exceptions raised from each other are unclear, not for ever."""
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert classify(one) is Failure.UNCLEAR
    assert retry_after(one) is None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(7, 7.0), (0.5, 0.5), (0, 0.0), (3600.5, 3600.0), (1e9, 3600.0), (-1, None), (True, None), ("7", None)],
)
def test_a_busy_server_says_when_to_come_back(seconds: Any, expected: float | None) -> None:
    """A number of seconds from 0 up counts, an hour at most; anything else does not."""
    assert retry_after(caused(RuntimeError(), Patience(seconds))) == expected


MINE = Record("order-7", Standing.BEGUN, "me", "m1", 2, 60.0)


def theirs(**changes: object) -> Record:
    base = Record("order-7", Standing.BEGUN, "they", "m2", 1, 60.0, b"half")
    return msgspec.structs.replace(base, **changes)


RESUMED = Begin(msgspec.structs.replace(MINE, progress=b"half"))


@pytest.mark.parametrize(
    ("found", "age", "expected"),
    [
        (None, 0.0, Begin(MINE)),
        (theirs(standing=Standing.DONE), 0.0, AlreadyDone()),
        (theirs(standing=Standing.DONE), 1e9, AlreadyDone()),
        (theirs(standing=Standing.OPEN), 0.0, RESUMED),
        (theirs(), 10.0, Wait(50.0)),
        (theirs(), 60.0, Wait(0.0)),
        (theirs(), 60.1, RESUMED),
        (theirs(lease_s=5.0), 10.0, RESUMED),
        (theirs(message="m1", attempt=1), 0.0, RESUMED),
        (theirs(message="m1", attempt=2), 0.0, Wait(60.0)),
        (theirs(message="m1", attempt=3), 0.0, Wait(60.0)),
        (theirs(holder="me"), 0.0, RESUMED),
    ],
)
def test_who_may_begin(found: Record | None, age: float, expected: object) -> None:
    """Nobody once it is done; at once what failed or was handed out anew; else after the entry's own lease."""
    assert begin(found, age, MINE) == expected


BOOT, OTHER = "b" * 32, "c" * 32


def told(*receives: tuple[str, bool]) -> Found:
    found = Found()
    found.greeted(BOOT)
    for source, work in receives:
        found.received(source, work, known=False)
    return found


def test_a_lost_heartbeat_heals() -> None:
    """The same levels go out again until a heartbeat that carried them was echoed."""
    found = told(("trigger", True), ("sweep", False))
    assert found.report(7) == {"trigger": (1, 0), "sweep": (0, 1)}
    found.received("trigger", False, known=False)
    assert found.report(8) == {"trigger": (1, 1), "sweep": (0, 1)}
    found.echoed(7)
    assert found.changed, "an echo of an older heartbeat says nothing of the newer one"
    found.echoed(8)
    assert not found.changed


def test_what_the_bridge_has_counted_itself_is_not_told_again() -> None:
    """Receives of its own queue service, and messages that its wakes carried."""
    found = Found()
    found.received("trigger", True, known=True)
    found.carried("trigger")
    assert not found.changed
    assert dict(found.found) == {"trigger": 2}


def test_a_look_that_nobody_asked_for_and_that_met_a_new_message_is_told_of() -> None:
    """Not one by a trigger, of messages that were handed out before, or of a queue that the bridge counts."""
    found = told()
    for source, fresh in (("sweep", True), ("deadman", True), ("sweep", False), ("trigger", True), ("resync", True)):
        found.received(source, True, known=False, fresh=fresh)
    found.received("deadman", True, known=True, fresh=True)
    assert found.report(7)["unannounced"] == (2, 0)


def test_a_warning_at_most_every_ten_minutes() -> None:
    """Only for looks that nobody asked for."""
    found = told(("sweep", True), ("deadman", True), ("trigger", True), ("sweep", False))
    assert found.unasked == 2
    assert not found.suspicious("trigger", 0.0)
    assert found.suspicious("sweep", 1.0)
    assert not found.suspicious("deadman", 600.9)
    assert found.suspicious("deadman", 601.0)


NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


def test_attempts_are_told_in_order_until_their_message_ends() -> None:
    """Each with its number, its time and its reason."""
    history = History()
    history.failed("a", 1, NOON, "first")
    history.failed("b", 1, NOON, "other")
    history.failed("a", 2, NOON + datetime.timedelta(seconds=1), "second")
    assert history.of("a") == (
        Attempt(1, NOON, "first"),
        Attempt(2, NOON + datetime.timedelta(seconds=1), "second"),
    )
    history.forget("a")
    history.forget("a")
    assert history.of("a") == ()
    assert len(history) == 1


def test_memory_is_bounded() -> None:
    """Some messages, some attempts of each, and reasons of some length; who failed longest ago goes first."""
    history = History(most=3)
    for number in range(100):
        history.failed("again", number, NOON, "x" * 9000)
        history.failed(f"m{number}", 1, NOON, "")
        assert len(history) == min(3, number + 2)
    kept = history.of("again")
    assert [one.attempt for one in kept] == list(range(100 - HISTORY_MAX, 100))
    assert {len(one.reason) for one in kept} == {REASON_MAX}
    assert history.of("m0") == ()
    assert history.of("m99") != ()
    history = History()
    for number in range(MESSAGES_MAX + 1):
        history.failed(f"m{number}", 1, NOON, "")
    assert len(history) == MESSAGES_MAX


def test_receives_before_any_bridge_are_told_to_the_first() -> None:
    """A listener that polled before it was greeted."""
    found = Found()
    found.received("poll", True, known=False)
    assert found.report(7) == {"poll": (1, 0)}
    found.greeted(BOOT)
    assert found.report(8) == {"poll": (1, 0)}


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


def test_what_came_after_the_report_is_owed_still() -> None:
    """An echo acknowledges the levels of its own heartbeat, not those of now."""
    found = told(("trigger", True))
    found.report(7)
    found.received("trigger", True, known=False)
    found.echoed(7)
    assert found.changed
    assert found.report(8) == {"trigger": (2, 0)}
