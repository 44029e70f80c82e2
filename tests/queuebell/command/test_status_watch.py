"""`status` at a terminal: tables that fit, colours where they are wanted, and `--watch` in place and by blocks."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping

import pytest

from tests.support.command import COMMAND, Serving, environment, serving
from tests.support.terminal import Terminal

LONG = "billing/orders-of-the-whole-of-europe-and-of-some-more"
ESC = "\x1b"


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One bridge for all, with a queue that nobody looks at."""
    with serving(tmp_path_factory.mktemp("watch") / "q.db") as running:
        running.client("queue", "put", LONG, "x")
        yield running


def at_terminal(bridge: Serving, *words: str, columns: int = 80, env: Mapping[str, str] | None = None) -> Terminal:
    """Run the command at a terminal."""
    return Terminal([*COMMAND, *words, "--bridge", bridge.url], columns=columns, rows=50, env=env)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_tables_fit_a_terminal(bridge: Serving, columns: int) -> None:
    """Names lose their middle and spare columns are left out, and that is said; in a pipe all is there."""
    with at_terminal(bridge, "status", columns=columns) as terminal:
        assert terminal.ended() == 0
        lines = terminal.screen()
    head = next(number for number, line in enumerate(lines) if line.startswith("QUEUE"))
    assert lines[head + 1].split()[1] == "1" and len(lines[head + 1]) <= columns
    assert ("EMPTY" in lines[head]) is (columns == 200)
    assert (LONG in lines[head + 1]) is (columns == 200)
    assert any("in a wider terminal also EMPTY" in line for line in lines) is (columns < 200)
    piped = bridge.client("status")
    assert LONG in piped and "EMPTY" in piped and ESC not in piped


@pytest.mark.parametrize(
    ("env", "red"), [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False), ({}, False)]
)
def test_trouble_is_red_and_stands_there_in_words(bridge: Serving, env: dict[str, str], red: bool) -> None:
    """Colour alone says nothing, and NO_COLOR is heeded (the terminal of these tests sets it)."""
    with at_terminal(bridge, "status", columns=200, env=env) as terminal:
        assert terminal.ended() == 0
        assert (f"{ESC}[31m  {LONG}: no listener is subscribed" in terminal.raw) is red
        terminal.shows("no listener is subscribed; 1 waiting")


def test_watch_draws_in_place_and_ends_by_ctrl_c(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """What came meanwhile stands there, the screen is not scrolled away, the cursor is left, and the end is 0."""
    with at_terminal(bridge, "status", "--watch", "0.5", columns=100) as terminal:
        terminal.shows("bridge at", "QUEUE")
        bridge.client("queue", "put", "watched/later", "x")
        lines = terminal.shows("watched/later")
        assert sum(line.startswith("bridge at") for line in lines) == 1
        terminal.keys("\x03")
        assert terminal.ended() == 0
        assert terminal.settings() == terminal.before
        assert terminal.raw.rfind(f"{ESC}[?25h") > terminal.raw.rfind(f"{ESC}[?25l")


def test_watch_in_a_pipe_writes_a_block_for_each_change(tmp_path: pathlib.Path) -> None:
    """Not for the seconds that pass; a bridge that goes is said, and the first one that never was ends it with 69."""
    with serving(tmp_path / "q.db") as bridge:
        bridge.client("queue", "put", "a/b", "x")
        process = subprocess.Popen(
            [*COMMAND, "status", "--watch", "a/b", "--bridge", bridge.url],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        assert process.stdout is not None
        block = [process.stdout.readline().decode()]
        while not block[-1].startswith("a/b  "):
            block.append(process.stdout.readline().decode())
        bridge.client("queue", "put", "a/b", "y")
        rest = b""
        while b"2 waiting" not in rest:
            rest += os.read(process.stdout.fileno(), 65536)
        bridge.stop()
        while b"it is asked again" not in rest:
            rest += os.read(process.stdout.fileno(), 65536)
        process.send_signal(signal.SIGINT)
        rest += process.communicate()[0]
    assert process.returncode == 0
    assert len(re.findall("^bridge at", rest.decode(), re.MULTILINE)) <= 2, "one a change, and none for ages"
    assert ESC.encode() not in rest
    gone = subprocess.run(
        [*COMMAND, "status", "--watch", "--bridge", bridge.url], capture_output=True, env=environment(), check=False
    )
    assert gone.returncode == 69
