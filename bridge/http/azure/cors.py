"""Cross-origin rules of an account: which web pages may use its queues from a browser."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from bridge.http.azure.errors import AzureError

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
"""The headers of this service's answers that a rule's ``x-ms-*`` stands for; metadata has to be named in full."""
# What the name of a header is made of (RFC 9110 5.6.2); the answer repeats it.
_token = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch


class CorsRule(msgspec.Struct, frozen=True):
    """One rule; header names are compared without regard to case, a ``*`` at the end of one is any rest."""

    origins: tuple[str, ...]
    methods: tuple[str, ...]
    max_age_s: int = 0
    exposed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    def lets(self, origin: str, method: str) -> bool:
        """Say whether a page of ``origin`` may send requests of ``method``; both are compared exactly."""
        return (ANY in self.origins or origin in self.origins) and method in self.methods


def preflight(rules: Sequence[CorsRule], origin: str, method: str, headers: str) -> dict[str, str]:
    """Return the headers that answer a preflight: those of the first rule that lets origin, method and all headers.

    ``headers`` is the text of ``Access-Control-Request-Headers``. Raises `AzureError` (``CorsPreflightFailure``).
    """
    asked = [name.strip() for name in headers.split(",") if name.strip()]
    if not all(_token(name) for name in asked):
        raise AzureError("CorsPreflightFailure")
    for rule in rules:
        if rule.lets(origin, method) and all(_stands_in(rule.allowed, name) for name in asked):
            answer = {**_origin(rule, origin), "Access-Control-Allow-Methods": method}
            if asked:
                answer["Access-Control-Allow-Headers"] = ",".join(asked)
            return {**answer, "Access-Control-Max-Age": str(rule.max_age_s)}
    raise AzureError("CorsPreflightFailure")


def actual(rules: Sequence[CorsRule], origin: str, method: str) -> dict[str, str] | None:
    """Return the headers that the answer to a request from a page carries; None where no rule lets it."""
    for rule in rules:
        if rule.lets(origin, method):
            answer = _origin(rule, origin)
            if rule.exposed:
                answer["Access-Control-Expose-Headers"] = ",".join(_exposed(rule.exposed))
            return answer
    return None


def varying(rules: Sequence[CorsRule], method: str) -> dict[str, str]:
    """Return the header of an answer that names no origin, yet would to a page that some rule lets in.

    Without it a cache hands what a stranger was answered to that page, whose script may then not read it (RFC 9110
    12.5.5). Where every page is let in, all are answered alike.
    """
    if not rules or any(rule.lets(ANY, method) for rule in rules):
        return {}
    return {"Vary": "Origin"}


def _origin(rule: CorsRule, origin: str) -> dict[str, str]:
    # A rule for everybody answers everybody alike, so that a cache may keep the answer, and lends no credentials.
    if ANY in rule.origins:
        return {"Access-Control-Allow-Origin": ANY}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin",
    }


def _stands_in(names: Sequence[str], name: str) -> bool:
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
