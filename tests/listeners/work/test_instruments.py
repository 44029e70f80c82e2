"""Handlers measured by OpenTelemetry's conventions for messaging, with the real SDK, sent by OTLP to a collector."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from bridge.contract.errors import ConfigurationError
from bridge.contract.jobs import BOUNDS_S
from bridge.observe import instruments
from bridge.observe.opt_in import opted_in
from bridge.queues import open_store
from bridge.queues.base import NewMessage
from listeners import Message, RetryPolicy
from tests.listeners.rig import QUEUE, listening, settled


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the process as it was."""
    monkeypatch.setattr(instruments, "on", None)
    yield
    instruments.on = None


class Collector:
    """What an OTLP exporter has sent."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []

    async def take(self, request: web.Request) -> web.Response:
        self.requests.append(ExportMetricsServiceRequest.FromString(await request.read()))
        return web.Response()

    def points(self) -> dict[str, list[tuple[dict[str, str], Any]]]:
        """Return the newest points by metric, with their attributes."""
        found: dict[str, list[tuple[dict[str, str], Any]]] = {}
        for resource in self.requests[-1].resource_metrics:
            for scope in resource.scope_metrics:
                assert (scope.scope.name, scope.schema_url) == ("queuebell", instruments.SCHEMA)
                for metric in scope.metrics:
                    points = (metric.histogram if metric.HasField("histogram") else metric.sum).data_points
                    found[f"{metric.name} {metric.unit}"] = [
                        ({each.key: each.value.string_value for each in point.attributes}, point) for point in points
                    ]
        return found


@pytest.mark.usefixtures("wanted")
async def test_handlers_are_measured_and_sent_by_otlp() -> None:
    """What they were given is counted, and each message's time recorded, with the class of what failed."""

    async def handle(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("no")

    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/metrics", collector.take)
    async with TestServer(app) as server:
        exporter = OTLPMetricExporter(endpoint=str(server.make_url("/v1/metrics")))
        provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])
        instruments.start_instruments(provider)
        async with open_store("memory://instruments") as store:
            await store.put(QUEUE, [NewMessage(b"good"), NewMessage(b"good"), NewMessage(b"bad")])
            async with listening(store, handle, retry=RetryPolicy(attempts=1)) as listener:
                await settled(listener, 2)
                await settled(listener, 1, "buried")
        await asyncio.to_thread(provider.force_flush)
        await asyncio.to_thread(provider.shutdown)
    points = collector.points()
    about = {
        "messaging.system": "queuebell", "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.destination.name": QUEUE,
    }  # fmt: skip
    ((attributes, consumed),) = points["messaging.client.consumed.messages {message}"]
    assert (attributes, consumed.as_int) == (about, 3)
    durations = points["messaging.process.duration s"]
    assert [(attributes, point.count) for attributes, point in durations] == [
        (about, 2), (about | {"error.type": "ValueError"}, 1),
    ]  # fmt: skip
    assert tuple(durations[0][1].explicit_bounds) == BOUNDS_S


@pytest.mark.usefixtures("wanted")
async def test_a_handler_that_is_cut_off_is_measured_as_cancelled() -> None:
    """A worker that stops leaves no call out, and says that this one came to nothing."""
    began, recorded = asyncio.Event(), list[tuple[str, str | None]]()

    async def handle(message: Message) -> None:
        began.set()
        await asyncio.Event().wait()

    class Seen(instruments.Instruments):
        def ended(self, queue: str, seconds: float, failure: str | None) -> None:
            recorded.append((queue, failure))

    instruments.on = Seen()
    async with open_store("memory://instruments-cut") as store:
        await store.put(QUEUE, [NewMessage(b"slow")])
        async with listening(store, handle, grace=0):
            await began.wait()
    assert recorded == [(QUEUE, "cancelled")]


@pytest.mark.usefixtures("wanted")
def test_they_are_for_whoever_opts_in(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """By the word of the conventions among others; without the extra a line is logged, and asked for it is refused."""
    assert [opted_in(words) for words in ("", "http", "http, messaging", "messaging/dup", "messagings")] == [
        False, False, True, True, False,
    ]  # fmt: skip
    instruments._begin("http")
    assert instruments.on is None
    instruments._begin("http,messaging")
    assert instruments.on is not None
    instruments.on = None
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"otel"):
        instruments.start_instruments()
    with caplog.at_level(logging.WARNING):
        instruments._begin("messaging")
    assert instruments.on is None and "opentelemetry-api" in caplog.text
