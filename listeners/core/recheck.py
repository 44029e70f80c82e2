"""When to look again after an empty receive beside which the store counts messages (L8).

Such a count is rough: it includes what is leased or delayed, so it neither clears a debt nor stretches a period. It
only asks for looks after 15, 30 and 60 s, as far as the sweep would not come sooner; then the sweep is enough. A cover
tells the bridge when the next one is due, so that one listener of the fleet makes it, whichever is woken. How far the
series has come is read off the time since the queue was covered last, which every listener hears of: nobody has to
remember it.
"""

from __future__ import annotations

from typing import Final

from bridge.contract.bounds import EARLY, SWEEP_S

STEPS_S: Final = (15.0, 30.0, 60.0)


class Recheck:
    """Knows when the queue was covered last, by anybody, in seconds of the machine's clock; ``sweep_s`` 0 is none."""

    __slots__ = ("_covered_at", "sweep_s")

    def __init__(self) -> None:
        self.sweep_s = SWEEP_S
        self._covered_at: float | None = None

    def covered(self, at: float) -> None:
        """Hear that a receive begun at ``at`` or later found the queue empty."""
        self._covered_at = at if self._covered_at is None else max(self._covered_at, at)

    def next_look(self, source: str, began_at: float) -> float | None:
        """Return in how many seconds to look again after an empty receive; None to leave it to the sweep.

        News (a trigger, a lease that ended, a start) begins the series, and a timer's look is its next step. A look
        that nobody asked for is none, or each sweep would begin it anew for as long as somebody holds a message; nor
        is a timer's look soon after another, or two series side by side would keep each other up.
        """
        if source in ("sweep", "deadman", "poll"):
            return None
        since = 0.0
        if source == "due":
            since = STEPS_S[0] if self._covered_at is None else began_at - self._covered_at
            if since < STEPS_S[0]:
                return None
        step = next((step for step in STEPS_S if step > since), None)
        return None if step is None or step >= EARLY * (self.sweep_s or float("inf")) else step
