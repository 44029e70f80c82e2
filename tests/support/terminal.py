"""A terminal with a program at it: keys go in, and what stands on its screen is told."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.cells import cell_len

from tests.support.command import environment
from tests.support.processes import PATIENCE_S

_HOME = "\x1b[H"
_TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()>=][A-Z0-9]?|([\r\n\b])|([^\x1b\r\n\b]+)")


class Terminal:
    """A pseudo-terminal of so many columns and rows; a context manager, which kills what still runs at its end."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        self._columns, self._rows = columns, rows
        self._slave = slave
        self._size(columns, rows)
        self.before = termios.tcgetattr(slave)
        given = {name: value for name, value in environment(env).items() if name not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            words,
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            env={"NO_COLOR": "1", **given, "TERM": "xterm-256color", **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C is for who has the terminal
        )
        self.raw = ""
        self._news = threading.Condition()
        self._ended = False
        self._reading = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reading.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._ended = True
        self._reading.join()
        for each in (self._master, self._slave):
            os.close(each)

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def keys(self, text: str) -> None:
        """Type something."""
        os.write(self._master, text.encode())

    def signal(self, number: signal.Signals) -> None:
        """Signal the program."""
        self.process.send_signal(number)

    def settings(self) -> list[object]:
        """Return how it echoes, and whether it waits for whole lines."""
        return termios.tcgetattr(self._slave)

    def _read(self) -> None:
        rest = b""
        while not self._ended:
            if not select.select([self._master], [], [], 0.02)[0]:
                continue
            with contextlib.suppress(OSError):
                rest += os.read(self._master, 65536)
            text = rest.decode("utf-8", "ignore")
            with self._news:
                self.raw += text
                rest = b"" if rest.endswith(text[-1:].encode() or b"\0") else rest[len(text.encode()) :]
                self._news.notify_all()

    def until(self, holds: Callable[[list[str]], object], what: str) -> list[str]:
        """Wait until what stands on the screen is as it should be, and return it."""
        with self._news:
            if self._news.wait_for(lambda: holds(self.screen()), PATIENCE_S):
                return self.screen()
        shown = "\n".join(self.screen())
        raise AssertionError(f"not within {PATIENCE_S:g} s: {what}\n{shown}\n{self.raw[-2000:]!r}")

    def shows(self, *words: str) -> list[str]:
        """Wait until all ``words`` stand on the screen."""
        return self.until(lambda lines: all(any(word in line for line in lines) for word in words), f"shows {words}")

    def ended(self) -> int:
        """Wait for the program's end and for all that it wrote, and return its exit code."""
        code = self.process.wait(PATIENCE_S)
        with self._news:
            # What was written before the end is there already, and is read within a glance.
            while self._news.wait(0.05):
                pass
        return code

    def screen(self) -> list[str]:
        """Return the lines that stand there now."""
        return drawn(self.raw, self._columns, self._rows)


def drawn(raw: str, columns: int, rows: int) -> list[str]:
    """Return what a terminal shows of what was written: places and erasures are heeded, colours are not."""
    lines = [""] * rows
    row = column = 0
    # Who goes home draws all anew: what is before the last but one of these is gone.
    raw = raw[max(0, raw.rfind(_HOME, 0, max(0, raw.rfind(_HOME)))) :]
    for code, kind, control, text in _tokens(raw):
        if control == "\r":
            column = 0
        elif control == "\b":
            column = max(0, column - 1)
        elif kind in {"C", "D"}:
            column = max(0, min(columns - 1, column + int(code or 1) * (1 if kind == "C" else -1)))
        elif control == "\n":
            row, column = row + 1, column
            if row == rows:
                lines, row = [*lines[1:], ""], rows - 1
        elif text:
            for one in text:
                width = cell_len(one)
                if column + width > columns:
                    row, column = min(row + 1, rows - 1), 0
                lines[row] = lines[row].ljust(column)
                lines[row] = lines[row][:column] + one + "\0" * (width - 1) + lines[row][column + width :]
                column += width
        elif kind == "H":
            row, column = (int(part or 1) - 1 for part in [*code.split(";"), "1"][:2])
            row, column = min(row, rows - 1), min(column, columns - 1)
        elif kind == "A":
            row = max(0, row - int(code or 1))
        elif kind == "K":
            lines[row] = "" if code == "2" else lines[row][:column]
        elif kind == "J":
            lines = [*lines[:row], lines[row][:column], *[""] * (rows - row - 1)] if code in {"", "0"} else [""] * rows
        elif code == "?1049" and kind in "hl":
            lines, row, column = [""] * rows, 0, 0
    return [line.replace("\0", "").rstrip() for line in lines]


def _tokens(raw: str) -> Iterator[tuple[str, str, str, str]]:
    for match in _TOKEN.finditer(raw):
        yield match[1] or "", match[2] or "", match[3] or "", match[4] or ""
