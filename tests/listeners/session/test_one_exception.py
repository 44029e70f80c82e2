"""An exception of something that a worker calls costs that call: it keeps its session, or gets another, and works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

import pytest

from queuebell.bridge.contract.errors import KeyUnavailable
from queuebell.bridge.contract.wire import DownFrame, EmptyReceive, Hello, ListenerHeartbeat, UpFrame, Wake
from queuebell.bridge.observe import instruments, swallowed
from queuebell.bridge.service.bridge import Bridge
from queuebell.listeners import Message
from queuebell.listeners.session.websocket import WebSocketChannel
from queuebell.listeners.wake.table import Mode
from queuebell.listeners.work.dequeue import Dequeue
from tests.listeners.rig import QUEUE, Store, listening, settled
from tests.support.fake_bridge import FakeBridge, FakeLink
from tests.support.sim_loop import pass_time, simulated

# Private: `_consumed`, `_dequeues`, `_duration`, `_events`: the test plants one exception there.


def fails(*_: object, **__: object) -> NoReturn:
    """Raise."""
    raise RuntimeError("not ours")


async def nothing(message: Message) -> None:
    """Handle a message."""


class Uneasy(FakeBridge):
    """A bridge the way to which raises what it should not, so many times."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    async def connect(self) -> FakeLink:
        if self.hellos and self.errors:
            raise self.errors.pop(0)
        return await super().connect()


@simulated
async def test_a_worker_outlives_whatever_connecting_again_raises() -> None:
    """An `api_key` that raised, or anything else of a channel: it polls, tries again, and is back."""
    bridge = Uneasy(KeyUnavailable("api_key"), RuntimeError("a channel"), ValueError("a channel"))
    before = swallowed.counts["connecting to the bridge"]
    async with listening(Store(), nothing, bridge=bridge) as listener:
        await bridge.until(Hello)
        bridge.cut()
        await bridge.until(Hello, 2)
        await pass_time(0.1)
        assert listener.state().session
    assert swallowed.counts["connecting to the bridge"] - before == 2


async def test_an_api_key_that_raises_is_a_way_that_is_not_there() -> None:
    """Of a channel over HTTP as over a broker: nobody is asked, and the text of the exception is shown to nobody."""

    def token() -> str:
        raise RuntimeError("secret")

    channel = WebSocketChannel("http://127.0.0.1:1", api_key=token)
    with pytest.raises(KeyUnavailable) as raised:
        await channel.connect()
    assert "secret" not in str(raised.value)
    await channel.close()


class Faulty(FakeLink):
    """A link that raises with each frame of some kinds, so many times."""

    kinds: tuple[type[UpFrame], ...] = ()
    times = 0
    raised = 0

    def send(self, frame: UpFrame) -> None:
        if isinstance(frame, self.kinds) and self.times:
            type(self).times -= 1
            type(self).raised += 1
            raise RuntimeError("the link")
        super().send(frame)

    async def close(self) -> None:
        await super().close()
        raise RuntimeError("the link")


@pytest.mark.parametrize("kind", [EmptyReceive, ListenerHeartbeat, Hello])
@simulated
async def test_a_link_that_raises_costs_a_frame(kind: type[UpFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is handled, and those that are put later are as well."""
    monkeypatch.setattr("tests.support.fake_bridge.FakeLink", Faulty)
    monkeypatch.setattr(Faulty, "kinds", (kind,))
    monkeypatch.setattr(Faulty, "times", 1)
    monkeypatch.setattr(Faulty, "raised", 0)
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        for count in (1, 2):
            await store.fill(b"a")
            bridge.wake(QUEUE)
            await settled(listener, count)
    assert Faulty.raised == 1


@pytest.mark.parametrize("name", ["on_work_detected", "on_queue_empty"])
@simulated
async def test_a_hook_that_raises_costs_its_call(name: str) -> None:
    """And it is counted."""
    store, bridge, before = Store(), FakeBridge(), swallowed.counts["a hook of a listener"]
    hook: Callable[..., object] = fails
    async with listening(store, nothing, bridge=bridge, **{name: hook}) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"a")
        bridge.wake(QUEUE)
        await settled(listener, 1)
        await bridge.until(EmptyReceive)
    assert swallowed.counts["a hook of a listener"] > before


@pytest.mark.parametrize("part", ["took", "answered"])
@simulated
async def test_what_hears_of_a_receive_and_raises_keeps_no_message(part: str) -> None:
    """The messages that were received are handled, and the next receive begins."""
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        (dequeue,) = listener._dequeues.values()
        setattr(dequeue._events, part, fails)
        for count in (1, 2):
            await store.fill(b"a")
            bridge.wake(QUEUE)
            await settled(listener, count)


@simulated
async def test_a_meter_that_raises_fails_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler is called and settled as if nobody measured it."""

    class Meter:
        add = record = staticmethod(fails)

    measuring = object.__new__(instruments.Instruments)
    measuring._consumed = measuring._duration = Meter()  # type: ignore[assignment]
    monkeypatch.setattr(instruments, "on", measuring)
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"a")
        bridge.wake(QUEUE)
        await settled(listener, 1)


@simulated
async def test_one_queue_that_raises_at_a_welcome_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other hears of its work by the bridge."""
    welcomed = Dequeue.welcomed

    def one(self: Dequeue, boot: str, gen: int) -> None:
        if self.queue == "billing/first":
            raise RuntimeError("this queue")
        welcomed(self, boot, gen)

    monkeypatch.setattr(Dequeue, "welcomed", one)
    async with (
        Bridge() as bridge,
        listening(bridge, nothing, ["billing/first", "billing/second"], bridge=bridge) as listener,
    ):
        await pass_time(0.01)
        modes = {ref: dequeue.controller.mode for ref, dequeue in listener._dequeues.items()}
        assert (modes["billing/first"] is Mode.PUSH, modes["billing/second"] is Mode.PUSH) == (False, True)


class Unclosable(FakeLink):
    """A link whose closing raises before it does anything."""

    async def close(self) -> None:
        raise RuntimeError("the link")


@simulated
async def test_a_link_that_cannot_be_closed_keeps_no_worker_from_its_next_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bridge is held to be dead; that the old link would wait for ever matters to nobody."""
    monkeypatch.setattr("tests.support.fake_bridge.FakeLink", Unclosable)
    bridge = FakeBridge()
    async with listening(Store(), nothing, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        bridge.silent = True
        await pass_time(60)
        assert not listener.state().session
        bridge.silent = False
        await pass_time(10)
        assert listener.state().session


class Stray(FakeLink):
    """A link one receive of which ends with a cancellation that nobody asked for."""

    strays = 0

    def hand_over(self, hear: Callable[[Wake], None]) -> None:
        """Do nothing: they come by `receive`."""

    async def receive(self) -> DownFrame:
        frame = await super().receive()
        if Stray.strays:
            Stray.strays -= 1
            raise asyncio.CancelledError
        return frame


@simulated
async def test_a_cancellation_that_nobody_asked_for_ends_no_session_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a channel or a store: the worker is back, and its message is handled."""
    monkeypatch.setattr("tests.support.fake_bridge.FakeLink", Stray)
    monkeypatch.setattr(Stray, "strays", 2)
    store, bridge = Store(), FakeBridge()

    async def stray() -> NoReturn:
        raise asyncio.CancelledError

    async with listening(store, nothing, bridge=bridge) as listener:
        await bridge.until(Hello, 3)
        await pass_time(1)
        assert listener.state().session
        store.receiving.append(stray)
        await store.fill(b"a")
        bridge.wake(QUEUE)
        await settled(listener, 1)
