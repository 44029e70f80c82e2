"""How much work a queue holds for workers that somebody else starts and ends (Z1), and whether any should run.

Both answers are one number: a queue is active while there is work. So KEDA never hears of a metric without activity, or
the other way round.
"""

from __future__ import annotations

import msgspec


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a queue at one moment."""

    announced: bool = False
    """Work was announced, and no empty receive has answered that yet."""
    paused: bool = False
    """Gives nothing out; all its messages count as invisible."""
    visible: int | None = None
    """None where nobody has counted."""
    invisible: int = 0
    """Leased or delayed."""
    leased: int | None = None
    """How many of those somebody holds, a worker without a session included; None where the count does not tell."""
    busy: int = 0
    """Workers with a session here that hold messages."""
    unseen: bool = False
    """There may be workers with other bridges, and nobody knows here whether those are busy."""
    lapsed: bool = False
    """The store counts a message whose lease has ended as invisible, until somebody receives."""
    due_s: float | None = None
    """In how many seconds the next message becomes visible, where anybody knows."""


def work(known: Known, per_process: int, start_s: float) -> int | None:
    """Return the messages that workers are wanted for, 0 where nobody is; None where that cannot be told.

    Leased messages are work of the workers that hold them; delayed ones need no worker yet. Where the count does not
    tell the two apart, as many are leased as the busy workers here can hold, and all of them where workers may be
    elsewhere, so that no busy worker is ended. A busy worker holds one message at least. What was announced, or is due
    within ``start_s``, is one message at least. Of a paused queue only what is still held counts.
    """
    held = min(known.invisible, known.busy * per_process) if known.leased is None else known.leased
    if known.paused:
        return max(known.busy, held)
    if known.lapsed or (known.unseen and known.leased is None):
        held = known.invisible
    found = (known.visible or 0) + held
    soon = known.announced or (known.due_s is not None and known.due_s <= start_s)
    found = max(found, known.busy, int(soon))
    return None if not found and known.unseen and known.visible is None else found


def changes_in(known: Known, start_s: float) -> float | None:
    """Return after how many seconds there is more work although nothing happens; None where nothing is due."""
    if known.due_s is None or known.paused or known.due_s <= start_s:
        return None
    return known.due_s - start_s
