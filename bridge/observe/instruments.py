"""Optional metrics of handlers by OpenTelemetry's conventions for messaging (1.44, in development).

Only the API is used: the program's SDK decides how often and where they are sent. Until they are enabled, `on` is None
and nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.jobs import BOUNDS_S
from queuebell.bridge.observe.swallowed import swallowing
from queuebell.bridge.observe.tracing import OPT_IN, SCHEMA, opted_in

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

log = logging.getLogger("queuebell.metrics")

SYSTEM: Final = "queuebell"
METRICS: Final = "a metric of OpenTelemetry"


class Instruments:
    """Records messages and durations of handlers; ``provider`` None is OpenTelemetry's global one."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        from opentelemetry import metrics

        meter = metrics.get_meter(SYSTEM, meter_provider=provider, schema_url=SCHEMA)
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            unit="{message}",
            description="Number of messages that were delivered to the application.",
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=BOUNDS_S,
        )

    def began(self, queue: str, count: int) -> None:
        """Count messages passed to a handler."""
        with swallowing(METRICS):
            self._consumed.add(count, _attributes(queue))

    def ended(self, queue: str, seconds: float, failure: str | None) -> None:
        """Record the duration of a handler for one message; ``failure`` is the class of its exception."""
        attributes = _attributes(queue)
        if failure is not None:
            attributes["error.type"] = failure
        with swallowing(METRICS):
            self._duration.record(seconds, attributes)


def _attributes(queue: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
    }


def start_instruments(provider: MeterProvider | None = None) -> None:
    """Start measuring handlers of this process, with ``provider`` or OpenTelemetry's global one.

    The environment variable ``OTEL_SEMCONV_STABILITY_OPT_IN`` with the value ``messaging`` does the same at the start.
    A further call replaces the provider. Raises `ConfigurationError` if the extra ``otel`` is not installed.
    """
    global on  # noqa: PLW0603 - if disabled, a check of it is the only cost
    try:
        on = Instruments(provider)
    except ImportError as error:
        raise ConfigurationError(f"metrics of OpenTelemetry need opentelemetry-api: {install('otel')}") from error


def _begin(words: str) -> None:
    if opted_in(words):
        try:
            start_instruments()
        except ConfigurationError as error:
            # The variable applies to all libraries of a program; it may be meant for others.
            log.warning("%s enables messaging metrics, but none are recorded: %s", OPT_IN, error)


on: Instruments | None = None
"""The instruments of this process; None while disabled."""
_begin(os.environ.get(OPT_IN, ""))
