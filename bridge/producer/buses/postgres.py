"""Triggers by PostgreSQL's NOTIFY on the channel ``queuebell``, which a bridge acknowledges after its mark.

Puts by SQL into a database with the trigger function (``queuebell queue init --notify``) need no bus: their own
transaction notifies. This one is for producers whose queue is in another store.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from queuebell.bridge.brokers.address import take_prefix
from queuebell.bridge.brokers.connection import Ending, PendingReplies
from queuebell.bridge.brokers.postgres.broker import INBOX, PAYLOAD_BYTES_MAX, PostgresBroker
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.event import CloudQueueWorkDetected, encode_event
from queuebell.bridge.producer.buses.brokered import WINDOW, ConnectedBus

ANSWER_S: Final = 5.0


class PostgresBus(ConnectedBus[PostgresBroker]):
    """Sends triggers over the database at ``postgres://``; option ``prefix``: the channel (default ``queuebell``)."""

    def __init__(self, url: str) -> None:
        given, self._prefix = take_prefix(url)
        super().__init__(lambda: PostgresBroker(given))
        self._inbox = INBOX + secrets.token_hex(16)
        self._numbers = itertools.count(1)
        self._ending = Ending()
        self._answers: PendingReplies[str] = self._ending.pending_replies()
        PostgresBroker(given)  # raises for a wrong address

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Notify each trigger and wait until a bridge has acknowledged all; fails after 5 s without a bridge."""
        numbers = [next(self._numbers) for _ in events]
        payloads = [self._payload(event, number) for event, number in zip(events, numbers, strict=True)]
        line = await self._connected()
        for start in range(0, len(events), WINDOW):
            await self._request(line, numbers[start : start + WINDOW], payloads[start : start + WINDOW])

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        self._closed = True
        self._ending.end("the bus was closed")
        await super().close()

    async def _request(self, line: PostgresBroker, numbers: list[int], payloads: list[str]) -> None:
        what = "no bridge acknowledged a trigger"
        waits = [
            asyncio.create_task(self._answers.wait_for(str(number), ANSWER_S, what), name=f"trigger#{number}")
            for number in numbers
        ]
        try:
            await asyncio.sleep(0)  # so that they wait before anything is sent
            await line.notify([(self._prefix, payload) for payload in payloads])
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
