"""Triggers to a bridge by way of a broker; what NATS and MQTT have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from bridge.brokers import broker_maker
from bridge.brokers.address import take_prefix
from bridge.brokers.base import Broker
from bridge.contract.errors import BadInput, BusUnavailable
from bridge.contract.event import CloudQueueWorkDetected, encode_event
from bridge.producer.buses.connected import ConnectedBus

WINDOW: Final = 256
"""Events on their way at once; more would only wait in the broker's buffers."""


class BrokerBus(ConnectedBus[Broker]):
    """Carries triggers over the broker at ``url``; its option ``prefix`` says where (default ``queuebell``).

    ``make`` gives a connection to that broker each time, where it is not to be opened by its address.
    """

    def __init__(self, url: str, *, make: Callable[[], Broker] | None = None) -> None:
        given, self._prefix = take_prefix(url)
        super().__init__(make or broker_maker(given, name="queuebell-publisher", prefix=self._prefix))

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

    async def _doubt(self, broker: Broker) -> None:
        try:
            await broker.probe()
        except BusUnavailable:
            async with self._connecting:
                if self._held is broker:
                    await self._let_go()
