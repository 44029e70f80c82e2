"""The transport of Celery through kombu: settlements, delays, exchanges, and what is refused."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import ChannelError

from queuebell.bridge.contract.errors import BadInput, ConfigurationError, NotAllowed, StoreUnavailable, UnknownOutcome
from queuebell.bridge.contract.names import is_token
from queuebell.bridge.producer.blocking import BlockingStore
from queuebell.frameworks import feed
from queuebell.frameworks.celery.bindings import Binding, BindingNames
from queuebell.frameworks.celery.broker import GONE_S, Broker
from queuebell.frameworks.celery.message import seconds_left
from queuebell.frameworks.names import queue_name
from tests.support.access import written
from tests.support.command import ROOT, Serving, environment, serving
from tests.support.moto import give_keys, moto
from tests.support.processes import PATIENCE_S, free_port


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("celery")) as running:
        yield running


class Place:
    """An account of its own at the bridge, with a queue."""

    def __init__(self, bridge: Serving) -> None:
        self.account = f"a{uuid.uuid4().hex[:8]}"
        self.url = f"{bridge.url.replace('http', 'queuebell', 1)}/{self.account}"
        self.store = BlockingStore(bridge.url)
        self.queue = kombu.Queue("orders", kombu.Exchange("shop"), routing_key="orders")

    def connection(self, **options: Any) -> Any:
        return kombu.Connection(self.url, transport_options=options)

    def put(self, body: Any = "order 17", **options: Any) -> None:
        with self.connection() as connection:
            connection.Producer().publish(
                body, exchange=self.queue.exchange, routing_key="orders", declare=[self.queue], **options
            )

    def until(self, visible: int, invisible: int) -> None:
        until = time.monotonic() + PATIENCE_S
        while self.depth() != (visible, invisible):
            assert time.monotonic() < until, self.depth()

    def depth(self, queue: str = "orders") -> tuple[int, int]:
        depth = self.store.depth(f"{self.account}/{queue}")
        assert depth is not None
        return depth.visible or 0, depth.invisible or 0


@pytest.fixture
def place(bridge: Serving) -> Iterator[Place]:
    found = Place(bridge)
    with found.store:
        yield found


def one(connection: Any, queue: Any) -> Any:
    """Return the next message of a queue, unsettled."""
    got: list[Any] = []
    consumer = connection.Consumer(queue, callbacks=[lambda _, message: got.append(message)])
    consumer.consume()
    while not got:
        connection.drain_events(timeout=PATIENCE_S)
    return got[0]


@given(st.text(max_size=90), st.text(max_size=90))
def test_each_queue_has_a_name_of_its_own_in_a_store(one: str, other: str) -> None:
    names = {queue_name(one), queue_name(other)}
    assert len(names) == len({one, other}) and all(map(is_token, names))
    assert queue_name("celery") == "celery"
    assert {queue_name(name)[:4] for name in ("orders-poison", "x--orders", "a.b")} == {"x--o", "x--a", "x--x"}


def test_a_message_is_settled_in_each_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledged, requeued and redelivered, rejected to the dead letters; returned by a closed channel."""
    place.put()
    with place.connection() as connection:
        message = one(connection, place.queue)
        assert (message.payload, message.delivery_info["redelivered"]) == ("order 17", False)
    place.until(1, 0)
    (kept,) = place.store.peek(f"{place.account}/orders")
    assert kept.dequeue_count == 0, "a closed channel counts no attempt"
    assert json.loads(kept.body)["body"] == "order 17", "people can read it"
    with place.connection() as connection:
        message = one(connection, place.queue)
        message.requeue()
        assert not connection.default_channel.closed
        again = one(connection, place.queue)
        assert again.delivery_info["redelivered"] and again.delivery_tag != message.delivery_tag
        again.reject()
        place.put("order 18")
        late = one(connection, place.queue)
        monkeypatch.setattr(feed, "SETTLES_S", PATIENCE_S)
    late.ack()  # as for a task that ends while its worker stops
    place.until(0, 0)
    (buried,) = place.store.peek(f"{place.account}/orders-poison")
    assert b"rejected by the worker" in buried.body


@pytest.mark.parametrize("how", ["ack", "requeue", "no_ack"])
def test_one_message_is_asked_for(place: Place, how: str) -> None:
    place.put(b"\x00\xff raw")
    with place.connection() as connection:
        bound = place.queue(connection)
        message = bound.get(no_ack=how == "no_ack")
        assert message.payload == b"\x00\xff raw" and bound.get() is None
        if how != "no_ack":
            getattr(message, how)()
        assert place.depth() == ((1, 0) if how == "requeue" else (0, 0))


def test_no_more_than_the_prefetch_are_held(place: Place) -> None:
    """The others stay with the store, for other workers; an acknowledgement makes room."""
    for number in range(5):
        place.put(number)
    with place.connection() as connection:
        got: list[Any] = []
        consumer = connection.Consumer(place.queue, callbacks=[lambda _, message: got.append(message)])
        consumer.qos(prefetch_count=2)
        consumer.consume()
        while len(got) < 2:
            connection.drain_events(timeout=PATIENCE_S)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)
        assert place.depth() == (3, 2)
        got[0].ack()
        while len(got) < 3:
            connection.drain_events(timeout=PATIENCE_S)
        consumer.qos(prefetch_count=4)
        while len(got) < 5:
            connection.drain_events(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("eta", "left"),
    [
        (lambda now: now.isoformat(), 3600),
        (lambda now: now.astimezone().replace(tzinfo=None).isoformat(), 3600),  # without a zone it is local
        (lambda _: None, 0),
        (lambda _: "soon", 0),
        (lambda _: 7, 0),
    ],
    ids=["with a zone", "local", "none", "text", "number"],
)
def test_the_time_of_a_task_is_read(eta: Callable[[datetime.datetime], object], left: float) -> None:
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    assert seconds_left({"headers": {"eta": eta(now)}}) == pytest.approx(left, abs=60)
    assert seconds_left({"headers": {"eta": "2020-01-01T00:00:00+00:00"}}) < 0


def test_a_task_for_later_waits_in_the_store(place: Place) -> None:
    eta = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)).isoformat()
    place.put(headers={"eta": eta})
    assert place.depth() == (0, 1)
    early = {"body": "x", "headers": {"eta": eta}, "properties": {"delivery_tag": "1"}}
    place.store.put(f"{place.account}/orders", [json.dumps(early)])
    with place.connection() as connection:
        connection.Consumer(place.queue, callbacks=[lambda *_: None]).consume()
        until = time.monotonic() + PATIENCE_S
        while place.depth() != (0, 2) or place.store.peek(f"{place.account}/orders"):
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.1)
            assert time.monotonic() < until
    assert place.depth() == (0, 2)


@pytest.mark.parametrize("how", ["message", "queue"])
def test_a_message_expires(place: Place, how: str) -> None:
    if how == "queue":
        place.queue = kombu.Queue("orders", kombu.Exchange("shop"), routing_key="orders", message_ttl=30)
    place.put(**({"expiration": 30} if how == "message" else {}))
    (kept,) = place.store.peek(f"{place.account}/orders")
    assert kept.expires_at is not None
    assert 29 <= (kept.expires_at - kept.inserted_at).total_seconds() <= 31


def test_a_task_that_expires_is_kept_for_the_worker_that_revokes_it(place: Place) -> None:
    """Whoever waits for its result would wait for ever. The limit of its queue counts all the same."""
    late = {"task": "shop.charge", "expires": "2026-12-01T00:00:00+00:00"}
    place.put(expiration=1, headers=late)
    (kept,) = place.store.peek(f"{place.account}/orders")
    assert kept.expires_at is None
    place.queue = kombu.Queue("orders", kombu.Exchange("shop"), routing_key="orders", message_ttl=30)
    place.put(expiration=1, headers=late)
    (_, kept) = place.store.peek(f"{place.account}/orders")
    assert kept.expires_at is not None
    assert 29 <= (kept.expires_at - kept.inserted_at).total_seconds() <= 31


def test_a_publish_that_is_repeated_puts_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery tries again after an unknown outcome; two publishes of the same are two messages all the same."""
    put, keys = Broker.put, list[str]()

    def unknown(self: Broker, *arguments: Any) -> None:
        put(self, *arguments)
        keys.append(arguments[-1])
        if len(keys) == 1:
            raise UnknownOutcome("no answer")

    monkeypatch.setattr(Broker, "put", unknown)
    place.put(correlation_id="1", retry=True, retry_policy={"interval_start": 0})
    assert len(keys) == 2 and len(set(keys)) == 1 and place.depth() == (1, 0)
    place.put(correlation_id="1")
    assert place.depth() == (2, 0)


OTHER = """
import kombu, sys, queuebell.frameworks.celery
exchange = kombu.Exchange(sys.argv[2], type=sys.argv[3])
with kombu.Connection(sys.argv[1]) as connection:
    connection.Producer().publish("told", exchange=exchange, routing_key="orders.eu", declare=[exchange])
"""


def test_a_large_body_is_put_aside(place: Place, tmp_path: Path) -> None:
    """In a blob of its own, which goes with its message; the same for one that is fetched, and for a reply."""
    text, options = "x" * 200_000, {"claim_check": tmp_path.as_uri()}

    def blobs() -> int:
        return sum(path.is_file() and not path.name.startswith(".") for path in tmp_path.rglob("*"))

    with place.connection(**options) as connection:
        publish = connection.Producer().publish
        for _ in range(2):  # a publish that is repeated, as Celery repeats one
            publish(text, exchange=place.queue.exchange, routing_key="orders", declare=[place.queue], put_id="17")
        assert (place.depth(), blobs()) == ((1, 0), 1)
        message = one(connection, place.queue)
        assert message.payload == text
        message.ack()
    place.until(0, 0)
    until = time.monotonic() + PATIENCE_S
    while blobs():
        assert time.monotonic() < until
    with place.connection(**options) as connection:
        queue = place.queue(connection)
        connection.Producer().publish(text, exchange=place.queue.exchange, routing_key="orders")
        got = queue.get()
        assert got.payload == text and blobs() == 1
        got.ack()
        assert (place.depth(), blobs()) == ((0, 0), 0)


@pytest.mark.parametrize(
    ("kind", "keys", "gets"),
    [
        ("direct", ["orders.eu", "orders.us"], [1, 0]),
        ("topic", ["orders.*", "#", "other.*"], [1, 1, 0]),
        ("fanout", ["", "x"], [1, 1]),
    ],
)
def test_another_process_finds_the_bindings(place: Place, kind: str, keys: list[str], gets: list[int]) -> None:
    exchange = kombu.Exchange(f"told.{kind}", type=kind)
    queues = [kombu.Queue(f"q{number}", exchange, routing_key=key, message_ttl=600) for number, key in enumerate(keys)]
    with place.connection() as connection:
        for queue in queues:
            queue(connection).declare()
        gone, unbound = (kombu.Queue(name, exchange, routing_key="orders.eu")(connection) for name in ("gone", "left"))
        for queue in (gone, unbound):
            queue.declare()
        gone.delete()
        unbound.unbind_from(exchange, routing_key="orders.eu")
        words = [sys.executable, "-c", OTHER, place.url, exchange.name, kind]
        subprocess.run(words, cwd=ROOT, env=environment(), check=True, timeout=PATIENCE_S)
        assert [place.depth(queue.name)[0] for queue in queues] == gets
        (told,) = place.store.peek(f"{place.account}/q0")
        assert told.expires_at is not None, "of a queue that another process declared"
        assert place.depth("left") == (0, 0) and not place.store.exists(f"{place.account}/gone")
        connection.default_channel.queue_declare("q0", passive=True)
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            connection.default_channel.queue_declare("gone", passive=True)
        assert queues[0](connection).purge() == gets[0]


def test_a_purge_leaves_what_a_worker_has(place: Place) -> None:
    """A crash of it would lose the task; what waits and what is delayed goes, and is counted."""
    later = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)).isoformat()
    with place.connection() as connection:
        queue = place.queue(connection)
        for held, purged in ((1, 4), (0, 5)):
            for headers in ({}, {}, {}, {"eta": later}, {"eta": later}):
                place.put(headers=headers)
            message = queue.get() if held else None
            assert (queue.purge(), place.depth()) == (purged, (0, held))
            if message is not None:
                message.ack()
                place.until(0, 0)


@pytest.mark.rest
def test_a_purge_of_a_store_with_rough_counts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits goes and is counted; what a worker has stays, and so does what is delayed."""
    give_keys(monkeypatch)
    later = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)).isoformat()
    with moto() as server, place.connection(store=f"sqs://eu-central-1?endpoint={server.url}") as connection:
        producer, queue = connection.Producer(), place.queue(connection)
        for number in range(12):
            headers = {"eta": later} if number > 9 else {}
            producer.publish(
                number, exchange=place.queue.exchange, routing_key="orders", declare=[place.queue], headers=headers
            )
        held = queue.get()
        assert (queue.purge(), queue.get()) == (9, None)
        held.requeue()
        assert queue.get().payload == held.payload
        assert queue.purge() == 0


def test_the_queues_of_a_process_that_is_gone_are_removed(place: Place, bridge: Serving) -> None:
    """Those of one that has said nothing for three hours, when another starts; not if it listens: clocks differ."""
    names = BindingNames(place.account)
    slow = kombu.Queue("slow@host.pidbox", kombu.Exchange("pidbox", type="fanout"), auto_delete=True, expires=10)

    def bound(queue: str, seen: float) -> Binding:
        kept = Binding(
            exchange="pidbox", routing_key="", pattern=None, queue=queue, transient=True, seen=int(time.time() - seen)
        )
        metadata = {"binding": msgspec.json.encode(kept).decode()}
        for name, told in ((names.of(kept), metadata), (f"{place.account}/{queue_name(queue)}", None)):
            place.store.run("create", lambda store, _, name=name, told=told: store.create(name, told))
        return kept

    bound("dead@host.pidbox", GONE_S + 60), bound("living@host.pidbox", 60)
    with place.connection(timeout=29) as other, place.connection() as connection:
        other.Consumer(slow(other), callbacks=[lambda *_: None]).consume()
        with pytest.raises(TimeoutError):
            other.drain_events(timeout=0)
        ref, until = f"{place.account}/{queue_name(slow.name)}", time.monotonic() + PATIENCE_S
        while place.store.run("ask", lambda store, _: store.sessions(ref)) < 1:
            assert time.monotonic() < until
        bound(slow.name, GONE_S + 60)
        mine = kombu.Queue("me@host.pidbox", kombu.Exchange("pidbox", type="fanout"), auto_delete=True, expires=10)
        mine(connection).declare()
        found = place.store.run("list", lambda store, _: store.queues(f"{place.account}/"))
        left = ("living@host.pidbox", "me@host.pidbox", slow.name)
        assert found == [f"{place.account}/{queue_name(name)}" for name in left]
        connection.Consumer(mine(connection), callbacks=[lambda *_: None]).consume()
    assert not place.store.exists(f"{place.account}/{queue_name('me@host.pidbox')}"), "it ends with its consumer"


FORKED = """
import os, sys, kombu, queuebell.frameworks.celery
with kombu.Connection(sys.argv[1]) as connection:
    reply = kombu.Queue("reply", auto_delete=True, durable=False)(connection)
    connection.Consumer(reply, callbacks=[lambda *_: None]).consume()
    if not (child := os.fork()):
        connection.close()
        os._exit(0)
    os.waitpid(child, 0)
    connection.default_channel.queue_declare("reply", passive=True)
"""


def test_a_fork_that_closes_its_parents_connection_deletes_no_queue(place: Place) -> None:
    subprocess.run(
        [sys.executable, "-c", FORKED, place.url], cwd=ROOT, env=environment(), check=True, timeout=PATIENCE_S
    )
    assert not place.store.exists(f"{place.account}/reply"), "its own process does"


def test_a_message_of_another_producer_is_a_dead_letter_that_says_so(place: Place) -> None:
    told = {
        "order 17": "it is not JSON",
        '{"order": 17}': "was it put by something else than Celery",
        '{"body": "", "properties": {"delivery_info": 1}}': "delivery_info are no table",
        '{"body": 5, "properties": {}}': "its body is no text",
        '{"body": "x", "properties": {"body_encoding": "base64"}}': "its body is no base64",
    }
    for body in told:
        place.store.put(f"{place.account}/orders", [body])
    with place.connection() as connection:
        connection.Consumer(place.queue, callbacks=[lambda *_: None]).consume()
        until = time.monotonic() + PATIENCE_S
        while len(buried := _buried(place)) < len(told):
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.1)
            assert time.monotonic() < until
    assert all(any(reason in body for body in buried) for reason in told.values())


def _buried(place: Place) -> list[str]:
    poison = f"{place.account}/orders-poison"
    return [each.body.decode() for each in place.store.peek(poison)] if place.store.exists(poison) else []


def test_what_cannot_be_is_refused_with_a_reason(place: Place) -> None:
    """And nothing is put: an exchange of another kind, priorities, a task that is too large, wrong options."""
    with place.connection() as connection:
        channel = connection.default_channel
        with pytest.raises(ChannelError, match="there are direct, topic and fanout, not 'headers'"):
            channel.exchange_declare("x", "headers")
        with pytest.raises(ChannelError, match="a queue has no priorities"):
            kombu.Queue("x", max_priority=5)(connection).declare()
        with pytest.raises(BadInput, match="at most 65536 are allowed; nothing was put"):
            place.put("x" * 70_000)
        assert place.depth() == (0, 0)
    with pytest.raises(ConfigurationError, match="broker URL: what follows the address is the account"):
        kombu.Connection(f"{place.url}/orders").connect()
    for options in ({"visibility_timeout": "soon"}, {"max_attempts": 1.5}):
        with pytest.raises(ConfigurationError, match="broker_transport_options: Expected"):
            place.connection(**options).connect()
    with pytest.raises(ConfigurationError, match="there is no visiblity_timeout; did you mean visibility_timeout"):
        place.connection(visiblity_timeout=5).connect()


def test_a_bridge_that_is_away_is_a_connection_error(tmp_path: Path) -> None:
    """So Celery tries again, when it starts and when it publishes; a key that is refused is not tried again."""
    connection = kombu.Connection(f"queuebell://127.0.0.1:{free_port()}")
    with pytest.raises(kombu.exceptions.OperationalError):
        connection.ensure_connection(max_retries=1, interval_start=0)
    with pytest.raises(StoreUnavailable):
        connection.connect()
    assert issubclass(StoreUnavailable, connection.connection_errors)
    written(tmp_path / "access.json", {})
    with serving(tmp_path / "data", "--auth", "--access", str(tmp_path / "access.json")) as closed:
        shut = kombu.Connection(closed.url.replace("http://", "queuebell://:wrong-key@"))
        with pytest.raises(NotAllowed), shut as opened:
            opened.SimpleQueue("orders").put("order 17")


def test_tasks_in_another_store_and_answers_at_the_bridge(place: Place, tmp_path: Path) -> None:
    """Queues of tasks are there, those of one process stay with the bridge, also for who only knows their names."""
    with serving(tmp_path / "elsewhere") as other, BlockingStore(other.url) as elsewhere:
        reply = kombu.Queue("reply@me", auto_delete=True, durable=False)
        with place.connection(store=other.url) as connection:
            reply(connection).declare()
            connection.Producer().publish(
                "work", exchange=place.queue.exchange, routing_key="orders", declare=[place.queue]
            )
        with place.connection(store=other.url, timeout=20.0) as connection:  # as another process: nothing is known
            connection.Producer().publish("answer", routing_key="reply@me")
            assert one(connection, place.queue).payload == "work"
        names = [
            store.run("list", lambda opened, _: opened.queues(f"{place.account}/"))
            for store in (elsewhere, place.store)
        ]
        assert names == [[f"{place.account}/orders"], [f"{place.account}/{queue_name('reply@me')}"]]
        assert place.depth(queue_name("reply@me")) == (1, 0)
        # As of a project that has moved from the bridge's own queues.
        place.store.put(f"{place.account}/orders", ["left behind"])
        with place.connection(store=other.url, timeout=21.0) as connection:
            connection.Producer().publish("one", routing_key="orders")
            assert place.queue(connection).purge() == 1
        assert place.depth() == (1, 0)
