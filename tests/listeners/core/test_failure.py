"""From an exception to whether another attempt can help."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bridge.contract.errors import BadInput, BlobNotFound, QueueNotFound, StoreUnavailable, UnknownOutcome, Unsupported
from listeners.core.failure import Failure, classify, retry_after


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


def test_words_count_in_the_first_thousand_characters() -> None:
    """In either case, and nobody searches a megabyte for them."""
    assert classify(RuntimeError("x" * 991 + "TIMED OUT")) is Failure.TRANSIENT
    assert classify(RuntimeError("x" * 992 + "timed out")) is Failure.UNCLEAR


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
