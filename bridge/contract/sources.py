"""Wake sources: the reason of a listener's receive."""

from __future__ import annotations

from typing import Final

from queuebell.bridge.contract.event import PAYLOAD_SIZE_MAX

WAKE_SOURCES: Final = ("trigger", "due", "lease", "resync", "more", "sweep", "deadman", "poll")
"""All sources; the first six are reasons of wakes, the others the listener's own.

``trigger``: a producer's trigger; ``due``: a delay ended, or a rough count requires a check; ``lease``: a lease ended
without renewal; ``resync``: a start, a gap or a new subscription; ``more``: another listener left messages; ``sweep``:
the bridge's periodic check; ``deadman``: the listener's own check; ``poll``: no bridge is available.
"""

UNREPORTED: Final = "unreported"
"""The source if a client sends none."""

UNASKED: Final = frozenset({"sweep", "deadman"})
"""Periodic checks: what they find had no trigger, timer or lease."""

UNANNOUNCED: Final = "unannounced"
"""Receives of `UNASKED` checks that returned a new message: a publish was lost."""

WORK: Final = frozenset({"trigger", "due", "lease"})
"""Reasons that announce work; the others only request a check."""


def merged_size(before: int, size: int, reason: str) -> int:
    """Return the size hint of two merged wakes: announced work is summed, repeated checks are not."""
    return min(before + size if reason in WORK else max(before, size), PAYLOAD_SIZE_MAX)
