"""`top` at a real terminal: what it shows, its keys, and that the terminal is as it was however it ends."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from queuebell.bridge.service.state.overview import ROWS, OneQueue, QueueRow, Queues, Totals
from queuebell.command.top_frame import Looking, Told, frame, rates
from tests.support.command import COMMAND, Serving, perform, serving
from tests.support.terminal import Terminal

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One bridge for all, with queues of which one has work and nobody."""
    with serving(tmp_path_factory.mktemp("top") / "q.db") as running:
        running.client("queue", "create", "shop/idle")
        running.client("queue", "put", "billing/orders", "x", "y")
        yield running


def top(bridge: Serving | str, *words: str, columns: int = 100, env: Mapping[str, str] | None = None) -> Terminal:
    """Run it."""
    url = bridge if isinstance(bridge, str) else bridge.url
    return Terminal([*COMMAND, "top", *words, "--bridge", url], columns=columns, env=env)


def left(terminal: Terminal) -> int:
    """Wait for its end, and see that the terminal is as it was."""
    code = terminal.ended()
    assert terminal.settings() == terminal.before
    assert terminal.raw.rfind(LEAVE) > terminal.raw.rfind(ENTER) > -1
    assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l")
    return code


@pytest.mark.parametrize(
    ("end", "code"), [("\x03", 0), (signal.SIGTERM, 128 + signal.SIGTERM), ("q", 0)], ids=["ctrl-c", "term", "q"]
)
def test_the_terminal_is_given_back(bridge: Serving, end: str | signal.Signals, code: int) -> None:
    with top(bridge) as terminal:
        terminal.shows("billing/orders")
        if isinstance(end, str):
            terminal.keys(end)
        else:
            terminal.signal(end)
        assert left(terminal) == code


def test_the_terminal_is_given_back_after_a_crash(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """What went wrong is read below, and not on a screen that is gone."""
    (tmp_path / "broken.py").write_text(
        "import sys\nfrom queuebell.command import top\n"
        "top.Looking.next_sort = lambda self: 1 / 0\nfrom queuebell.command.main import main\nsys.exit(main())\n"
    )
    words = [COMMAND[0], str(tmp_path / "broken.py"), "top", "--bridge", bridge.url]
    with Terminal(words) as terminal:
        terminal.shows("billing/orders")
        terminal.keys("s")
        assert left(terminal) == 1
        assert "ZeroDivisionError" in terminal.raw[terminal.raw.rfind(LEAVE) :]


def test_without_a_terminal_it_says_what_to_use() -> None:
    """A pipe, a file or a terminal that cannot move its cursor: 2, before anybody is asked."""
    done = perform("top", code=2)
    assert done.stdout == b"" and b"queuebell status --watch" in done.stderr
    with Terminal([*COMMAND, "top"], env={"TERM": "dumb"}) as terminal:
        assert terminal.ended() == 2
        assert "queuebell status" in terminal.raw


HOSTILE = "a\x1b[2Jb\u202ec\x9bd\n[red]e"


def row(queue: str = "billing/orders", **more: Any) -> QueueRow:
    """One queue."""
    blank = dict.fromkeys(QueueRow.__struct_fields__, None)
    known = {
        "visible": 3,
        "leased": 1,
        "buried": 2,
        "listeners": 4,
        "triggers": 10,
        "receives": 12,
        "empty": 1,
        "handled": 7,
        "failed": 2,
    }
    flags = {"at_least": False, "paused": False, "dirty": True, "waiting_ms": 5000, "handled": 7, "failed": 2}
    return QueueRow(**{**blank, **known, **flags, "queue": queue, **more})


def told(*rows: QueueRow, found: int | None = None, troubled: int = 0, first: int = 0, **more: Any) -> Told:
    """What a bridge told of these."""
    blank = dict.fromkeys(Totals.__struct_fields__, 0)
    totals = Totals(**{**blank, "queues": len(rows), "visible": 3, "troubled": troubled})
    view = Queues(found=len(rows) if found is None else found, first=first, rows=list(rows), totals=totals)
    return Told(url="http://127.0.0.1:8470", at="12:00:00", view=view, **more)


def unstyled(lines: list[str]) -> list[str]:
    """Without bold and reversed."""
    return [line.replace("\x1b[1m", "").replace("\x1b[7m", "").replace("\x1b[0m", "") for line in lines]


@pytest.mark.parametrize("width", [12, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 4, 8, 50])
@pytest.mark.parametrize("coloured", [False, True])
def test_a_frame_fits_and_nothing_that_a_stranger_sent_drives_the_terminal(
    width: int, height: int, coloured: bool
) -> None:
    """Names, troubles, filters and reasons with escapes, marks of direction and markup, at any size."""
    rows = [row(HOSTILE, trouble=HOSTILE), row("漢字" * 60, trouble="x" * 300)]
    one = Told(url="u", at="12:00:00", view=OneQueue(row=row(HOSTILE, trouble=HOSTILE)))
    frames = [
        frame(
            told(*rows, lost=lost, troubled=2), Looking(filter=HOSTILE, typing=typing), width, height, coloured=coloured
        )
        for lost in (None, HOSTILE)
        for typing in (None, HOSTILE)
    ]
    frames.append(frame(one, Looking(queue=HOSTILE), width, height, coloured=coloured))
    for lines in frames:
        assert len(lines) <= height
        plain = [line.replace("\x1b[31m", "").replace("\x1b[1;31m", "").replace("\x1b[7;31m", "") for line in lines]
        assert all(line.isprintable() and cell_len(line) <= width for line in unstyled(plain))
        assert coloured or not any("31" in line.split("m")[0] for line in lines if line.startswith("\x1b"))


def test_what_is_not_known_is_a_question_mark() -> None:
    unknown = row(visible=None, leased=None, buried=None)
    view = Told(url="u", at="12:00:00", view=OneQueue(row=unknown))
    for lines in (
        frame(told(unknown), Looking(), 200, 8, coloured=False),
        frame(view, Looking(queue="billing/orders"), 200, 8, coloured=False),
    ):
        assert "None" not in "".join(lines)
        assert "".join(lines).count("?") == 3


def test_rates_are_those_since_the_view_before() -> None:
    """None for a queue that is new, and none at all where the counters began anew or a queue was shown."""
    before, after = (
        told(row(triggers=n, receives=2 * n, handled=3 * n), *more).view for n, *more in ((10,), (20, row("a/new")))
    )
    assert isinstance(before, Queues) and isinstance(after, Queues)
    totals = msgspec.structs.replace(after.totals, triggers=4, receives=6, empty=2)
    later = msgspec.structs.replace(after, totals=totals)
    known = rates(before, later, 2.0)
    assert (known.rates, known.flow) == ({"billing/orders": (5.0, 10.0, 15.0)}, (2.0, 3.0, 1.0))
    for then, now, seconds in ((later, before, 2.0), (OneQueue(row=None), later, 2.0), (before, later, 0.0)):
        none = rates(then, now, seconds)
        assert (none.rates, none.flow) == ({}, None)


def test_one_moves_through_all_rows_and_asks_for_others_seldom() -> None:
    looking, asked = Looking(), set()
    for by in (*[1] * 340, *[-1] * 340):
        looking.move(by, 333, 19)
        assert looking.top <= looking.at < looking.top + 19
        assert looking.first <= looking.top and min(looking.top + 19, 333) <= looking.first + ROWS
        asked.add(looking.path())
    assert looking.at == 0 and len(asked) < 20
    looking.move(0, 0, 19)
    assert looking.at == 0, "nothing is found"
