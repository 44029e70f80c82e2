"""Spans by OpenTelemetry's conventions for messaging (1.44, in development), for whoever asks for them.

The API alone is used here: which spans are kept, and where they go, is for the SDK of the program that this runs in.
While nobody asks, `on` is None, nothing of OpenTelemetry is imported, and each place that could make a span costs a
look at `on`.

A span that follows from one trace context is its child, and links to it. One that follows from several is the root of
a trace of its own, and links to each: a span has one parent, and none of them is more its parent than the others.
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

from bridge.brokers.extras import install
from bridge.contract.errors import ConfigurationError, said
from bridge.contract.sources import WORK
from bridge.contract.trace_context import TRACEPARENT, is_traceparent, merged
from bridge.contract.wire import Wake
from bridge.observe.opt_in import OPT_IN, SCHEMA, opted_in
from bridge.observe.swallowed import swallowing

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, TracerProvider

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
"""Why a receive is told of although it found nothing: somebody had said that there is work. All else is a poll."""
_within_send: contextvars.ContextVar[bool] = contextvars.ContextVar("queuebell_within_send", default=False)


class Cause(NamedTuple):
    """What a span follows from: a trace context as headers name it, unchecked, and the message that brought it."""

    headers: Mapping[str, str]
    message: str | None = None


def causes(headers: Mapping[str, str], traces: Sequence[str], message: str) -> list[Cause]:
    """Return what follows from a message: its own context, else those of the triggers that woke somebody for it."""
    if is_traceparent(headers.get(TRACEPARENT)):
        return [Cause(headers, message)]
    return [Cause({TRACEPARENT: trace}) for trace in traces]


class Tracing:
    """Makes the spans; ``provider`` is the program's own tracer provider, or None for the global one.

    Nothing that comes in breaks it: what is no trace context is passed over. No provider or span processor breaks what
    is traced: its exceptions cost the span.
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
        """Whether this is part of a put that has its span already."""
        return _within_send.get()

    @contextlib.contextmanager
    def send(self, queue: str, causes: Sequence[Cause], count: int, store: str) -> Iterator[Span]:
        """Make the span of a put of ``count`` messages current; ``causes`` are those that bring a context of their own.

        Where all do, the span is no context of theirs (``CLIENT``).
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
        """Make the span of a publish that no put made, which is over at once; return its context for the trigger."""
        span = self._start("publish", "send", queue, self._api.SpanKind.PRODUCER, [], "", roots=False)
        note(span, "messaging.batch.message_count", size)
        self._end(span)
        return self.carried(span).get(TRACEPARENT)

    def carried(self, span: Span | None = None) -> dict[str, str]:
        """Return the headers that name the current span, or this one; none where there is no valid one."""
        carrier: dict[str, str] = {}
        with swallowing(SPANS):
            self._w3c.inject(carrier, None if span is None else self._api.set_span_in_context(span))
        return carrier if is_traceparent(carrier.get(TRACEPARENT)) else {}

    # The bridge -----------------------------------------------------------------------------------------------------

    def route(self, wake: Wake) -> None:
        """Make the span of a wake that leaves now: it began with the oldest trigger that it stands for."""
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
        """Make the span of a handler's run current; whoever calls sets its `OUTCOME`."""
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
        """Make the span of a settlement current."""
        span = self._start("settle", "settle", queue, self._api.SpanKind.CLIENT, self._links(causes), store)
        note(span, "messaging.batch.message_count", len(ids))
        if len(ids) == 1:
            note(span, "messaging.message.id", ids[0])
        with self._current(span):
            yield span

    # What they share ------------------------------------------------------------------------------------------------

    def failed(self, span: Span, error: BaseException, *, record: bool = False) -> None:
        """Say on a span that what it tells of failed; with ``record`` the exception is an event of its."""
        kind = type(error)
        note(span, "error.type", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
        with swallowing(SPANS):
            span.set_status(self._api.StatusCode.ERROR, said(error))
        if record:
            # Of an exception whose text cannot be made there is no event, and what else is told of it stays.
            with contextlib.suppress(Exception):
                span.record_exception(error)

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
        """Start a span; with ``roots`` nothing that happens to be current is its parent: tasks inherit what was."""
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
        """Return a link for each context that is one, each context once."""
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
    """Put what somebody else sends: neither a span nor a context is ours to add."""
    within = _within_send.set(True)
    try:
        yield
    finally:
        _within_send.reset(within)


@functools.lru_cache(maxsize=64)
def _server(store: str) -> dict[str, str | int]:
    """Return the attributes of the server at a store's address, as far as it names one."""
    try:
        parts = urlsplit(store)
        host, port = parts.hostname, parts.port
    except ValueError:  # several of them, or no address
        return {}
    if not parts.scheme or not host:
        return {}
    return {"server.address": host} if port is None else {"server.address": host, "server.port": port}


def start_tracing(provider: TracerProvider | None = None) -> None:
    """Have spans made in this process from now on, by ``provider`` or by OpenTelemetry's global one.

    The environment variable ``OTEL_SEMCONV_STABILITY_OPT_IN`` with the word ``messaging`` does the same at the start.
    Called again, the newest provider holds. Raises `ConfigurationError` where the extra ``otel`` is not installed.
    """
    global on  # noqa: PLW0603 - one look at it is all that spans cost who wants none
    try:
        on = Tracing(provider)
    except ImportError as error:
        raise ConfigurationError(f"traces need opentelemetry-api: {install('otel')}") from error


def _begin(words: str) -> None:
    if opted_in(words):
        try:
            start_tracing()
        except ConfigurationError as error:
            # The variable is one for all libraries of a program: others may be meant.
            log.warning("%s enables messaging traces, but none are recorded: %s", OPT_IN, error)


on: Tracing | None = None
"""What makes the spans of this process; None while nobody asked for any."""
_begin(os.environ.get(OPT_IN, ""))
