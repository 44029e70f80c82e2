"""Which requests put work on a queue, and when the bell has to ring for what came of them."""

from __future__ import annotations

import math

import msgspec

from bridge.contract.event import NOT_BEFORE_MS_MAX
from bridge.contract.names import is_token
from bridge.http.azure.address import Resource, locate
from bridge.http.azure.errors import AzureError

RESOLUTION_S = 1
"""How exactly the service keeps the time at which a message becomes visible (B2)."""
SERVER_TIMEOUT_S = 30
"""How long after a request the service may still carry it out (P2)."""


class Ring(msgspec.Struct, frozen=True, gc=False):
    """A request that puts one message where it can be received, ``delay_s`` after it is carried out."""

    account: str
    queue: str
    delay_s: int = 0
    timeout_s: int = SERVER_TIMEOUT_S
    """How long the service may take over it."""


def ring_of(method: str, target: str, host: str) -> Ring | None:
    """Return what a request rings once it is carried out, or None.

    A put does, and so does an update that makes a message visible at once, for that is how a message is given back.
    ``target`` is as it came, ``host`` an endpoint's (`Endpoint.host`).
    """
    if method not in ("POST", "PUT"):
        return None
    try:
        at = locate(target, host)
    except AzureError:
        # The endpoint refuses it as well.
        return None
    if not (is_token(at.account) and is_token(at.queue)):
        return None
    delay = _whole(at.query.get("visibilitytimeout"))
    timeout = min(_whole(at.query.get("timeout")) or SERVER_TIMEOUT_S, SERVER_TIMEOUT_S)
    if method == "POST" and at.resource is Resource.MESSAGES:
        return Ring(at.account, at.queue, delay or 0, timeout)
    if method == "PUT" and at.resource is Resource.MESSAGE and delay == 0:
        return Ring(at.account, at.queue, 0, timeout)
    return None


def delays_ms(ring: Ring, status: int | None, code: str | None) -> tuple[int, ...]:
    """Return for how many milliseconds from now each trigger has to wait, none where nothing was put.

    ``status`` is None where no answer came to a request that was sent whole; ``code`` is ``x-ms-error-code``. Where
    the outcome is unknown, one looks now and one when the put can no longer land (P2).
    """
    if status is not None and 200 <= status < 300:
        return (_ms(ring.delay_s),)
    if status is not None and ((status < 500 and status != 408) or (status == 503 and code == "ServerBusy")):
        return ()
    return (_ms(ring.delay_s), _ms(ring.delay_s + ring.timeout_s))


def _ms(delay_s: int) -> int:
    return min((delay_s + RESOLUTION_S) * 1000, NOT_BEFORE_MS_MAX) if delay_s else 0


def _whole(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 9):
        return None
    return min(int(text), math.ceil(NOT_BEFORE_MS_MAX / 1000))
