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

from bridge.brokers.address import take_prefix
from bridge.brokers.connection import Ending, PendingReplies
from bridge.brokers.postgres.broker import INBOX, PAYLOAD_BYTES_MAX, PostgresBroker
from bridge.contract.errors import BadInput
from bridge.contract.event import CloudQueueWorkDetected, encode_event
from bridge.producer.buses.connected import ConnectedBus

ANSWER_S: Final = 5.0
WINDOW: Final = 256


class PostgresBus(ConnectedBus[PostgresBroker]):
    """Carries triggers over the database at ``postgres://``; option ``prefix``: the channel (default ``queuebell``)."""

    def __init__(self, url: str) -> None:
        given, self._prefix = take_prefix(url)
        super().__init__(lambda: PostgresBroker(given))
        self._inbox = INBOX + secrets.token_hex(16)
        self._numbers = itertools.count(1)
        self._ending = Ending()
        self._answers: PendingReplies[str] = self._ending.pending_replies()
        PostgresBroker(given)  # a wrong address is told here

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
        self._ending.end("the bus was closed")
        await super().close()

    async def _ask(self, line: PostgresBroker, numbers: list[int], said: list[tuple[str, str]]) -> None:
        what = "no bridge acknowledged a trigger"
        waits = [
            asyncio.create_task(self._answers.wait_for(str(number), ANSWER_S, what), name=f"trigger#{number}")
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
            raise BadInput("too_large", f"a trigger on PostgreSQL may have at most {PAYLOAD_BYTES_MAX} bytes")
        return payload.decode()

    async def _connect(self, made: PostgresBroker) -> None:
        await made.connect()
        await made.listen(self._inbox, lambda payload, _: self._answers.resolve(payload, payload))
