"""A message that this listener holds, from its receipt to the end of its lease."""

from __future__ import annotations

import asyncio
import dataclasses
import enum

from bridge.contract.burial import Burial
from bridge.contract.trace_context import TRACEPARENT, is_traceparent
from bridge.observe.tracing import Cause, causes
from bridge.queues.base import StoredMessage


class Act(enum.Enum):
    """What to do with a message held."""

    __hash__ = object.__hash__  # an enumeration's own is a call of Python's for each look-up

    DELETE = "delete"
    RELEASE = "release"
    EXTEND = "extend"


@dataclasses.dataclass(slots=True, eq=False)
class Held:
    """One lease: the newest pop receipt, when it ends, and who works on it."""

    number: int
    stored: StoredMessage
    lease_ends: float
    """A lower bound: counted from before the request left."""
    source: str
    began: float = 0.0
    """When it was taken for its handler, by the loop's clock."""
    receipt: str = dataclasses.field(init=False)
    """Always the newest: read when a settlement leaves, never when it was asked for."""
    task: asyncio.Task[None] | None = None
    answered: bool = False
    """Its handler has had its say: given back all the same, for the listener stops, it keeps its attempt."""
    concluded: bool = False
    """Its delete or release is on its way."""
    fate: str = "handled"
    """Why it is deleted: ``handled``, ``buried`` or ``replayed``."""
    again: str = "failed"
    """Why it is released, where it is not given back: ``failed`` or ``retried``."""
    moving: bool = False
    """Its put on another queue is in flight, and may be carried out whatever becomes of its handler's task."""
    moved: bool = False
    """It stands on another queue: all that is left to do here is its delete."""
    given_back: bool = False
    doubted: Act | None = None
    """The delete or release of it whose outcome is unknown: a refusal of the next try may show that it was done."""
    shares: bool = False
    """It was buried with its claim as it stands: the blob is not its own any more."""
    burial: Burial | None = None
    """The facts it came with, once it was opened."""
    traceparent: str | None = None
    """Its own trace context, else that of the wake that brought it, where that had one."""
    traces: tuple[str, ...] = ()
    """Where it has no context of its own: those of the triggers that the wake stood for."""

    def __post_init__(self) -> None:
        self.receipt = self.stored.pop_receipt
        own = self.stored.headers.get(TRACEPARENT)
        if is_traceparent(own):
            self.traceparent = own

    def causes(self) -> list[Cause]:
        """Return what a span about this message follows from."""
        return causes(self.stored.headers, self.traces, self.stored.id)

    def came_by(self, traceparent: str | None, traces: tuple[str, ...]) -> None:
        """Note what the wake told that brought it; its own context goes before."""
        if self.traceparent is None:
            self.traceparent, self.traces = traceparent, traces
