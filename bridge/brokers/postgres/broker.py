"""PostgreSQL as a broker of triggers: one connection for LISTEN and NOTIFY.

It carries triggers and their acknowledgements, but no sessions, so it does not keep the promise of `base.py`.
Notifications while the connection is down are lost, so each new connection is a gap. The client's own state is not
used: a notification to this connection that came back proves the path, through any pooler in between.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from queuebell.bridge.brokers.connection import Ending
from queuebell.bridge.brokers.postgres.access import CHANNEL_BYTES_MAX, PostgresAccess, client, is_pooler, pooler
from queuebell.bridge.contract.errors import BusUnavailable, ConfigurationError

INBOX: Final = "queuebell_inbox_"
"""The prefix of channels that get answers; with any other a stranger could have a bridge notify itself."""
PAYLOAD_BYTES_MAX: Final = 7999
NOTIFY_S: Final = 5.0
PROBE_S: Final = 2.0
# A notification is a commit: without this each probe would wait for the disk.
_SETTINGS: Final = {"synchronous_commit": "off", "default_transaction_isolation": "read committed"}
_NOTIFY: Final = """
SELECT pg_notify(said.channel, said.payload), current_setting('transaction_read_only') = 'on' AS read_only
FROM unnest($1::text[], $2::text[]) AS said (channel, payload)
"""
_REFUSED: Final = ("28", "3D")


class PostgresBroker:
    """One connection, made once, to the database at ``postgres://``."""

    kind = "postgres"
    dropped = 0
    """Always 0: the server keeps notifications for a slow reader while the connection lasts."""

    def __init__(self, url: str) -> None:
        self._access = PostgresAccess(url, options=("pool_size",)).direct  # it may be the address of a store
        self._ending = Ending()
        self._probes = self._ending.pending_replies()
        self._numbers = itertools.count(1)
        self._own = f"queuebell_probe_{secrets.token_hex(16)}"
        self._calling = asyncio.Lock()
        self._connection: Any = None

    async def connect(self) -> None:
        """Connect within 5 s, or raise `BusUnavailable` (worth another try) or `ConfigurationError` (not)."""
        asyncpg = client()
        try:
            connection = self._connection = await self._access.connect(settings=_SETTINGS)
            connection.add_termination_listener(lambda _: self._ending.end("the database closed the connection"))
            await self.listen(self._own, lambda payload, _: self._probes.resolve(payload, ""))
        except asyncpg.PostgresError as error:
            if is_pooler(error):
                raise pooler(self.address) from error
            if str(error.sqlstate).startswith(_REFUSED):
                raise ConfigurationError(f"the database denies access: {error}") from error
            raise BusUnavailable(str(error)) from error
        except (OSError, asyncpg.InterfaceError) as error:  # TimeoutError is an OSError
            raise BusUnavailable(f"no connection: {error or type(error).__name__}") from error

    async def listen(self, channel: str, on_payload: Callable[[str, int], object]) -> None:
        """Pass each notification from now on to ``on_payload``, in order, on the loop's thread.

        ``on_payload`` gets the payload and the process id of the server's backend that notified. Once this returns,
        every later commit arrives while the connection lives. Raises `BusUnavailable`, and `ConfigurationError` for a
        channel longer than 63 bytes.
        """
        if len(channel.encode()) > CHANNEL_BYTES_MAX:
            raise ConfigurationError(f"prefix: a channel name of PostgreSQL may have at most {CHANNEL_BYTES_MAX} bytes")

        def listener(connection: object, pid: int, channel: str, payload: str) -> None:
            on_payload(payload, pid)

        await self._call("LISTEN", lambda: self._connection.add_listener(channel, listener))

    async def notify(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Send pairs of channel and payload in one transaction, and return once it is committed.

        Equal pairs arrive as one. A payload has at most 7,999 bytes. Raises `BusUnavailable`.
        """
        channels, payloads = [channel for channel, _ in pairs], [payload for _, payload in pairs]
        rows = await self._call("NOTIFY", lambda: self._connection.fetch(_NOTIFY, channels, payloads))
        if self._access.writes and any(row["read_only"] for row in rows):
            # It still carries notifications, but puts now go to another server.
            self._give_up("this server is read-only now")

    async def ask(self, statement: str, *arguments: object) -> list[Any]:
        """Return the rows of a read-only statement. Raises `BusUnavailable`."""
        rows: list[Any] = await self._call("a query", lambda: self._connection.fetch(statement, *arguments))
        return rows

    async def probe(self) -> float:
        """Notify this connection and return the round trip in seconds. Raises `BusUnavailable` after 2 s."""
        loop = asyncio.get_running_loop()
        begun, token = loop.time(), str(next(self._numbers))
        try:
            async with asyncio.timeout(PROBE_S):
                # Waits before it is sent: it may come back before `notify` returns.
                answer = asyncio.create_task(self._probes.wait_for(token, PROBE_S, "a probe"), name="postgres probe")
                try:
                    await asyncio.sleep(0)
                    await self.notify([(self._own, token)])
                    await answer
                finally:
                    answer.cancel()
                    await asyncio.wait([answer])
        except TimeoutError:
            raise BusUnavailable(f"no answer to a probe within {PROBE_S:g} s") from None
        return loop.time() - begun

    async def broken(self) -> str:
        """Wait until this connection is known to be broken, and return the reason in one line."""
        return await self._ending.wait()

    async def close(self) -> None:
        """End the connection immediately; may be called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
        self._ending.end("closed")

    @property
    def address(self) -> str:
        """Where it connects, without user, password or options."""
        return self._access.text

    @property
    def search_path(self) -> str | None:
        """The schemas that the address names."""
        return self._access.search_path

    async def _call(self, what: str, call: Callable[[], Any]) -> Any:
        asyncpg = client()
        try:
            async with asyncio.timeout(NOTIFY_S), self._calling:
                self._ending.check()
                if self._connection is None:
                    raise BusUnavailable("not connected")
                return await call()
        except BusUnavailable:
            raise
        except TimeoutError:
            self._give_up(f"no answer to {what} within {NOTIFY_S:g} s")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            self._give_up(f"{what} failed: {error}")
        except asyncio.CancelledError:
            # A cancelled call leaves the client in the middle of an answer.
            self._ending.end(f"{what} was cancelled")
            raise

    def _give_up(self, reason: str) -> NoReturn:
        self._ending.end(reason)
        raise BusUnavailable(reason)
