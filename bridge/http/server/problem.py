"""Refusals and how they are told: ``application/problem+json`` with title, status, detail and code."""

from __future__ import annotations

import functools
from http import HTTPStatus

import msgspec

from bridge.contract.errors import STATUS_BY_CODE

PROBLEM_TYPE = "application/problem+json"

RETRY_AFTER_S = 1
"""What a 503 asks its client to wait; a drained bridge is back within seconds, and listeners have a back-off anyway."""

_CODE_BY_STATUS = {
    400: "bad_parameter",
    403: "forbidden_origin",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "too_large",
    414: "uri_too_long",
    415: "unsupported_media_type",
    429: "too_many_requests",
    431: "headers_too_large",
    503: "draining",
}
# Until Python 3.13 `HTTPStatus` had those of RFC 2616.
_PHRASES = {413: "Content Too Large", 414: "URI Too Long"}


class Refusal(Exception):
    """A request is refused: the code gives the status, ``close`` also ends the connection.

    ``detail`` never repeats anything that came in.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int | None = None,
        allow: str | None = None,
        retry_after: int | None = None,
        challenge: str | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = STATUS_BY_CODE.get(code, 500) if status is None else status
        self.allow = allow
        self.challenge = challenge
        self.retry_after = RETRY_AFTER_S if retry_after is None and self.status == 503 else retry_after
        self.close = close


class Problem(msgspec.Struct, frozen=True):
    """The body of a refusal."""

    title: str
    status: int
    detail: str
    code: str


_encoder = msgspec.json.Encoder()


def problem_body(refusal: Refusal) -> bytes:
    """Encode what is told about a refusal."""
    return _encoder.encode(Problem(reason(refusal.status), refusal.status, refusal.detail, refusal.code))


def code_for_status(status: int) -> str:
    """Name the code for a status that aiohttp chose by itself."""
    return _CODE_BY_STATUS.get(status, "bad_parameter" if 400 <= status < 500 else "internal")


@functools.lru_cache(maxsize=256)
def reason(status: int) -> str:
    """Give the reason phrase of a status (RFC 9110 15)."""
    if status in _PHRASES:
        return _PHRASES[status]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
