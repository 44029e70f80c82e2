"""Wake sources: the one word for why a listener looked at its queue."""

from __future__ import annotations

from typing import Final

from bridge.contract.event import PAYLOAD_SIZE_MAX

WAKE_SOURCES: Final = ("trigger", "due", "lease", "resync", "more", "sweep", "deadman", "poll")
"""Every word there is; the first six are the reasons of wakes, the others a listener's own.

``trigger`` a producer said so; ``due`` a delay ended, or a look that the store's rough count asked for; ``lease`` a
lease ended that nobody renewed; ``resync`` a start, a gap or a re-subscription; ``more`` another listener left work;
``sweep`` the bridge's look that nobody asked for; ``deadman`` the listener's own; ``poll`` a look
for want of a bridge.
"""

UNREPORTED: Final = "unreported"
"""What stands for the source where a client says none."""

UNASKED: Final = frozenset({"sweep", "deadman"})
"""Looks that nobody asked for: what they find, no trigger, timer or lease had announced."""

UNANNOUNCED: Final = "unannounced"
"""The word for receives of `UNASKED` looks that brought a message nobody had had before: a publish was lost."""

WORK: Final = frozenset({"trigger", "due", "lease"})
"""Reasons that say that work is there; the others say that somebody should make sure."""


def merged_size(before: int, size: int, reason: str) -> int:
    """Return the size hint of two wakes merged: work adds up, and what says again that work waits does not."""
    return min(before + size if reason in WORK else max(before, size), PAYLOAD_SIZE_MAX)
