"""What the adapters of brokers have in common: one end, and a message to oneself that came back as the only proof."""

from __future__ import annotations

import asyncio
from typing import Final

from bridge.brokers.address import Address
from bridge.brokers.base import Broker
from bridge.brokers.ending import Ending
from bridge.contract.address import is_loopback
from bridge.contract.errors import BusUnavailable

CONNECT_S: Final = 5.0
REQUEST_S: Final = 5.0
PROBE_S: Final = 2.0
LAST_WORDS_S: Final = 1.0
"""How long `close` waits for what was published to be on the broker."""
UNSENT_MAX: Final = 4 * 1024 * 1024
UNSENT_LITTLE: Final = 64 * 1024


class BrokerConnection(Broker):
    """One connection to the broker at ``where``."""

    def __init__(self, where: Address) -> None:
        self._where = where
        self._ending = Ending()
        self._answers = self._ending.room()
        self._dropped = 0
        self._closing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it connects, without anything secret."""
        return self._where.text

    @property
    def private(self) -> bool:
        """Whether it is encrypted, or does not leave this machine."""
        return self._where.encrypted or all(is_loopback(host.name) for host in self._where.hosts)

    @property
    def dropped(self) -> int:
        """Messages that could not be held, or found the client library's buffer full."""
        return self._dropped

    async def barrier(self) -> None:
        """Wait, 5 s at most, until the broker has dealt with everything before."""
        await self._echo(REQUEST_S)

    async def probe(self) -> float:
        """Send a message to ourselves and return the seconds it took."""
        return await self._echo(PROBE_S)

    async def broken(self) -> str:
        """Wait for the end of this connection and return why."""
        return await self._ending.wait()

    async def close(self) -> None:
        """Let what was published reach the broker, 1 s at most, and end."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close {self.address}")
        await asyncio.shield(self._closing)

    async def _echo(self, within_s: float) -> float:
        """Return the seconds that a message to ourselves takes; when it is back, all before it has been dealt with."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        token = self._send_to_ourselves()
        if token is None:
            raise self._unsendable()
        await self._answers.answer(token, within_s, f"{self.address}: no echo")
        return loop.time() - started

    async def _last_echo(self) -> bool:
        """Say whether all that was published is on the broker; where it is not, the path was half-open."""
        if self._ending.reason is not None:
            return False
        try:
            await self._echo(LAST_WORDS_S)
        except BusUnavailable:
            return False
        return True

    def _unsendable(self) -> BusUnavailable:
        return BusUnavailable(self._ending.reason or f"{self.address}: too much unsent data")

    def _send_to_ourselves(self) -> object | None:
        """Send a new token and return it; None where it cannot be sent. Raises `BusUnavailable`."""
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError
