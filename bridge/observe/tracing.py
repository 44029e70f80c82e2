"""Optional spans by OpenTelemetry's conventions for messaging (1.44, in development).

Only the API is used: the program's SDK decides which spans are kept and where they go. Until they are enabled, `on` is
None, nothing of OpenTelemetry is imported, and each place that could make a span only checks `on`.

A span caused by one trace context is its child and links to it. A span with several causes is the root of its own trace
and links to each, because a span has only one parent.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import ENDS_THE_PROCESS, ConfigurationError, said
from queuebell.bridge.contract.sources import WORK
from queuebell.bridge.contract.trace_context import TRACEPARENT, is_traceparent, merged
from queuebell.bridge.contract.wire import Wake
from queuebell.bridge.observe.swallowed import swallowing

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, TracerProvider

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
"""The environment variable of all libraries of a program: values separated by commas."""
SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"


def opted_in(words: str) -> bool:
    """Return whether the value of `OPT_IN` enables the conventions for messaging."""
    return not {"messaging", "messaging/dup"}.isdisjoint(word.strip() for word in words.split(","))


log = logging.getLogger("queuebell.tracing")

SYSTEM: Final = "queuebell"
TRACESTATE: Final = "tracestate"
WAKE_SOURCE: Final = "queuebell.wake.source"
OUTCOME: Final = "queuebell.message.outcome"
ATTEMPT: Final = "queuebell.message.attempt"
REFUSED: Final = "queuebell.settle.refused"
DROPPED: Final = "queuebell.wake.traces_dropped"
CANCELLED: Final = "cancelled"
SPANS: Final = "a span of OpenTelemetry"

_WOKEN: Final = WORK | {"more"}
"""Sources whose receives get a span even if empty, because work was announced; others are polls."""
_within_send: contextvars.ContextVar[bool] = contextvars.ContextVar("queuebell_within_send", default=False)


class Cause(NamedTuple):
    """A cause of a span: unchecked headers with a trace context, and the id of their message."""

    headers: Mapping[str, str]
    message: str | None = None


def causes(headers: Mapping[str, str], traces: Sequence[str], message: str) -> list[Cause]:
    """Return the causes from a message: its own context, else those of the triggers of its wake."""
    if is_traceparent(headers.get(TRACEPARENT)):
        return [Cause(headers, message)]
    return [Cause({TRACEPARENT: trace}) for trace in traces]


class Tracing:
    """Makes spans; ``provider`` is the program's tracer provider, or None for the global one.

    Invalid trace contexts are ignored. Exceptions of providers and span processors lose the span, nothing else.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._tracer = trace.get_tracer(SYSTEM, tracer_provider=provider, schema_url=SCHEMA)
        self._w3c = TraceContextTextMapPropagator()

    # The producer ---------------------------------------------------------------------------------------------------

    @property
    def within_send(self) -> bool:
        """Whether this is part of a put that already has a span."""
        return _within_send.get()

    @contextlib.contextmanager
    def send(self, queue: str, causes: Sequence[Cause], count: int, store: str) -> Iterator[Span]:
        """Start the span of a put of ``count`` messages; ``causes`` are the messages with a context of their own.

        If all have one, the span's kind is ``CLIENT``, as it is not their context.
        """
        own = self._links(causes)
        api = self._api
        kind = api.SpanKind.CLIENT if len(causes) == count and own else api.SpanKind.PRODUCER
        at_hand = api.get_current_span().get_span_context().is_valid
        span = self._start("send", "send", queue, kind, own, store, roots=not at_hand)
        if count > 1:
            note(span, "messaging.batch.message_count", count)
        with for_another(), self._current(span):
            yield span

    def publish(self, queue: str, size: int) -> str | None:
        """Make the span of a publish without a put; return its context for the trigger."""
        span = self._start("publish", "send", queue, self._api.SpanKind.PRODUCER, [], "", roots=False)
        note(span, "messaging.batch.message_count", size)
        self._end(span)
        return self.carried(span).get(TRACEPARENT)

    def carried(self, span: Span | None = None) -> dict[str, str]:
        """Return the headers of the current span, or of ``span``; none if it is invalid."""
        carrier: dict[str, str] = {}
        with swallowing(SPANS):
            self._w3c.inject(carrier, None if span is None else self._api.set_span_in_context(span))
        return carrier if is_traceparent(carrier.get(TRACEPARENT)) else {}

    # The bridge -----------------------------------------------------------------------------------------------------

    def route(self, wake: Wake) -> None:
        """Make the span of a wake that is sent now; it starts at its oldest trigger."""
        with swallowing(SPANS):
            told = merged(None, wake)
            causes = [Cause({TRACEPARENT: parent}) for parent in (told.parents if told else ())]
            causes += [Cause(message.headers, message.id) for message in wake.messages or ()]
            links = self._links(causes)
            if not links and wake.reason not in WORK:
                return
            began = time.time_ns() - wake.age_ms * 1_000_000
            span = self._start("route", "route", wake.queue, self._api.SpanKind.INTERNAL, links, "", began=began)
            span.set_attribute(WAKE_SOURCE, wake.reason)
            if told is not None and told.dropped:
                span.set_attribute(DROPPED, told.dropped)
            span.end()

    # The listener ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def receive(
        self, queue: str, source: str, traces: Sequence[str], store: str
    ) -> Iterator[Callable[[Sequence[Cause]], None]]:
        """Make the span of a receive current; call what it gives with the messages that it brought.

        A poll that finds nothing is none. One that finds something has its span in hindsight.
        """
        woken = source in _WOKEN
        links = self._links([Cause({TRACEPARENT: parent}) for parent in traces]) if source == "trigger" else []
        kind, began = self._api.SpanKind.CLIENT, time.time_ns()

        def found(span: Span, brought: Sequence[Cause]) -> None:
            note(span, "messaging.batch.message_count", len(brought))

        if woken:
            span = self._start("receive", "receive", queue, kind, links, store)
            note(span, WAKE_SOURCE, source)

            def told(brought: Sequence[Cause]) -> None:
                known = {link.context.span_id for link in links}
                with swallowing(SPANS):
                    for link in self._links(brought):
                        if link.context.span_id not in known:
                            span.add_link(link.context, link.attributes)
                found(span, brought)

            with self._current(span):
                yield told
            return

        def told_late(brought: Sequence[Cause]) -> None:
            if brought:
                late = self._start("receive", "receive", queue, kind, self._links(brought), store, began=began)
                note(late, WAKE_SOURCE, source)
                found(late, brought)
                self._end(late)

        yield told_late

    @contextlib.contextmanager
    def process(
        self, queue: str, causes: Sequence[Cause], ids: Sequence[str], attempt: int, source: str, *, batch: bool
    ) -> Iterator[Span]:
        """Start the span of a handler's run; the caller sets its `OUTCOME`."""
        span = self._start("process", "process", queue, self._api.SpanKind.CONSUMER, self._links(causes), "")
        note(span, WAKE_SOURCE, source)
        if batch:
            note(span, "messaging.batch.message_count", len(ids))
        if len(ids) == 1:
            note(span, "messaging.message.id", ids[0])
            note(span, ATTEMPT, attempt)
        with self._current(span):
            try:
                yield span
            except BaseException:
                note(span, OUTCOME, CANCELLED)
                raise

    @contextlib.contextmanager
    def settle(self, queue: str, causes: Sequence[Cause], ids: Sequence[str], store: str) -> Iterator[Span]:
        """Start the span of a settlement."""
        span = self._start("settle", "settle", queue, self._api.SpanKind.CLIENT, self._links(causes), store)
        note(span, "messaging.batch.message_count", len(ids))
        if len(ids) == 1:
            note(span, "messaging.message.id", ids[0])
        with self._current(span):
            yield span

    # Common parts ------------------------------------------------------------------------------------------------

    def failed(self, span: Span, error: BaseException, *, record: bool = False) -> None:
        """Mark a span as failed; with ``record`` add the exception as an event."""
        kind = type(error)
        note(span, "error.type", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
        with swallowing(SPANS):
            span.set_status(self._api.StatusCode.ERROR, said(error))
        if record:
            try:
                span.record_exception(error)
            except ENDS_THE_PROCESS:
                raise
            except BaseException:  # noqa: BLE001 - the exception's own code; one that cannot be formatted has no event
                log.debug("no event of an exception that cannot be formatted: %s", kind.__name__)

    def _start(
        self,
        operation: str,
        type_: str,
        queue: str,
        kind: SpanKind,
        links: Sequence[Link],
        store: str,
        *,
        roots: bool = True,
        began: int | None = None,
    ) -> Span:
        """Start a span; with ``roots`` the current span is not its parent, as tasks inherit unrelated ones."""
        from opentelemetry.context import Context

        api = self._api
        context = Context() if roots else None
        if roots and len(links) == 1:
            context = api.set_span_in_context(api.NonRecordingSpan(links[0].context), context)
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": type_,
            "messaging.destination.name": queue,
            **_server(store),
        }
        with swallowing(SPANS):
            return self._tracer.start_span(f"{operation} {queue}", context, kind, attributes, links, began)
        invalid: Span = api.INVALID_SPAN
        return invalid

    def _links(self, causes: Iterable[Cause]) -> list[Link]:
        """Return a link for each valid context, each once."""
        links: dict[tuple[int, int], Link] = {}
        for headers, message in causes:
            context = self._context(headers)
            if context is not None:
                attributes = None if message is None else {"messaging.message.id": message}
                links.setdefault((context.trace_id, context.span_id), self._api.Link(context, attributes))
        return list(links.values())

    def _context(self, headers: Mapping[str, str]) -> SpanContext | None:
        if not is_traceparent(headers.get(TRACEPARENT)):
            return None
        from opentelemetry.context import Context

        span = self._api.get_current_span(self._w3c.extract(dict(headers), Context()))
        return span.get_span_context()

    @contextlib.contextmanager
    def _current(self, span: Span) -> Iterator[None]:
        try:
            with self._api.use_span(span, record_exception=False, set_status_on_exception=False):
                try:
                    yield
                except Exception as error:
                    self.failed(span, error)
                    raise
        finally:
            self._end(span)

    def _end(self, span: Span) -> None:
        with swallowing(SPANS):
            span.end()


def note(span: Span, name: str, value: str | int) -> None:
    """Set an attribute of a span."""
    with swallowing(SPANS):
        span.set_attribute(name, value)


@contextlib.contextmanager
def for_another() -> Iterator[None]:
    """Put messages of another sender: adds no span and no context."""
    within = _within_send.set(True)
    try:
        yield
    finally:
        _within_send.reset(within)


@functools.lru_cache(maxsize=64)
def _server(store: str) -> dict[str, str | int]:
    """Return the server attributes of a store's address."""
    try:
        parts = urlsplit(store)
        host, port = parts.hostname, parts.port
    except ValueError:  # Several addresses, or none.
        return {}
    if not parts.scheme or not host:
        return {}
    return {"server.address": host} if port is None else {"server.address": host, "server.port": port}


def start_tracing(provider: TracerProvider | None = None) -> None:
    """Start making spans in this process, with ``provider`` or OpenTelemetry's global one.

    The environment variable ``OTEL_SEMCONV_STABILITY_OPT_IN`` with the value ``messaging`` does the same at the start.
    A further call replaces the provider. Raises `ConfigurationError` if the extra ``otel`` is not installed.
    """
    global on  # noqa: PLW0603 - if disabled, a check of it is the only cost
    try:
        on = Tracing(provider)
    except ImportError as error:
        raise ConfigurationError(f"traces need opentelemetry-api: {install('otel')}") from error


def _begin(words: str) -> None:
    if opted_in(words):
        try:
            start_tracing()
        except ConfigurationError as error:
            # The variable applies to all libraries of a program; it may be meant for others.
            log.warning("%s enables messaging traces, but none are recorded: %s", OPT_IN, error)


on: Tracing | None = None
"""The tracing of this process; None while disabled."""
_begin(os.environ.get(OPT_IN, ""))
