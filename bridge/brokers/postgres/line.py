"""PostgreSQL as a bearer of messages: one connection that listens (LISTEN) and speaks (NOTIFY).

No broker: it carries triggers and their acknowledgements, no sessions. What is notified while this connection is down
is lost, so that each new one is a gap. Nothing of the client's own state is trusted: a notification to ourselves that
came back proves the path, through any pooler that may sit between.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from bridge.brokers.ending import Ending
from bridge.brokers.postgres.access import CHANNEL_BYTES_MAX, PostgresAccess, client, is_pooler, pooler
from bridge.contract.errors import BusUnavailable, ConfigurationError

INBOX: Final = "queuebell_inbox_"
"""How the channels begin that may be answered; any other would let a stranger have a bridge notify itself."""
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


class PostgresLine:
    """One connection, made once, to the database at ``postgres://``."""

    kind = "postgres"
    dropped = 0
    """The server keeps notifications for a slow reader; none is dropped on a connection that stands."""

    def __init__(self, url: str) -> None:
        self._access = PostgresAccess(url, options=("pool_size",)).direct  # it may be the address of a store
        self._ending = Ending()
        self._probes = self._ending.room()
        self._numbers = itertools.count(1)
        self._own = f"queuebell_probe_{secrets.token_hex(16)}"
        self._speaking = asyncio.Lock()
        self._connection: Any = None

    @property
    def address(self) -> str:
        """Where it connects, without user, password or options."""
        return self._access.text

    @property
    def search_path(self) -> str | None:
        """The schemas that the address names."""
        return self._access.search_path

    async def connect(self) -> None:
        """Connect within 5 s, or raise `BusUnavailable` (worth another try) or `ConfigurationError` (not)."""
        asyncpg = client()
        try:
            connection = self._connection = await self._access.connect(settings=_SETTINGS)
            connection.add_termination_listener(lambda _: self._ending.tell("the database closed the connection"))
            await self.listen(self._own, lambda payload: self._probes.settle(payload, ""))
        except asyncpg.PostgresError as error:
            if is_pooler(error):
                raise pooler(self.address) from error
            if str(error.sqlstate).startswith(_REFUSED):
                raise ConfigurationError(f"the database denies access: {error}") from error
            raise BusUnavailable(str(error)) from error
        except (OSError, asyncpg.InterfaceError) as error:  # TimeoutError is an OSError
            raise BusUnavailable(f"no connection: {error or type(error).__name__}") from error

    async def listen(self, channel: str, hear: Callable[[str], object]) -> None:
        """Hear what is notified from now on; ``hear`` gets the payload, in order, on the loop's thread.

        When it returns, whatever is committed afterwards is heard while the connection lives. Raises
        `BusUnavailable`, and `ConfigurationError` for a channel longer than 63 bytes.
        """
        await self.listen_to(channel, lambda payload, _: hear(payload))

    async def listen_to(self, channel: str, hear: Callable[[str, int], object]) -> None:
        """Hear likewise, and which of the server's processes said it."""
        if len(channel.encode()) > CHANNEL_BYTES_MAX:
            raise ConfigurationError(f"prefix: a channel name of PostgreSQL may have at most {CHANNEL_BYTES_MAX} bytes")
        await self._speak("LISTEN", lambda: self._connection.add_listener(channel, _Heard(hear)))

    async def notify(self, said: Sequence[tuple[str, str]]) -> None:
        """Send payloads to channels in one transaction, of which equal ones arrive as one; returns once committed.

        A payload is at most 7,999 bytes. Nobody need be listening. Raises `BusUnavailable`.
        """
        channels, payloads = [channel for channel, _ in said], [payload for _, payload in said]
        rows = await self._speak("NOTIFY", lambda: self._connection.fetch(_NOTIFY, channels, payloads))
        if self._access.writes and any(row["read_only"] for row in rows):
            # It goes on to carry notifications, but whoever puts now does so at another server.
            self._give_up("this server is read-only now")

    async def ask(self, statement: str, *arguments: object) -> list[Any]:
        """Return the rows of a statement that reads. Raises `BusUnavailable`."""
        rows: list[Any] = await self._speak("a query", lambda: self._connection.fetch(statement, *arguments))
        return rows

    async def probe(self) -> float:
        """Send a notification to oneself and return the seconds it took; raises `BusUnavailable` after 2 s."""
        loop = asyncio.get_running_loop()
        begun, word = loop.time(), str(next(self._numbers))
        try:
            async with asyncio.timeout(PROBE_S):
                # Waited for before it is sent: it may come back before the sending returns.
                answer = asyncio.create_task(self._probes.answer(word, PROBE_S, "a probe"), name="postgres probe")
                try:
                    await asyncio.sleep(0)
                    await self.notify([(self._own, word)])
                    await answer
                finally:
                    answer.cancel()
                    await asyncio.wait([answer])
        except TimeoutError:
            raise BusUnavailable(f"no answer to a probe within {PROBE_S:g} s") from None
        return loop.time() - begun

    async def broken(self) -> str:
        """Wait until this connection is known to be broken, and return why in one line."""
        return await self._ending.wait()

    async def close(self) -> None:
        """End the connection at once; may be called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
        self._ending.tell("closed")

    async def _speak(self, what: str, call: Callable[[], Any]) -> Any:
        asyncpg = client()
        try:
            async with asyncio.timeout(NOTIFY_S), self._speaking:
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
            # A call that was cut off leaves the client in the middle of an answer.
            self._ending.tell(f"{what} was cancelled")
            raise

    def _give_up(self, reason: str) -> NoReturn:
        self._ending.tell(reason)
        raise BusUnavailable(reason)


class _Heard:
    """A listener as the client wants it: told apart by identity, and never raising."""

    def __init__(self, hear: Callable[[str, int], object]) -> None:
        self._hear = hear

    def __call__(self, connection: object, pid: int, channel: str, payload: str) -> None:
        self._hear(payload, pid)
