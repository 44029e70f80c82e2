"""Triggers to a bridge by way of a broker; what NATS and MQTT have in common.

Connects when it is first used, and anew after a break. Trying again is the publisher's business: a failure is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from bridge.broker import Broker
from bridge.brokers import open_broker
from bridge.brokers.prefix import take_prefix
from bridge.contract.errors import BadInput, BusUnavailable, Closed, ConfigurationError
from bridge.contract.event import CloudQueueWorkDetected, encode_event

WINDOW: Final = 256
"""Events on their way at once; more would only wait in the broker's buffers."""
CLOSE_S: Final = 3.0


class BrokerBus:
    """Carries triggers over the broker at ``url``; its option ``prefix`` says where (default ``queuebell``)."""

    def __init__(self, url: str) -> None:
        self._url, self._prefix = take_prefix(url)
        self._broker: Broker | None = None
        self._broken: asyncio.Task[str] | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._open()  # a wrong address is told here

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Send each event and wait until all are acknowledged. Raises as `Bus.publish` does."""
        broker = await self._connected()
        try:
            for start in range(0, len(events), WINDOW):
                await self._send(broker, events[start : start + WINDOW])
        except BusUnavailable:
            # Nobody there, or nobody reached? Only a message to ourselves can tell.
            await self._doubt(broker)
            raise

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        self._closed = True
        async with self._connecting:
            await self._let_go()

    def _open(self) -> Broker:
        return open_broker(self._url, name="queuebell-publisher", prefix=self._prefix)

    async def _send(self, broker: Broker, events: Sequence[CloudQueueWorkDetected]) -> None:
        if len(events) == 1:
            await self._request(broker, events[0])
            return
        outcomes = await asyncio.gather(*(self._request(broker, event) for event in events), return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        # What is worth another try is tried before what is not is refused: one request must not hide the other.
        for failure in sorted(failures, key=lambda failure: isinstance(failure, BadInput)):
            raise failure

    async def _request(self, broker: Broker, event: CloudQueueWorkDetected) -> None:
        topic = (self._prefix, "trigger", event.storage_account, event.queue_name)
        await broker.request(topic, encode_event(event))

    async def _connected(self) -> Broker:
        async with self._connecting:
            if self._closed:
                raise Closed("the bus is closed")
            if self._broker is not None and self._broken is not None and not self._broken.done():
                return self._broker
            await self._let_go()
            broker = self._broker = self._open()
            try:
                await broker.connect()
            except ConfigurationError as error:
                # The broker may be set right while we run; the publisher keeps what is owed.
                await self._let_go()
                raise BusUnavailable(str(error)) from error
            except BaseException:
                await self._let_go()
                raise
            self._broken = asyncio.create_task(broker.broken(), name="publisher's broker")
            return broker

    async def _doubt(self, broker: Broker) -> None:
        try:
            await broker.probe()
        except BusUnavailable:
            async with self._connecting:
                if self._broker is broker:
                    await self._let_go()

    async def _let_go(self) -> None:
        broker, self._broker = self._broker, None
        broken, self._broken = self._broken, None
        if broken is not None:
            broken.cancel()
            await asyncio.wait([broken])
        if broker is not None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await broker.close()
            except TimeoutError:
                pass  # half-open, and its client does not let go: it is left
