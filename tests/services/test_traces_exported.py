"""Traces of real processes at a collector, by the exporter that people use, as docs/how-to/trace-messages.md says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.docs.snippets import snippets
from tests.support.processes import ROOT, Processes, Program, Service, environment, free_port

QUEUE = "billing/orders"
PAGE = ROOT / "docs" / "how-to" / "trace-messages.md"
PATIENCE_S = 100.0
# What opentelemetry-instrument does before a program begins: a provider of the SDK, and an exporter to OTLP.
INSTRUMENTED = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
"""
PUT = """
import asyncio, sys
from queuebell import open_store

async def main():
    async with open_store(sys.argv[1]) as store:
        await store.put("billing/orders", ["one"])

asyncio.run(main())
"""


class Collector:
    """Takes OTLP over HTTP, as protobuf."""

    def __init__(self) -> None:
        self.url = ""
        self._spans: dict[str, list[tuple[str, Span]]] = {}
        self._came = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        """Read one export."""
        read = ExportTraceServiceRequest.FromString(await request.read())
        for resource in read.resource_spans:
            names = [one.value.string_value for one in resource.resource.attributes if one.key == "service.name"]
            for scope in resource.scope_spans:
                self._spans.setdefault(names[0], []).extend((scope.scope.name, span) for span in scope.spans)
        self._came.set()
        content = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=content, content_type="application/x-protobuf")

    async def span(self, service: str, name: str) -> tuple[str, Span]:
        """Wait for the first span of this name that a service made; with the name of what made it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self._came.clear()
                for scope, span in self._spans.get(service, ()):
                    if span.name == name:
                        return scope, span
                await self._came.wait()


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    collector.url = f"http://{host}:{port}"
    try:
        yield collector
    finally:
        await runner.cleanup()


async def test_a_trace_of_three_processes_arrives_at_a_collector(processes: Processes) -> None:
    """Producer and bridge without a line of code, the worker as on the page: one trace, parents and links in order."""
    (worker_py,) = [block for block in snippets() if block.page == PAGE and block.saved == "worker"]
    (processes.folder / "sitecustomize.py").write_text(INSTRUMENTED)
    async with collecting() as collector:

        def env(service: str, *, instrumented: bool) -> dict[str, str]:
            told = environment(
                OTEL_SERVICE_NAME=service,
                OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
                **({"OTEL_SEMCONV_STABILITY_OPT_IN": "http,messaging"} if instrumented else {}),
            )
            if instrumented:
                told["PYTHONPATH"] = os.pathsep.join((str(processes.folder), told["PYTHONPATH"]))
            return told

        url = f"http://127.0.0.1:{free_port()}"
        serve = ("-m", "queuebell", "serve", "--listen", url.removeprefix("http://"), "--data", "data")
        bridge: Service = await processes.start(
            sys.executable, *serve, kind=Service, env=env("bridge", instrumented=True)
        )
        await bridge.line("queuebell ready on ")
        (processes.folder / "elsewhere").mkdir()
        program = processes.folder / "elsewhere" / "worker.py"
        program.write_text(worker_py.text.replace("http://127.0.0.1:8470", url))
        worker: Program = await processes.start(sys.executable, str(program), env=env("worker", instrumented=False))
        producer: Program = await processes.start(
            sys.executable, "-c", PUT, url, env=env("producer", instrumented=True)
        )
        assert await producer.ended() == 0, producer.errors()
        await worker.line("charged one")
        assert await worker.stop() == 0, worker.errors()
        made_by, send = await collector.span("producer", f"send {QUEUE}")
        _, route = await collector.span("bridge", f"route {QUEUE}")
        _, process = await collector.span("worker", f"process {QUEUE}")
        _, charge = await collector.span("worker", "charge")
        _, settle = await collector.span("worker", f"settle {QUEUE}")
        await bridge.stop()
    assert made_by == "queuebell"
    assert {span.trace_id for span in (process, charge, settle)} == {send.trace_id}
    assert process.parent_span_id == send.span_id == settle.parent_span_id
    assert charge.parent_span_id == process.span_id
    assert [(link.trace_id, link.span_id) for link in process.links] == [(send.trace_id, send.span_id)]
    assert (send.kind, process.kind) == (Span.SPAN_KIND_PRODUCER, Span.SPAN_KIND_CONSUMER)
    assert (route.kind, settle.kind) == (Span.SPAN_KIND_INTERNAL, Span.SPAN_KIND_CLIENT)
    told = {one.key: one.value.string_value for one in process.attributes}
    assert (told["messaging.system"], told["messaging.destination.name"]) == ("queuebell", QUEUE)
