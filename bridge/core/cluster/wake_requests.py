"""Track one queue's wake requests, and which of them a peer's message proves settled (C4)."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from queuebell.bridge.contract.cluster import NAMES_MAX, Name

DRIFT: Final = 1e-3
"""Maximum relative difference in speed between two clocks."""
RESOLUTION_S: Final = 0.001
_SHOWN_MAX: Final = 64


class WakeRequests(msgspec.Struct, eq=False):
    """Hold the unsettled wake requests of one queue, and the names and times for reports of empty receives."""

    named: dict[Name, float] = {}
    """Request times by name, for requests that can be settled by name."""
    unnamed: tuple[float, float] | None = None
    """When the first and last of the others were made: those without a name, and those beyond `NAMES_MAX`."""
    names: deque[tuple[Name, int]] = msgspec.field(default_factory=lambda: deque(maxlen=NAMES_MAX))
    """The newest names requested here, with their generations, until an empty receive reports them."""
    sent_generations: deque[tuple[int, float | None]] = msgspec.field(default_factory=lambda: deque(maxlen=_SHOWN_MAX))
    """Generations with the time when a session first learned of each; None if no clock could be read."""

    def __bool__(self) -> bool:
        return bool(self.named) or self.unnamed is not None

    def add(self, now: float, gen: int, name: Name | None) -> None:
        """Add a wake request. A reused name is not kept: its first publish may be settled, and this one not (C4)."""
        if name is not None:
            self.names.append((name, gen))
        if name is not None and name not in self.named and len(self.named) < NAMES_MAX:
            self.named[name] = now
        else:
            self.unnamed = (now if self.unnamed is None else self.unnamed[0], now)

    def oldest(self) -> float | None:
        """Return the time of the oldest unsettled request."""
        times = [*self.named.values(), *([] if self.unnamed is None else [self.unnamed[0]])]
        return min(times, default=None)

    def settle_by_name(self, name: Name) -> bool:
        """Settle the request of this name; return False if there is none."""
        return self.named.pop(name, None) is not None

    def settle_until(self, moment: float) -> bool:
        """Settle each request made at ``moment`` or before; return whether there was one.

        For requests without a name only the last time is known: they are settled together or not at all.
        """
        settled = [name for name, at in self.named.items() if at <= moment]
        for name in settled:
            del self.named[name]
        unnamed = self.unnamed is not None and self.unnamed[1] <= moment
        if unnamed:
            self.unnamed = None
        return bool(settled) or unnamed

    def settle(self) -> None:
        """Forget all requests; this bridge's own session has settled them."""
        self.named.clear()
        self.unnamed = None

    # -- reports of empty receives -------------------------------------------------------------------------------------

    def on_sent(self, now: float | None, gen: int) -> None:
        """Record when a session learns of a generation."""
        if not self.sent_generations or gen > self.sent_generations[-1][0]:
            self.sent_generations.append((gen, now))

    def known_since(self, gen: int) -> float | None:
        """Return a time before which no session knew of ``gen``, and so began no receive that covers it."""
        return next((at for known, at in reversed(self.sent_generations) if known <= gen), None)

    def take_settled_names(self, gen: int) -> list[Name]:
        """Take the names that an empty receive begun after ``gen`` proves settled."""
        settled = [name for name, at in self.names if at <= gen]
        rest = [entry for entry in self.names if entry[1] > gen]
        self.names.clear()
        self.names.extend(rest)
        return settled


def proven_until(sent_at: float, since_ms: int, begun_age_ms: int) -> float:
    """Return the latest time, on this clock, after which a peer's receive is proven to have begun.

    The peer received this bridge's message, sent at ``sent_at``, ``since_ms`` before its report. Its receive began
    ``begun_age_ms`` before the report. The transit time is unknown and counts as zero.
    """
    after = (since_ms - begun_age_ms) / 1000
    return sent_at + after - RESOLUTION_S - DRIFT * abs(after)
