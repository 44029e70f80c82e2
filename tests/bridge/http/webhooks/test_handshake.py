"""What consent asks for and what it says, header by header (S29)."""

from __future__ import annotations

import pytest

from bridge.http.webhooks.handshake import granted, request_headers


def test_what_is_asked() -> None:
    """Our name and the rate we keep to, in the words of the CloudEvents abuse protection."""
    assert request_headers() == {"WebHook-Request-Origin": "queuebell", "WebHook-Request-Rate": "600"}


@pytest.mark.parametrize(
    ("origin", "rate", "per_minute"),
    [
        ("*", None, 600.0),
        ("queuebell", None, 600.0),
        (" QueueBell ", " * ", 600.0),
        ("*", "1", 1.0),
        ("*", " 120 ", 120.0),
        ("*", "999999999", 999_999_999.0),
        ("*", "1000000000", None),
        ("*", "0", None),
        ("*", "-1", None),
        ("*", "1.5", None),
        ("*", "\u00b2", None),
        ("*", "", None),
        ("evil.example", "120", None),
        ("", "120", None),
        (None, "120", None),
        (None, None, None),
    ],
)
@pytest.mark.parametrize("written", [str, str.upper, str.lower])
def test_what_is_granted(origin: str | None, rate: str | None, per_minute: float | None, written: type[str]) -> None:
    """Consent is the origin's alone, whatever the case of names; without a rate it is the one that was asked for."""
    given = {"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": rate, "Date": "now"}
    assert granted({written(name): value for name, value in given.items() if value is not None}) == per_minute
