"""What a command that takes a while says meanwhile: one live line on a terminal, only finished lines anywhere else."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LABEL_WIDTH: Final = 10
LINE_EVERY_S: Final = 10.0
"""Where no line can be written over, a line of progress this often, if any."""
_REFRESH_S: Final = 0.05
_BAR_FROM: Final = 60
"""Columns from which on there is room for a bar."""
_CLEAR: Final = "\r\x1b[2K"


def terminal(stream: TextIO) -> bool:
    """Say whether a line may be written over there: it is a terminal, and one that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def coloured(stream: TextIO) -> bool:
    """Say whether colours may be written there: never with ``NO_COLOR``, always with ``FORCE_COLOR``."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or terminal(stream)


class Progress:
    """Writes finished lines to one stream, and to ``bars`` the line that is written over; ``live`` says whether it may.

    Without, and with ``plainly``, what is under way is a line of its own, every 10 s.
    """

    def __init__(self, stream: TextIO, bars: TextIO, *, plainly: bool = False) -> None:
        self._stream = stream
        self._bars = bars
        self._plainly = plainly
        self.live = terminal(bars)
        self._bar: Bar | None = None
        self._label: str | None = None
        self._shown = False
        self._next_refresh = 0.0 if self.live else time.monotonic() + LINE_EVERY_S

    @classmethod
    def on(cls, stream: TextIO, *, plainly: bool = False) -> Progress:
        """Write lines there, and what is under way to standard error."""
        return cls(stream, sys.stderr, plainly=plainly)

    def line(self, text: str = "") -> None:
        """Write a line as it is."""
        self.close()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def heading(self, text: str) -> None:
        """Write a heading."""
        self.line(f"\x1b[1m{text}\x1b[0m" if coloured(self._stream) else text)

    def done(self, label: str, text: str) -> None:
        """Write a finished line; what was live gives way to it."""
        shown = f"{label:<{LABEL_WIDTH}}"
        self.line(f"  \x1b[36m{shown}\x1b[0m{text}" if coloured(self._stream) else f"  {shown}{text}")

    def now(self, label: str, text: str, *, share: float | None = None, at_once: bool = False) -> None:
        """Show what is under way, not more often than an eye can follow; with its ``share`` of 1 the time left, too."""
        moment = time.monotonic()
        if moment < self._next_refresh and not (at_once and self.live):
            return
        if self.live:
            self._bars.write(_CLEAR + self._drawn(label, text, share))
            self._bars.flush()
            self._shown = True
            self._next_refresh = time.monotonic() + _REFRESH_S
        elif self._plainly:
            self._next_refresh = moment + LINE_EVERY_S
            self.done(label, text)

    def close(self) -> None:
        """Take the live line away."""
        if self._shown:
            self._bars.write(_CLEAR)
            self._bars.flush()
            self._shown = False

    def _drawn(self, label: str, text: str, share: float | None) -> str:
        # Only where somebody looks: loading it takes longer than many a command.
        from rich.cells import cell_len, set_cell_size
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        if self._bar is None or self._label != label:
            console = Console(file=self._bars, force_terminal=True, no_color=not coloured(self._bars))
            left: list[ProgressColumn] = [TimeRemainingColumn(compact=True), TextColumn("left", markup=False)]
            # What is left is reckoned anew for each thing that is done.
            self._bar, self._label = Bar(BarColumn(24), TaskProgressColumn(), *left, console=console), label
            self._bar.add_task(label, total=1.0)
        bar = self._bar
        bar.update(bar.tasks[0].id, completed=share or 0.0)
        width, head, drawn = bar.console.width - 1, f"  {label:<{LABEL_WIDTH}}", ""
        if share is not None and width < _BAR_FROM:
            head += f"{share:.0%}  "
        elif share is not None:
            with bar.console.capture() as captured:
                bar.console.print(bar.make_tasks_table(bar.tasks), end="")
            drawn = captured.get().rstrip("\n") + "  "
        room = width - cell_len(head) - cell_len(Text.from_ansi(drawn).plain)
        return head[:width] + drawn + (text if cell_len(text) <= room else set_cell_size(text, max(0, room)))
