"""The transport: Celery's connections and channels on a broker, woken by its messages instead of polling."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import selectors
import socket
import sys
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.compat import detect_environment
from kombu.utils.url import parse_url

from queuebell.bridge.contract.errors import (
    BusUnavailable,
    ConfigurationError,
    QueuebellError,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.queues.base import NEVER, TTL_S_MAX
from queuebell.frameworks.celery.bindings import Binding
from queuebell.frameworks.celery.broker import Broker, broker_of
from queuebell.frameworks.celery.message import payload_of, seconds_left
from queuebell.frameworks.feed import Delivery, Feed

log = logging.getLogger("queuebell.celery")

PORT: Final = 8470


class QoS(virtual.QoS):
    """Passes acknowledgements on, from any thread."""

    def ack(self, delivery_tag: str) -> None:
        """Delete the message."""
        super().ack(delivery_tag)
        self.channel.settle(delivery_tag, "acknowledge")

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return the message to its queue, or dead-letter it."""
        self._quick_ack(delivery_tag)
        self.channel.settle(delivery_tag, "requeue" if requeue else "reject")


class Channel(virtual.Channel):
    """A channel: declarations and puts go to the broker, consumed queues are fed by it."""

    QoS = QoS
    supports_fanout = True
    do_restore = False  # by `close`, later
    body_encoding = "utf-8"
    from_transport_options = ()

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self.broker: Broker = connection.broker
        self._deliveries: dict[str, Delivery | _Fetched] = {}
        self._feeds: list[Feed] = []
        self._unfed: dict[str, bool] = {}
        self._fed = 0
        self._no_ack: set[str] = set()
        self._auto_deleted: set[str] = set()
        self._process = os.getpid()

    # -- publishing -------------------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """Return the arguments of a queue as RabbitMQ names them."""
        return to_rabbitmq_queue_arguments(arguments or {}, **options)

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str]:
        """Return text as it is, and anything else in base64."""
        if isinstance(body, str):
            return body, "utf-8"
        encoded, name = super().encode_body(body, "base64")
        return encoded, str(name)

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> Any:
        """Put a message on each queue that the exchange leads to."""
        # The same for each try of one publish, whose properties Celery keeps: one message after an unknown outcome.
        message["properties"].setdefault("put_id", uuid.uuid4().hex)
        body = message["body"]
        if isinstance(body, bytes) and str(message.get("content-encoding")).lower() == "utf-8":
            message["body"] = body.decode()  # so that people can read it
        return super().basic_publish(message, exchange, routing_key, **options)

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        properties = dict(message["properties"])
        properties.pop("delivery_tag", None)  # each delivery has its own
        key = properties.pop("put_id", None) or uuid.uuid4().hex
        body = msgspec.json.encode({**message, "properties": properties})
        self.broker.put(queue, body, seconds_left(message), self._ttl(queue, message), f"celery-{key}")

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any) -> None:
        for queue in {binding.queue for binding in self.broker.table(exchange, fresh=True)}:
            self._put(queue, message)

    def _ttl(self, queue: str, message: dict[str, Any]) -> int:
        limits = [self.broker.ttl_s[queue]] if queue in self.broker.ttl_s else []
        # A worker revokes a task that comes too late; if the store removed it, its result would be pending for ever.
        if not (message.get("headers") or {}).get("expires"):
            with contextlib.suppress(TypeError, ValueError):
                limits.append(_seconds(message["properties"].get("expiration")))
        return min(limits, default=NEVER)

    # -- queues and bindings ----------------------------------------------------------------------------------------

    def exchange_declare(self, exchange: str | None = None, type: str = "direct", **options: Any) -> Any:  # noqa: A002 - its name at kombu
        """Declare an exchange: direct, topic or fanout."""
        if (type or "direct") not in self.exchange_types:
            raise ChannelError(f"queuebell: exchange {exchange!r}: there are direct, topic and fanout, not {type!r}")
        return super().exchange_declare(exchange, type, **options)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        """Declare a queue; a passive declaration of one that is missing raises `ChannelError`."""
        arguments = options.get("arguments") or {}
        if arguments.get("x-max-priority"):
            raise ChannelError(
                f"queuebell: queue {queue!r}: a queue has no priorities (x-max-priority); use one queue for each"
                " priority, and workers for each queue"
            )
        return super().queue_declare(queue, passive, **options)

    def _new_queue(self, queue: str, **options: Any) -> None:
        arguments = options.get("arguments") or {}
        transient = bool(options.get("auto_delete") or options.get("exclusive") or arguments.get("x-expires"))
        ttl_ms = arguments.get("x-message-ttl")
        self.broker.declare(queue, transient=transient, ttl_s=0 if ttl_ms is None else _seconds(ttl_ms))
        if options.get("auto_delete"):
            self._auto_deleted.add(queue)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self.broker.exists(queue)

    def _size(self, queue: str) -> int:
        return self.broker.size(queue)

    def _purge(self, queue: str) -> int:
        return self.broker.purge(queue)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        """Delete a queue and its bindings."""
        if not (if_empty and self._size(queue)):
            self.state.queue_bindings_delete(queue)
            self.broker.delete(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Do nothing: a queue of replies was deleted when its consumer ended."""

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        self.broker.bind(exchange, routing_key, pattern, queue)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        """Remove a binding."""
        exchange = exchange or "amq.direct"
        self.state.binding_delete(queue, exchange, routing_key)
        key, pattern, _name = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
        self.broker.unbind([Binding(exchange=exchange, routing_key=key, pattern=pattern, queue=queue)])

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Return an exchange's bindings, those of other processes too."""
        return [(each.routing_key, each.pattern, each.queue) for each in self.broker.table(exchange)]

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Any:
        found = super()._lookup(exchange, routing_key, default)
        # A queue that was bound within the last seconds. Not for events, which are many: a monitor may miss seconds.
        if not found and exchange and self.typeof(exchange).type == "direct":
            self.broker.table(exchange, fresh=True)
            found = super()._lookup(exchange, routing_key, default)
        return found

    # -- consuming --------------------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> Any:
        """Receive from a queue; it begins when the connection waits for events next, with all queues together."""
        answer = super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        self._unfed[queue] = bool(no_ack)
        if no_ack:
            self._no_ack.add(queue)
        self.connection.wake()
        return answer

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receive no more; what was delivered is held until it is settled or the channel closes."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        self._unfed.pop(queue or "", None)
        for feed in self._feeds:
            if queue in feed.queues:
                feed.queues.remove(queue)
                if not feed.queues:
                    feed.stop()
        if self.connection is not None:
            self.connection.give_back(self, queue)
        if queue in self._auto_deleted and self._process == os.getpid():  # not by a fork that closes what it inherited
            self._auto_deleted.discard(queue)
            with contextlib.suppress(QueuebellError):
                self.queue_delete(queue)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages are held at once; twice as many are a new feed, as for a pool that grows.

        Not one more: Celery adds one for each task whose time is to come.
        """
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        if self._fed and prefetch_count >= 2 * self._fed:
            self._fed = 0
            for feed in self._feeds:
                self._unfed.update((queue, queue in self._no_ack) for queue in feed.queues)
                feed.queues = []
                feed.stop()
            self.connection.wake()

    def begin(self) -> None:
        """Feed the queues that are consumed since."""
        while self._unfed:
            self._fed = self.qos.prefetch_count
            (_, no_ack), *_ = self._unfed.items()
            queues = [queue for queue, each in self._unfed.items() if each is no_ack]
            for queue in queues:
                del self._unfed[queue]
            self._feeds += self.broker.feed(
                queues,
                self.qos.prefetch_count,
                lambda delivery: self.connection.arrived(self, delivery),
                acknowledged=no_ack,
            )

    def held(self, delivery: Delivery) -> None:
        """Remember a delivery until it is settled."""
        self._deliveries[delivery.payload["properties"]["delivery_tag"]] = delivery

    def settle(self, tag: str, how: Literal["acknowledge", "reject", "requeue", "release"]) -> None:
        """Settle a delivery; does not wait."""
        delivery = self._deliveries.pop(tag, None)
        if delivery is not None and self._process == os.getpid():
            getattr(delivery, how)()
        if self.connection is not None:
            self.connection.wake_if_ready()

    def _restore(self, message: virtual.Message) -> None:
        self.settle(message.delivery_tag, "release")

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> virtual.Message | None:
        """Receive one message now; its lease is not renewed."""
        found = self.broker.get(queue)
        if found is None:
            return None
        stored, settle = found
        try:
            payload = payload_of(stored.body)
        except ValueError as error:
            settle(False)
            raise ChannelError(
                f"{queue}: message {stored.id} is not a Celery message: {error}; it stays in the queue"
            ) from None
        payload["properties"]["delivery_tag"] = uuid.uuid4().hex
        payload["properties"]["delivery_info"]["redelivered"] = stored.dequeue_count > 1
        message = self.Message(payload, channel=self)
        if no_ack:
            settle(True)
        else:
            self.qos.append(message, message.delivery_tag)
            self._deliveries[message.delivery_tag] = _Fetched(settle)
        return message

    def close(self) -> None:
        """Close the channel; what is not settled within a second returns to its queue, or at the end of the program."""
        if self.closed:
            return
        transport = self.connection
        super().close()
        if self._process == os.getpid():
            if transport is not None:
                transport.give_back(self, None)
            for tag, each in [*self._deliveries.items()]:
                if isinstance(each, _Fetched):
                    self.settle(tag, "release")
            for feed in self._feeds:
                feed.end_soon()
        self._feeds = []


class _Fetched:
    """A message of `basic_get`; settling it waits for the store."""

    def __init__(self, settle: Callable[[bool], bool]) -> None:
        self._settle = settle

    def acknowledge(self) -> None:
        self._settle(True)

    def release(self) -> None:
        self._settle(False)

    reject = acknowledge
    requeue = release


_Channel: TypeAlias = Channel  # kombu names an attribute of its transports so


class Transport(virtual.Transport):
    """Connects Celery to a bridge: ``queuebell://HOST:PORT/ACCOUNT``."""

    Channel = Channel
    driver_type = "queuebell"
    driver_name = "queuebell"
    default_port = PORT
    polling_interval = None
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )
    connection_errors = (ConnectionError, OSError, StoreUnavailable, BusUnavailable, UnknownOutcome)
    recoverable_connection_errors = connection_errors
    channel_errors = (*virtual.Transport.channel_errors, QueuebellError)
    recoverable_channel_errors = ()

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self._ready: deque[tuple[_Channel, Delivery]] = deque()
        self._listens: socket.socket | None = None
        self._wakes: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._hub: Any = None
        if detect_environment() != "default":
            raise ConfigurationError(
                "queuebell: it works with the pools prefork, solo and threads, not gevent or eventlet"
            )
        if (mingle := sys.modules.get("celery.worker.consumer.mingle")) is not None:
            # A worker asks the others which tasks were revoked.
            mingle.Mingle.compatible_transports.add(self.driver_type)
        try:
            self.broker = broker_of(_addresses(client), client.password or None, _options(client))
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"broker_transport_options: {error}") from None

    def driver_version(self) -> str:
        """Return the version of Queuebell."""
        return importlib.metadata.version("queuebell")

    def establish_connection(self) -> Transport:
        """Open a connection; raises a connection error if the bridge is away, which Celery retries."""
        self.broker.check()
        self._listens, self._wakes = socket.socketpair()
        for end in (self._listens, self._wakes):
            end.setblocking(False)
            weakref.finalize(self, end.close)  # a pool of Celery's is never closed
        return super().establish_connection()  # type: ignore[no-any-return]

    def close_connection(self, connection: Any) -> None:
        """Close all channels."""
        super().close_connection(connection)
        if self._hub is not None:
            self._hub.remove_reader(self._listens)
            self._hub = None
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        for end in (self._listens, self._wakes):
            if end is not None:
                end.close()

    def verify_connection(self, connection: Any) -> bool:
        """Return whether the connection was not closed; a bridge that is away is found by the next call."""
        return self._wakes is not None and self._wakes.fileno() >= 0

    # -- events -----------------------------------------------------------------------------------------------------

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have Celery's event loop pass messages on as they arrive."""
        self._hub = loop
        loop.add_reader(self._listens, self._on_readable)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Wait for a message and pass it on; raises `TimeoutError` after ``timeout`` seconds without one."""
        if self._selector is None and self._listens is not None:
            self._selector = selectors.DefaultSelector()
            self._selector.register(self._listens, selectors.EVENT_READ)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._clear()
            self._begin()
            if self._pass_on():
                return
            left = None if until is None else max(0.0, until - time.monotonic())
            assert self._selector is not None
            if not self._selector.select(left) and until is not None and time.monotonic() >= until:
                raise TimeoutError

    def _on_readable(self) -> None:
        self._clear()
        self._begin()
        for _ in range(len(self._ready)):
            if not self._pass_on():
                break

    def _begin(self) -> None:
        for channel in [*self.channels]:
            channel.begin()

    def _pass_on(self) -> bool:
        """Pass one message on; False if there is none that may be."""
        for _ in range(len(self._ready)):
            channel, delivery = self._ready.popleft()
            if delivery.settled.done():  # its lease was lost meanwhile
                continue
            if channel.closed or delivery.queue not in self._callbacks:
                delivery.release()
                continue
            if not channel.qos.can_consume():
                self._ready.append((channel, delivery))
                continue
            channel.held(delivery)
            self._callbacks[delivery.queue](delivery.payload)
            return True
        return False

    def arrived(self, channel: _Channel, delivery: Delivery) -> None:
        """Take a message that arrived; called in the store's thread."""
        self._ready.append((channel, delivery))
        self.wake()

    def give_back(self, channel: _Channel, queue: str | None) -> None:
        """Release what arrived for a queue of a channel, or for all of them, and was not passed on."""
        for _ in range(len(self._ready)):
            other, delivery = self._ready.popleft()
            if other is channel and queue in (None, delivery.queue):
                delivery.release()
            else:
                self._ready.append((other, delivery))

    def wake_if_ready(self) -> None:
        """Have messages that wait for room looked at again."""
        if self._ready:
            self.wake()

    def wake(self) -> None:
        """Wake the thread that waits for events."""
        with contextlib.suppress(OSError):  # full, so it looks; or closed
            if self._wakes is not None:
                self._wakes.send(b"\0")

    def _clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._listens is not None and len(self._listens.recv(4096)) == 4096:
                pass


def _seconds(milliseconds: Any) -> int:
    return min(max(1, -(-int(milliseconds) // 1000)), TTL_S_MAX)


def _addresses(client: Any) -> list[str]:
    """Return the bridge's addresses; several that are separated by ``;`` are bridges of one service."""
    scheme = "https" if client.ssl else "http"
    all_of_them = [(client.hostname, client.port)]
    for url in client.alt or ():
        parts = parse_url(url)
        all_of_them.append((parts["hostname"], parts["port"]))
    found = (
        f"{scheme}://{f'[{host}]' if ':' in host else host}:{port or PORT}"
        for host, port in ((host or "127.0.0.1", port) for host, port in all_of_them)
    )
    return list(dict.fromkeys(found))


def _options(client: Any) -> dict[str, Any]:
    account = (client.virtual_host or "").strip("/")
    return {**({"account": account} if account else {}), **client.transport_options}
