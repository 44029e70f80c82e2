"""NATS: core subjects, and optionally a JetStream durable consumer for what must arrive at least once.

nats-py 2.16 has ways to be connected and deaf: its `flush` is answered before what it should flush, an exception in an
error callback ends its reading unseen, `-ERR` closes without a word, a half-open connection hangs in its own `close`.
Hence nothing of its own state is trusted here: every confirmation is a message to our own inbox that came back.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bridge.brokers.address import Address, TlsOptions
from bridge.brokers.base import Hear, SubscriptionRefused, Topic
from bridge.brokers.complaints import Complaints
from bridge.brokers.connection import CONNECT_S, REQUEST_S, UNSENT_LITTLE, UNSENT_MAX, BrokerConnection
from bridge.brokers.ending import Ending
from bridge.brokers.extras import install
from bridge.brokers.nats.access import Access, check_installed, said
from bridge.brokers.nats.hearing import hearing
from bridge.brokers.nats.servers import TRY_S, Node, Servers
from bridge.brokers.topics import Topics
from bridge.contract.address import is_loopback
from bridge.contract.errors import BadInput, BusUnavailable, Closed, ConfigurationError, QueuebellError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from bridge.brokers.nats.jetstream import Durable

TEAR_DOWN_S: Final = 0.7
PENDING_MAX: Final = 65_536
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
NOBODY: Final = "503"
OPTIONS: Final = ("credentials", "nkey", "name", "stream", "durable", "ack_wait", "inbox")


class NatsBroker(BrokerConnection):
    """One connection to a NATS server at ``nats://`` or ``tls://``; the latter never speaks without TLS.

    ``nats://a:4222,b:4222`` and ``nats://a:4222,nats://b:4222`` name servers of one cluster, with one user, one
    password and one set of options: connecting tries one after the other, and those that they tell of too. ``servers``
    is what a connection before this one knew of them.
    ``credentials`` is the path of a credentials file, ``nkey`` of a file with an nkey's seed; user and password (or a
    token: a user alone) come from the address or as keywords. The same names are options of the address, as are
    ``tls_ca``, ``tls_cert``, ``tls_key`` and ``tls_hostname``. ``stream`` names an existing JetStream stream: what is
    then subscribed at least once is read by a consumer named ``durable`` of it, and else plainly; what is not
    acknowledged within ``ack_wait`` seconds is delivered again. Of each subscription at most ``pending_max`` messages
    and 64 MiB wait to be heard; what comes beyond is dropped and counted.
    """

    kind = "nats"

    def __init__(
        self,
        url: str,
        *,
        name: str = "queuebell",
        prefix: str = "queuebell",
        user: str | None = None,
        password: str | None = None,
        credentials: str | None = None,
        nkey: str | None = None,
        tls: TlsOptions | None = None,
        stream: str | None = None,
        durable: str | None = None,
        ack_wait_s: float = 30.0,
        pending_max: int = PENDING_MAX,
        servers: Servers | None = None,
    ) -> None:
        where = Address(url, schemes=("nats", "tls"), options=OPTIONS, several=True)
        super().__init__(where)
        self._access = Access(
            where,
            name=where.options.get("name", name),
            user=user if user is not None else where.user,
            password=password if password is not None else where.password,
            credentials=credentials or where.options.get("credentials"),
            nkey=nkey or where.options.get("nkey"),
            tls=tls or TlsOptions.of(where),
        )
        self.servers = servers or Servers(where.hosts, random.random)
        """Whom it tries, for the next connection to go on with."""
        self._stream = stream or where.options.get("stream")
        self._durable = durable or where.options.get("durable") or f"{prefix}-bridge"
        self._ack_wait_s = float(where.number("ack_wait", 0, most=3600)) or ack_wait_s
        self._pending_max = pending_max
        self._topics = Topics(".", "*")
        self._complaints = Complaints(where.text)
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

    @property
    def received(self) -> int:
        """Messages that came in; a probe that fails while this grows met a queue, not a dead path."""
        return self._client.stats["in_msgs"] if self._client is not None else 0

    @property
    def payload_max(self) -> int:
        """The most bytes of payload that the server takes in one message."""
        return self._client.max_payload if self._client is not None else 1024 * 1024

    @property
    def version(self) -> tuple[int, int]:
        """The first two numbers of the server's version; zeros where it does not tell."""
        if self._client is None:
            return 0, 0
        version = self._client.connected_server_version
        try:
            return version.major, version.minor
        except ValueError:
            return 0, 0

    @property
    def private(self) -> bool:
        """Whether it is encrypted, or does not leave this machine; also not for a server that another one told of."""
        here = self._server is None or is_loopback(self._server.host.name)
        return self._where.encrypted or (here and super().private)

    async def connect(self, *, will: tuple[Topic, bytes] | None = None) -> None:
        """Connect within 5 s; NATS knows no last will. Raises as `Broker.connect` does."""
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
        # What another server told of is no setting of anybody: it cannot be wrong for good.
        self._ending.tell(self._last_error or "connecting failed")
        raise refused or BusUnavailable(str(missed or f"{self.address}: closed"))

    async def subscribe(self, pattern: Topic, hear: Hear, *, at_least_once: bool = False) -> None:
        """Hear ``pattern``; with ``at_least_once`` and a stream, from the durable consumer. Raises as promised."""
        client = self.alive()
        subject = self._topics.pattern(pattern)
        from nats import errors

        try:
            if at_least_once and self._stream:
                await self._consume(client, subject, hear)
            else:
                await self._listen(client, subject, hearing(hear, self._topics, self._complaints))
            await self.barrier()
        except (OSError, errors.Error) as error:
            raise BusUnavailable(f"{self.address}: cannot subscribe to {subject}: {said(error)}") from None
        # The server answers a SUB it does not allow before it answers the barrier.
        if refused := self._denied.get(subject.lower()):
            raise SubscriptionRefused(f"{self.address}: {refused}")

    def publish(
        self, topic: Topic, payload: bytes, *, content_type: str | None = None, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Put one message on its way. Also False for a payload above `payload_max`, which is logged."""
        return self.send(self._topics.join(topic), payload, headers=_headers(content_type, headers))

    def writable(self) -> bool:
        """Whether less than 64 KiB is unsent."""
        return self._ending.reason is None and self._unsent() < UNSENT_LITTLE

    async def request(self, topic: Topic, payload: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Bring one message to its listener and wait for the answer. Raises `BadInput` for one that is too large."""
        self.alive()
        if len(payload) > self.payload_max:
            raise BadInput("too_large", f"the broker accepts at most {self.payload_max} bytes per message")
        token = str(next(self._tokens))
        if not self.send(self._topics.join(topic), payload, f"{self._inbox}.{token}", _headers(None, headers)):
            raise self._unsendable()
        if await self._answers.answer(token, REQUEST_S, f"{self.address}: no answer") == NOBODY:
            raise BusUnavailable(f"{self.address}: no subscriber at {'.'.join(topic)}")

    def send(self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None) -> bool:
        """Publish by the text of a subject that was checked before; `publish` for this room's own use."""
        client = self._client
        if client is None or self._ending.reason is not None or not client.is_connected:
            return False
        if self._unsent() > UNSENT_MAX:
            return False
        if len(payload) > client.max_payload:
            self._complaints.tell("not published", f"{len(payload)} bytes, the server accepts {client.max_payload}")
            return False
        # `publish` is a coroutine that has nothing to wait for as long as its buffer is off (pending_size=0).
        step = client.publish(subject, payload, reply, headers)
        try:
            step.send(None)
        except StopIteration:
            return True
        except (OSError, _library_error()) as error:
            self._complaints.tell("not published", said(error))
            return False
        step.close()
        self._ending.tell("the client library cannot send")
        return False

    # --- connecting -------------------------------------------------------------------------------------------------

    async def _connect_to(self, server: Node, within_s: float) -> None:
        """Try one server; what failed leaves nothing behind."""
        from nats import errors
        from nats.aio.client import Client

        client = self._client = Client()
        self._last_error, self._ending = "", Ending()
        self._answers = self._ending.room()
        options = self._access.options(lambda: _writer(client), server)
        options["discovered_server_cb"] = functools.partial(self._learn, client, server)
        options["error_cb"] = self._of(client, self._failed)
        options["disconnected_cb"] = options["closed_cb"] = self._of(client, self._disconnected)
        try:
            async with asyncio.timeout(within_s):
                await client.connect(**options)
                self._watch(client)
                await self._learn(client, server)
                self._inbox = client.new_inbox()
                self._subscriptions.append(await client.subscribe(f"{self._inbox}.*", cb=self._answered))
                await self._echo(within_s)
        except TimeoutError:
            await self._let_go(client)
            raise BusUnavailable(f"{self._access.text(server)}: no connection within {within_s:.3g} s") from None
        except ImportError:
            await self._let_go(client)
            raise ConfigurationError(f"broker: credentials and nkeys need {install('nkeys')}") from None
        except (OSError, errors.Error, BusUnavailable, ValueError) as error:
            last = self._last_error
            await self._let_go(client)
            raise self._access.refusal(error, last, server) from None
        except BaseException as error:
            await self._let_go(client)
            # The library reads these files while it connects, and says what it stumbles over in any class of error.
            ours = not isinstance(error, Exception) or isinstance(error, QueuebellError)
            if not ours and self._access.by_file:
                raise self._access.unusable(server) from None
            raise

    def _of(self, client: Client, heard: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Return a callback that is deaf once another server is tried."""

        async def told(*what: Any) -> None:
            if client is self._client:
                await heard(*what)

        return told

    async def _learn(self, client: Client, server: Node) -> None:
        """Take what the server has said of its cluster so far, the newest first.

        Only once it is known to be the one that was meant: its first words came before TLS and before any password.
        """
        if client.discovered_servers:
            self.servers.learn([each.netloc for each in reversed(client.servers)], server)

    async def _let_go(self, client: Client) -> None:
        await self._tear_down()
        if self._client is client and self._closing is None:
            self._client = self._wire = None
            self._tasks.clear()
            self._subscriptions.clear()
            self._denied.clear()

    def _watch(self, client: Client) -> None:
        # Whatever happens to the library, an end of one of these is the end of the connection.
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
        self._ending.tell(self._last_error or (said(error) if error is not None else "the connection ended"))

    def alive(self) -> Client:
        """Return the library's client; raises `BusUnavailable` where the connection has ended."""
        self._ending.check()
        if self._client is None or self._wire is None:
            raise BusUnavailable(f"{self.address}: not connected")
        return self._client

    # --- hearing ----------------------------------------------------------------------------------------------------

    async def _listen(self, client: Client, subject: str, heard: Callable[[Msg], Awaitable[None]]) -> None:
        self._subscriptions.append(
            await client.subscribe(
                subject,
                cb=heard,
                pending_msgs_limit=self._pending_max,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )
        )

    async def _consume(self, client: Client, subject: str, hear: Hear) -> None:
        from bridge.brokers.nats.jetstream import Durable

        assert self._stream is not None
        number = len(self._consumers) + 1
        durable = self._durable if number == 1 else f"{self._durable}-{number}"
        consumer = Durable(self._stream, durable, f"{self._inbox}.pull.{number}", self, self._ending)
        await consumer.create(client, subject, self._ack_wait_s)
        self._consumers.append(consumer)
        heard = hearing(hear, self._topics, self._complaints, consumer)
        await self._listen(client, consumer.inbox, consumer.hearing(heard))
        consumer.pull()

    async def _answered(self, msg: Msg) -> None:
        status = msg.headers.get("Status", "") if msg.headers else ""
        self._answers.settle(msg.subject.rpartition(".")[2], status)

    def _send_to_ourselves(self) -> str | None:
        """Publish to our own inbox.

        SUB and PUB wait in one list of the library for their turn. Its own PING overtakes that list, which loses 2 to
        8 % of the first messages after a subscription.
        """
        self.alive()
        token = str(next(self._tokens))
        return token if self.send(f"{self._inbox}.{token}", b"") else None

    # --- ending -----------------------------------------------------------------------------------------------------

    async def _failed(self, error: Exception) -> None:
        """Hear of an error from the library; must not raise, that would end its reading unseen."""
        name, words = type(error).__name__, said(error)
        if name == "SlowConsumerError":
            self._dropped += 1
            self._complaints.tell("too slow", "incoming messages were dropped")
            return
        if "permissions violation" in words.lower():
            self._complaints.tell("rejected by the server", words)
            if len(self._denied) < 100:
                self._denied[words.rpartition(" to ")[2].strip(' "').partition('"')[0].lower()] = words
            return
        if name != "NoServersError":
            self._last_error = words
        if self._wire is not None and isinstance(error, OSError | _library_error()):
            self._ending.tell(words)

    async def _disconnected(self) -> None:
        if self._wire is not None:
            error = self._client.last_error if self._client is not None else None
            self._ending.tell(said(error) if error is not None else self._last_error or "the connection ended")

    def _unsent(self) -> int:
        if self._client is None or self._wire is None:
            return 0
        return self._client.pending_data_size + self._wire.get_write_buffer_size()

    async def _close(self) -> None:
        if self._wire is not None:
            await self._last_echo()
        self._ending.tell("closed")
        await self._tear_down()

    async def _tear_down(self) -> None:
        """Abort first: on a half-open connection the library waits for ever for what cannot be sent."""
        client, wire = self._client, _writer(self._client)
        for consumer in self._consumers:
            consumer.stop()
        if client is None or wire is None:
            return  # it failed before it began
        wire.abort()
        # What is left would be written to the aborted connection, and the error would keep it from cleaning up.
        client._pending.clear()
        client._pending_data_size = 0
        tasks = [*self._tasks, *(subscription._wait_for_msgs_task for subscription in self._subscriptions)]
        try:
            async with asyncio.timeout(TEAR_DOWN_S):
                await client.close()
        except (TimeoutError, OSError, _library_error()) as error:
            self._complaints.tell("not closed cleanly", said(error))
        left = [task for task in tasks if task is not None and not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=TEAR_DOWN_S / 2)


def _writer(client: Client | None) -> Any:
    """Return the transport below the library, None before there is one; of TLS once that is up."""
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
