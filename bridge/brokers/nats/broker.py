"""NATS: core subjects, and optionally a JetStream durable consumer for messages that must arrive at least once.

nats-py 2.16 can be connected and deaf: its `flush` returns before the data it should flush, an exception in an error
callback ends its reading silently, `-ERR` closes without an error, a half-open connection hangs in its own `close`. So
its own state is not used: every confirmation is a message to this connection's inbox that came back.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from queuebell.bridge.brokers.address import Address
from queuebell.bridge.brokers.base import Incoming, OnMessage, SubscriptionRefused, Topic, Topics
from queuebell.bridge.brokers.connection import (
    CONNECT_S,
    REQUEST_S,
    UNSENT_LITTLE,
    UNSENT_MAX,
    BrokerConnection,
    Ending,
    ThrottledWarnings,
)
from queuebell.bridge.brokers.extras import install
from queuebell.bridge.brokers.nats.access import OPTIONS, TRY_S, NatsAccess, Node, Servers, check_installed, error_text
from queuebell.bridge.contract.address import is_loopback
from queuebell.bridge.contract.errors import BadInput, BusUnavailable, Closed, ConfigurationError, QueuebellError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

TEAR_DOWN_S: Final = 0.7
ACK_WAIT_S: Final = 30.0
PENDING_MAX: Final = 65_536
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
NOBODY: Final = "503"
CONTENT_TYPE: Final = "content-type"
BATCH: Final = 512
EXPIRES_S: Final = 30
HEARTBEAT_S: Final = 5
UNACKNOWLEDGED_MAX: Final = 10_000
AGAIN_S: Final = 1.0
"""The pause before a request that the server could not serve is repeated."""
UNANSWERED_MAX: Final = 15
"""How many requests in a row may find no consumer. Electing a new leader takes less time, and must not end a connection
that also carries sessions."""
_GONE = ("consumer deleted", "consumer not found", "stream deleted")
_NO_HEADERS: Final[Mapping[str, str]] = {}


class NatsBroker(BrokerConnection):
    """One connection to a NATS server at ``nats://`` or ``tls://``; the latter is never used without TLS.

    ``nats://a:4222,b:4222`` and ``nats://a:4222,nats://b:4222`` name servers of one cluster, with one user, one
    password and one set of options: they are tried one after the other, with those that they report. ``servers`` are
    the servers as a previous connection knew them.

    Options of the address: ``credentials`` is the path of a credentials file, ``nkey`` of a file with an nkey's seed,
    ``tls_ca``, ``tls_cert`` and ``tls_key`` of files for TLS. ``stream`` names an existing JetStream stream, whose
    consumer ``durable`` serves subscriptions at least once; a message that is not acknowledged within ``ack_wait``
    seconds (30) is delivered again. A user without a password is a token.

    At most ``pending_max`` messages and 64 MiB of each subscription wait for their callback; further ones are dropped
    and counted.
    """

    kind = "nats"

    def __init__(
        self,
        url: str | Address,
        *,
        name: str = "queuebell",
        prefix: str = "queuebell",
        pending_max: int = PENDING_MAX,
        servers: Servers | None = None,
    ) -> None:
        where = Address(url, schemes=("nats", "tls"), options=OPTIONS, several=True) if isinstance(url, str) else url
        super().__init__(where, Topics(".", "*"))
        self._access = NatsAccess(where, name)
        self.servers = servers or Servers(where.hosts, random.random)
        """Its servers, for the next connection to go on with."""
        self._stream = where.options.get("stream")
        self._durable = where.options.get("durable") or f"{prefix}-bridge"
        self._ack_wait_s = float(where.number("ack_wait", 0, most=3600)) or ACK_WAIT_S
        self._pending_max = pending_max
        self._tokens = itertools.count(1)
        self._client: Client | None = None
        self._server: Node | None = None
        self._wire: asyncio.WriteTransport | None = None
        self._inbox = ""
        self._tasks: list[asyncio.Task[Any]] = []
        self._subscriptions: list[Subscription] = []
        self._consumers: list[Durable] = []
        self._denied: dict[str, str] = {}
        self._last_error = ""

    async def connect(self, *, will: tuple[Topic, bytes] | None = None) -> None:
        """Connect within 5 s; NATS has no last wills. Raises as `Broker.connect` does."""
        if self._client is not None or self._ending.reason is not None:
            raise Closed("connect may be called only once")
        check_installed()
        refused: Exception | None = None
        missed: Exception | None = None
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + CONNECT_S
        turns = self.servers.turns()
        for server in turns:
            left = ends_at - loop.time()
            if left <= 0:
                break
            self.servers.tried(server)
            self._server = server
            try:
                await self._connect_to(server, left if len(turns) == 1 else min(TRY_S, left))
            except (BusUnavailable, ConfigurationError) as error:
                if isinstance(error, ConfigurationError) and not server.learned:
                    refused = refused or error
                else:
                    missed = missed or error
                if self._closing is not None:
                    break
            else:
                return
        # An error of a learned server is not a wrong setting: another try may help.
        self._ending.end(self._last_error or "connecting failed")
        raise refused or BusUnavailable(str(missed or f"{self.address}: closed"))

    async def subscribe(self, pattern: Topic, on_message: OnMessage, *, at_least_once: bool = False) -> None:
        """Receive ``pattern``; with ``at_least_once`` and a stream, from the durable consumer."""
        client = self.alive()
        subject = self._topics.pattern(pattern)
        from nats import errors

        try:
            if at_least_once and self._stream:
                await self._consume(client, subject, on_message)
            else:
                await self._listen(client, subject, message_callback(on_message, self._topics, self._warnings))
            await self.barrier()
        except (OSError, errors.Error) as error:
            raise BusUnavailable(f"{self.address}: cannot subscribe to {subject}: {error_text(error)}") from None
        # The server answers a SUB it does not allow before it answers the barrier.
        if refused := self._denied.get(subject.lower()):
            raise SubscriptionRefused(f"{self.address}: {refused}")

    def publish(
        self, topic: Topic, payload: bytes, *, content_type: str | None = None, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Send one message. Also False for a payload above `payload_max`, which is logged."""
        return self.send(self._topics.join(topic), payload, headers=_headers(content_type, headers))

    def writable(self) -> bool:
        """Return whether less than 64 KiB is unsent."""
        return self._ending.reason is None and self._unsent() < UNSENT_LITTLE

    async def request(self, topic: Topic, payload: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Send one message and wait for its subscriber's answer. Raises `BadInput` for one that is too large."""
        self.alive()
        if len(payload) > self.payload_max:
            raise BadInput("too_large", f"the broker accepts at most {self.payload_max} bytes per message")
        token = str(next(self._tokens))
        if not self.send(self._topics.join(topic), payload, f"{self._inbox}.{token}", _headers(None, headers)):
            raise self._unsendable()
        if await self._replies.wait_for(token, REQUEST_S, f"{self.address}: no answer") == NOBODY:
            raise BusUnavailable(f"{self.address}: no subscriber at {'.'.join(topic)}")

    def send(self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None) -> bool:
        """Publish to a subject that was checked before; as `publish`."""
        client = self._client
        if client is None or self._ending.reason is not None or not client.is_connected:
            return False
        if self._unsent() > UNSENT_MAX:
            return False
        if len(payload) > client.max_payload:
            self._warnings.warn("not published", f"{len(payload)} bytes, the server accepts {client.max_payload}")
            return False
        # With its buffer off (pending_size=0) this coroutine never waits.
        step = client.publish(subject, payload, reply, headers)
        try:
            step.send(None)
        except StopIteration:
            return True
        except (OSError, _library_error()) as error:
            self._warnings.warn("not published", error_text(error))
            return False
        step.close()
        self._ending.end("the client library cannot send")
        return False

    @property
    def payload_max(self) -> int:
        """The most bytes of payload in one message."""
        return self._client.max_payload if self._client is not None else 1024 * 1024

    @property
    def version(self) -> tuple[int, int]:
        """The first two numbers of the server's version; zeros if it is unknown."""
        if self._client is None:
            return 0, 0
        version = self._client.connected_server_version
        try:
            return version.major, version.minor
        except ValueError:
            return 0, 0

    @property
    def private(self) -> bool:
        """Whether it is encrypted, or does not leave this machine, also for a server that was learned."""
        here = self._server is None or is_loopback(self._server.host.name)
        return self._where.encrypted or (here and super().private)

    # --- connecting -------------------------------------------------------------------------------------------------

    async def _connect_to(self, server: Node, within_s: float) -> None:
        """Try one server; a failure leaves nothing behind."""
        from nats import errors
        from nats.aio.client import Client

        client = self._client = Client()
        self._last_error, self._ending = "", Ending()
        self._replies = self._ending.pending_replies()
        options = self._access.options(lambda: _writer(client), server)
        options["discovered_server_cb"] = functools.partial(self._learn, client, server)
        options["error_cb"] = self._only(client, self._failed)
        options["disconnected_cb"] = options["closed_cb"] = self._only(client, self._disconnected)
        try:
            async with asyncio.timeout(within_s):
                await client.connect(**options)
                self._watch(client)
                await self._learn(client, server)
                self._inbox = client.new_inbox()
                self._subscriptions.append(await client.subscribe(f"{self._inbox}.*", cb=self._on_reply))
                await self._echo(within_s)
        except TimeoutError:
            await self._discard(client)
            raise BusUnavailable(f"{self._access.text(server)}: no connection within {within_s:.3g} s") from None
        except ImportError:
            await self._discard(client)
            raise ConfigurationError(f"broker: credentials and nkeys need {install('nkeys')}") from None
        except (OSError, errors.Error, BusUnavailable, ValueError) as error:
            last = self._last_error
            await self._discard(client)
            raise self._access.refusal(error, last, server) from None
        except BaseException as error:
            await self._discard(client)
            # The library reads these files while it connects, and fails with any class of error.
            ours = not isinstance(error, Exception) or isinstance(error, QueuebellError)
            if not ours and self._access.by_file:
                raise self._access.unusable(server) from None
            raise

    def _only(self, client: Client, callback: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Return a callback that does nothing once another server is tried."""

        async def only(*args: Any) -> None:
            if client is self._client:
                await callback(*args)

        return only

    async def _learn(self, client: Client, server: Node) -> None:
        """Learn the servers of the cluster that the server has reported so far, the newest first.

        Called once the server is proven: its first report comes before TLS and before any password.
        """
        if client.discovered_servers:
            self.servers.learn([each.netloc for each in reversed(client.servers)], server)

    async def _discard(self, client: Client) -> None:
        await self._tear_down()
        if self._client is client and self._closing is None:
            self._client = self._wire = None
            self._tasks.clear()
            self._subscriptions.clear()
            self._denied.clear()

    def _watch(self, client: Client) -> None:
        # The end of any of these is the end of the connection, also where the library calls nothing.
        for task in (client._reading_task, client._flusher_task, client._ping_interval_task):
            if task is not None:
                self._tasks.append(task)
                task.add_done_callback(functools.partial(self._over, client))
        self._access.check_encrypted(_writer(client))
        self._wire = _writer(client)

    def _over(self, client: Client, task: asyncio.Task[Any]) -> None:
        if client is not self._client:
            return
        error = None if task.cancelled() else task.exception()
        self._ending.end(self._last_error or (error_text(error) if error is not None else "the connection ended"))

    def alive(self) -> Client:
        """Return the library's client; raises `BusUnavailable` where the connection has ended."""
        self._ending.check()
        if self._client is None or self._wire is None:
            raise BusUnavailable(f"{self.address}: not connected")
        return self._client

    # --- messages ---------------------------------------------------------------------------------------------------

    async def _listen(self, client: Client, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> None:
        self._subscriptions.append(
            await client.subscribe(
                subject,
                cb=callback,
                pending_msgs_limit=self._pending_max,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )
        )

    async def _consume(self, client: Client, subject: str, on_message: OnMessage) -> None:
        assert self._stream is not None
        number = len(self._consumers) + 1
        durable = self._durable if number == 1 else f"{self._durable}-{number}"
        consumer = Durable(self._stream, durable, f"{self._inbox}.pull.{number}", self, self._ending)
        await consumer.create(client, subject, self._ack_wait_s)
        self._consumers.append(consumer)
        callback = message_callback(on_message, self._topics, self._warnings, consumer)
        await self._listen(client, consumer.inbox, consumer.callback(callback))
        consumer.pull()

    async def _on_reply(self, msg: Msg) -> None:
        status = msg.headers.get("Status", "") if msg.headers else ""
        self._replies.resolve(msg.subject.rpartition(".")[2], status)

    def _send_to_self(self) -> str | None:
        """Publish to this connection's inbox.

        The library sends SUB and PUB in order. Its own PING overtakes them, which loses 2 to 8 % of the first messages
        after a subscription.
        """
        self.alive()
        token = str(next(self._tokens))
        return token if self.send(f"{self._inbox}.{token}", b"") else None

    # --- ending -----------------------------------------------------------------------------------------------------

    async def _failed(self, error: Exception) -> None:
        """Process an error from the library; must not raise, which would end its reading silently."""
        name, words = type(error).__name__, error_text(error)
        if name == "SlowConsumerError":
            self._dropped += 1
            self._warnings.warn("too slow", "incoming messages were dropped")
            return
        if "permissions violation" in words.lower():
            self._warnings.warn("rejected by the server", words)
            if len(self._denied) < 100:
                self._denied[words.rpartition(" to ")[2].strip(' "').partition('"')[0].lower()] = words
            return
        if name != "NoServersError":
            self._last_error = words
        if self._wire is not None and isinstance(error, OSError | _library_error()):
            self._ending.end(words)

    async def _disconnected(self) -> None:
        if self._wire is not None:
            error = self._client.last_error if self._client is not None else None
            self._ending.end(error_text(error) if error is not None else self._last_error or "the connection ended")

    def _unsent(self) -> int:
        if self._client is None or self._wire is None:
            return 0
        return self._client.pending_data_size + self._wire.get_write_buffer_size()

    async def _close(self) -> None:
        if self._wire is not None:
            await self._last_echo()
        self._ending.end("closed")
        await self._tear_down()

    async def _tear_down(self) -> None:
        """Abort first: on a half-open connection the library waits for ever to send its data."""
        client, wire = self._client, _writer(self._client)
        for consumer in self._consumers:
            consumer.stop()
        if client is None or wire is None:
            return  # it failed before there was a connection
        wire.abort()
        # Unsent data would be written to the aborted connection, and the error would stop the clean-up.
        client._pending.clear()
        client._pending_data_size = 0
        tasks = [*self._tasks, *(subscription._wait_for_msgs_task for subscription in self._subscriptions)]
        try:
            async with asyncio.timeout(TEAR_DOWN_S):
                await client.close()
        except (TimeoutError, OSError, _library_error()) as error:
            self._warnings.warn("not closed cleanly", error_text(error))
        left = [task for task in tasks if task is not None and not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=TEAR_DOWN_S / 2)


def message_callback(
    on_message: OnMessage, topics: Topics, warnings: ThrottledWarnings, consumer: Durable | None = None
) -> Callable[[Msg], Awaitable[None]]:
    """Return the library's callback for one subscription; nothing is raised into the library.

    Messages from ``consumer`` get their acknowledgements.
    """
    split, warn = topics.split, warnings.warn

    async def callback(msg: Msg) -> None:
        try:
            kind, headers = None, _NO_HEADERS
            if msg.headers:
                lower = {key.lower(): value for key, value in msg.headers.items()}
                kind, headers = lower.pop(CONTENT_TYPE, None), lower
            reply = msg.reply
            if consumer is None:
                to = tuple(reply.split(".")) if reply else None
                on_message(Incoming(split(msg.subject), msg.data, kind, headers, False, None, to))
            else:
                again, acknowledge = consumer.delivery(reply)
                on_message(Incoming(split(msg.subject), msg.data, kind, headers, again, acknowledge))
        except Exception as error:  # noqa: BLE001
            warn("unexpected error in a message", type(error).__name__, error)

    return callback


class Durable:
    """A durable consumer of a JetStream stream: messages stay in the stream until they are acknowledged (B1).

    Subscribe to ``inbox`` before `pull`. It is a pull consumer, because a push consumer stays bound to a half-open
    connection until the server gives that up, and refuses the next connection until then. The requests are made here,
    because the library's `fetch` waits for a full batch.
    """

    def __init__(self, stream: str, durable: str, base: str, sender: NatsBroker, ending: Ending) -> None:
        self._stream = stream
        self._durable = durable
        self._base = base
        self._sender = sender
        self._ending = ending
        self._number = 0
        self._left = 0
        self._received = False
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self.inbox = f"{base}.*"

    async def create(self, client: Client, subject: str, ack_wait_s: float) -> None:
        """Create the consumer if it is missing. Raises `BusUnavailable` without the stream or JetStream."""
        from nats.errors import Error
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        config = ConsumerConfig(
            durable_name=self._durable,
            filter_subject=subject,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ack_wait_s,
            max_ack_pending=UNACKNOWLEDGED_MAX,
        )
        try:
            await client.jsm(timeout=2).add_consumer(self._stream, config)
        except (Error, ValueError) as error:
            text = str(error) or type(error).__name__
            raise BusUnavailable(f"JetStream: no consumer {self._durable} of stream {self._stream}: {text}") from None

    def pull(self) -> None:
        """Request the next messages; there is one request at a time."""
        self._number += 1
        self._left = BATCH
        request = {"batch": BATCH, "expires": EXPIRES_S * 10**9, "idle_heartbeat": HEARTBEAT_S * 10**9}
        self._sender.send(self._next, json.dumps(request).encode(), f"{self._base}.{self._number}")
        self._expect()

    def callback(self, on_message: Callable[[Msg], Awaitable[None]]) -> Callable[[Msg], Awaitable[None]]:
        """Return the callback for `inbox`: it passes messages to ``on_message`` and processes the server's status."""
        base = self._base + "."

        async def either(msg: Msg) -> None:
            if msg.subject.startswith(base):
                self._status(msg)
                return
            self._left -= 1
            self._received = True
            await on_message(msg)
            if self._left <= 0:
                self.pull()

        return either

    def delivery(self, reply: str) -> tuple[bool, Callable[[], None]]:
        """Return whether a message is a copy, by its ``reply``, and the function that acknowledges it."""
        # $JS.ACK.<stream>.<consumer>.<delivered>..., since 2.3 optionally with domain and account before the stream
        parts = reply.split(".")
        delivered = parts[4] if len(parts) == 9 else parts[6]

        def acknowledge() -> None:
            # Lost with the connection: then the message comes again, as the same wake request (B13).
            self._sender.send(reply, b"+ACK")

        return delivered != "1", acknowledge

    def stop(self) -> None:
        """Cancel the timer of the next request."""
        if self._timer is not None:
            self._timer.cancel()

    def _status(self, msg: Msg) -> None:
        headers = msg.headers or {}
        if msg.subject.rpartition(".")[2] != str(self._number):
            return  # for an earlier request
        self._unanswered = self._unanswered + 1 if headers.get("Status") == "503" else 0
        if headers.get("Status") == "100":
            self._expect()
            return
        description = headers.get("Description", "").lower()
        if any(words in description for words in _GONE):
            self._ending.end(f"JetStream: {description}: {self._durable} of stream {self._stream}")
        elif self._unanswered >= UNANSWERED_MAX:
            # The consumer was deleted between two requests, so the server reports no deletion.
            self._ending.end(f"JetStream: the consumer {self._durable} of stream {self._stream} no longer answers")
        elif headers.get("Status") in {"404", "408"}:
            self.pull()
        else:  # 409 and 503: the server is moving or stopping the consumer
            self._expect(AGAIN_S)

    def _expect(self, within_s: float = 2.5 * HEARTBEAT_S) -> None:
        """Request again when nothing has come for ``within_s`` seconds, not even a heartbeat."""
        self.stop()
        if self._ending.reason is None:
            self._timer = asyncio.get_running_loop().call_later(within_s, self._late)

    def _late(self) -> None:
        if self._received:  # heartbeats come only without messages
            self._received = False
            self._expect()
        elif self._ending.reason is None:
            self.pull()


def _writer(client: Client | None) -> Any:
    """Return the library's transport, None before there is one; TLS's once that is up."""
    below = getattr(client, "_transport", None)
    writer = getattr(below, "_io_writer", None)
    return None if writer is None else writer.transport


def _headers(content_type: str | None, headers: Mapping[str, str] | None) -> dict[str, str] | None:
    if content_type is None and not headers:
        return None
    made = dict(headers or ())
    if content_type is not None:
        made["Content-Type"] = content_type
    return made


def _library_error() -> type[Exception]:
    from nats.errors import Error

    return Error
