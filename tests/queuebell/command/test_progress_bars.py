"""Commands that take a while show at a terminal how far they are, beside an output that stays for programs."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.support.command import COMMAND, environment, run, serving
from tests.support.terminal import Terminal


def at_terminal(
    words: Sequence[str], out: pathlib.Path, env: dict[str, str] | None = None, command: Sequence[str] = COMMAND
) -> str:
    """Run a command with its standard error at a terminal, and return what stood there meanwhile."""
    with out.open("wb") as file, Terminal([*command, *words], stdout=file.fileno(), env=env) as terminal:
        assert terminal.ended() == 0
        return terminal.raw


def test_export_and_import_show_how_far_they_are(tmp_path: pathlib.Path) -> None:
    """A bar at the terminal, the messages in the file, and nothing but the last line without a terminal."""
    exported, nothing = tmp_path / "exported", tmp_path / "nothing"
    with serving(tmp_path / "q.db") as bridge:
        env = {"QUEUEBELL_STORE": bridge.url, "QUEUEBELL_BRIDGE": bridge.url}
        bridge.client("queue", "put", "a/b", *("x" * 100 for _ in range(70)))
        shown = at_terminal(["queue", "export", "a/b"], exported, env)
        assert "export" in shown and "%" in shown and " left  " in shown and "exported 70" in shown
        assert [json.loads(line)["body"] for line in exported.read_text().splitlines()] == ["x" * 100] * 70
        shown = at_terminal(["queue", "import", "a/c", "--file", str(exported)], nothing, env)
        assert "import" in shown and "%" in shown and "imported 70" in shown
        assert nothing.read_bytes() == b""
        plain = run("queue", "export", "a/c", env=env)
        assert plain.stderr == b"a/c: exported 70\n" and len(plain.stdout.splitlines()) == 70


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "cost", "--quick", "--policy", "push,capped", "--json"],
        ["tests.simulation", "--seeds", "4", "--json"],
    ],
)
def test_what_is_played_shows_how_far_it_is(words: list[str], tmp_path: pathlib.Path) -> None:
    """On standard error only: the JSON is whole."""
    out = tmp_path / "out"
    shown = at_terminal(words, out, command=[sys.executable, "-m"])
    assert "%" in shown and " left" in shown
    assert json.loads(out.read_text())
    silent = subprocess.run([sys.executable, "-m", *words], capture_output=True, check=True, env=environment())
    assert b"\x1b" not in silent.stdout + silent.stderr
