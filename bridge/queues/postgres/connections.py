"""Connections to a PostgreSQL database, checked for the schema version, and its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final

from queuebell.bridge.brokers.postgres.access import CONNECT_S, PostgresAccess, client, is_pooler
from queuebell.bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    NotPrepared,
    QueuebellError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.queues.connections import Connections

SCHEMA_VERSION: Final = 5

SESSION: Final[dict[str, str]] = {
    "default_transaction_isolation": "read committed",
    # A plan made for an empty table is used when it is long: only the index is right at any length.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    # One plan is right for all values, and planning again would take as long as executing it.
    "plan_cache_mode": "force_generic_plan",
    # Ends before the caller's time-out (R, 10 s), which would leave the outcome unknown.
    "lock_timeout": "8s",
    # The server ends calls whose caller has timed out (P2).
    "statement_timeout": "60s",
    # The same for a client that hangs during an answer, whose rows stay locked until then.
    "tcp_user_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
}

_NOT_LOCAL: Final = frozenset({"default_transaction_isolation", "tcp_user_timeout"})
"""Not set by a transaction through a pooler: BEGIN sets the first, the other applies to the client's socket."""
_VERSION: Final = "SELECT version FROM queuebell_schema"


class PostgresConnections(Connections):
    """The connections of one store or table."""

    def __init__(self, access: PostgresAccess, size: int, key: Hashable = None) -> None:
        super().__init__(size, key)
        self._access = access
        self._checked = False
        self._pooled = False

    async def fetch(self, sql: str, args: tuple[object, ...], within_s: float) -> list[Any]:
        """Execute one statement in its own transaction and return its rows; never retries (L6).

        Raises `StoreUnavailable` if it was not executed, `UnknownOutcome` if that is unknown, and errors of `explain`.
        """
        rows: list[Any] = await self.use(within_s, lambda connection: connection.fetch(sql, *args))
        return rows

    def carried_by(self, process: int) -> bool:
        """Return whether one of these connections, which must not be shared, belongs to a server process."""
        return any(not connection.is_closed() and connection.get_server_pid() == process for connection in self._open())

    def _explained(self, error: Exception, *, connected: bool) -> tuple[QueuebellError, bool]:
        # After an error of the server the connection is usable; after one of the client it is not.
        answered = getattr(error, "severity", None) is not None
        if answered and getattr(error, "sqlstate", None) == READ_ONLY:
            # Another server may be the primary now; only new connections can reach it.
            answered = False
            self._end_idle()
        return explain(error, self._access.text, sent=connected), answered

    async def _connect(self) -> Any:
        connection = None
        if not self._pooled:
            try:
                connection = await self._access.connect(within_s=CONNECT_S, settings=SESSION)
            except client().PostgresError as error:
                if not is_pooler(error):
                    raise
                self._pooled = True
        if connection is None:
            connection = _Pooled(await self._access.connect(within_s=CONNECT_S, pooled=True), self._access.search_path)
        try:
            if not self._checked:
                await self._check(connection)
        except BaseException:
            self._end(connection)
            raise
        return connection

    def _usable(self, connection: Any) -> bool:
        return not connection.is_closed() and self._access.suits(connection)

    def _end(self, connection: Any) -> None:
        connection.terminate()

    async def _check(self, connection: Any) -> None:
        """Raise `ConfigurationError` if the tables are missing, older or newer than this program."""
        try:
            version = await connection.fetchval(_VERSION)
        except client().UndefinedTableError:
            raise NotPrepared(f"{self._access.text}: the database has no queue tables yet: {INIT_HINT}") from None
        if (fault := misfit(version)) is not None:
            kind = ConfigurationError if version > SCHEMA_VERSION else NotPrepared
            raise kind(f"{self._access.text}: {fault}")
        self._checked = True


class _Pooled:
    """A connection to a pooler: each statement is a transaction with its own settings, in four messages."""

    def __init__(self, connection: Any, search_path: str | None) -> None:
        self._connection = connection
        said = [f"SET LOCAL {name} = '{value}'" for name, value in SESSION.items() if name not in _NOT_LOCAL]
        if search_path is not None:
            said.append(search_in(search_path))
        self._begin = "; ".join(["BEGIN ISOLATION LEVEL READ COMMITTED", *said])
        self.is_closed, self.terminate = connection.is_closed, connection.terminate
        self.get_settings = connection.get_settings

    async def fetch(self, sql: str, *args: object) -> list[Any]:
        rows: list[Any] = await self._within(lambda: self._connection.fetch(sql, *args))
        return rows

    async def execute(self, script: str) -> None:
        await self._within(lambda: self._connection.execute(script))

    async def fetchval(self, sql: str) -> Any:
        rows = await self.fetch(sql)
        return rows[0][0] if rows else None

    def get_server_pid(self) -> int:
        """Return -1: each transaction may have another server process."""
        return -1

    async def _within(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await self._connection.execute(self._begin)
        try:
            answer = await call()
        except client().PostgresError:
            await self._connection.execute("ROLLBACK")
            raise
        await self._connection.execute("COMMIT")
        return answer


def search_in(search_path: str) -> str:
    """Return the statement that sets the search path of a transaction."""
    quoted = search_path.replace("'", "''")
    return f"SELECT set_config('search_path', '{quoted}', true)"


def misfit(version: int) -> str | None:
    """Return why tables of this schema version cannot be used, and what to do; None if they can."""
    if version > SCHEMA_VERSION:
        return (
            f"the tables are from a newer version of Queuebell (schema {version}, supported {SCHEMA_VERSION}); nothing "
            "was changed. Upgrade this program"
        )
    if version < SCHEMA_VERSION:
        return f"the tables have schema {version}, but {SCHEMA_VERSION} is needed: {INIT_HINT}"
    return None


INIT_HINT: Final = "create or migrate them with 'queuebell queue init postgres://...'"
READ_ONLY: Final = "25006"
"""The server is a standby or read-only; another connection may reach the primary."""

# By SQLSTATE, or else by its class of two letters.
_MEANING: Final[dict[str, type[StoreError]]] = {
    # The server closes connections during a statement; the commit may have been done.
    "57P01": UnknownOutcome,
    "57P02": UnknownOutcome,
    "57P05": UnknownOutcome,
    "40003": UnknownOutcome,
    "08": UnknownOutcome,
    # Disk full, unlike the rest of its class.
    "53100": StoreFull,
    # The statement was rolled back.
    READ_ONLY: StoreUnavailable,
    "40": StoreUnavailable,
    "53": StoreUnavailable,
    "55": StoreUnavailable,
    "57": StoreUnavailable,
    "58": StoreUnavailable,
    "XX": StoreUnavailable,
}
_MISSING: Final = frozenset({"42P01", "42883", "3F000", "42703"})
_REFUSED: Final = frozenset({"28", "42501"})
_NO_DATABASE: Final = "3D000"


def explain(error: Exception, where: str, *, sent: bool) -> QueuebellError:
    """Return the store error for a client's error; ``sent`` if the request was sent.

    An error of the server means that the statement was rolled back, unless it closed the connection.
    """
    state: Any = getattr(error, "sqlstate", None)
    # The client's own errors for a lost connection have a state too, but no severity.
    if isinstance(state, str) and getattr(error, "severity", None):
        return error_for(error, state, where, sent=sent)
    why = str(error) or type(error).__name__
    if sent:
        return UnknownOutcome(f"{where}: no answer from the database: {why}")
    return StoreUnavailable(f"{where}: the database cannot be reached: {why}")


def error_for(error: Exception, state: str, where: str, *, sent: bool) -> QueuebellError:
    """Return the store error for an SQLSTATE, of any client; ``sent`` as for `explain`."""
    if state in _MISSING:
        return StoreError(f"{where}: tables are missing in the database: {INIT_HINT}")
    if state[:2] == "22" or state == "23514":
        return BadInput("bad_parameter", "the database rejects a value: " + str(error))
    meaning = _MEANING.get(state) or _MEANING.get(state[:2]) or StoreError
    if not sent and meaning is UnknownOutcome:
        meaning = StoreUnavailable
    if state == _NO_DATABASE:
        return ConfigurationError(f"{where}: {error}: create it, or correct the address")
    if state in _REFUSED or state[:2] in _REFUSED:
        if not sent:
            return ConfigurationError(f"{where}: the database rejects this user: {error}")
        return StoreError(f"{where}: this user has no permission: {error}")
    return meaning(f"{where}: {error} (SQLSTATE {state})")
