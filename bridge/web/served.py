"""What the web server needs of the bridge that it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bridge.announcing import AnnouncingBridge
from bridge.contract.event import CloudQueueWorkDetected
from bridge.put_gate import PutGate
from bridge.queues.own import OwnStore


class Rendered(Protocol):
    """Metrics that can be shown."""

    @property
    def content_type(self) -> str:
        """The media type of `render`."""
        ...

    def render(self) -> bytes:
        """Give all metrics in the text format of Prometheus."""
        ...


class ServedBridge(AnnouncingBridge, Protocol):
    """The part of ``bridge.service.Bridge`` that is reached over HTTP."""

    @property
    def store(self) -> OwnStore:
        """The own queues; a put is its own trigger."""
        ...

    @property
    def metrics(self) -> Rendered:
        """What `/metrics` shows."""
        ...

    @property
    def gate(self) -> PutGate:
        """What every put passes."""
        ...

    @property
    def draining(self) -> bool:
        """Whether new triggers and puts are refused."""
        ...

    def trigger(self, events: Sequence[CloudQueueWorkDetected], *, bus: str) -> int:
        """Mark synchronously (B1) and return how many were accepted; raises `BadInput`."""
        ...

    def describe(self, queue: str) -> dict[str, object] | None:
        """Return the object of ``GET /v1/queues/{a}/{q}``, or None for a queue never heard of."""
        ...

    def explain(self, queue: str) -> dict[str, object] | None:
        """Return who would get a trigger of a queue now, or None for a queue never heard of."""
        ...

    def forget(self, queue: str) -> None:
        """Forget a queue elsewhere that is gone; raises `BadInput`."""
        ...

    def findings(self) -> dict[str, object]:
        """Return what a person should know of (`standing.findings`)."""
        ...

    def listeners(self) -> list[dict[str, object]]:
        """Return one object per session."""
        ...

    def readiness(self) -> tuple[bool, dict[str, dict[str, object]]]:
        """Return whether everything required works, and each check."""
        ...
