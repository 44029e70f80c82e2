"""An exception of something that a worker calls costs that call: it keeps its session, or gets another, and works."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from queuebell.bridge.contract.errors import KeyUnavailable
from queuebell.bridge.contract.wire import ListenerHeartbeat
from queuebell.bridge.observe import instruments
from queuebell.bridge.service.bridge import Bridge
from queuebell.listeners import Message
from queuebell.listeners.session.websocket import WebSocketChannel
from queuebell.listeners.work.dequeue import Dequeue
from queuebell.listeners.work.events import ListenerEvents
from tests.listeners.rig import QUEUE, Store, listening, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulated


def fails(*_: object, **__: object) -> NoReturn:
    """Raise."""
    raise RuntimeError("not ours")


async def nothing(message: Message) -> None:
    """Handle a message."""


async def test_an_api_key_that_raises_is_a_way_that_is_not_there() -> None:
    """Of a channel over HTTP as over a broker: nobody is asked, and the text of the exception is shown to nobody."""

    def token() -> str:
        raise RuntimeError("secret")

    channel = WebSocketChannel("http://127.0.0.1:1", api_key=token)
    with pytest.raises(KeyUnavailable) as raised:
        await channel.connect()
    assert "secret" not in str(raised.value)
    await channel.close()


@pytest.mark.parametrize("part", ["took", "store_answered"])
@simulated
async def test_what_hears_of_a_receive_and_raises_keeps_no_message(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages that were received are handled, and the next receive begins."""

    class Failing(ListenerEvents):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            setattr(self, part, fails)

    monkeypatch.setattr("queuebell.listeners.listener.ListenerEvents", Failing)
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        for count in (1, 2):
            await store.fill(b"a")
            bridge.wake(QUEUE)
            await settled(listener, count)


@simulated
async def test_a_meter_that_raises_fails_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler is called and settled as if nobody measured it."""

    class Meter:
        add = record = staticmethod(fails)

        def create_counter(self, *_: object, **__: object) -> Meter:
            return self

        create_histogram = create_counter

    monkeypatch.setattr("opentelemetry.metrics.get_meter", lambda *_, **__: Meter())
    monkeypatch.setattr(instruments, "on", instruments.Instruments())
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"a")
        bridge.wake(QUEUE)
        await settled(listener, 1)


@simulated
async def test_one_queue_that_raises_at_a_welcome_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
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
        await bridge.store.put("billing/second", ["x"])
        await pass_time(0.01)
        assert listener.state().queues["billing/second"].wake_sources == {"trigger": 1}
