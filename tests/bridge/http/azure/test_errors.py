"""What clients of the Azure endpoint are told of each error: code, status, and when to come again."""

from __future__ import annotations

import pytest
from aiohttp.web import RequestPayloadError

from bridge.contract.errors import (
    BadInput,
    Closed,
    ConfigurationError,
    Overloaded,
    QueuebellError,
    QueueNotFound,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from bridge.http.azure.errors import CODES, AzureError, busy, translated
from bridge.http.azure.server import azure_error, told
from bridge.http.server.problem import Refusal
from bridge.queues.embedded.terms import NoRoom


@pytest.mark.parametrize(
    ("error", "code", "status", "retry_after", "words"),
    [
        (QueueNotFound("hidden"), "QueueNotFound", 404, None, "does not exist"),
        (UnknownOutcome("hidden"), "OperationTimedOut", 500, None, "may have been carried out"),
        (Overloaded("hidden"), "ServerBusy", 503, "1", "more to do than it can"),
        (Overloaded("hidden", 0.0), "ServerBusy", 503, "1", "more to do than it can"),
        (Overloaded("hidden", 2.1), "ServerBusy", 503, "3", "nothing was put"),
        (NoRoom(5), "ServerBusy", 503, "1", "nothing was taken"),
        (StoreFull("hidden"), "ServerBusy", 503, "1", "what was acknowledged is safe"),
        (Unsupported("said"), "InternalError", 501, None, "said; nothing was done."),
        (Closed("hidden"), "ServerBusy", 503, "1", "stopping"),
        (BadInput("too_many_queues", "hidden"), "ServerBusy", 503, "1", "too many queues"),
        (BadInput("bad_parameter", "hidden"), "InvalidInput", 400, None, "not valid"),
        (StoreUnavailable("hidden"), "ServerBusy", 503, "1", "cannot do that now"),
        (StoreDamaged("hidden"), "ServerBusy", 503, "1", "cannot do that now"),
        (ConfigurationError("hidden"), "InternalError", 500, None, "internal error"),
    ],
)
def test_what_an_error_of_the_store_is_called(
    error: QueuebellError, code: str, status: int, retry_after: str | None, words: str
) -> None:
    """In the words of the service or in ours, and nothing of the error's own but where it is meant for the client."""
    found = translated(error)
    assert (found.code, found.status, found.headers.get("Retry-After")) == (code, status, retry_after)
    assert words in found.message and "hidden" not in found.message
    assert (found.close, found.details, found.held_s) == (False, {}, 0.0)
    assert str(found) == f"{code}: {found.message}"


@pytest.mark.parametrize(
    ("status", "code", "told_as"),
    [
        (400, "InvalidInput", 400),
        (403, "AuthorizationFailure", 403),
        (408, "OperationTimedOut", 408),
        (413, "RequestBodyTooLarge", 413),
        (414, "InvalidUri", 414),
        (415, "InvalidInput", 415),
        (417, "UnsupportedHeader", 417),
        (429, "ServerBusy", 503),
        (431, "InvalidHeaderValue", 431),
        (500, "InternalError", 500),
        (503, "ServerBusy", 503),
    ],
)
@pytest.mark.parametrize("close", [False, True])
def test_what_a_refusal_of_the_door_is_called(status: int, code: str, told_as: int, close: bool) -> None:
    """A client of the service gives up at a 429, so that it is told 503."""
    wait = 7 if status == 429 else None
    found = azure_error(Refusal("internal", "hidden", status=status, retry_after=wait, close=close))
    assert (found.code, found.status, found.close, found.message) == (code, told_as, close, CODES[code][1])
    assert found.headers == ({"Retry-After": "7"} if wait else {"Retry-After": "1"} if status == 503 else {})


def test_what_is_an_error_here_already_and_what_is_a_fault_of_our_own() -> None:
    """The first is told as it is, the second is for the caller to log; a malformed body ends the connection."""
    error = AzureError("InvalidInput")
    assert azure_error(error) is error
    assert azure_error(ZeroDivisionError()) is None
    malformed = azure_error(RequestPayloadError("hidden"))
    assert malformed is not None
    assert (malformed.code, malformed.message, malformed.close) == ("InvalidInput", "The body is malformed.", True)


def test_an_error_is_written_whole() -> None:
    """Its code in a header and in the body, its own headers after those of every answer, its details escaped."""
    answer = told(AzureError("InvalidInput", "no & no", details={"Name": "<\x00>"}, headers={"A": "b"}), "Given: c\r\n")
    head, _, body = answer.whole(b"Extra: d\r\n").partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 400 Bad Request"
    assert lines[1:5] == ["Content-Type: application/xml", "Given: c", "x-ms-error-code: InvalidInput", "A: b"]
    assert lines[-2:] == [f"Content-Length: {len(body)}", "Extra: d"]
    assert body.decode().endswith(
        "<Error><Code>InvalidInput</Code><Message>no &amp; no</Message><Name>&lt;?&gt;</Name></Error>"
    )
    assert busy("wait", 3, close=True).close
