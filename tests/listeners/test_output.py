"""A scaler's standard error where nobody reads it, nobody is there, or somebody reads again."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator

import pytest

from listeners.scaling.actuators.output import WAITING_BYTES, Output

LINE = "x" * 1023 + "\n"
LINES = 2 * WAITING_BYTES // len(LINE)


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """A pipe; who closes one of its ends puts -1 there."""
    ends = [*os.pipe()]
    yield ends
    for end in ends:
        if end >= 0:
            os.close(end)


def read(pipe: list[int], until: str) -> str:
    """Read until something was said."""
    said = b""
    while until.encode() not in said:
        said += os.read(pipe[0], 65_536)
    return said.decode()


def test_nobody_waits_for_a_reader_who_does_not_read(pipe: list[int]) -> None:
    """What does not fit is dropped, our own lines last of all, and how many were is said once they are read again."""
    output = Output(pipe[1])
    for _ in range(LINES):
        output.pass_on(LINE)
    assert output.write("our own\n") == len("our own\n")
    told = "nobody read them in time"
    said = read(pipe, told)
    (dropped,) = map(int, re.findall(rf"\.\.\. (\d+) lines were left out about here: {told}", said))
    said += read(pipe, "our own\n") if "our own" not in said else ""
    assert dropped > 0
    # The reader has the lines before the writer takes note of it.
    output.drain()
    output.pass_on("after\n")
    said += read(pipe, "after\n")
    assert said.count(LINE) + dropped == LINES


def test_our_own_lines_are_bounded_too(pipe: list[int]) -> None:
    """A log that nobody reads takes no memory without end."""
    output = Output(pipe[1])
    for _ in range(4 * LINES):
        output.write(LINE)
    assert len(read(pipe, "nobody read them in time")) < 3 * WAITING_BYTES


def test_a_reader_who_is_gone_keeps_nobody(pipe: list[int]) -> None:
    """What is written then is lost, and the end of the process waits for none of it."""
    output = Output(pipe[1])
    os.close(pipe[0])
    pipe[0] = -1
    output.pass_on("lost\n")
    output.drain()
    output.flush()
    assert output._size == 0


def test_lines_keep_their_order(pipe: list[int]) -> None:
    """Those of workers and our own, whatever they hold."""
    output = Output(pipe[1])
    for number in range(100):
        (output.pass_on if number % 2 else output.write)(f"{number} \udcff\n")
    output.drain()
    assert read(pipe, "99 ") == "".join(f"{number} \\udcff\n" for number in range(100))
    assert [each.daemon for each in threading.enumerate() if each.name == "output of workers"][:1] == [True]
