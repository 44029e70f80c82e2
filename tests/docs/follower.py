"""Somebody who follows a page: saves its files, types its commands into its terminals, and looks for what it promises.

Paragraphs say "in the first terminal", "leave it running", "Save this as" and "Press Ctrl-C in the first terminal"; a
fenced block of `text` is what one should see, with `…` for anything.
"""

from __future__ import annotations

import re
import signal
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from tests.readme.user import User
from tests.support.processes import Program, until

INTERRUPTED = (0, -signal.SIGINT, 128 + signal.SIGINT)
"""How a program may end by Ctrl-C: uvicorn ends by the signal itself, once all is done."""

_fence = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
NUMBERS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_terminal = re.compile(rf"({'|'.join(NUMBERS)}) terminal")
_saved = re.compile(r"Save this as\s+`([\w.]+)`")


class Step(NamedTuple):
    """A fenced block and the paragraph before it, or a paragraph alone (no language)."""

    words: str
    language: str | None
    text: str


def steps(page: str) -> Iterator[Step]:
    at, words = 0, ""
    for fence in _fence.finditer(page):
        *before, words = page[at : fence.start()].strip().split("\n\n")
        yield from (Step(paragraph, None, "") for paragraph in before)
        yield Step(words, fence[2], textwrap.dedent(fence[3]))
        at = fence.end()
    yield from (Step(paragraph, None, "") for paragraph in page[at:].strip().split("\n\n"))


class Terminal:
    """One of the user's terminals: its environment goes from command to command, and what was seen counts once."""

    def __init__(self, user: User, name: str) -> None:
        self._user = user
        self._name = name
        self._exports: list[str] = []
        self._seen: dict[str, int] = {}
        self._program: Program | None = None
        # What runs in the background is started with Ctrl-\ ignored, and would hand that on: in a terminal it counts.
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)

    async def type(self, text: str, *, leave_running: bool) -> None:
        assert self._program is None or self._program.code is not None, f"the {self._name} terminal is busy"
        lines = text.splitlines()
        script = "\n".join([*self._exports, *lines[:-1], f"exec {lines[-1]}" if leave_running else lines[-1]])
        self._exports += [line for line in lines if line.startswith("export ")]
        self._seen = {}
        self._program = await self._user.start(script, self._name, Program)
        if not leave_running:
            assert await self._program.ended() == 0, (text, self._program.errors)

    async def shows(self, text: str) -> None:
        """Wait until each line of a block is there, so often as it was asked for; `…` is any text."""
        for line in self._user.ported(text).splitlines():
            pattern = ".*".join(re.escape(part) for part in line.split("…"))
            self._seen[pattern] = wanted = self._seen.get(pattern, 0) + 1
            try:
                await until(lambda: self.count(pattern) >= wanted, f"the {self._name} terminal shows {line!r}")  # noqa: B023
            except AssertionError as error:
                assert self._program is not None
                raise AssertionError(f"{error}\n{self._program.lines}\n{self._program.errors}") from None

    async def press_ctrl_c(self) -> None:
        assert self._program is not None
        self._program.interrupt()
        assert await self._program.ended() in INTERRUPTED, self._program.errors
        assert "Traceback" not in self._program.errors.rpartition("stopping")[2]

    async def press_ctrl_backslash(self) -> None:
        """End what runs there at once, whatever it was doing."""
        assert self._program is not None
        self._program.signal(signal.SIGQUIT)
        await self._program.ended()

    def ended(self) -> bool:
        return self._program is None or self._program.code is not None

    def count(self, pattern: str) -> int:
        assert self._program is not None
        lines = [*self._program.lines, *self._program.errors.splitlines()]
        return sum(re.fullmatch(pattern, line) is not None for line in lines)


async def follow(page: str, user: User) -> tuple[int, int]:
    """Do what a tutorial says; return how many commands were run and how many lines seen. Fails where one is not."""
    terminals = {name: Terminal(user, name) for name in NUMBERS}
    here = terminals["first"]
    commands = lines = 0
    for step in steps(page):
        for sentence in re.split(r"(?<=[.:]) ", " ".join(step.words.split())):
            pressed = re.match(r"Press Ctrl-(C|\\) in the (\w+) terminal", sentence)
            if pressed is not None:
                here = terminals[pressed[2]]
                await (here.press_ctrl_c() if pressed[1] == "C" else here.press_ctrl_backslash())
            elif (named := _terminal.search(sentence)) is not None and "?" not in sentence:
                here = terminals[named[1]]
        if step.language == "python":
            user.save(_saved.findall(step.words)[-1], step.text)
        elif step.language == "sh":
            await here.type(
                step.text, leave_running=bool(re.search(r"leave\s+it\s+running", step.words, re.IGNORECASE))
            )
            commands += len(step.text.splitlines())
        elif step.language == "text":
            await here.shows(step.text)
            lines += len(step.text.splitlines())
        else:
            assert step.language is None, step.language
    assert all(terminal.ended() for terminal in terminals.values()), "the page leaves something running"
    return commands, lines
