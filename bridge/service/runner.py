"""The running bridge as its rooms use it, so that none of them imports it."""

from __future__ import annotations

from typing import Protocol

from bridge.core.wake_scheduler import WakeScheduler
from bridge.observe.facts import Fact


class Runner(Protocol):
    """Runs the rules (`bridge.service.bridge.Bridge`)."""

    @property
    def scheduler(self) -> WakeScheduler:
        """The rules; call `drive` after each event that you bring them."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the bridge accepts no new triggers and sessions."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether the bridge has ended, so that nothing more is done."""
        ...

    def now(self) -> float:
        """Return the time that the rules go by."""
        ...

    def notice_suspend(self) -> float:
        """Compare the clocks before an event is brought to the rules (B15)."""
        ...

    def drive(self, *, later: bool = False) -> None:
        """Perform the commands of the rules; ``later`` lets wakes of this turn of the loop merge first."""
        ...

    def emit(self, fact: Fact) -> None:
        """Pass a fact on to those that observe the bridge."""
        ...
