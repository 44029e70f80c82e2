"""A store's connections to its Redis server: few, kept, and none used again after a call whose end is not known.

The client's own pool and retries are left out: they would send a receive twice (L6).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from bridge.brokers.address import Address, TlsOptions
from bridge.contract.errors import Closed, ConfigurationError, QueuebellError, StoreUnavailable, UnknownOutcome
from bridge.queues.redis_errors import explain, word_of

CONNECT_S: Final = 4.0
IDLE_S: Final = 60.0
"""How long a connection is kept that nobody used."""
POOL: Final = 8
POOL_MAX: Final = 100
SCHEMES: Final = ("redis", "rediss")
OPTIONS: Final = ("pool_size", "prefix")
TLS: Final = ("tls_ca", "tls_cert", "tls_key")
DATABASE_MAX: Final = 99_999


def client() -> Any:
    """Return the client library; raises `ConfigurationError` that names the extra where it is missing."""
    try:
        import redis.asyncio
    except ImportError:
        raise ConfigurationError(
            "redis: its client is not installed: pip install -e '.[redis]' in the checkout"
        ) from None
    return redis.asyncio


class RedisAddress:
    """``redis[s]://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE][?OPTION=VALUE&...]``, checked.

    ``text`` is the address without user, password and options, for logs; ``place`` is the same text for every way of
    writing it. Raises `ConfigurationError`; its message never repeats the address.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ConfigurationError("redis: the address is malformed") from None
        database = parts.path.removeprefix("/") or "0"
        if not (database.isascii() and database.isdigit() and int(database) <= DATABASE_MAX):
            raise ConfigurationError(
                "redis: an address is redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]; DATABASE is a number"
            )
        self.database = int(database)
        unknown = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - {*OPTIONS, *TLS}
        if unknown and parts.scheme in SCHEMES:
            raise ConfigurationError(
                f"redis: options of the address are {', '.join(OPTIONS)}, and of rediss:// also {', '.join(TLS)}"
            )
        self.where = Address(urlunsplit(parts._replace(path="")), schemes=SCHEMES, options=OPTIONS)
        self.tls = TlsOptions.of(self.where)
        if self.tls.given() and not self.where.encrypted:
            raise ConfigurationError(f"redis: {', '.join(TLS)} are for rediss://")
        self.pool_size = self.where.number("pool_size", POOL, most=POOL_MAX)
        if not self.pool_size:
            raise ConfigurationError(f"redis: pool_size is from 1 to {POOL_MAX}")
        self.text = f"{self.where.text}/{self.database}"
        self.place = self.text.replace("//localhost:", "//127.0.0.1:")

    def __repr__(self) -> str:
        return f"<RedisAddress {self.text}>"

    def connection(self) -> Any:
        """Return a connection that is not made yet, and repeats nothing. Raises `ConfigurationError`."""
        client()
        from redis.asyncio import Connection, SSLConnection
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        options: dict[str, Any] = {
            "host": self.where.host,
            "port": self.where.port,
            "db": self.database,
            "username": self.where.user,
            "password": self.where.password,
            "client_name": "queuebell",
            "protocol": 2,
            "socket_timeout": None,
            "socket_connect_timeout": None,  # the ends of calls are ours
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "health_check_interval": 0,
        }
        if not self.where.encrypted:
            return Connection(**options)
        self.tls.context()  # says which of the files cannot be used
        return SSLConnection(
            ssl_ca_certs=self.tls.ca,
            ssl_certfile=self.tls.cert,
            ssl_keyfile=self.tls.key,
            ssl_cert_reqs="required",
            ssl_check_hostname=True,
            **options,
        )


class Unscripted(StoreUnavailable):
    """The server does not know this script: it was started anew, or its scripts were flushed."""


class Connections:
    """At most ``pool_size`` connections; calls beyond that wait their turn."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._turns = asyncio.Semaphore(address.pool_size)
        self._idle: list[tuple[Any, float]] = []
        self._busy: set[Any] = set()
        self._ageing: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(self, command: tuple[str | bytes | int, ...], within_s: float) -> Any:
        """Send one command and return its answer; never twice (L6).

        Raises `StoreUnavailable` where it was not sent, `UnknownOutcome` where no answer came, and what `explain` makes
        of an answer.
        """
        connection = None
        answered = False
        try:
            async with asyncio.timeout(within_s), self._turns:
                connection = await self._take()
                await connection.send_command(*command)
                answer = await connection.read_response()
                answered = True
                return answer
        except QueuebellError:
            raise
        except Exception as error:
            if self._closed:
                raise Closed("the store was closed") from error
            if connection is None:
                why = str(error).rstrip(".") or "no answer in time"  # the client ends some with a period, some not
                raise StoreUnavailable(f"{self._address.text}: Redis cannot be reached: {why}") from error
            # An answer leaves the connection as it was; of the rest it is not known what still comes.
            word = word_of(error)
            answered = _is_answer(error) and word != "READONLY"  # where a new connection may lead to the new master
            if word == "NOSCRIPT":
                raise Unscripted(f"{self._address.text}: Redis does not know the script") from error
            if word or answered:
                raise explain(error, self._address.text, connecting=False) from error
            why = str(error).rstrip(".") or type(error).__name__
            raise UnknownOutcome(f"{self._address.text}: no answer from Redis: {why}") from error
        finally:
            if connection is not None:
                self._give_back(connection, answered)

    async def close(self) -> None:
        """Let go of all; calls under way fail as `Closed`. May be called twice."""
        self._closed = True
        if self._ageing is not None:
            self._ageing.cancel()
        idle, self._idle = self._idle, []
        for connection in [*(each for each, _ in idle), *self._busy]:
            self._end(connection)
        while self._closing:
            await asyncio.wait(self._closing)

    async def _take(self) -> Any:
        self._check_open()
        while self._idle:
            connection, _ = self._idle.pop()
            if _usable(connection):
                self._busy.add(connection)
                return connection
            self._end(connection)
        connection = self._address.connection()
        try:
            async with asyncio.timeout(CONNECT_S):
                await connection.connect()
            self._check_open()
        except BaseException as error:
            self._end(connection)
            if isinstance(error, Exception) and not isinstance(error, QueuebellError):
                self._refuse(error)
            raise
        self._busy.add(connection)
        return connection

    def _refuse(self, error: Exception) -> None:
        """Raise our error for an attempt to connect that the server, or its certificate, has answered."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise ConfigurationError(f"{self._address.text}: {cause}") from error
            cause = cause.__context__  # the client's own words may leave it out
        if word_of(error) or _is_answer(error):
            raise explain(error, self._address.text, connecting=True) from error

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    def _give_back(self, connection: Any, answered: bool) -> None:
        self._busy.discard(connection)
        if not answered or self._closed or not _usable(connection):
            self._end(connection)
            return
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._ageing is None:
            self._ageing = loop.call_later(IDLE_S, self._age)

    def _age(self) -> None:
        loop = asyncio.get_running_loop()
        self._ageing = None
        limit = loop.time() - IDLE_S
        # Appended in the order of their last use: the oldest come first.
        while self._idle and self._idle[0][1] <= limit:
            self._end(self._idle.pop(0)[0])
        if self._idle and not self._closed:
            self._ageing = loop.call_at(self._idle[0][1] + IDLE_S, self._age)

    def _end(self, connection: Any) -> None:
        """Close a connection without waiting for what is still to be sent; the caller may be no task."""
        writer = getattr(connection, "_writer", None)
        if writer is not None:
            writer.transport.abort()
        task = asyncio.create_task(_disconnect(connection), name="redis disconnect")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _disconnect(connection: Any) -> None:
    with contextlib.suppress(Exception):  # it is gone in any case
        await connection.disconnect(nowait=True)


def _usable(connection: Any) -> bool:
    """Say whether a connection is open on both sides: to one that the server closed, a command would be lost."""
    reader = getattr(connection, "_reader", None)
    return bool(connection.is_connected) and reader is not None and not reader.at_eof() and reader.exception() is None


def _is_answer(error: Exception) -> bool:
    from redis.exceptions import ResponseError

    return isinstance(error, ResponseError)
