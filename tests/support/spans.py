"""Spans that were made, by the real SDK, and what they say of one another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import Tracer

from queuebell.bridge.observe import tracing


class Spans:
    """All spans that have ended while it was there, by name."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def tracer(self) -> Tracer:
        """Return the tracer of somebody else's code in the same program."""
        return self.provider.get_tracer("somebody")

    def all(self) -> list[ReadableSpan]:
        """Return them in the order in which they ended."""
        return list(self._exporter.get_finished_spans())

    def of(self, name: str) -> list[ReadableSpan]:
        """Return those of a name."""
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the only one of a name."""
        (span,) = self.of(name)
        return span

    def names(self) -> list[str]:
        """Return their names in alphabetical order."""
        return sorted(span.name for span in self.all())


def traceparent(span: ReadableSpan) -> str:
    """Return the context of a span as it travels."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def links(span: ReadableSpan) -> list[str]:
    """Return the contexts that a span links to, as they travel."""
    return [
        f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-{link.context.trace_flags:02x}"
        for link in span.links
    ]


def parent(span: ReadableSpan) -> str | None:
    """Return the id of a span's parent; None for a root."""
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def span_id(span: ReadableSpan) -> str:
    """Return a span's own id."""
    return traceparent(span).split("-")[2]


def said(span: ReadableSpan) -> dict[str, object]:
    """Return what a span says of itself."""
    return dict(span.attributes or {})


@contextlib.contextmanager
def spans(sampler: Sampler | None = None) -> Iterator[Spans]:
    """Have spans made meanwhile, and nobody's afterwards."""
    made = Spans(sampler)
    tracing.start_tracing(made.provider)
    try:
        yield made
    finally:
        tracing.on = None
        made.provider.shutdown()
