"""Whether a program asks for signals by OpenTelemetry's conventions for messaging, which are in development."""

from __future__ import annotations

from typing import Final

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
"""The environment variable that asks, one for all libraries of a program: words separated by commas."""
SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"


def opted_in(words: str) -> bool:
    """Say whether the value of `OPT_IN` asks for those of messaging."""
    return not {"messaging", "messaging/dup"}.isdisjoint(word.strip() for word in words.split(","))
