"""What one queue's debt is made of, and what of it a peer's word proves paid (C4)."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from bridge.contract.cluster import NAMES_MAX, Name

DRIFT: Final = 1e-3
"""Two clocks run at speeds that differ by this much at most."""
RESOLUTION_S: Final = 0.001
_SHOWN_MAX: Final = 64


class WakeRequests(msgspec.Struct, eq=False):
    """The marks of one queue that nobody forgave, and the names and moments that covers here are told with."""

    named: dict[Name, float] = {}
    """When each mark that can be forgiven by its name was made."""
    bare: tuple[float, float] | None = None
    """When the first and the last of the others were made: those without a name, and those beyond `NAMES_MAX`."""
    names: deque[tuple[Name, int]] = msgspec.field(default_factory=lambda: deque(maxlen=NAMES_MAX))
    """The newest names marked here, each with its generation, until a cover was told of them."""
    shown: deque[tuple[int, float | None]] = msgspec.field(default_factory=lambda: deque(maxlen=_SHOWN_MAX))
    """Generations, and when a session was first told of each; None where no clock could be read."""

    def __bool__(self) -> bool:
        return bool(self.named) or self.bare is not None

    def add(self, now: float, gen: int, name: Name | None) -> None:
        """Add a mark. A name that was used before is none: what it names may be paid, and this mark not (C4)."""
        if name is not None:
            self.names.append((name, gen))
        if name is not None and name not in self.named and len(self.named) < NAMES_MAX:
            self.named[name] = now
        else:
            self.bare = (now if self.bare is None else self.bare[0], now)

    def oldest(self) -> float | None:
        """Return when the oldest unforgiven mark was made."""
        times = [*self.named.values(), *([] if self.bare is None else [self.bare[0]])]
        return min(times, default=None)

    def settle_by_name(self, name: Name) -> bool:
        """Forgive the mark of this name; False where there is none."""
        return self.named.pop(name, None) is not None

    def settle_until(self, moment: float) -> bool:
        """Forgive each mark made at ``moment`` or before; say whether there was one.

        Of the marks without a name only the last is remembered: they are forgiven together or not at all.
        """
        paid = [name for name, at in self.named.items() if at <= moment]
        for name in paid:
            del self.named[name]
        bare = self.bare is not None and self.bare[1] <= moment
        if bare:
            self.bare = None
        return bool(paid) or bare

    def settle(self) -> None:
        """Forget what is owed; a receive of this bridge's own session has paid it."""
        self.named.clear()
        self.bare = None

    # -- what covers here are told with ------------------------------------------------------------------------------

    def show(self, now: float | None, gen: int) -> None:
        """Note that a session is told of a generation."""
        if not self.shown or gen > self.shown[-1][0]:
            self.shown.append((gen, now))

    def learned(self, gen: int) -> float | None:
        """Return a moment before which no session knew of ``gen``, and so began no receive that knows of it."""
        return next((at for known, at in reversed(self.shown) if known <= gen), None)

    def take_settled_names(self, gen: int) -> list[Name]:
        """Take the names whose marks an empty receive begun after ``gen`` proves paid."""
        paid = [name for name, at in self.names if at <= gen]
        left = [entry for entry in self.names if entry[1] > gen]
        self.names.clear()
        self.names.extend(left)
        return paid


def proven_until(sent_at: float, since_ms: int, begun_age_ms: int) -> float:
    """Return the latest moment, on the own clock, that a peer's receive is proven to have begun after.

    The peer heard a word of ours, which was sent at ``sent_at``, ``since_ms`` before it spoke, and its receive began
    ``begun_age_ms`` before that. How long the word was under way is not known, and counts as nothing.
    """
    after = (since_ms - begun_age_ms) / 1000
    return sent_at + after - RESOLUTION_S - DRIFT * abs(after)
