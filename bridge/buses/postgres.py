"""The PostgreSQL bus: triggers by NOTIFY on the channel ``queuebell``, which a bridge answers after its mark.

Who puts by SQL with the trigger function in place (``queuebell queue init --notify``) needs no bus: the put's own
transaction says it. This one is for producers whose queue is somewhere else.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from bridge.brokers.ending import Ending, Waiting
from bridge.brokers.postgres import INBOX, PAYLOAD_BYTES_MAX, PostgresLine
from bridge.brokers.prefix import take_prefix
from bridge.contract.errors import BadInput, BusUnavailable, Closed, ConfigurationError
from bridge.contract.event import CloudQueueWorkDetected, encode_event

ANSWER_S: Final = 5.0
WINDOW: Final = 256


class PostgresBus:
    """Carries triggers over the database at ``postgres://``; option ``prefix``: the channel (default ``queuebell``)."""

    def __init__(self, url: str) -> None:
        self._url, self._prefix = take_prefix(url)
        self._inbox = INBOX + secrets.token_hex(16)
        self._numbers = itertools.count(1)
        self._line: PostgresLine | None = None
        self._ending = Ending()
        self._answers: Waiting[str] = self._ending.room()
        self._broken: asyncio.Task[str] | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        PostgresLine(self._url)  # a wrong address is told here

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Notify each event and wait until a bridge has acknowledged all; no bridge there is told after 5 s."""
        asked = [(next(self._numbers), event) for event in events]
        said = [(self._prefix, self._payload(event, number)) for number, event in asked]
        line = await self._connected()
        for start in range(0, len(said), WINDOW):
            await self._ask(line, [number for number, _ in asked[start : start + WINDOW]], said[start : start + WINDOW])

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        self._closed = True
        self._ending.tell("the bus was closed")
        async with self._connecting:
            await self._let_go()

    async def _ask(self, line: PostgresLine, numbers: list[int], said: list[tuple[str, str]]) -> None:
        what = "no bridge acknowledged a trigger"
        waits = [
            asyncio.create_task(self._answers.answer(str(number), ANSWER_S, what), name=f"trigger#{number}")
            for number in numbers
        ]
        try:
            await asyncio.sleep(0)  # they wait before anything is sent
            await line.notify(said)
            for wait in waits:
                await wait
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _payload(self, event: CloudQueueWorkDetected, number: int) -> str:
        fields = msgspec.json.decode(encode_event(event))
        payload = msgspec.json.encode({**fields, "reply": self._inbox, "ask": number})
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise BadInput("too_large", f"a trigger on PostgreSQL is at most {PAYLOAD_BYTES_MAX} bytes")
        return payload.decode()

    async def _connected(self) -> PostgresLine:
        async with self._connecting:
            if self._closed:
                raise Closed("the bus is closed")
            if self._line is not None and self._broken is not None and not self._broken.done():
                return self._line
            await self._let_go()
            line = self._line = PostgresLine(self._url)
            try:
                await line.connect()
                await line.listen(self._inbox, lambda payload: self._answers.settle(payload, payload))
            except ConfigurationError as error:
                # The database may be set right while we run; the publisher keeps what is owed.
                await self._let_go()
                raise BusUnavailable(str(error)) from error
            except BaseException:
                await self._let_go()
                raise
            self._broken = asyncio.create_task(line.broken(), name="publisher's database")
            return line

    async def _let_go(self) -> None:
        line, self._line = self._line, None
        broken, self._broken = self._broken, None
        if broken is not None:
            broken.cancel()
            await asyncio.wait([broken])
        if line is not None:
            await line.close()
