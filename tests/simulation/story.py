"""A run's story: what happened as canonical lines of text, and their SHA-256.

Two runs are the same if and only if their hashes are: lines hold times to the microsecond, names and numbers, and
nothing that differs between processes (no addresses, no hashes, no order of sets).
"""

from __future__ import annotations

import hashlib
from typing import Final

from tests.simulation.events import Event

_BATCH: Final = 256
"""Lines hashed at once: one call for many is what makes a story nobody keeps cheap."""


class Story:
    """Takes events in their order; keeps the lines only if asked to."""

    __slots__ = ("_batch", "_hash", "_keep", "_lines", "events")

    def __init__(self, *, keep: bool = False) -> None:
        self.events = 0
        self._keep = keep
        self._lines: list[str] = []
        self._batch: list[str] = []
        self._hash = hashlib.sha256()

    def hear(self, event: Event) -> None:
        """Add one event."""
        self.events += 1
        batch = self._batch
        batch.append(tell(event))
        if len(batch) >= _BATCH:
            self._flush()

    def lines(self) -> list[str]:
        """Return the lines so far; none unless they were to be kept."""
        self._flush()
        return list(self._lines)

    def sha256(self) -> str:
        """Return the hash of the lines so far, 64 hex digits."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        if self._batch:
            self._hash.update(("\n".join(self._batch) + "\n").encode())
            if self._keep:
                self._lines.extend(self._batch)
            self._batch = []


def tell(event: Event) -> str:
    """Return one event as a line: seconds, what happened, and its fields in the order of their definition."""
    kind = type(event)
    fields = "".join(f" {name}={_text(getattr(event, name))}" for name in kind.__struct_fields__[1:])
    return f"{event.at:12.6f} {kind.__name__}{fields}"


def _text(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)
