"""Declare the running bridge as its parts use it, so that they need not import it."""

from __future__ import annotations

from typing import Protocol

from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.facts import Fact
from queuebell.bridge.service.message_events import MessageEvents


class Runner(Protocol):
    """Runs the scheduler (`queuebell.bridge.service.bridge.Bridge`)."""

    @property
    def scheduler(self) -> WakeScheduler:
        """The scheduler; call `drive` after each event that you pass to it."""
        ...

    @property
    def events(self) -> MessageEvents:
        """Records the events of watched queues."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the bridge accepts no new triggers and sessions."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether the bridge has ended."""
        ...

    def now(self) -> float:
        """Return the scheduler's time."""
        ...

    def notice_suspend(self) -> float:
        """Check for a suspend; call this before passing an event to the scheduler (B15)."""
        ...

    def drive(self, *, later: bool = False) -> None:
        """Perform the scheduler's commands; ``later`` first merges the wakes of this loop turn."""
        ...

    def emit(self, fact: Fact) -> None:
        """Send a fact to all observers."""
        ...
