"""Spans: made where somebody asked, and by nothing of OpenTelemetry where nobody did."""

from __future__ import annotations

import datetime
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from bridge.brokers.extras import install
from bridge.contract.errors import ConfigurationError
from bridge.contract.trace_context import Traces
from bridge.contract.wire import CarriedMessage, Wake
from bridge.observe import tracing
from bridge.observe.opt_in import OPT_IN, opted_in
from bridge.observe.tracing import Cause, Tracing, causes
from bridge.producer.publisher import BlockingPublisher, Publisher
from listeners import Message
from listeners.core.settle import Failed
from listeners.work.invoke import Invoker
from tests.bridge.contract.test_trace_context import HOSTILE
from tests.support.processes import ROOT, environment
from tests.support.spans import Spans, links, parent, said, span_id, spans, traceparent

QUEUE = "billing/orders"


def parent_of(number: int, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


@pytest.fixture
def made() -> Iterator[Spans]:
    with spans() as found:
        yield found


def on() -> Tracing:
    assert tracing.on is not None
    return tracing.on


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("", False),
        ("http", False),
        ("messaging", True),
        ("http, messaging", True),
        ("messaging/dup", True),
        ("messagings", False),
    ],
)
def test_the_conventions_say_by_which_word_to_ask(words: str, asked: bool) -> None:
    """One of a list that is for all libraries of a program."""
    assert opted_in(words) is asked


@pytest.mark.parametrize(("words", "there"), [("", "[]"), ("http", "[]"), ("messaging", "['opentelemetry']")])
def test_nothing_of_opentelemetry_is_imported_unless_somebody_asks(words: str, there: str) -> None:
    """Bridge, producer, listener and command are there, and its modules are not."""
    program = """
import sys
from queuebell import Bridge, Listener, Publisher, PublishingQueue, open_store
from bridge.http.api.app import WebServer
from queuebell.command import serve, listen, publish
from bridge.observe import tracing
print(sorted({name.partition(".")[0] for name in sys.modules} & {"opentelemetry"}), tracing.on is None)
"""
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(OTEL_SEMCONV_STABILITY_OPT_IN=words),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == f"{there} {not words.startswith('messaging')}"


def test_where_the_extra_is_missing_one_is_told_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In code it is an error; the variable may be meant for others, and all goes on without spans."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError) as refused:
        tracing.start_tracing()
    assert install("otel") in str(refused.value)
    with caplog.at_level(logging.WARNING):
        tracing._begin("messaging")
    assert install("otel") in caplog.text and OPT_IN in caplog.text
    assert tracing.on is None


def test_a_wake_is_a_span_from_its_trigger_to_when_it_leaves(made: Spans) -> None:
    """A child of the one trigger that it follows from; of several a root that links to each, and counts the others."""
    first, second, third = map(parent_of, (1, 2, 3))
    on().route(Wake(QUEUE, "b" * 32, 1, "trigger", 1, 250, first))
    on().route(Wake(QUEUE, "b" * 32, 2, "trigger", 1, 0, second, traces=Traces((first, second), 4)))
    carried = CarriedMessage("7", "r", 1, "2026-11-20T17:31:00Z", headers={"traceparent": third})
    on().route(Wake(QUEUE, "b" * 32, 3, "trigger", 1, 0, messages=[carried]))
    one, several, own = made.of(f"route {QUEUE}")
    assert (one.kind, parent(one), links(one)) == (SpanKind.INTERNAL, first.split("-")[2], [first])
    assert one.end_time is not None and one.start_time is not None
    assert one.end_time - one.start_time >= 250_000_000
    assert (parent(several), links(several), said(several)[tracing.DROPPED]) == (None, [first, second], 4)
    assert (parent(own), links(own)) == (third.split("-")[2], [third])
    assert own.links[0].attributes == {"messaging.message.id": "7"}
    assert said(one) == {
        "messaging.system": "queuebell",
        "messaging.operation.name": "route",
        "messaging.operation.type": "route",
        "messaging.destination.name": QUEUE,
        "queuebell.wake.source": "trigger",
    }


def test_a_wake_of_which_nobody_told_anything_is_a_span_only_if_there_is_work(made: Spans) -> None:
    """A sweep is a poll; a trigger without a context begins a trace."""
    for reason in ("sweep", "resync", "more"):
        on().route(Wake(QUEUE, "b" * 32, 1, reason, 1, 0))
    assert made.all() == []
    on().route(Wake(QUEUE, "b" * 32, 1, "trigger", 1, 0))
    assert links(made.one(f"route {QUEUE}")) == []


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_context_breaks_nothing_and_is_followed_by_nobody(hostile: str, made: Spans) -> None:
    """In a wake, in its list, and in the headers of a message; the good one beside it is used."""
    good = parent_of(9)
    on().route(Wake(QUEUE, "b" * 32, 1, "trigger", 1, 0, hostile, traces=Traces((hostile, good), -3)))
    assert links(made.one(f"route {QUEUE}")) == [good]
    assert causes({"traceparent": hostile}, [good], "1") == [Cause({"traceparent": good})]
    with on().process(QUEUE, [Cause({"traceparent": hostile})], ["1"], 1, "trigger", batch=False):
        pass
    span = made.one(f"process {QUEUE}")
    assert (parent(span), links(span)) == (None, [])


@pytest.mark.parametrize(
    "state", ["", "=", "a=1,a=1", "vendor=" + "x" * 9000, ",".join(f"k{n}=1" for n in range(99)), "\r\n"]
)
def test_a_hostile_tracestate_costs_no_context(state: str, made: Spans) -> None:
    """What it says is for whoever wrote it; the context itself holds."""
    good = parent_of(9)
    with on().process(QUEUE, [Cause({"traceparent": good, "tracestate": state})], ["1"], 1, "trigger", batch=False):
        pass
    assert links(made.one(f"process {QUEUE}")) == [good]


def test_a_tracestate_goes_on(made: Spans) -> None:
    """From the message into the span of its handler, and from there into what is put next."""
    headers = {"traceparent": parent_of(9), "tracestate": "vendor=1"}
    with on().process(QUEUE, [Cause(headers)], ["1"], 1, "trigger", batch=False):
        assert on().carried()["tracestate"] == "vendor=1"


def test_who_decided_not_to_sample_is_heard() -> None:
    """The flag of the context is kept: no span of what follows is recorded, and it goes on as it came."""
    with spans(ParentBased(ALWAYS_ON)) as made:
        unsampled = parent_of(9, "00")
        with on().process(QUEUE, [Cause({"traceparent": unsampled})], ["1"], 1, "trigger", batch=False):
            carried = on().carried()["traceparent"]
        assert (carried[:36], carried[-2:]) == (unsampled[:36], "00")
        assert made.all() == []


@pytest.mark.parametrize(
    ("store", "server"),
    [
        ("http://10.0.0.7:7780", {"server.address": "10.0.0.7", "server.port": 7780}),
        ("postgres://db.example/shop", {"server.address": "db.example"}),
        ("http://a:1,b:2", {}),
        ("http://[::1", {}),
        ("memory", {}),
        ("<Store at 0x1>", {}),
        ("", {}),
    ],
)
def test_the_server_is_told_where_the_address_names_one(store: str, server: dict[str, object], made: Spans) -> None:
    """Of several none is told, for nobody knows which one answered."""
    with on().settle(QUEUE, [], ["1"], store):
        pass
    told = said(made.one(f"settle {QUEUE}"))
    assert {name: value for name, value in told.items() if name.startswith("server.")} == server


class Bus:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.told: list[str | None] = []

    async def publish(self, events: list[object]) -> None:
        self.told += [event.traceparent for event in events]  # type: ignore[attr-defined]

    async def close(self) -> None:
        pass


async def test_a_publish_without_a_put_is_a_span_whose_context_goes_along(made: Spans) -> None:
    """A child of what the caller is about; one that was given a context has it, and is no span."""
    bus = Bus()
    async with Publisher(bus) as publisher:
        with made.tracer().start_as_current_span("request"):
            await publisher.publish(QUEUE, count=3)
    span, request = made.one(f"publish {QUEUE}"), made.one("request")
    assert bus.told == [traceparent(span)]
    assert (span.kind, parent(span)) == (SpanKind.PRODUCER, span_id(request))
    assert said(span)["messaging.operation.type"] == "send"
    assert said(span)["messaging.batch.message_count"] == 3
    async with Publisher(bus) as publisher:
        await publisher.publish(QUEUE, traceparent=parent_of(5))
    assert bus.told[1:] == [parent_of(5)] and len(made.all()) == 2


def test_a_publish_from_any_thread_is_a_child_of_what_goes_on_there(made: Spans) -> None:
    """The loop of the publisher is in another thread, and knows nothing of the caller's span."""
    bus = Bus()
    with BlockingPublisher(bus) as publisher, made.tracer().start_as_current_span("request"):
        publisher.publish(QUEUE)
    assert parent(made.one(f"publish {QUEUE}")) == span_id(made.one("request"))
    assert bus.told == [traceparent(made.one(f"publish {QUEUE}"))]


def test_a_failure_is_told_by_type(made: Spans) -> None:
    """The class as one would import it; the status says the rest."""
    with pytest.raises(ConfigurationError), on().settle(QUEUE, [], ["1", "2"], ""):
        raise ConfigurationError("no such thing")
    span = made.one(f"settle {QUEUE}")
    assert said(span)["error.type"] == "queuebell.ConfigurationError"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no such thing")
    assert said(span)["messaging.batch.message_count"] == 2


class Mute(Exception):
    """One that somebody wrote in a hurry."""

    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize("kind", ["one", "batch"])
async def test_an_exception_without_a_text_breaks_nothing(kind: str, made: Spans) -> None:
    """It is a failed attempt as any other, and its span says its type."""

    async def one(message: Message) -> None:
        raise Mute

    async def many(messages: list[Message]) -> None:
        raise Mute

    invoker = Invoker(one if kind == "one" else many, threads=1, timeout=None)
    message = Message("1", QUEUE, b"", 1, datetime.datetime.now(datetime.UTC))
    if kind == "one":
        outcome = await invoker.one(message, lambda thread: None)
    else:
        (outcome,) = await invoker.many([message], lambda thread: None)
    assert isinstance(outcome, Failed)
    span = made.one(f"process {QUEUE}")
    assert (said(span)["error.type"], span.status.status_code) == (f"{__name__}.Mute", StatusCode.ERROR)
