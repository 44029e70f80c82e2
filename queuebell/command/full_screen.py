"""The full screen and the keys of a terminal, which is restored at the end.

Needs termios; on other systems the import fails.
"""

from __future__ import annotations

import codecs
import os
import re
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from typing import Final

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_KEYS: Final = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[D": "left", "\x1bOA": "up", "\x1bOB": "down", "\x1bOD": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home", "\x1b[F": "end", "\x1bOH": "home", "\x1bOF": "end",
    "\x1b[1~": "home", "\x1b[4~": "end", "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace",
    "\x08": "backspace",
}  # fmt: skip
_key = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])?|[^\x1b]", re.DOTALL)


class FullScreen:
    """The terminal of standard input and output; a context manager that restores it."""

    def __init__(self) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout
        self._before = termios.tcgetattr(self._in)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._entered = False
        self._drawn: tuple[int, int] | None = None

    def __enter__(self) -> FullScreen:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Switch to the full screen and single keys; idempotent."""
        if not self._entered:
            self._entered, self._drawn = True, None
            tty.setcbreak(self._in, termios.TCSANOW)
            self._write(_ENTER)

    def leave(self) -> None:
        """Restore the terminal; idempotent."""
        if self._entered:
            self._entered = False
            self._write(_LEAVE)
            termios.tcsetattr(self._in, termios.TCSANOW, self._before)

    def stop(self) -> None:
        """Restore the terminal and suspend the process, as Ctrl-Z does; after it continues, call `enter` again."""
        self.leave()
        os.kill(os.getpid(), signal.SIGSTOP)

    def size(self) -> tuple[int, int]:
        """Return the numbers of columns and rows."""
        return shutil.get_terminal_size()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines and nothing else."""
        if self._entered:
            # A line that a smaller screen had wrapped would stay.
            clear, self._drawn = ("\x1b[2J" if self._drawn != self.size() else ""), self.size()
            self._write(clear + "\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K")

    def keys(self) -> list[str] | None:
        """Return the pressed keys, special ones by name; None if the terminal is gone."""
        try:
            read = os.read(self._in, 4096)
        except OSError:
            read = b""
        if not read:
            return None
        return [_KEYS.get(one, one) for one in _key.findall(self._decoder.decode(read))]

    def _write(self, text: str) -> None:
        self._out.buffer.write(text.encode(self._out.encoding or "ascii", "replace"))
        self._out.flush()
