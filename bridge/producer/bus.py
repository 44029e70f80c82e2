"""The promise of a bus, producer's half: a way to bring trigger events to a bridge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bridge.contract.event import CloudQueueWorkDetected


class Bus(Protocol):
    """Carries trigger events. At most once: a failure is told, a success means that a bridge marked them."""

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Bring 1 to 1000 events to the bridge.

        Returns once the bridge has acknowledged the mark. Raises `BusUnavailable` when it is
        worth another try and `BadInput` when it is not. Cancelling leaves the outcome unknown, which is harmless:
        duplicates only add receives (I7).
        """
        ...

    async def close(self) -> None:
        """Let go of connections; may be called twice."""
        ...
