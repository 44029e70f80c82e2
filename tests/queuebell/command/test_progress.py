"""What is under way: one live line on a terminal, finished lines elsewhere, colours only where they are wanted."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len

from queuebell.command.progress import LABEL_WIDTH, Progress, coloured

CLEAR = "\r\x1b[2K"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns, without anybody's wishes for colours."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_away_from_a_terminal_only_finished_lines_are_written() -> None:
    """Without any control characters, and what is under way not at all unless it is asked for."""
    out, bars = io.StringIO(), io.StringIO()
    progress = Progress(out, bars)
    progress.now("burst 1", "1 of 2", share=0.5, at_once=True)
    progress.heading("Title")
    progress.done("burst 1", "2 files")
    progress.close()
    assert (out.getvalue(), bars.getvalue()) == ("Title\n  burst 1   2 files\n", "")


def test_away_from_a_terminal_a_long_one_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line each ten seconds, the first after ten."""
    now = [100.0]
    monkeypatch.setattr("queuebell.command.progress.time.monotonic", lambda: now[0])
    out = io.StringIO()
    progress = Progress(out, io.StringIO(), plainly=True)
    for number, passed in enumerate((0, 9.9, 0.2, 9.0, 1.1)):
        now[0] += passed
        progress.now("simulate", f"{number} runs")
    assert out.getvalue() == "  simulate  2 runs\n  simulate  4 runs\n"


def test_the_live_line_gives_way_to_the_finished_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, no more often than can be followed, while the lines go to standard output."""
    monkeypatch.setenv("NO_COLOR", "1")
    out, bars = io.StringIO(), Terminal()
    progress = Progress(out, bars)
    progress.now("burst 1", "1 of 2")
    progress.now("burst 1", "unseen")
    progress.done("burst 1", "2 files")
    progress.close()
    assert out.getvalue() == "  burst 1   2 files\n"
    assert bars.getvalue() == f"{CLEAR}  burst 1   1 of 2{CLEAR}"


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("hostile", ["", "[red]x[/red] [/nothing]"])
def test_the_line_fits_and_says_how_much_time_is_left(
    monkeypatch: pytest.MonkeyPatch, width: int, hostile: str
) -> None:
    """Whatever the width, it is one line; brackets are no markup."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    bars = Terminal()
    progress = Progress(io.StringIO(), bars)
    progress.now("import", f"{hostile}7 of 9", share=0.75, at_once=True)
    progress.now("import", f"{hostile}8 of 9", share=0.8, at_once=True)
    line = bars.getvalue().split(CLEAR)[-1]
    assert "\n" not in line and "\x1b" not in line and cell_len(line) <= width
    if width >= 80:
        assert re.search(r"import +\S+ +80% +\S+ left ", line) and f"{hostile}8" in line


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_bar_is_drawn_in_signs_that_the_terminal_knows(encoding: str) -> None:
    """A terminal of another encoding is no reason to end."""

    class Old(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    written = io.BytesIO()
    Progress(io.StringIO(), Old(written, encoding)).now("import", "x" * 200, share=0.5)
    assert b"50%" in written.getvalue()


@pytest.mark.parametrize(
    ("stream", "env", "wanted"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (Terminal(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_are_for_terminals_and_for_who_wants_them(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, env: dict[str, str], wanted: bool
) -> None:
    """``NO_COLOR`` is stronger than all else, and an empty one is none."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert coloured(stream) is wanted
    out = io.StringIO() if not stream.isatty() else Terminal()
    Progress(out, io.StringIO()).done("burst 1", "2 files")
    assert out.getvalue().replace("\x1b[36m", "").replace("\x1b[0m", "") == f"  {'burst 1':<{LABEL_WIDTH}}2 files\n"
    assert ("\x1b" in out.getvalue()) is wanted
