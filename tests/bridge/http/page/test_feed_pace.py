"""How often views are made and for whom, in virtual time: a feed whose readers are played by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiohttp import HttpVersion11

from queuebell.bridge import Bridge
from queuebell.bridge.access.grants import Verb
from queuebell.bridge.http.page.feed import NEW_S, SHARE, Feed, Watch
from queuebell.bridge.http.server.authorizer import Authorizer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.observe.slices import Slices
from tests.listeners.rig import QUEUE, Store, listening
from tests.support.sim_loop import SimLoop, pass_time, simulated

HOUR_S = 3600


class View(msgspec.Struct):
    """What is shown: which view it is, and for which time it was made."""

    name: str
    made: int


class Wire:
    """A transport that notes when which view was written."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str]] = []
        self.unsent = 0
        self._began = asyncio.get_running_loop().time()

    def write(self, data: bytes) -> None:
        if b"data: " in data:
            view = msgspec.json.decode(data.partition(b"data: ")[2].partition(b"\n")[0])
            self.seen.append((round(asyncio.get_running_loop().time() - self._began, 3), view.get("name", "")))

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    @property
    def times(self) -> list[float]:
        return [when for when, _ in self.seen]


class Readers:
    """A feed, and who reads it; a view takes ``slices`` times ``slice_s`` to make."""

    def __init__(self, slice_s: float = 0.0, slices: int = 1) -> None:
        self.made: list[str] = []
        self.slice_s, self.slices = slice_s, slices
        bridge: Any = SimpleNamespace(draining=False)
        settings = WebSettings(stream_comment=1e9)
        self.feed = Feed(bridge, settings, Authorizer(None, lambda _: None), (), (), lambda _: None)

    async def open(self, name: str, view: Hashable = None) -> tuple[Watch, Wire]:
        """Open a view of this name; those with an equal ``view`` are the same."""

        def make(_: object) -> Slices[msgspec.Struct]:
            self.made.append(name)
            for number in range(self.slices):
                if number:
                    yield
                cast(SimLoop, asyncio.get_running_loop()).late(self.slice_s)
            return View(name, len(self.made))

        wire = Wire()
        watch = Watch(self.feed, Verb.LOOK, frozenset(), view or name, make)
        await watch.prepare(request_over(wire))
        return watch, wire


def request_over(wire: Wire) -> Any:
    """Return a request for a view."""
    protocol = SimpleNamespace(transport=wire, fixed_headers=b"", on_hang_up=None)
    return SimpleNamespace(version=HttpVersion11, protocol=protocol, method="GET", raw_path="/v1/watch")


@simulated
async def test_first_views_wait_for_the_round_where_many_are_opened() -> None:
    """After so much of them has been made at once, until a fiftieth of the time made up for it."""
    readers = Readers(0.75 * NEW_S)
    wires = [(await readers.open(f"v{number}"))[1] for number in range(4)]
    await asyncio.sleep(0)
    assert [len(wire.seen) for wire in wires] == [1, 1, 0, 0]
    await pass_time(10)
    assert all(wire.seen for wire in wires)
    for name in ("one", "two"):
        await readers.open(name)
    for pause, soon in ((0.25 * NEW_S / SHARE, False), (0.75 * NEW_S / SHARE, True)):
        await pass_time(pause)
        count = len(readers.made)
        await readers.open(f"after {pause}")
        assert (len(readers.made) > count) is soon, pause
    readers.feed.close()


@pytest.mark.rest
@pytest.mark.parametrize("own", [True, False], ids=["own queue", "another store"])
@simulated
async def test_an_idle_queue_makes_no_receive_for_open_pages(own: bool) -> None:
    """Each view for an hour: as many receives as in the hour before, when none was open."""
    store = Store()
    async with Bridge(store=store if own else None) as bridge, listening(store, lambda _: None, bridge=bridge):
        await pass_time(HOUR_S)
        count = store.receives
        await pass_time(HOUR_S)
        alone, count = store.receives - count, store.receives
        feed = Feed(bridge, WebSettings(stream_comment=1e9), Authorizer(None, lambda _: None), (), (), lambda _: None)
        wires = [Wire() for _ in range(4)]
        for wire, view in zip(wires, (feed.queues, feed.queue, feed.listeners, feed.about), strict=True):
            answer: Any = await view(request_over(wire), QUEUE)
            await answer.prepare(request_over(wire))
        await pass_time(HOUR_S)
        assert [abs(each - (0 if own else 60)) <= 1 for each in (alone, store.receives - count)] == [True, True]
        assert min(len(wire.seen) for wire in wires) > HOUR_S / 2, "they were shown all the time"
        feed.close()
