"""The address of a Redis server, connections to it, and its errors.

The client's own pool and retries are not used: they would send a receive twice (L6).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Hashable
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from queuebell.bridge.brokers.address import Address, TlsOptions
from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import (
    ConfigurationError,
    QueuebellError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.queues.connections import Connections

CONNECT_S: Final = 4.0
POOL: Final = 8
POOL_MAX: Final = 100
SCHEMES: Final = ("redis", "rediss")
OPTIONS: Final = ("pool_size", "prefix")
TLS: Final = ("tls_ca", "tls_cert", "tls_key")
DATABASE_MAX: Final = 99_999


def client() -> Any:
    """Return the client library; raise `ConfigurationError` with the extra to install if it is missing."""
    try:
        import redis.asyncio
    except ImportError:
        raise ConfigurationError(f"redis: its client is not installed: {install('redis')}") from None
    return redis.asyncio


class RedisAddress:
    """``redis[s]://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE][?OPTION=VALUE&...]``, checked.

    ``text`` is the address without user, password and options, for logs; ``place`` is its normalised form. Raises
    `ConfigurationError`, without repeating the address.
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
        """Return a connection that is not open yet and never retries. Raises `ConfigurationError`."""
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
            "socket_connect_timeout": None,  # Calls have their own time-outs.
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "health_check_interval": 0,
        }
        if not self.where.encrypted:
            return Connection(**options)
        self.tls.context()  # Raises an error that names an unusable file.
        return SSLConnection(
            ssl_ca_certs=self.tls.ca,
            ssl_certfile=self.tls.cert,
            ssl_keyfile=self.tls.key,
            ssl_cert_reqs="required",
            ssl_check_hostname=True,
            **options,
        )


class Unscripted(StoreUnavailable):
    """The server does not know this script: it was restarted, or its scripts were flushed."""


class RedisConnections(Connections):
    """The connections of one store."""

    def __init__(self, address: RedisAddress, key: Hashable = None) -> None:
        super().__init__(address.pool_size, key)
        self._address = address
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, command: tuple[str | bytes | int, ...], within_s: float) -> Any:
        """Send one command and return its answer; never retries (L6).

        Raises `StoreUnavailable` if it was not sent, `UnknownOutcome` if no answer came, and errors of `explain`.
        """

        async def sent(connection: Any) -> Any:
            await connection.send_command(*command)
            return await connection.read_response()

        return await self.use(within_s, sent)

    def _explained(self, error: Exception, *, connected: bool) -> tuple[QueuebellError, bool]:
        where, why = self._address.text, str(error).rstrip(".")  # the client ends some with a period, some not
        if not connected:
            return StoreUnavailable(f"{where}: Redis cannot be reached: {why or 'no answer in time'}"), False
        # After an answer the connection is usable; otherwise an answer may still come.
        word = word_of(error)
        answered = _is_answer(error) and word != "READONLY"
        if word == "READONLY":
            self._end_idle()  # Only new connections can reach the new master.
        if word == "NOSCRIPT":
            return Unscripted(f"{where}: Redis does not know the script"), answered
        if word or answered:
            return explain(error, where, connecting=False), answered
        return UnknownOutcome(f"{where}: no answer from Redis: {why or type(error).__name__}"), False

    async def close(self) -> None:
        """Close all connections; calls in progress fail with `Closed`. May be called twice."""
        await super().close()
        while self._closing:
            await asyncio.wait(self._closing)

    async def _connect(self) -> Any:
        connection = self._address.connection()
        try:
            async with asyncio.timeout(CONNECT_S):
                await connection.connect()
        except BaseException as error:
            self._end(connection)
            if isinstance(error, Exception) and not isinstance(error, QueuebellError):
                self._refuse(error)
            raise
        return connection

    def _refuse(self, error: Exception) -> None:
        """Raise the store error if the server rejected the connection, or its certificate is invalid."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise ConfigurationError(f"{self._address.text}: {cause}") from error
            cause = cause.__context__  # The client's own message may not include it.
        if word_of(error) or _is_answer(error):
            raise explain(error, self._address.text, connecting=True) from error

    def _usable(self, connection: Any) -> bool:
        # A command on a connection that the server has closed would be lost.
        reader = getattr(connection, "_reader", None)
        if reader is None or not connection.is_connected:
            return False
        return not reader.at_eof() and reader.exception() is None

    def _end(self, connection: Any) -> None:
        writer = getattr(connection, "_writer", None)
        if writer is not None:
            writer.transport.abort()
        task = asyncio.create_task(_disconnect(connection), name="redis disconnect")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _disconnect(connection: Any) -> None:
    with contextlib.suppress(Exception):  # The connection is closed in any case.
        await connection.disconnect(nowait=True)


def _is_answer(error: Exception) -> bool:
    from redis.exceptions import ResponseError

    return isinstance(error, ResponseError)


# The client removes the first word of some answers and shows it by the class of its error; in an answer to a script, it
# may be anywhere.
_BY_CLASS: Final[dict[str, str]] = {
    "OutOfMemoryError": "OOM",
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "NoScriptError": "NOSCRIPT",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "AuthenticationError": "NOAUTH",
    "AuthenticationWrongNumberOfArgsError": "NOAUTH",
    "AuthorizationError": "NOPERM",
    "NoPermissionError": "NOPERM",
}
_NOT_NOW: Final[dict[str, str]] = {
    "MISCONF": "it cannot write to its disk and rejects writes",
    "NOREPLICAS": "too few replicas are connected",
    "LOADING": "it is still reading its data",
    "READONLY": "it is a replica now",
    "MASTERDOWN": "it is a replica without its master",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the cluster is moving these keys",
    "BUSY": "another script has been running for too long",
}
_REFUSED: Final = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
_CLUSTER: Final = frozenset({"MOVED", "ASK", "CROSSSLOT"})
_WORDS: Final = frozenset({"OOM", "WRONGTYPE", *_NOT_NOW, *_REFUSED, *_CLUSTER})


def word_of(error: Exception) -> str:
    """Return the server's name of an error; empty if unknown."""
    by_class = _BY_CLASS.get(type(error).__name__)
    if by_class is not None:
        return by_class
    parts = str(error).replace("'", " ").replace(":", " ").split()
    return next((part.lstrip("-") for part in parts if part.lstrip("-") in _WORDS), "")


def explain(error: Exception, where: str, *, connecting: bool) -> QueuebellError:
    """Return the store error for an error answer; the command changed nothing."""
    word = word_of(error)
    if word == "OOM":
        return StoreFull(
            f"{where}: its memory is full; acknowledged messages are safe, and can be received and deleted"
        )
    if word in _NOT_NOW:
        return StoreUnavailable(f"{where}: {_NOT_NOW[word]} ({word}); nothing was changed")
    if word in _REFUSED:
        if connecting:
            return ConfigurationError(f"{where}: Redis rejects this user or password ({word})")
        return StoreError(f"{where}: this user has no permission: {error}; nothing was changed")
    if word in _CLUSTER:
        return ConfigurationError(f"{where}: this is a node of a Redis Cluster; this store needs a single server")
    if word == "WRONGTYPE":
        return StoreError(f"{where}: a key of this queue has another use: {error}; choose another prefix")
    if connecting and "DB index" in str(error):
        return ConfigurationError(f"{where}: there is no database with this number")
    return StoreError(f"{where}: rejected: {error}")
