"""What a client is told of each error, and what a query string and a path may hold."""

from __future__ import annotations

import pytest
from aiohttp.web import HTTPBadRequest, RequestPayloadError

from bridge.contract.errors import (
    BadInput,
    BadQueueReference,
    Closed,
    Overloaded,
    QueueNotFound,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from bridge.http.api.native import Unread
from bridge.http.api.routes import refusal_of
from bridge.http.server.problem import Refusal
from tests.support.web import Served


@pytest.mark.parametrize(
    ("error", "code", "status", "retry_after", "detail"),
    [
        (BadInput("bad_json", "said"), "bad_json", 400, None, "said"),
        (BadInput("too_many_requests", "said"), "too_many_requests", 429, 1, "said"),
        (BadInput("of our own", "said"), "of our own", 400, None, "said"),
        (BadQueueReference("said"), "bad_queue_reference", 400, None, "said"),
        (QueueNotFound("hidden"), "queue_not_found", 404, None, "no such queue"),
        (StoreFull("hidden"), "storage_full", 507, 5, "no room"),
        (UnknownOutcome("hidden"), "internal", 500, None, "may have been carried out"),
        (Unsupported("said"), "unsupported", 501, None, "said"),
        (Closed("hidden"), "draining", 503, 1, "stopping"),
        (Overloaded("said"), "too_many_requests", 429, 1, "said"),
        (Overloaded("said", 0.0), "too_many_requests", 429, 1, "said"),
        (Overloaded("said", 2.1), "too_many_requests", 429, 3, "said"),
        (Unread("said"), "too_many_requests", 503, 2, "said"),
        (StoreUnavailable("hidden"), "storage_unavailable", 503, 1, "cannot do that now"),
        (RequestPayloadError("hidden"), "bad_parameter", 400, None, "malformed"),
        (HTTPBadRequest(text="hidden"), "bad_parameter", 400, None, "handshake"),
    ],
)
def test_what_is_told_of_an_error(
    error: Exception, code: str, status: int, retry_after: int | None, detail: str
) -> None:
    """Its code, its status and when to come again; its own words only where they are ours, and for its sender."""
    told = refusal_of(error)
    assert told is not None
    assert (told.code, told.status, told.retry_after) == (code, status, retry_after)
    assert detail in told.detail and "hidden" not in told.detail
    assert told.close is isinstance(error, RequestPayloadError), "what follows a malformed body is no request"


def test_what_is_a_refusal_already_and_what_is_a_fault_of_our_own() -> None:
    """The first is told as it is, the second is for the caller to log."""
    refusal = Refusal("not_found", "said")
    assert refusal_of(refusal) is refusal
    assert refusal_of(ZeroDivisionError()) is None
    assert refusal_of(StoreDamaged("hidden")) is None


async def test_a_query_has_64_fields_at_most_and_the_last_of_equal_names_counts(served: Served) -> None:
    """More are refused before any is looked at."""
    assert (await served.ask("PUT", "/v1/queues/a/b")).status == 201
    for fields, status in ((64, 200), (65, 400)):
        query = "&".join(["max=0"] * (fields - 1) + ["max=1"])
        assert (await served.ask("GET", f"/v1/queues/a/b/peek?{query}")).status == status
