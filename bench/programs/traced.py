"""Runs a module with every span made, kept and written as OTLP, as a program does that has OpenTelemetry's SDK.

``python -m bench.programs.traced MODULE ARGUMENTS``. What is written goes nowhere: what happens
to it then is the collector's cost.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from queuebell.bridge.observe.tracing import start_tracing


class Written(SpanExporter):
    """Writes spans as they would travel, and drops them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write some of them."""
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Written()))
    start_tracing(provider)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
