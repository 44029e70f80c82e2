"""What is under way: one live line on a terminal, finished lines elsewhere, colours only where they are wanted."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re

import pytest
from aiohttp import web
from rich.cells import cell_len

from queuebell.bridge.service.state.overview import OneQueue
from queuebell.command.progress import Progress
from queuebell.command.views import Views

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


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("hostile", ["", "[red]x[/red] [/nothing]"])
def test_the_line_fits_and_says_how_much_time_is_left(
    monkeypatch: pytest.MonkeyPatch, width: int, hostile: str
) -> None:
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


@pytest.mark.parametrize("beside", ["", "id: 7\n", ": a remark\nid: 7\nevent: message\n"])
async def test_a_view_is_read_whatever_stands_beside_it(beside: str) -> None:
    """The number of an event, a remark, or nothing; each view is told."""
    heard: asyncio.Future[OneQueue] = asyncio.get_running_loop().create_future()

    async def tell(_: web.Request) -> web.StreamResponse:
        body = f'{beside}data: {{"row":null,"triggered_ms":5}}\n\n'
        return web.Response(text=body, content_type="text/event-stream")

    app = web.Application()
    app.router.add_get("/view", tell)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with Views(f"http://127.0.0.1:{runner.addresses[0][1]}") as views:
            following = asyncio.create_task(
                views.follow("/view", OneQueue, lambda _, view: heard.done() or heard.set_result(view), lambda _: None)
            )
            done, _ = await asyncio.wait([heard, following], timeout=10, return_when=asyncio.FIRST_COMPLETED)
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
        assert heard in done and heard.result().triggered_ms == 5
    finally:
        await runner.cleanup()
