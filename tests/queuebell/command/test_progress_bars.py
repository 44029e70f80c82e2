"""Commands that take a while show at a terminal how far they are, beside an output that stays for programs."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from tests.support.command import COMMAND, environment
from tests.support.terminal import Terminal


def at_terminal(
    words: Sequence[str], out: pathlib.Path, env: dict[str, str] | None = None, command: Sequence[str] = COMMAND
) -> str:
    """Run a command with its standard error at a terminal, and return what stood there meanwhile."""
    with out.open("wb") as file, Terminal([*command, *words], stdout=file.fileno(), env=env) as terminal:
        assert terminal.ended() == 0
        return terminal.raw


def test_what_is_played_shows_how_far_it_is(tmp_path: pathlib.Path) -> None:
    """On standard error only: the JSON is whole."""
    words, out = ["bench", "cost", "--quick", "--policy", "push,capped", "--json"], tmp_path / "out"
    shown = at_terminal(words, out, command=[sys.executable, "-m"])
    assert "%" in shown and " left" in shown
    assert json.loads(out.read_text())
    silent = subprocess.run([sys.executable, "-m", *words], capture_output=True, check=True, env=environment())
    assert b"\x1b" not in silent.stdout + silent.stderr
