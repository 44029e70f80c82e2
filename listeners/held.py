"""A message that this listener holds, from its receipt to the end of its lease."""

from __future__ import annotations

import asyncio

from bridge.contract.burial import Burial
from bridge.queue import StoredMessage


class Held:
    """One lease: the newest pop receipt, when it ends, and who works on it."""

    __slots__ = (
        "burial",
        "concluded",
        "doubtful",
        "fate",
        "given_back",
        "lease_ends",
        "number",
        "receipt",
        "shares",
        "source",
        "stored",
        "task",
        "traceparent",
    )

    def __init__(self, number: int, stored: StoredMessage, lease_ends: float, source: str) -> None:
        self.number = number
        self.stored = stored
        self.receipt = stored.pop_receipt
        """Always the newest: read when a settlement leaves, never when it was asked for."""
        self.lease_ends = lease_ends
        """A lower bound: counted from before the request left."""
        self.source = source
        self.task: asyncio.Task[None] | None = None
        self.concluded = False
        """Its delete or release is on its way."""
        self.fate = "handled"
        """Why it is deleted: ``handled``, ``buried`` or ``replayed``."""
        self.given_back = False
        self.doubtful = False
        """A settlement of it had an unknown outcome: that it is not found afterwards is success."""
        self.shares = False
        """It was buried with its claim as it stands: the blob is not its own any more."""
        self.burial: Burial | None = None
        """The facts it came with, once it was opened."""
        self.traceparent: str | None = None
        """The trace context of the wake that brought it, where that had one."""
