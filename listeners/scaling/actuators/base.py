"""The promise of an actuator: what starts and ends the processes of a scaled queue, and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bridge.contract.errors import QueuebellError


class StartFailed(QueuebellError):
    """A process could not be started; it is tried again after a back-off. ``begun`` run, which were before it."""

    def __init__(self, why: str, begun: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.begun = list(begun)


class Hears(Protocol):
    """Who is told what becomes of processes, on the event loop that they were started from."""

    def ready(self, number: str) -> None:
        """Hear that the listener of a process has its session."""
        ...

    def says(self, number: str, *, busy: bool) -> None:
        """Hear that a process holds messages, or holds none any more."""
        ...

    def ended(self, number: str, code: int | None, why: str) -> None:
        """Hear that a process has ended: by exit code, None where nobody knows, and what it said last."""
        ...


class Actuator(Protocol):
    """Starts processes, ends those it is told to, and knows which run. Its text is what it starts, for the log."""

    async def open(self, hears: Hears) -> None:
        """Get ready; before any other call. Raises `ConfigurationError` for what can never be started."""
        ...

    async def start(self, count: int) -> list[str]:
        """Start ``count`` processes and return their ids, never used twice. Raises `StartFailed`, with who runs."""
        ...

    async def stop(self, ids: Sequence[str]) -> None:
        """Have these end in order, and return at once: each is told of by `Hears.ended`. Unknown ids change nothing."""
        ...

    def running(self) -> list[str]:
        """Return the ids of all that were started and have not ended."""
        ...

    async def close(self) -> None:
        """End all that run and wait until they have; may be called twice."""
        ...
