"""`status` at a terminal: tables that fit, colours where they are wanted, and `--watch` in place and by blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.support.command import COMMAND, Serving, serving
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


@pytest.mark.parametrize(
    ("env", "red"), [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False), ({}, False)]
)
def test_trouble_is_red_and_stands_there_in_words(bridge: Serving, env: dict[str, str], red: bool) -> None:
    """Colour alone says nothing, and NO_COLOR is heeded (the terminal of these tests sets it)."""
    with at_terminal(bridge, "status", columns=200, env=env) as terminal:
        assert terminal.ended() == 0
        assert (f"{ESC}[31m  {LONG}: no worker is connected" in terminal.raw) is red
        terminal.shows("no worker is connected; 1 message is waiting for one")
