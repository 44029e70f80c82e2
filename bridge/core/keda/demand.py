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
    """Leased or delayed: which of the two a count does not tell."""
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

    Leased messages are work of those who hold them, and of no more than can: what is delayed is counted beside them
    and needs nobody yet. Where holders may be elsewhere all of them are, for no busy worker is to be ended. One who is
    busy holds one message at least, and whatever was announced, or is due within ``start_s``, is one at least. Of a
    paused queue only those who are still busy count.
    """
    here = min(known.invisible, known.busy * per_process)
    if known.paused:
        return max(known.busy, here)
    found = (known.visible or 0) + (known.invisible if known.unseen or known.lapsed else here)
    soon = known.announced or (known.due_s is not None and known.due_s <= start_s)
    found = max(found, known.busy, int(soon))
    return None if not found and known.unseen and known.visible is None else found


def changes_in(known: Known, start_s: float) -> float | None:
    """Return after how many seconds there is more work although nothing happens; None where nothing is due."""
    if known.due_s is None or known.paused or known.due_s <= start_s:
        return None
    return known.due_s - start_s
