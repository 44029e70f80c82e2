"""Triggers over a NATS or MQTT broker, on the topic ``<prefix>/trigger/<account>/<queue>``.

On NATS a trigger is a request, which a bridge answers after its mark; without a bridge it fails immediately. On MQTT
it is a message with QoS 1: only the broker acknowledges it, and a bridge that was away checks its queues on its return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from queuebell.bridge.brokers import broker_maker
from queuebell.bridge.brokers.address import take_prefix
from queuebell.bridge.brokers.base import Broker
from queuebell.bridge.brokers.postgres.broker import PostgresBroker
from queuebell.bridge.contract.errors import BadInput, BusUnavailable, Closed, ConfigurationError
from queuebell.bridge.contract.event import CloudQueueWorkDetected, encode_event

WINDOW: Final = 256
"""Triggers in flight at the same time; more would only wait in the broker's buffers."""
CLOSE_S: Final = 3.0

C = TypeVar("C", bound=Broker | PostgresBroker)


class ConnectedBus(Generic[C]):
    """Keeps one connection, opened when it is first used and again after it broke; the publisher retries."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._held: C | None = None
        self._broken: asyncio.Task[str] | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        self._closed = True
        async with self._connecting:
            await self._drop()

    async def _connect(self, made: C) -> None:
        await made.connect()

    async def _connected(self) -> C:
        async with self._connecting:
            if self._closed:
                raise Closed("the bus is closed")
            if self._held is not None and self._broken is not None and not self._broken.done():
                return self._held
            await self._drop()
            made = self._held = self._make()
            try:
                await self._connect(made)
            except ConfigurationError as error:
                # The other side may be fixed while this process runs; the publisher keeps what is pending.
                await self._drop()
                raise BusUnavailable(str(error)) from error
            except BaseException:
                await self._drop()
                raise
            self._broken = asyncio.create_task(made.broken(), name="publisher's connection")
            return made

    async def _drop(self) -> None:
        held, self._held = self._held, None
        broken, self._broken = self._broken, None
        if broken is not None:
            broken.cancel()
            await asyncio.wait([broken])
        if held is not None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await held.close()
            except TimeoutError:
                pass  # half-open, and its client does not end: it is abandoned


class BrokerBus(ConnectedBus[Broker]):
    """Sends triggers over the broker at ``url``, whose option ``prefix`` begins the topics (default ``queuebell``).

    ``make`` opens a connection to that broker, instead of by its address.
    """

    def __init__(self, url: str, *, make: Callable[[], Broker] | None = None) -> None:
        given, self._prefix = take_prefix(url)
        super().__init__(make or broker_maker(given, name="queuebell-publisher", prefix=self._prefix))

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Send the triggers and wait until all are acknowledged. Raises as `Bus.publish` does."""
        broker = await self._connected()
        try:
            for start in range(0, len(events), WINDOW):
                await self._send(broker, events[start : start + WINDOW])
        except BusUnavailable:
            # Is no bridge there, or is the connection dead? Only a probe can tell.
            try:
                await broker.probe()
            except BusUnavailable:
                async with self._connecting:
                    if self._held is broker:
                        await self._drop()
            raise

    async def _send(self, broker: Broker, events: Sequence[CloudQueueWorkDetected]) -> None:
        if len(events) == 1:
            await self._request(broker, events[0])
            return
        outcomes = await asyncio.gather(*(self._request(broker, event) for event in events), return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        # What can be retried is raised first: a rejected trigger must not hide the others.
        for failure in sorted(failures, key=lambda failure: isinstance(failure, BadInput)):
            raise failure

    async def _request(self, broker: Broker, event: CloudQueueWorkDetected) -> None:
        topic = (self._prefix, "trigger", event.storage_account, event.queue_name)
        await broker.request(topic, encode_event(event))
