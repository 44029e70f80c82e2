"""Progress of long commands: one live line on a terminal, only finished lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LABEL_WIDTH: Final = 10
LINE_EVERY_S: Final = 10.0
"""Seconds between lines of progress if a line cannot be overwritten."""
_REFRESH_S: Final = 0.05
_BAR_FROM: Final = 60
"""The least width for a bar."""
_CLEAR: Final = "\r\x1b[2K"


def terminal(stream: TextIO) -> bool:
    """Return whether lines can be overwritten: on a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def coloured(stream: TextIO) -> bool:
    """Return whether to use colours: never with ``NO_COLOR``, always with ``FORCE_COLOR``."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or terminal(stream)


class Progress:
    """Writes finished lines to one stream, and the live line to ``bars`` if that can be overwritten (``live``).

    If not, ``plainly`` writes a line of progress every 10 s.
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
        """Write lines to ``stream``, and the live line to standard error."""
        return cls(stream, sys.stderr, plainly=plainly)

    def line(self, text: str = "") -> None:
        """Write a line unchanged."""
        self.close()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def heading(self, text: str) -> None:
        """Write a heading."""
        self.line(f"\x1b[1m{text}\x1b[0m" if coloured(self._stream) else text)

    def done(self, label: str, text: str) -> None:
        """Write a finished line in place of the live one."""
        shown = f"{label:<{LABEL_WIDTH}}"
        self.line(f"  \x1b[36m{shown}\x1b[0m{text}" if coloured(self._stream) else f"  {shown}{text}")

    def now(self, label: str, text: str, *, share: float | None = None, at_once: bool = False) -> None:
        """Show progress, at a limited rate; with its ``share`` of 1 also a bar and the time left."""
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
        """Remove the live line."""
        if self._shown:
            self._bars.write(_CLEAR)
            self._bars.flush()
            self._shown = False

    def _drawn(self, label: str, text: str, share: float | None) -> str:
        # Imported only on a terminal: it takes longer than many a command.
        from rich.cells import cell_len, set_cell_size
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        if self._bar is None or self._label != label:
            console = Console(file=self._bars, force_terminal=True, no_color=not coloured(self._bars))
            left: list[ProgressColumn] = [TimeRemainingColumn(compact=True), TextColumn("left", markup=False)]
            # The time left is estimated separately for each label.
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
