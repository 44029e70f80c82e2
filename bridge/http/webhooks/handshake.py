"""The CloudEvents abuse protection: a target consents before anything is posted to it (S29).

``OPTIONS`` with our origin and the rate we would like; consent is in the headers of the answer alone, its status proves
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.http.webhooks.rules import RATE_PER_MINUTE

ORIGIN = "queuebell"
ORIGIN_HEADER = "WebHook-Request-Origin"


def request_headers() -> dict[str, str]:
    """Return the headers that ask for consent."""
    return {ORIGIN_HEADER: ORIGIN, "WebHook-Request-Rate": str(RATE_PER_MINUTE)}


def granted(headers: Mapping[str, str]) -> float | None:
    """Return how many requests a minute the answer allows, None where it does not consent.

    A target that consents without saying how often is taken to agree with what was asked.
    """
    named = {name.lower(): value.strip() for name, value in headers.items()}
    origin = named.get("webhook-allowed-origin")
    if origin is None or origin.lower() not in ("*", ORIGIN):
        return None
    rate = named.get("webhook-allowed-rate", "*")
    if rate == "*":
        return float(RATE_PER_MINUTE)
    if not (rate.isascii() and rate.isdigit() and len(rate) < 10) or int(rate) < 1:
        return None
    return float(rate)
