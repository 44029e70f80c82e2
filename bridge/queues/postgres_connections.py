"""A store's connections to its database: few, kept, and none used again after a call whose end is not known."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from bridge.brokers.postgres_access import CONNECT_S, PostgresAccess, client
from bridge.contract.errors import Closed, ConfigurationError, NotPrepared, QueuebellError
from bridge.queues.postgres_errors import INIT_HINT, explain

IDLE_S: Final = 60.0
"""How long a connection is kept that nobody used; the newest used is used first, so that the others grow old."""
SCHEMA_VERSION: Final = 2

SESSION: Final[dict[str, str]] = {
    "default_transaction_isolation": "read committed",
    # A queue's table is empty when its plan is made and long when it is used: only the index is right at any length.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    # One plan is right for all values, and making it anew would cost as much as carrying it out.
    "plan_cache_mode": "force_generic_plan",
    # A definite refusal before the caller's own time-out (R, 10 s) leaves the outcome open.
    "lock_timeout": "8s",
    # The server's end of a call that its caller gave up (P2).
    "statement_timeout": "60s",
}

_VERSION = "SELECT version FROM queuebell_schema"


class Connections:
    """At most ``size`` connections; calls beyond that wait their turn."""

    def __init__(self, access: PostgresAccess, size: int) -> None:
        self._access = access
        self._turns = asyncio.Semaphore(size)
        self._idle: list[tuple[Any, float]] = []
        self._busy: set[Any] = set()
        self._ageing: asyncio.TimerHandle | None = None
        self._checked = False
        self._closed = False

    async def fetch(self, sql: str, args: tuple[object, ...], within_s: float) -> list[Any]:
        """Carry out one statement, a transaction of its own, and return its rows; never twice (L6).

        Raises `StoreUnavailable` where it was not carried out, `UnknownOutcome` where that is not known, and what
        `explain` makes of an answer.
        """
        connection = None
        answered = False
        try:
            async with asyncio.timeout(within_s), self._turns:
                connection = await self._take()
                rows: list[Any] = await connection.fetch(sql, *args)
                answered = True
                return rows
        except QueuebellError:
            raise
        except Exception as error:
            if self._closed:
                raise Closed("the store was closed") from error
            # What the server refused has left the connection as it was; what the client says has not.
            answered = getattr(error, "severity", None) is not None
            raise explain(error, self._access.text, sent=connection is not None) from error
        finally:
            if connection is not None:
                self._give_back(connection, answered)

    async def close(self) -> None:
        """Let go of all; calls under way fail as `Closed`."""
        self._closed = True
        if self._ageing is not None:
            self._ageing.cancel()
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.terminate()
        for connection in list(self._busy):
            connection.terminate()

    async def _take(self) -> Any:
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                self._busy.add(connection)
                return connection
        self._check_open()
        connection = await self._access.connect(within_s=CONNECT_S, settings=SESSION)
        try:
            if not self._checked:
                await self._check(connection)
            self._check_open()
        except BaseException:
            connection.terminate()
            raise
        self._busy.add(connection)
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    async def _check(self, connection: Any) -> None:
        """Raise `ConfigurationError` for a database whose tables are missing, older or newer than this program."""
        try:
            version = await connection.fetchval(_VERSION)
        except client().UndefinedTableError:
            raise NotPrepared(f"{self._access.text}: the database has no queues yet: {INIT_HINT}") from None
        if version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"{self._access.text}: a newer version of Queuebell has made the tables (schema {version}, this one "
                f"knows {SCHEMA_VERSION}); nothing was changed: use that version here too"
            )
        if version < SCHEMA_VERSION:
            raise NotPrepared(
                f"{self._access.text}: the tables are of schema {version}, and {SCHEMA_VERSION} is needed: {INIT_HINT}"
            )
        self._checked = True

    def _give_back(self, connection: Any, answered: bool) -> None:
        self._busy.discard(connection)
        if not answered or self._closed or connection.is_closed():
            connection.terminate()
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
            self._idle.pop(0)[0].terminate()
        if self._idle and not self._closed:
            self._ageing = loop.call_at(self._idle[0][1] + IDLE_S, self._age)
