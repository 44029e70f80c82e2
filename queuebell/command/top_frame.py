"""The lines of `top`'s screen for a view of the bridge. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, get_args
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET

from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.service.state.overview import ROWS, OneQueue, QueueRow, Queues, Sort
from queuebell.command.client import plain
from queuebell.command.table import cut, laid_out

SORTS: Final[Mapping[str, Sort]] = {
    "t": "trouble", "n": "name", "w": "waiting", "l": "leased", "b": "buried", "i": "listeners", "g": "triggers",
    "r": "receives",
}  # fmt: skip
"""The order of each key."""
HEADS: Final = [
    "",
    "QUEUE",
    "WAITING",
    "OLDEST",
    "LEASED",
    "DEAD",
    "LISTENERS",
    "TRIG/S",
    "RECV/S",
    "HANDLED/S",
    "FAILED",
    "STATE",
]
SPARE: Final = ["HANDLED/S", "FAILED", "RECV/S", "TRIG/S", "LEASED", "LISTENERS", "DEAD", "OLDEST"]
KEYS: Final = "q quit  jk move  enter open a queue  / filter  p pause  s sort, or by t n w l b i g r"
BACK: Final = "q quit  esc back  p pause"
LINES_ABOVE: Final = 3
LINES_BELOW: Final = 2
"""Lines for the full state of the chosen queue, if its column is too narrow and the screen is `HIGH`."""
HIGH: Final = 16
BOLD, RED, REVERSED = "1", "31", "7"


class Looking(msgspec.Struct):
    """What the screen shows: a filtered, sorted part of the queues, or one queue."""

    filter: str = ""
    sort: Sort = "trouble"
    at: int = 0
    """The number of the chosen row among all with this filter."""
    top: int = 0
    """The number of the first row on the screen."""
    first: int = 0
    """The number of the first row that the bridge sends; it sends at most `ROWS`."""
    queue: str | None = None
    typing: str | None = None
    """A filter that is being typed."""
    paused: bool = False

    def path(self) -> str:
        """Return the path of the view's stream."""
        if self.queue is not None:
            return f"/v1/queues/{quote(self.queue)}/watch"
        return "/v1/watch?" + urlencode({"filter": self.filter, "sort": self.sort, "first": self.first})

    def move(self, by: int, found: int, rows: int) -> None:
        """Choose another row, and move the window of rows that the bridge sends if needed."""
        self.at = max(0, min(self.at + by, found - 1))
        self.top = max(0, min(max(self.top, self.at - rows + 1), self.at))
        if self.top < self.first or (self.top + rows > self.first + ROWS and self.first + ROWS < found):
            self.first = max(0, self.at - ROWS // 2)

    def next_sort(self) -> None:
        """Sort by the next order."""
        orders = get_args(Sort)
        self.sort_by(orders[(orders.index(self.sort) + 1) % len(orders)])

    def sort_by(self, sort: Sort) -> None:
        """Sort another way, from the top."""
        self.sort, self.at, self.top, self.first, self.paused = sort, 0, 0, 0, False

    def choose(self, filter_: str) -> None:
        """Show the queues whose names contain this, from the top."""
        self.filter, self.at, self.top, self.first, self.paused = filter_[:200], 0, 0, 0, False


class Told(msgspec.Struct):
    """The last view and the rates since the view before."""

    url: str = ""
    view: Queues | OneQueue | None = None
    rates: Mapping[str, tuple[float, float, float]] = {}
    """By queue: triggers, receives and handled messages a second."""
    flow: tuple[float, float, float] | None = None
    """Triggers, receives and empty receives a second, of all queues."""
    lost: str | None = None
    """Why the connection was lost; None while it is live."""
    at: str = ""
    """The local time of the view."""


def rates(before: Queues | OneQueue | None, view: Queues, seconds: float) -> Told:
    """Return a view with its rates since the one before; without rates if that was of another bridge."""
    told = Told(view=view)
    if not isinstance(before, Queues) or seconds <= 0:
        return told
    was, now = before.totals, view.totals
    flow = [(after - then) / seconds for after, then in (
        (now.triggers, was.triggers), (now.receives, was.receives), (now.empty, was.empty)
    )]  # fmt: skip
    if min(flow) < 0:
        return told
    rows = {row.queue: row for row in before.rows}
    told.flow = (flow[0], flow[1], flow[2])
    told.rates = {
        row.queue: (
            (row.triggers - then.triggers) / seconds,
            (row.receives - then.receives) / seconds,
            max(0, row.handled - then.handled) / seconds,
        )
        for row in view.rows
        if (then := rows.get(row.queue)) is not None
    }
    return told


def frame(told: Told, looking: Looking, width: int, height: int, *, coloured: bool) -> list[str]:
    """Return the lines of a screen, at most ``height`` of them, none wider than ``width``."""

    def line(text: str, *styles: str) -> str:
        styles = tuple(style for style in styles if coloured or style != RED)
        shown = cut(plain(text), width)
        return f"\x1b[{';'.join(styles)}m{shown}\x1b[0m" if styles else shown

    state = "NOT LIVE" if told.lost else "paused" if looking.paused else "live"
    lines = [line(f"queuebell top  {state}  {told.at}  {told.url}", BOLD, *[RED] * bool(told.lost))]
    view = told.view
    if isinstance(view, Queues):
        lines += _queues(told, view, looking, width, height, line)
        keys = KEYS if looking.typing is None else f"filter: {looking.typing}_  (enter applies, esc cancels)"
    elif looking.queue is not None:
        lines += _one(view, looking.queue, width, line)
        keys = BACK
    else:
        keys = KEYS
    lines = lines[: max(1, height - 1)]
    return [*lines, *[""] * (height - 1 - len(lines)), line(keys)][:height]


class _Line(Protocol):
    def __call__(self, text: str, *styles: str) -> str: ...


def _queues(told: Told, view: Queues, looking: Looking, width: int, height: int, line: _Line) -> list[str]:
    totals = view.totals
    flow = "" if told.flow is None else "   a second: {:.1f} triggers, {:.1f} receives, {:.1f} empty".format(*told.flow)
    troubled = f"{totals.troubled} of {totals.queues} queues with problems" if totals.troubled else "no problems"
    numbers = f"{totals.visible} waiting, {totals.leased} leased, {totals.buried} dead letters"
    rows = rows_of(height)
    shown = view.rows[max(0, looking.top - view.first) :][:rows]
    last = looking.top + len(shown)
    place = f"{looking.top + 1 if shown else 0}-{last} of {view.found}"
    chosen = f"   filter {looking.filter}" if looking.filter else ""
    lines = [
        line(f"{troubled}: {numbers}{flow}", *[RED] * bool(totals.troubled))
        if not told.lost
        else line(f"trying again: {told.lost}", RED),
        line(f"{place} by {looking.sort}{chosen}{_ready(view)}"),
    ]
    cells = [
        [plain(cell) for cell in _row(told, row, chosen=looking.top + number == looking.at)]
        for number, row in enumerate(shown)
    ]
    table, _ = laid_out(HEADS, cells, right=range(2, 11), width=width, spare=SPARE, wraps=False)
    lines.append(line(table[0][0].ljust(width), REVERSED))
    below: list[str] = []
    for number, (row, (text,)) in enumerate(zip(shown, table[1:], strict=True)):
        at = looking.top + number == looking.at
        lines.append(line(text.ljust(width) if at else text, *[REVERSED] * at, *[RED] * bool(row.trouble)))
        if at and not text.rstrip().endswith(state := cells[number][-1]):
            below = [line(part, *[RED] * bool(row.trouble)) for part in textwrap.wrap(state, width)[:LINES_BELOW]]
    return [*lines, *below]


def rows_of(height: int) -> int:
    """Return the number of queues that fit."""
    return max(1, min(ROWS, height - LINES_ABOVE - 2 - (LINES_BELOW if height >= HIGH else 0)))


def _ready(view: Queues) -> str:
    about = view.bridge
    if about is UNSET or about.ready:
        return ""
    return (
        f"   NOT READY {'; '.join(f'{name}: {check.detail}' for name, check in about.checks.items() if not check.ok)}"
    )


def _row(told: Told, row: QueueRow, *, chosen: bool) -> Sequence[object]:
    known = told.rates.get(row.queue)
    triggers, receives, handled = ("-", "-", "-") if known is None else (f"{rate:.1f}" for rate in known)
    waits = "dead letters" if row.queue.endswith(POISON_SUFFIX) and not row.listeners else "work is pending"
    state = row.trouble or ("paused" if row.paused else waits if row.waiting_ms is not None else "")
    return (
        f"{'>' if chosen else ' '}{'!' if row.trouble else ' '}",
        row.queue,
        "?" if row.visible is None else f"{row.visible}{'+' if row.at_least else ''}",
        "-" if row.waiting_ms is None else _time(row.waiting_ms / 1000),
        "?" if row.leased is None else row.leased,
        "?" if row.buried is None else row.buried,
        row.listeners,
        triggers,
        receives,
        handled,
        row.failed,
        state,
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _one(view: OneQueue | None, queue: str, width: int, line: _Line) -> list[str]:
    def wrapped(text: object, *styles: str) -> list[str]:
        return [line(part, *styles) for part in textwrap.wrap(plain(text), width)]

    lines = wrapped(queue, BOLD)
    row = None if view is None else view.row
    if view is None or row is None:
        return [*lines, *wrapped("" if view is None else "there is no such queue")]
    known = _row(Told(), row, chosen=False)
    words = ", ".join(f"{value} {head.lower()}" for head, value in zip(HEADS[2:7], known[2:7], strict=True))
    lines += wrapped(f"{words}; {row.triggers} triggers, {row.receives} receives, {row.empty} of them empty")
    lines += wrapped(f"{row.handled} handled, {row.failed} of them failed") if row.handled else []
    explained = view.explained
    said = [explained and explained.summary, explained and explained.buried, "paused" if row.paused else None]
    lines += [part for text in said if text for part in wrapped(text)]
    lines += wrapped(f"! {row.trouble}", RED) if row.trouble else []
    if view.run is not None:
        run = view.run
        lines += wrapped(f"{run.what} {run.moved}, {run.stay} stay{' so far' * run.running} {run.error}")
    if explained is not None and (explained.sessions or explained.subscribers):
        cells = [
            [
                plain(cell)
                for cell in (each.listener, each.channel, each.free, "yes" if each.gets else "no", each.detail)
            ]
            for each in explained.sessions
        ]
        cells += [
            [plain(cell) for cell in (each.listener, each.channel, "-", "yes" if each.hears else "no", each.detail)]
            for each in explained.subscribers
        ]
        table, _ = laid_out(["LISTENER", "CHANNEL", "FREE", "WOKEN", "WHY"], cells, right={2}, width=width)
        lines += [line(table[0][0].ljust(width), REVERSED), *(line(text) for texts in table[1:] for text in texts)]
    return lines
