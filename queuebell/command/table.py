"""Tables: complete for programs, fitted to the terminal for people. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from typing import Final

GAP: Final = 2
NARROWEST: Final = 6
"""Columns of text get no narrower."""
COMFORTABLE: Final = 16
"""Rather than that texts get narrower, spare columns are left out."""


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes: some signs take two, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Return the beginning of a text, as wide as there is room."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, width))


def shortened(text: str, width: int) -> str:
    """Return a text without its middle where it is too wide: names differ at either end."""
    if cells(text) <= width:
        return text
    if width < NARROWEST:
        return cut(text, width)
    begin = len(text)
    while cells(text[begin - 1 :]) <= (width - 2) // 2:
        begin -= 1
    tail = text[begin:]
    return f"{cut(text, width - 2 - cells(tail))}..{tail}"


def laid_out(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
    spare: Sequence[str] = (),
    wraps: bool = True,
) -> tuple[list[list[str]], list[str]]:
    """Return the lines of the heads and of each row, and the heads of the columns for which there was no room.

    ``right`` are the numbers of the columns that stand to the right, and are never shortened. With a ``width``, columns
    in ``spare`` are left out first, in its order; then texts lose their middle, but for the last column, which goes on
    below where it ``wraps`` and else is cut off. Without one, each is as wide as its widest cell.
    """
    natural = [max(map(cells, (head, *(row[i] for row in rows)))) for i, head in enumerate(heads)]
    shown = list(range(len(heads)))
    left_out: list[str] = []

    def floors(narrowest: int) -> dict[int, int]:
        return {i: natural[i] if i in right else min(natural[i], narrowest) for i in shown}

    def over(widths: dict[int, int]) -> int:
        return 0 if width is None else sum(widths.values()) + GAP * (len(widths) - 1) - width

    for head in spare:
        if over(floors(COMFORTABLE)) <= 0:
            break
        left_out.append(head)
        shown.remove(heads.index(head))
    widths, least = {i: natural[i] for i in shown}, floors(NARROWEST)
    for _ in range(over(widths)):
        widest = max(shown, key=lambda i: (widths[i] > least[i], widths[i]))
        widths[widest] -= widths[widest] > least[widest]
    last = shown[-1]
    lines = [
        _lines([(row[i], widths[i], i in right) for i in shown], wraps=wraps and last not in right)
        for row in (heads, *rows)
    ]
    return (lines if width is None else [[cut(line, width) for line in row] for row in lines]), left_out


def _lines(row: Sequence[tuple[str, int, bool]], *, wraps: bool) -> list[str]:
    *firsts, (words, room, right) = row
    begin = "".join(_aligned(shortened(text, width), width, right) + " " * GAP for text, width, right in firsts)
    if cells(words) <= room:
        ends = [_aligned(words, room, right)]
    elif wraps:
        # Of signs that may take two columns half as many fit, at the least.
        ends = textwrap.wrap(words, max(1, room if words.isascii() else room // 2))
    else:
        ends = [f"{cut(words, room - 2)}.."]
    return [((begin if n == 0 else " " * cells(begin)) + end).rstrip() for n, end in enumerate(ends)]


def _aligned(text: str, width: int, right: bool) -> str:
    blank = " " * (width - cells(text))
    return blank + text if right else text + blank
