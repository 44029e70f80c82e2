"""Show the queues of a bridge live, those with problems first; sort and filter them, or open one; q ends it.

It reads the same stream as the bridge's web page, so that an idle queue costs no receive and no count. Exit code 0
after q or Ctrl-C, 1 if the key does not allow it, 2 without a terminal, 69 if no bridge answers.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from queuebell.bridge.contract.errors import BadInput, NotAllowed
from queuebell.bridge.service.state.overview import OneQueue, Queues
from queuebell.command.client import add_client_arguments, client_settings
from queuebell.command.progress import coloured, terminal
from queuebell.command.top_frame import SORTS, Looking, Told, frame, rates, rows_of

if TYPE_CHECKING:
    from queuebell.command.full_screen import FullScreen
    from queuebell.command.views import Views

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_MOVES: Final = {"up": -1, "k": -1, "down": 1, "j": 1}
"""How many rows each key moves; pages and ends depend on the number of rows."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``top``."""
    parser.add_argument("filter", nargs="?", default="", metavar="FILTER", help="only queues whose names contain this")
    parser.add_argument(
        "--sort",
        metavar="BY",
        choices=tuple(SORTS.values()),
        default="trouble",
        help=f"{', '.join(SORTS.values())} (default trouble)",
    )
    add_client_arguments(parser, "bridge", json=False)


def run(args: argparse.Namespace) -> int:
    """Show the queues until q or a signal."""
    instead = "`queuebell status` shows the queues once, `queuebell status --watch` repeatedly"
    if not (sys.stdin.isatty() and terminal(sys.stdout)):
        raise BadInput("bad_parameter", f"top needs a terminal; {instead}")
    try:
        from queuebell.command.full_screen import FullScreen
    except ImportError:
        raise BadInput("bad_parameter", f"top does not run on this system; {instead}") from None
    url = client_settings(args).bridge
    with FullScreen() as screen:
        return asyncio.run(Top(screen, Looking(filter=args.filter[:200], sort=args.sort)).run(url))


class Top:
    """One screen, its keys and the stream that it shows."""

    def __init__(self, screen: FullScreen, looking: Looking) -> None:
        self._screen = screen
        self._looking = looking
        self._told = Told()
        self._heard_at = 0.0
        self._views: Views
        self._task: asyncio.Task[None] | None = None
        self._path = ""
        self._ended: asyncio.Future[int]

    async def run(self, url: str) -> int:
        """Show until a key, a signal or a refusal ends it, and return the exit code."""
        from queuebell.command.views import Views

        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        for number in _ENDING:
            loop.add_signal_handler(number, self._end, 0 if number == signal.SIGINT else 128 + number)
        loop.add_signal_handler(signal.SIGWINCH, self._draw)
        loop.add_signal_handler(signal.SIGTSTP, self._screen.stop)
        loop.add_signal_handler(signal.SIGCONT, self._go_on)
        loop.add_reader(sys.stdin.fileno(), self._type)
        loop.set_exception_handler(self._broke)
        try:
            async with Views(url) as self._views:
                self._follow()
                try:
                    return await self._ended
                finally:
                    await self._leave()
        except NotAllowed as error:
            if self._told.at:
                error.add_note(f"the key no longer allows it; the last view was of {self._told.at}")
            raise
        finally:
            loop.remove_reader(sys.stdin.fileno())

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    def _broke(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._ended.done():
            self._ended.set_exception(context.get("exception") or RuntimeError(context["message"]))

    def _go_on(self) -> None:
        if self._told.at:
            self._screen.enter()
            self._draw()

    def _follow(self) -> None:
        """Follow the stream of the view that is shown now."""
        path = self._looking.path()
        if path == self._path:
            return
        self._path = path
        # Keys are about what is shown, and that is another view from now on.
        self._told = Told(url=self._told.url, at=self._told.at, lost=self._told.lost)
        before = self._task
        if before is not None:
            before.cancel()
        one = self._looking.queue is not None

        async def follow() -> None:
            if before is not None:
                await asyncio.wait([before])
            if one:
                await self._views.follow(path, OneQueue, self._tell, self._lose)
            else:
                await self._views.follow(path, Queues, self._tell, self._lose)

        self._task = asyncio.create_task(follow(), name="top: views")
        self._task.add_done_callback(self._stopped)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self._ended.done() and (error := task.exception()) is not None:
            self._ended.set_exception(error)

    async def _leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _tell(self, url: str, view: Queues | OneQueue) -> None:
        now = time.monotonic()
        if self._looking.paused and self._told.at and isinstance(view, type(self._told.view)):
            return
        if isinstance(view, Queues):
            self._told = rates(self._told.view if self._told.url == url else None, view, now - self._heard_at)
            self._looking.move(0, view.found, rows_of(self._screen.size()[1]))
        else:
            self._told = Told(view=view)
        self._told.url, self._told.at, self._heard_at = url, time.strftime("%H:%M:%S"), now
        self._screen.enter()
        self._draw()
        self._follow()

    def _lose(self, why: str) -> None:
        self._told.lost = why
        if self._told.at:
            self._draw()

    def _draw(self) -> None:
        if self._told.at:
            self._screen.draw(frame(self._told, self._looking, *self._screen.size(), coloured=coloured(sys.stdout)))

    def _type(self) -> None:
        keys = self._screen.keys()
        if keys is None:
            self._end(128 + signal.SIGHUP)
            return
        for key in keys:
            self._press(key)
        if not self._ended.done():
            self._follow()
            self._draw()

    def _press(self, key: str) -> None:
        looking, view = self._looking, self._told.view
        if looking.typing is not None:
            self._type_filter(looking.typing, key)
        elif key == "q":
            self._end(0)
        elif key == "p":
            looking.paused = not looking.paused
        elif looking.queue is not None:
            if key in {"escape", "enter", "backspace", "h", "left"}:
                self._show(None)
        elif key == "/":
            looking.typing = looking.filter
        elif key == "s":
            looking.next_sort()
        elif key in SORTS:
            looking.sort_by(SORTS[key])
        elif not isinstance(view, Queues):
            pass  # the rest is about rows, and those of the view that was asked for are still to come
        elif key == "enter":
            place = looking.at - view.first
            if 0 <= place < len(view.rows):
                self._show(view.rows[place].queue)
        else:
            rows = rows_of(self._screen.size()[1])
            far = {"page up": -rows, "page down": rows, " ": rows, "home": -view.found, "end": view.found}
            looking.move((_MOVES | far).get(key, 0), view.found, rows)

    def _type_filter(self, typing: str, key: str) -> None:
        looking = self._looking
        looking.typing = None
        if key == "enter":
            looking.choose(typing)
        elif key == "backspace":
            looking.typing = typing[:-1]
        elif key != "escape":
            looking.typing = typing + key if len(key) == 1 and key.isprintable() else typing

    def _show(self, queue: str | None) -> None:
        self._looking.queue, self._looking.paused = queue, False
