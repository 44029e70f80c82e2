"""NATS: core subjects, and optionally a JetStream durable consumer for what must arrive at least once.

nats-py 2.16 has ways to be connected and deaf: its `flush` is answered before what it should flush, an exception in an
error callback ends its reading unseen, `-ERR` closes without a word, a half-open connection hangs in its own `close`.
Hence nothing of its own state is trusted here: every confirmation is a message to our own inbox that came back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bridge.broker import Hear, Topic
from bridge.brokers.address import Address, TlsOptions
from bridge.brokers.complaints import Complaints
from bridge.brokers.ending import Ending
from bridge.brokers.nats_access import Access, check_installed, said
from bridge.brokers.nats_hearing import straight, taking
from bridge.brokers.topics import Topics
from bridge.contract.errors import BadInput, BusUnavailable, Closed, ConfigurationError, QueuebellError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from bridge.brokers.jetstream import Durable
    from bridge.brokers.nats_reading import Reading

CONNECT_S: Final = 5.0
REQUEST_S: Final = 5.0
PROBE_S: Final = 2.0
LAST_WORDS_S: Final = 1.0
"""How long `close` waits for what was published to be on the broker."""
TEAR_DOWN_S: Final = 0.7
UNSENT_MAX: Final = 4 * 1024 * 1024
UNSENT_LITTLE: Final = 64 * 1024
PENDING_MAX: Final = 65_536
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
NOBODY: Final = "503"
OPTIONS: Final = ("credentials", "nkey", "name", "stream", "durable", "ack_wait", "inbox")


class NatsBroker:
    """One connection to a NATS server at ``nats://`` or ``tls://``; the latter never speaks without TLS.

    ``credentials`` is the path of a credentials file, ``nkey`` of a file with an nkey's seed; user and password (or a
    token: a user alone) come from the address or as keywords. The same names are options of the address, as are
    ``tls_ca``, ``tls_cert``, ``tls_key`` and ``tls_hostname``. ``stream`` names an existing JetStream stream: what is
    then subscribed at least once is read by a consumer named ``durable`` of it, and else plainly; what is not
    acknowledged within ``ack_wait`` seconds is delivered again. With ``pending_max`` what is heard goes through the
    library's own buffer of so many messages, and what finds it full is dropped and counted.
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
        pending_max: int | None = None,
    ) -> None:
        where = Address(url, schemes=("nats", "tls"), options=OPTIONS)
        self._where = where
        self._access = Access(
            where,
            name=where.options.get("name", name),
            user=user if user is not None else where.user,
            password=password if password is not None else where.password,
            credentials=credentials or where.options.get("credentials"),
            nkey=nkey or where.options.get("nkey"),
            tls=tls or TlsOptions.of(where),
        )
        self._stream = stream or where.options.get("stream")
        self._durable = durable or where.options.get("durable") or f"{prefix}-bridge"
        self._ack_wait_s = float(where.number("ack_wait", 0, most=3600)) or ack_wait_s
        self._pending_max = pending_max
        self._topics = Topics(".", "*")
        self._complaints = Complaints(where.text)
        self._ending = Ending()
        self._answers = self._ending.room()
        self._tokens = itertools.count(1)
        self._client: Client | None = None
        self._reading: Reading | None = None
        self._wire: asyncio.WriteTransport | None = None
        self._inbox = ""
        self._subscriptions: list[Subscription] = []
        self._consumers: list[Durable] = []
        self._denied: dict[str, str] = {}
        self._last_error = ""
        self._dropped = 0
        self._closing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it connects, without anything secret."""
        return self._where.text

    @property
    def dropped(self) -> int:
        """Messages that found the client library's buffer full."""
        return self._dropped

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

    async def connect(self, *, will: tuple[Topic, bytes] | None = None) -> None:
        """Connect within 5 s; NATS knows no last will. Raises as `Broker.connect` does."""
        if self._client is not None or self._ending.reason is not None:
            raise Closed("a connection is made once")
        options = self._access.options(lambda: _writer(self._client))
        options["error_cb"] = self._failed
        options["disconnected_cb"] = options["closed_cb"] = self._disconnected
        check_installed()
        from nats import errors
        from nats.aio.client import Client

        from bridge.brokers.nats_reading import Reading
        from bridge.brokers.nats_transport import Together

        try:
            async with asyncio.timeout(CONNECT_S):
                client = self._client = Client()
                client._transport = Together()
                self._reading = client._ps = Reading(client)
                await client.connect(**options)
                self._watch(client)
                self._inbox = client.new_inbox()
                self._subscriptions.append(await client.subscribe(f"{self._inbox}.*", cb=self._answered))
                await self._echo(CONNECT_S)
        except TimeoutError:
            await self._give_up()
            raise BusUnavailable(f"{self.address}: no connection within {CONNECT_S:g} s") from None
        except ImportError:
            await self._give_up()
            raise ConfigurationError(
                "broker: credentials and nkeys need pip install -e '.[nkeys]' in the checkout"
            ) from None
        except (OSError, errors.Error, BusUnavailable, ValueError) as error:
            await self._give_up()
            raise self._access.refusal(error, self._last_error) from None
        except BaseException as error:
            await self._give_up()
            # The library reads these files while it connects, and says what it stumbles over in any class of error.
            ours = not isinstance(error, Exception) or isinstance(error, QueuebellError)
            if not ours and self._access.by_file:
                raise self._access.unusable() from None
            raise

    async def subscribe(self, pattern: Topic, hear: Hear, *, at_least_once: bool = False) -> None:
        """Hear ``pattern``; with ``at_least_once`` and a stream, from the durable consumer. Raises as promised."""
        client = self._alive()
        subject = self._topics.pattern(pattern)
        from nats import errors

        try:
            if at_least_once and self._stream:
                await self._consume(client, subject, hear)
            else:
                await self._listen(client, subject, self._hearing(hear))
                if self._pending_max is None:
                    self._straighten(hear)
            await self.barrier()
        except (OSError, errors.Error) as error:
            raise BusUnavailable(f"{self.address}: cannot subscribe {subject}: {said(error)}") from None
        # The server answers a SUB it does not allow before it answers the barrier.
        if refused := self._denied.get(subject.lower()):
            raise BusUnavailable(f"{self.address}: {refused}")

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
        self._alive()
        if len(payload) > self.payload_max:
            raise BadInput("too_large", f"the broker takes {self.payload_max} bytes in one message")
        token = str(next(self._tokens))
        if not self.send(self._topics.join(topic), payload, f"{self._inbox}.{token}", _headers(None, headers)):
            raise BusUnavailable(self._ending.reason or f"{self.address}: too much is unsent")
        if await self._answers.answer(token, REQUEST_S, f"{self.address}: no answer") == NOBODY:
            raise BusUnavailable(f"{self.address}: nobody listens at {'.'.join(topic)}")

    async def barrier(self) -> None:
        """Wait, 5 s at most, until the server has dealt with everything before."""
        self._alive()
        await self._echo(REQUEST_S)

    async def probe(self) -> float:
        """Send a message to our own inbox and return the seconds it took."""
        self._alive()
        return await self._echo(PROBE_S)

    async def broken(self) -> str:
        """Wait for the end of this connection and return why."""
        return await self._ending.wait()

    async def close(self) -> None:
        """Let what was published reach the server, 1 s at most, and end."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close {self.address}")
        await asyncio.shield(self._closing)

    def send(self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None) -> bool:
        """Publish by the text of a subject that was checked before; `publish` for this room's own use."""
        client = self._client
        if client is None or self._ending.reason is not None or not client.is_connected:
            return False
        if self._unsent() > UNSENT_MAX:
            return False
        if len(payload) > client.max_payload:
            self._complaints.tell("not published", f"{len(payload)} bytes, the server takes {client.max_payload}")
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

    def _watch(self, client: Client) -> None:
        self._access.check_encrypted(_writer(client))
        self._wire = _writer(client)
        # Whatever happens to the library, an end of one of these is the end of the connection.
        for task in (client._reading_task, client._flusher_task, client._ping_interval_task):
            if task is not None:
                task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        self._ending.tell(self._last_error or (said(error) if error is not None else "the connection ended"))

    async def _give_up(self) -> None:
        self._ending.tell(self._last_error or "it could not be made")
        await self._tear_down()

    def _alive(self) -> Client:
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
                pending_msgs_limit=self._pending_max or PENDING_MAX,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )
        )

    async def _consume(self, client: Client, subject: str, hear: Hear) -> None:
        from bridge.brokers.jetstream import Durable

        assert self._stream is not None
        number = len(self._consumers) + 1
        durable = self._durable if number == 1 else f"{self._durable}-{number}"
        consumer = Durable(self._stream, durable, f"{self._inbox}.pull.{number}", self, self._ending)
        await consumer.create(client, subject, self._ack_wait_s)
        self._consumers.append(consumer)
        await self._listen(client, consumer.inbox, consumer.hearing(self._hearing(hear, consumer)))
        consumer.pull()

    def _hearing(self, hear: Hear, consumer: Durable | None = None) -> Callable[[Msg], Awaitable[None]]:
        """Return the callback of one subscription. No exception leaves it: the library would take it for its own."""
        take = taking(hear, self._topics, self._complaints, consumer)

        async def heard(msg: Msg) -> None:
            take(msg)

        return heard

    def _straighten(self, hear: Hear) -> None:
        """Have the newest subscription heard without the library's queue and task (`nats_reading`)."""
        assert self._reading is not None
        topics, complaints = self._topics, self._complaints
        self._reading.hear(
            self._subscriptions[-1], straight(hear, topics, complaints), taking(hear, topics, complaints)
        )

    async def _answered(self, msg: Msg) -> None:
        status = msg.headers.get("Status", "") if msg.headers else ""
        self._answers.settle(msg.subject.rpartition(".")[2], status)

    async def _echo(self, within_s: float) -> float:
        """Return the seconds that a message to ourselves takes; when it is back, all before it has been dealt with.

        SUB and PUB wait in one list of the library for their turn. Its own PING overtakes that list, which loses 2 to
        8 % of the first messages after a subscription.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        token = str(next(self._tokens))
        if not self.send(f"{self._inbox}.{token}", b""):
            raise BusUnavailable(self._ending.reason or f"{self.address}: too much is unsent")
        await self._answers.answer(token, within_s, f"{self.address}: no message came back")
        return loop.time() - started

    # --- ending -----------------------------------------------------------------------------------------------------

    async def _failed(self, error: Exception) -> None:
        """Hear of an error from the library; must not raise, that would end its reading unseen."""
        name, words = type(error).__name__, said(error)
        if name == "SlowConsumerError":
            self._dropped += 1
            self._complaints.tell("too slow", "messages were dropped on their way in")
            return
        if "permissions violation" in words.lower():
            self._complaints.tell("refused by the server", words)
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
        if self._ending.reason is None and self._wire is not None:
            try:
                await self._echo(LAST_WORDS_S)
            except BusUnavailable:
                pass  # it ends anyway, and was half-open
        self._ending.tell("closed")
        await self._tear_down()

    async def _tear_down(self) -> None:
        """Abort first: on a half-open connection the library waits for ever for what cannot be sent."""
        client = self._client
        if client is None:
            return
        for consumer in self._consumers:
            consumer.stop()
        wire = _writer(client)
        if wire is not None:
            wire.abort()
        # What is left would be written to the aborted connection, and the error would keep it from cleaning up.
        client._pending.clear()
        client._pending_data_size = 0
        tasks = [client._reading_task, client._ping_interval_task, client._flusher_task]
        tasks += [subscription._wait_for_msgs_task for subscription in self._subscriptions]
        try:
            async with asyncio.timeout(TEAR_DOWN_S):
                if client._flush_queue is not None:  # else it failed before it began
                    await client.close()
        except (TimeoutError, OSError, _library_error()) as error:
            self._complaints.tell("not closed in order", said(error))
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
