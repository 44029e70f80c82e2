"""Tables fit the width of a terminal; whole names and all columns are for who reads them by a program."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from queuebell.command.table import laid_out, shortened

HEADS = ["QUEUE", "VISIBLE", "STATE", "SESSIONS", "EMPTY"]
ROWS = [
    ["billing/orders-of-the-whole-of-europe-p7", "12345", "dirty", "3", "7"],
    ["a/b", "?", "clean", "0", "?"],
]
SNAPSHOTS = {
    40: [
        "QUEUE                     VISIBLE  STATE",
        "billing/ord..f-europe-p7    12345  dirty",
        "a/b                             ?  clean",
    ],
    80: [
        "QUEUE                                     VISIBLE  STATE  SESSIONS  EMPTY",
        "billing/orders-of-the-whole-of-europe-p7    12345  dirty         3      7",
        "a/b                                             ?  clean         0      ?",
    ],
}
SNAPSHOTS[200] = SNAPSHOTS[80]


def lines_of(width: int | None, *, wraps: bool = True) -> tuple[list[str], list[str]]:
    """Lay them out."""
    lines, left_out = laid_out(HEADS, ROWS, right={1, 3, 4}, width=width, spare=["EMPTY", "SESSIONS"], wraps=wraps)
    return [line for row in lines for line in row], left_out


@pytest.mark.parametrize("width", SNAPSHOTS)
def test_a_table_is_laid_out_for_its_width(width: int) -> None:
    """Spare columns are left out before names become hard to tell apart, and names lose their middle."""
    lines, left_out = lines_of(width)
    assert lines == SNAPSHOTS[width]
    assert left_out == (["EMPTY", "SESSIONS"] if width == 40 else [])


def test_without_a_width_all_is_there() -> None:
    """As a pipe gets it."""
    assert lines_of(None) == (SNAPSHOTS[80], [])


@pytest.mark.parametrize("name", ["x" * 60, "漢字" * 30, "é" * 60, "e\u0301" * 60, "👩" * 30])
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    """Whatever the signs, which take one column, two or none; and a number is whole where there is room for it."""
    rows = [[name, "32", "has room, and was used least recently"], ["b", "7", name]]
    for width in range(12, 120):
        lines, _ = laid_out(["LISTENER", "FREE", "WHY"], rows, right={1}, width=width)
        assert max(cell_len(line) for row in lines for line in row) <= width
        assert width < 24 or (" 32  " in lines[1][0] and "  7  " in lines[2][0])


def test_the_last_column_goes_on_below_where_it_is_words() -> None:
    """Under itself; where a line must be one, it is cut off."""
    rows = [["w", "no free handler slot; it is asked again when it says that it has room"]]
    lines, _ = laid_out(["LISTENER", "WHY"], rows, width=40)
    assert lines[1] == [
        "w         no free handler slot; it is",
        "          asked again when it says that",
        "          it has room",
    ]
    cut, _ = laid_out(["LISTENER", "WHY"], rows, width=40, wraps=False)
    assert cut[1] == ["w         no free handler slot; it is .."]


@pytest.mark.parametrize(("width", "short"), [(20, "a" * 20), (12, "aaaaa..aaaaa"), (6, "aa..aa"), (3, "aaa"), (0, "")])
def test_a_name_loses_its_middle(width: int, short: str) -> None:
    """Both ends tell it apart."""
    assert shortened("a" * 20, width) == short
