"""What the demo says while it runs: one live line on a terminal, only finished lines anywhere else."""

from __future__ import annotations

import os
import shutil
import time
from typing import Final, TextIO

LABEL_WIDTH: Final = 10
_REFRESH_S: Final = 0.05
_CLEAR: Final = "\r\x1b[2K"


class Progress:
    """Writes to one stream; ``live`` says whether a line may be written over."""

    def __init__(self, stream: TextIO, *, live: bool, colour: bool) -> None:
        self._stream = stream
        self.live = live
        self._colour = live and colour
        self._shown = False
        self._next_refresh = 0.0
        self._blocks = _can_write(stream, "█░")

    @classmethod
    def on(cls, stream: TextIO) -> Progress:
        """Live on a terminal that can move its cursor; coloured unless NO_COLOR says otherwise."""
        terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        return cls(stream, live=terminal, colour="NO_COLOR" not in os.environ)

    def line(self, text: str = "") -> None:
        """Write a line as it is."""
        self._clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def heading(self, text: str) -> None:
        """Write a heading."""
        self.line(f"\x1b[1m{text}\x1b[0m" if self._colour else text)

    def done(self, label: str, text: str) -> None:
        """Write a finished line; what was live gives way to it."""
        shown = f"{label:<{LABEL_WIDTH}}"
        self.line(f"  \x1b[36m{shown}\x1b[0m{text}" if self._colour else f"  {shown}{text}")

    def now(self, label: str, text: str, *, at_once: bool = False) -> None:
        """Show what is under way, on a terminal only, and not more often than an eye can follow."""
        moment = time.monotonic()
        if not self.live or (moment < self._next_refresh and not at_once):
            return
        self._next_refresh = moment + _REFRESH_S
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(_CLEAR + f"  {label:<{LABEL_WIDTH}}{text}"[:width])
        self._stream.flush()
        self._shown = True

    def bar(self, done: int, total: int, width: int = 40) -> str:
        """Draw a share."""
        full, empty = "█░" if self._blocks else "#."
        filled = width if total <= 0 else min(width, done * width // total)
        return full * filled + empty * (width - filled)

    def _clear(self) -> None:
        if self._shown:
            self._stream.write(_CLEAR)
            self._shown = False


def _can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
