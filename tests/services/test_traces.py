"""One message followed by its spans, from the put to the delete: over each way that it may take."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from queuebell.bridge import (
    Bridge,
    NewMessage,
    Publisher,
    open_store,
    put_in_transaction,
    put_once_in_transaction,
)
from queuebell.bridge.contract.trace_context import TRACES_MAX
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.observe import tracing
from queuebell.bridge.queues.base import StoredMessage
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.triggers.attachment import Attachments
from queuebell.listeners import PULL_ONLY, Bury, Listener, Message, Replay, Retry, RetryPolicy
from queuebell.listeners.work.command import Command
from tests.support.brokers import NatsServer
from tests.support.postgres import running
from tests.support.processes import until as holds
from tests.support.redis import RedisServer
from tests.support.spans import Spans, links, parent, said, span_id, spans, traceparent

QUEUE = "billing/orders"
PATIENCE_S = 100.0


@pytest.fixture
def made() -> Iterator[Spans]:
    with spans() as found:
        yield found


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[Bridge, str]]:
    async with Bridge() as bridge, WebServer(bridge, WebSettings(port=0)) as server:
        yield bridge, server.url


class Work:
    """A handler that does something of its own for each message, and says when so many are done."""

    def __init__(self, made: Spans, many: int = 1) -> None:
        self._tracer = made.tracer()
        self._many = many
        self.seen: list[Message] = []
        self.done = asyncio.Event()
        self.idle = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def do(self, message: Message) -> None:
        """Handle one on the loop."""
        self.take(message)

    def take(self, message: Message) -> None:
        """Handle one in a thread."""
        with self._tracer.start_as_current_span("mine"):
            self.seen.append(message)
        if len(self.seen) == self._many:
            self._loop.call_soon_threadsafe(self.done.set)


@contextlib.asynccontextmanager
async def listening(
    store: Any, handler: Callable[..., Any], queue: str = QUEUE, **options: Any
) -> AsyncIterator[Listener]:
    """Run a listener, and stop it in order: what it settles is settled then."""
    listener = Listener(store, queue, handler, handle_signals=False, **options)
    running = asyncio.create_task(listener.run(), name="worker")
    try:
        async with asyncio.timeout(PATIENCE_S):
            await listener.started()
        yield listener
    finally:
        await listener.stop()
        await running


async def until(event: asyncio.Event) -> None:
    """Wait for an event, and not for ever."""
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Do something as a program does that asked for no spans."""
    before, tracing.on = tracing.on, None
    try:
        yield
    finally:
        tracing.on = before


def settled(bridge: Bridge) -> bool:
    """Say whether somebody listens, and has looked at all that there was to look at."""
    state = bridge.describe(QUEUE)
    return bool(bridge.listeners()) and state is not None and not state.dirty


def trace_of(span: Any) -> str:
    """Return the trace that a span is of."""
    return traceparent(span).split("-")[1]


@pytest.mark.parametrize("threaded", [False, True])
async def test_on_the_queue_service_one_trace_goes_from_the_put_to_the_delete(threaded: bool, made: Spans) -> None:
    """The caller's span, send, route, process with what the handler does, and settle; nothing but the put rings.

    What goes on in a handler is a child of its span, on the loop and in a thread.
    """
    work = Work(made)
    async with served() as (_, url), open_store(url) as store:
        async with listening(url, work.take if threaded else work.do, bridge=url):
            with made.tracer().start_as_current_span("request"):
                (receipt,) = await store.put(QUEUE, [NewMessage("one", headers={"shop": "7"})])
            await until(work.done)
    request, send = made.one("request"), made.one(f"send {QUEUE}")
    process, settle = made.one(f"process {QUEUE}"), made.one(f"settle {QUEUE}")
    assert {trace_of(span) for span in (send, process, settle, made.one("mine"))} == {trace_of(request)}
    assert (send.kind, parent(send)) == (SpanKind.PRODUCER, span_id(request))
    (message,) = work.seen
    assert dict(message.headers) == {"shop": "7", "traceparent": traceparent(send)} and message.traces == ()
    assert (process.kind, parent(process), links(process)) == (SpanKind.CONSUMER, span_id(send), [traceparent(send)])
    assert parent(made.one("mine")) == span_id(process)
    assert (settle.kind, links(settle)) == (SpanKind.CLIENT, [traceparent(send)])
    # It comes with a wake, or the worker was still connecting and finds it: one of them tells of it either way.
    looks = made.of(f"route {QUEUE}") + made.of(f"receive {QUEUE}")
    assert [traceparent(send)] in [links(span) for span in looks]
    told = said(process)
    assert told["messaging.message.id"] == receipt.id == said(send)["messaging.message.id"]
    assert (told["queuebell.message.outcome"], told["queuebell.message.attempt"]) == ("done", 1)
    assert said(settle)["messaging.message.id"] == receipt.id
    assert process.status.status_code is StatusCode.UNSET


async def test_a_command_has_the_context_in_its_environment(tmp_path: Path, made: Spans) -> None:
    """Of the run that it is: what it traces, in whatever language, is a child of that."""
    told = tmp_path / "told"
    async with served() as (_, url), open_store(url) as store:
        async with listening(url, Command(f"printf %s $TRACEPARENT >{told}.new && mv {told}.new {told}"), bridge=url):
            await store.put(QUEUE, ["one"])
            await holds(lambda: made.of(f"process {QUEUE}"), "the command has ended")
    assert told.read_text() == traceparent(made.one(f"process {QUEUE}"))


async def test_a_put_of_several_is_one_send_and_each_of_them_a_process(made: Spans) -> None:
    """The conventions: without a span for each message, that of the send goes with all of them."""
    work = Work(made, many=3)
    async with served() as (_, url), open_store(url) as store, listening(url, work.do, bridge=url):
        await store.put(QUEUE, ["one", "two", "three"])
        await until(work.done)
    send = made.one(f"send {QUEUE}")
    assert said(send)["messaging.batch.message_count"] == 3 and "messaging.message.id" not in said(send)
    assert [parent(span) for span in made.of(f"process {QUEUE}")] == [span_id(send)] * 3


async def test_a_context_that_the_producer_gave_is_not_touched(made: Spans) -> None:
    """The send is a span beside it then (CLIENT), and links to it; what follows is its child."""
    own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"traceparent": own, "tracestate": "vendor=1"}
    work = Work(made)
    async with served() as (_, url), open_store(url) as store, listening(url, work.do, bridge=url):
        await store.put(QUEUE, [NewMessage("one", headers=headers)])
        await until(work.done)
    send = made.one(f"send {QUEUE}")
    assert (send.kind, links(send)) == (SpanKind.CLIENT, [own])
    assert dict(work.seen[0].headers) == headers
    assert parent(made.one(f"process {QUEUE}")) == "00f067aa0ba902b7"


async def test_a_message_with_as_many_headers_as_there_may_be_goes_without(made: Spans) -> None:
    """A put never fails for its trace: the wake's contexts are all that is known of it."""
    work = Work(made)
    full = {"a": "x" * 8190}
    async with served() as (_, url), open_store(url) as store, listening(url, work.do, bridge=url):
        await store.put(QUEUE, [NewMessage("one", headers=full)])
        await until(work.done)
    assert dict(work.seen[0].headers) == full
    assert links(made.one(f"process {QUEUE}")) == []


async def test_a_batch_handler_links_to_each_of_its_messages(made: Spans) -> None:
    """It is the root of its own trace, and says which message each link is of; one outcome, or that they differ."""
    done = asyncio.Event()

    async def handle(messages: list[Message]) -> list[Retry | None]:
        assert trace.get_current_span().get_span_context().is_valid
        done.set()
        return [None, *[Retry(after=600)] * (len(messages) - 1)]

    async with served() as (_, url), open_store(url) as store:
        receipts = [*await store.put(QUEUE, ["one"]), *await store.put(QUEUE, ["two"])]
        async with listening(url, handle, bridge=url):
            await until(done)
    sends, process = made.of(f"send {QUEUE}"), made.one(f"process {QUEUE}")
    assert (parent(process), links(process)) == (None, [traceparent(span) for span in sends])
    named = [dict(link.attributes or {})["messaging.message.id"] for link in process.links]
    assert named == [receipt.id for receipt in receipts]
    assert said(process)["messaging.batch.message_count"] == 2
    assert said(process)["queuebell.message.outcome"] == "mixed"
    settled = [said(span)["messaging.batch.message_count"] for span in made.of(f"settle {QUEUE}")]
    assert sum(settled) == 2


async def test_burial_and_replay_keep_the_context_of_the_message(made: Spans) -> None:
    """Whoever follows the put sees both attempts, and the facts of the burial name it."""
    done = asyncio.Event()
    burials = []

    async def handle(message: Message) -> None:
        if message.burial is None:
            raise Bury("cannot be done")
        done.set()

    async def put_back(message: Message) -> None:
        burials.append(message.burial)
        raise Replay

    async with served() as (_, url), open_store(url) as store:
        async with (
            listening(url, handle, bridge=url),
            listening(url, put_back, f"{QUEUE}-poison", bridge=url),
        ):
            await store.put(QUEUE, ["one"])
            await until(done)
    send = made.of(f"send {QUEUE}")[0]
    assert [burial.traceparent for burial in burials] == [traceparent(send)]
    first, second = made.of(f"process {QUEUE}")
    assert [parent(first), parent(second)] == [span_id(send)] * 2
    assert said(first)["queuebell.message.outcome"] == "buried"
    assert (said(first)["error.type"], first.status.status_code) == ("queuebell.Bury", StatusCode.ERROR)
    back = made.one(f"process {QUEUE}-poison")
    assert (said(back)["queuebell.message.outcome"], back.status.status_code) == ("replayed", StatusCode.UNSET)
    assert parent(back) == span_id(send)


async def test_triggers_that_became_one_wake_are_a_link_each(made: Spans) -> None:
    """The newest 32 of 40 contexts, at the bridge and at the worker; how many were dropped is told."""
    work = Work(made)
    async with served() as (_, url), Bridge() as bridge, open_store(url) as store:
        async with Publisher(bridge) as publisher:
            for _ in range(TRACES_MAX + 8):
                await publisher.publish(QUEUE)
        with untraced():
            await store.put(QUEUE, ["one"])
        async with listening(url, work.do, bridge=bridge):
            await until(work.done)
    published = [traceparent(span) for span in made.of(f"publish {QUEUE}")]
    newest = published[-TRACES_MAX:]
    route = made.of(f"route {QUEUE}")[0]
    assert (parent(route), links(route), said(route)[tracing.DROPPED]) == (None, newest, 8)
    process = made.one(f"process {QUEUE}")
    assert (parent(process), links(process)) == (None, newest)
    assert work.seen[0].traces == tuple(newest)
    (receive,) = [span for span in made.of(f"receive {QUEUE}") if said(span)["messaging.batch.message_count"]]
    assert (links(receive), said(receive)["queuebell.wake.source"]) == (newest, "trigger")


async def test_over_a_broker_the_context_goes_both_ways(tmp_path: Path, made: Spans) -> None:
    """The trigger comes by NATS and the wake leaves by it: what the message does not tell the wake does."""
    work = Work(made)
    async with (
        NatsServer(tmp_path) as nats,
        served() as (_, url),
        Bridge() as bridge,
        Attachments(bridge, nats=[f"nats://127.0.0.1:{nats.port}"]),
        open_store(url) as store,
        Publisher(f"nats://127.0.0.1:{nats.port}") as publisher,
        listening(url, work.do, bridge=f"nats://127.0.0.1:{nats.port}"),
    ):
        # The bridge has a look made at each queue when it is connected.
        await holds(lambda: bridge.readiness().ready and settled(bridge), "the bridge and its worker are ready")
        with untraced():
            await store.put(QUEUE, ["one"])
        with made.tracer().start_as_current_span("request"):
            await publisher.publish(QUEUE)
        await until(work.done)
        bridge.end_sessions()
    publish = made.one(f"publish {QUEUE}")
    assert [traceparent(publish)] in [links(span) for span in made.of(f"route {QUEUE}")]
    assert work.seen[0].wake_source == "trigger"
    assert parent(made.one(f"process {QUEUE}")) == span_id(publish)


async def test_a_look_that_finds_nothing_is_a_span_only_if_somebody_was_woken_for_it(made: Spans) -> None:
    """A trigger to an empty queue is one with 0 messages; what a worker looks at by itself is none, unless it finds."""
    work = Work(made)
    async with served() as (_, url), Bridge() as bridge, Publisher(bridge) as publisher, open_store(url) as store:
        async with listening(url, work.do, bridge=bridge, on_queue_empty=work.idle.set):
            await until(work.idle)
            assert made.of(f"receive {QUEUE}") == [], "the look of one that has come"
            work.idle.clear()
            await publisher.publish(QUEUE)
            await until(work.idle)
    publish, receive = made.one(f"publish {QUEUE}"), made.one(f"receive {QUEUE}")
    assert (links(receive), said(receive)["messaging.batch.message_count"]) == ([traceparent(publish)], 0)
    assert parent(receive) == span_id(publish)
    with untraced():
        async with served() as (_, url), open_store(url) as store:
            await store.put(QUEUE, ["one"])
            tracing.start_tracing(made.provider)
            async with listening(url, work.do, bridge=PULL_ONLY, on_queue_empty=work.idle.set):
                await until(work.done)
    _, polled = made.of(f"receive {QUEUE}")
    assert said(polled)["queuebell.wake.source"] == "poll"
    assert (parent(polled), links(polled), said(polled)["messaging.batch.message_count"]) == (None, [], 1)


async def test_a_receive_that_fails_is_told(made: Spans) -> None:
    work = Work(made)
    async with Bridge() as bridge, Publisher(bridge) as publisher:
        async with served() as (_, url):
            listener = listening(url, work.do, bridge=bridge, on_queue_empty=work.idle.set)
            await listener.__aenter__()
            await until(work.idle)
        await publisher.publish(QUEUE)
        await holds(lambda: made.of(f"receive {QUEUE}"), "the receive has failed")
        await listener.__aexit__(None, None, None)
    failed = made.of(f"receive {QUEUE}")[0]
    assert said(failed)["error.type"] == "queuebell.StoreUnavailable"
    assert failed.status.status_code is StatusCode.ERROR


async def test_a_handler_that_is_late_or_cut_off_says_so(made: Spans) -> None:
    """Its time-out is a failure; to be cancelled by a stop is an outcome of its own."""
    began = asyncio.Event()
    hung = 0

    async def hang(_: Message) -> None:
        nonlocal hung
        hung += 1
        if hung == 2:
            began.set()
        await asyncio.Event().wait()

    retry = RetryPolicy(first_s=0.05)
    async with served() as (_, url), open_store(url) as store:
        async with listening(url, hang, bridge=url, handler_timeout=0.05, retry=retry):
            await store.put(QUEUE, ["one"])
            await until(began)
        hung, began = 1, asyncio.Event()
        async with listening(url, hang, "billing/others", bridge=url, grace=0):
            await store.put("billing/others", ["one"])
            await until(began)
    late = made.of(f"process {QUEUE}")[0]
    assert said(late)["error.type"] == "queuebell.listeners.work.invoke.HandlerTimeout"
    assert said(late)["queuebell.message.outcome"] == "retried"
    cut = made.one("process billing/others")
    assert (said(cut)["queuebell.message.outcome"], cut.status.status_code) == ("cancelled", StatusCode.UNSET)


@pytest.mark.system
async def test_a_bridge_on_an_engine_tells_of_what_is_put_through_it_and_adds_nothing(
    tmp_path: Path, made: Spans
) -> None:
    """The message is as its producer sent it, and the wake that it rings names the producer's context."""
    work = Work(made, many=2)
    async with RedisServer(tmp_path) as server:
        async with (
            Bridge(store=open_store(server.url())) as bridge,
            WebServer(bridge, WebSettings(port=0)) as web,
            open_store(web.url) as store,
            listening(web.url, work.do, bridge=web.url, on_queue_empty=work.idle.set),
        ):
            await until(work.idle)
            await store.put(QUEUE, ["one"])
            # A client that makes no spans, of a bridge that does.
            async with aiohttp.ClientSession() as session:
                path = f"{web.url}/v1/queues/{QUEUE}/messages"
                async with session.post(path, json={"messages": [{"body": "two"}]}) as answer:
                    assert answer.status == 201, await answer.text()
            await until(work.done)
    send = made.one(f"send {QUEUE}")
    routed = [link for span in made.of(f"route {QUEUE}") for link in links(span)]
    assert traceparent(send) in routed
    told = {message.text(): message.headers.get("traceparent") for message in work.seen}
    assert told == {"one": traceparent(send), "two": None}


@pytest.mark.system
def test_a_put_in_a_transaction_of_blocking_code_takes_its_context_along(made: Spans) -> None:
    """Plainly and under a key: the commit has the message there with the context of its send."""
    with running() as server:
        asyncio.run(init(server.url()))
        with psycopg.connect(server.url()) as connection:
            with made.tracer().start_as_current_span("request"):
                (receipt,) = put_in_transaction(connection, QUEUE, ["one"])
                put_once_in_transaction(connection, QUEUE, "key", "two")
            connection.commit()
        found = asyncio.run(_peeked(server.url()))
    plain, once = made.of(f"send {QUEUE}")
    assert [message.headers["traceparent"] for message in found] == [traceparent(plain), traceparent(once)]
    assert said(plain)["messaging.message.id"] == receipt.id
    assert {parent(plain), parent(once)} == {span_id(made.one("request"))}


async def _peeked(url: str) -> list[StoredMessage]:
    async with open_store(url) as store:
        return await store.peek(QUEUE)
