"""What `top` shows of what a bridge told: lines that fit, as many as there is room for, and nothing that drives it."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from bridge.service.overview import ROWS, OneQueue, QueueRow, Queues, Totals
from queuebell.command.top_frame import Looking, Told, frame, rates, rows_of

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


SNAPSHOTS = {
    40: [
        "queuebell top  live  12:00:00  http://12",
        "1 of 2 queues in trouble: 3 waiting, 0 l",
        "1-2 of 2 by trouble",
        "    QUEUE         WAITING  STATE",
        ">!  billi..rders        3  nobody is t..",
        "    afar/..es-p7        ?  paused",
        "nobody is there",
        "q end  jk move  enter look at one  / fil",
    ],
    80: [
        "queuebell top  live  12:00:00  http://127.0.0.1:8470",
        "1 of 2 queues in trouble: 3 waiting, 0 leased, 0 buried",
        "1-2 of 2 by trouble",
        "    QUEUE                    WAITING  OLDEST  BURIED  LISTENERS  STATE",
        ">!  billing/orders                 3     5 s       2          4  nobody is there",
        "    afar/sweeps..-states-p7        ?       -       2          4  paused",
        "",
        "q end  jk move  enter look at one  / filter  p pause  s sort, or by t n w l b i",
    ],
    200: [
        "queuebell top  live  12:00:00  http://127.0.0.1:8470",
        "1 of 2 queues in trouble: 3 waiting, 0 leased, 0 buried",
        "1-2 of 2 by trouble",
        (
            "    QUEUE                         WAITING  OLDEST  LEASED  BURIED  LISTENERS  TRIG/S  RECV/S  "
            "HANDLED/S  FAILED  STATE"
        ),
        (
            ">!  billing/orders                      3     5 s       1       2          4       -       -  "
            "        -       2  nobody is there"
        ),
        (
            "    afar/sweeps-of-the-states-p7        ?       -       1       2          4       -       -  "
            "        -       2  paused"
        ),
        "",
        "q end  jk move  enter look at one  / filter  p pause  s sort, or by t n w l b i g r",
    ],
}


@pytest.mark.parametrize("width", SNAPSHOTS)
def test_a_frame_is_laid_out_for_its_width(width: int) -> None:
    """Trouble is a sign and words, the chosen row another sign; colour says neither alone."""
    rows = [
        row(trouble="nobody is there"),
        row("afar/sweeps-of-the-states-p7", visible=None, waiting_ms=None, paused=True),
    ]
    lines = frame(told(*rows, troubled=1), Looking(), width, 8, coloured=False)
    assert [line.rstrip() for line in unstyled(lines)] == SNAPSHOTS[width]


def test_the_diagnosis_of_the_chosen_queue_is_whole() -> None:
    """At 120 columns its own column cuts it: it stands below the rows, and there is room for it on a full screen."""
    diagnosis = "no worker is connected: the last one left before it had received what was announced; messages wait"
    rows = [row(f"a/q{number:02}", trouble=diagnosis) for number in range(40)]
    lines = [line.rstrip() for line in unstyled(frame(told(*rows), Looking(at=3), 120, 24, coloured=False))]
    assert [number for number, line in enumerate(lines) if diagnosis in line] == [22 - 1]
    assert len(lines) == 24 and lines[20].startswith(" !  a/q16")


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


def test_a_frame_of_ten_thousand_queues_has_a_screen_of_them() -> None:
    """The bridge tells a hundred, and those that fit are drawn: what is written is bounded by the screen."""
    looking = Looking()
    rows = [row(f"a/q{number:05}") for number in range(ROWS)]
    lines = frame(told(*rows, found=10_000), looking, 80, 24, coloured=True)
    assert sum(map(len, lines)) < 2 * 80 * 24 and len(lines) == 24
    looking.move(10_000, 10_000, rows_of(24))
    assert (looking.at, looking.first) == (9_999, 9_949) and "first=9949" in looking.path()
    rows = [row(f"a/q{number:05}") for number in range(9_949, 10_000)]
    lines = frame(told(*rows, found=10_000, first=9_949), looking, 80, 24, coloured=False)
    assert any(line.strip("\x1b[7m").startswith(">") and "a/q09999" in line for line in lines)
    assert any("9984-10000 of 10000" in line for line in lines)


def test_one_moves_through_all_rows_and_asks_for_others_seldom() -> None:
    """Each row is on the screen when it is chosen, and within what the bridge was asked for."""
    looking, asked = Looking(), set()
    for by in (*[1] * 340, *[-1] * 340):
        looking.move(by, 333, 19)
        assert looking.top <= looking.at < looking.top + 19
        assert looking.first <= looking.top and min(looking.top + 19, 333) <= looking.first + ROWS
        asked.add(looking.path())
    assert looking.at == 0 and len(asked) < 20
    looking.move(0, 0, 19)
    assert looking.at == 0, "nothing is found"


def test_rates_are_of_one_bridge() -> None:
    """What a second had, and nothing where the bridge began anew or another one tells."""
    before, after = told(row(triggers=10)), told(row(triggers=14, receives=14, handled=11))
    assert isinstance(after.view, Queues)
    heard = rates(before.view, after.view, 2.0)
    assert heard.rates == {"billing/orders": (2.0, 1.0, 2.0)} and heard.flow == (0.0, 0.0, 0.0)
    assert rates(None, after.view, 2.0).rates == {}
    fewer = Totals(**dict.fromkeys(Totals.__struct_fields__, -1))
    anew = Queues(found=1, first=0, rows=after.view.rows, totals=fewer)
    assert rates(before.view, anew, 2.0).flow is None
