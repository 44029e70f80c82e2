"""Room for answers that their clients have not taken yet: what is left unread stays in our memory.

Large answers are made while what is unread, of all connections of a server together, stays within a bound. Past it they
are refused, and those readers cut off that were too slow when there was no room. Small ones always go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

UNREAD_BYTES: Final = 64 * 1024 * 1024
"""For all connections of a server together."""
SMALL_BYTES: Final = 64 * 1024
"""An answer up to this is never refused."""
SLOW_AFTER_S: Final = 2.0
SLOW_BYTES_S: Final = 64 * 1024
"""Who took less than this, for `SLOW_AFTER_S` or longer, is cut off where there is no room."""


class Reader(Protocol):
    """A connection whose peer has not taken all that was written."""

    def unread(self) -> int:
        """Return how many bytes it has not taken."""
        ...

    def cut_off(self) -> None:
        """End it at once, and free what it has not taken."""
        ...


class AnswerRoom:
    """So many bytes, by ``clock`` (seconds that do not go back); belongs to one event loop."""

    def __init__(self, clock: Callable[[], float], size: int = UNREAD_BYTES) -> None:
        self.size = size
        self.taken = 0
        """What is unread, as it was when each reader was looked at last."""
        self._clock = clock
        # Bytes that each had not taken when it was looked at, and when that was; in the order of looking.
        self._held: dict[Reader, tuple[int, float]] = {}

    def hold(self, reader: Reader, size: int) -> None:
        """Its peer did not take ``size`` bytes at once."""
        self.release(reader)
        self._held[reader] = (size, self._clock())
        self.taken += size

    def release(self, reader: Reader) -> None:
        """Its peer took all, or is gone."""
        held = self._held.pop(reader, None)
        if held is not None:
            self.taken -= held[0]

    def fits(self, size: int) -> bool:
        """Say whether an answer of ``size`` bytes may be written now; where it may not, slow readers are cut off.

        One that is larger than all there is finds room where nobody has any.
        """
        if size <= SMALL_BYTES or self.taken + size <= self.size:
            return True
        self._make_room(size)
        return self.taken + size <= self.size or not self.taken

    def _make_room(self, size: int) -> None:
        now = self._clock()
        while self._held and self.taken + size > self.size:
            reader, (before, looked) = next(iter(self._held.items()))
            elapsed = now - looked
            if elapsed < SLOW_AFTER_S:
                # Looked at often enough; so were all that follow.
                return
            left = reader.unread()
            if before - left < elapsed * SLOW_BYTES_S:
                self.release(reader)
                reader.cut_off()
            else:
                self.hold(reader, left)
