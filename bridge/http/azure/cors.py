"""Cross-origin rules of an account: which web pages may use its queues from a browser."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from queuebell.bridge.http.azure.errors import AzureError

ANY = "*"
METHODS = ("DELETE", "GET", "HEAD", "MERGE", "OPTIONS", "PATCH", "POST", "PUT")
_EXPOSABLE = (
    "x-ms-approximate-messages-count",
    "x-ms-client-request-id",
    "x-ms-error-code",
    "x-ms-popreceipt",
    "x-ms-request-id",
    "x-ms-time-next-visible",
    "x-ms-version",
)
"""The headers that a rule's ``x-ms-*`` exposes; metadata must be named in full."""
# A header's name (RFC 9110 5.6.2); the answer repeats it.
_token = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch


class CorsRule(msgspec.Struct, frozen=True):
    """One rule; header names are compared without regard to case, a ``*`` at the end of one is any rest."""

    origins: tuple[str, ...]
    methods: tuple[str, ...]
    max_age_s: int = 0
    exposed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    def allows(self, origin: str, method: str) -> bool:
        """Return whether a page of ``origin`` may send requests of ``method``; both are compared exactly."""
        return (ANY in self.origins or origin in self.origins) and method in self.methods


def preflight(rules: Sequence[CorsRule], origin: str, method: str, headers: str) -> dict[str, str]:
    """Return the headers for a preflight: of the first rule that allows origin, method and all headers.

    ``headers`` is the text of ``Access-Control-Request-Headers``. Raises `AzureError` (``CorsPreflightFailure``).
    """
    asked = [name.strip() for name in headers.split(",") if name.strip()]
    if not all(_token(name) for name in asked):
        raise AzureError("CorsPreflightFailure")
    for rule in rules:
        if rule.allows(origin, method) and all(_is_in(rule.allowed, name) for name in asked):
            answer = {**_origin(rule, origin), "Access-Control-Allow-Methods": method}
            if asked:
                answer["Access-Control-Allow-Headers"] = ",".join(asked)
            return {**answer, "Access-Control-Max-Age": str(rule.max_age_s)}
    raise AzureError("CorsPreflightFailure")


def actual(rules: Sequence[CorsRule], origin: str, method: str) -> dict[str, str] | None:
    """Return the headers for the answer to a page's request; None if no rule allows it."""
    for rule in rules:
        if rule.allows(origin, method):
            answer = _origin(rule, origin)
            if rule.exposed:
                answer["Access-Control-Expose-Headers"] = ",".join(_exposed(rule.exposed))
            return answer
    return None


def varying(rules: Sequence[CorsRule], method: str) -> dict[str, str]:
    """Return ``Vary`` for an answer without CORS headers if some page would get them.

    Otherwise a cache could give this answer to that page, whose script could not read it (RFC 9110 12.5.5). If every
    page is allowed, all answers are the same.
    """
    if not rules or any(rule.allows(ANY, method) for rule in rules):
        return {}
    return {"Vary": "Origin"}


def _origin(rule: CorsRule, origin: str) -> dict[str, str]:
    # With a rule for all origins the answer can be cached, and needs no credentials.
    if ANY in rule.origins:
        return {"Access-Control-Allow-Origin": ANY}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin",
    }


def _is_in(names: Sequence[str], name: str) -> bool:
    low = name.lower()
    for each in names:
        if each.endswith(ANY):
            if low.startswith(each[:-1].lower()):
                return True
        elif each.lower() == low:
            return True
    return False


def _exposed(names: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for name in names:
        if name.endswith(ANY):
            found.update(dict.fromkeys(each for each in _EXPOSABLE if each.startswith(name[:-1].lower())))
        else:
            found[name] = None
    return list(found)
