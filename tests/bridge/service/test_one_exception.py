"""An exception of what the bridge calls costs that call: no session goes deaf, and no other loses anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

import pytest
from opentelemetry.sdk.trace import Span, SpanProcessor

from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import (
    BridgeHeartbeat,
    DownFrame,
    Hello,
    ListenerHeartbeat,
    QueueBeat,
    Subscription,
    Wake,
)
from queuebell.bridge.core.commands import Announce, AnnounceInTurn
from queuebell.bridge.observe import swallowed, tracing
from queuebell.bridge.service.announcing import Announcer
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.service.sessions import CHANNEL
from tests.support.ear import Ear
from tests.support.sim_loop import pass_time, simulated

QUEUE = "billing/orders"


def fails(*_: object) -> NoReturn:
    """Raise."""
    raise RuntimeError("not ours")


class Broken(Ear):
    """A channel of a session whose next calls of one name raise."""

    def __init__(self, call: str = "", times: int = 1) -> None:
        super().__init__()
        self.call, self.times = call, times

    def _may(self, call: str) -> None:
        if call == self.call and self.times:
            self.times -= 1
            raise RuntimeError(f"{call} is broken")

    def writable(self) -> bool:
        self._may("writable")
        return True

    def send(self, frame: DownFrame) -> None:
        if isinstance(frame, Wake):
            self._may("send")
        super().send(frame)

    def close(self, code: int, reason: str) -> None:
        self._may("close")
        super().close(code, reason)

    def wakes(self) -> list[Wake]:
        return [frame for frame in self.said if isinstance(frame, Wake)]


def joined(bridge: Bridge, ear: Ear, queue: str = QUEUE, name: str = "1") -> Callable[[], None]:
    """Begin a session on ``ear``; return what sends its heartbeat."""
    session = bridge.connect(ear)
    session.feed(Hello(name * 32, name, [Subscription(queue, 4, store="s")], []))
    return lambda: session.feed(ListenerHeartbeat(0, {queue: QueueBeat(free=4)}, {}))


def trigger(bridge: Bridge, queue: str = QUEUE) -> None:
    """Announce work."""
    account, name = queue.split("/")
    bridge.trigger([CloudQueueWorkDetected(account, name, 1)], bus="http")


class OnceBroken(SpanProcessor):
    """A span processor that raises once."""

    def __init__(self) -> None:
        self.raised = 0

    def on_start(self, span: Span, parent_context: object = None) -> None:
        if not self.raised:
            self.raised += 1
            raise RuntimeError("a processor of the program")


@simulated
async def test_a_span_processor_that_raises_once_makes_no_session_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trigger is a wake for its worker, before any timer, and the failure is counted."""
    from opentelemetry.sdk.trace import TracerProvider

    provider, processor = TracerProvider(shutdown_on_exit=False), OnceBroken()
    provider.add_span_processor(processor)
    monkeypatch.setattr(tracing, "on", tracing.Tracing(provider))
    before = swallowed.counts[tracing.SPANS]
    async with Bridge() as bridge:
        ear = Broken()
        joined(bridge, ear)
        await pass_time(0.01)
        for _ in range(3):
            ear.said.clear()
            trigger(bridge)
            await pass_time(0.01)
            assert len(ear.wakes()) == 1
    assert (processor.raised, swallowed.counts[tracing.SPANS] - before) == (1, 1)


@pytest.mark.parametrize("call", ["send", "writable"])
@simulated
async def test_a_channel_that_fails_once_costs_its_session_one_wake_and_no_other_anything(call: str) -> None:
    """The same session hears of the next trigger, and others of this one; the failure is counted."""
    before = swallowed.counts[CHANNEL]
    async with Bridge() as bridge:
        broken, other = Broken(call, times=0), Ear()
        joined(bridge, broken)
        joined(bridge, other, "billing/others", "2")
        await pass_time(0.01)
        broken.said.clear()
        broken.times = 1
        trigger(bridge)
        trigger(bridge, "billing/others")
        await pass_time(0.1)
        assert [frame.queue for frame in other.said if isinstance(frame, Wake)][-1] == "billing/others"
        trigger(bridge)
        await pass_time(0.1)
        assert broken.wakes()
    assert swallowed.counts[CHANNEL] - before == 1


@simulated
async def test_a_channel_that_cannot_be_closed_keeps_no_session_and_stops_no_stop() -> None:
    async with Bridge() as bridge:
        first, second = Broken("close"), Ear()
        joined(bridge, first)
        joined(bridge, second, name="2")
    assert second.closed == "the bridge is stopping"
    assert not bridge.listeners()


@simulated
async def test_observers_subscribers_and_watchers_that_raise_cost_nobody_else_anything() -> None:
    """Wakes leave, the next one in each list is called, and every kind is counted."""
    heard: list[object] = []
    before = swallowed.counts.copy()
    async with Bridge() as bridge:
        told: Sequence[Callable[[Callable[..., None]], object]] = (
            bridge.observe, bridge.subscribe, bridge.forward, bridge.callbacks.session_watchers.append,
        )  # fmt: skip
        for tell in told:
            tell(fails)
        for place, tell in enumerate(told):
            tell(lambda *_, place=place: heard.append(place))
        ear = Broken()
        joined(bridge, ear)
        await pass_time(0.01)
        ear.said.clear()
        trigger(bridge)
        await pass_time(0.01)
        assert len(ear.wakes()) == 1
        assert set(heard) == {0, 1, 2, 3}
    kinds = {what for what, _ in (swallowed.counts - before).items()}
    assert kinds == {"an observer of facts", "a subscriber of wakes", "a way to pass triggers on",
                     "a watcher of sessions"}  # fmt: skip


@simulated
async def test_a_cancellation_leaves_what_is_left_of_a_batch_to_the_next_turn() -> None:
    """It goes on to its caller, and the sessions that come after are woken all the same."""
    async with Bridge() as bridge:
        ear = Broken()
        joined(bridge, ear)
        await pass_time(0.01)
        ear.said.clear()

        def cancelled(_: Announce) -> None:
            raise asyncio.CancelledError

        bridge.subscribe(cancelled)
        with pytest.raises(asyncio.CancelledError):
            trigger(bridge)
        await pass_time(0.01)
        assert len(ear.wakes()) == 1


@simulated
async def test_a_flush_that_was_lost_is_made_up_for_by_the_next_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bridge() as bridge:
        ear = Broken()
        beat = joined(bridge, ear)
        await pass_time(0.01)
        ear.said.clear()
        with monkeypatch.context() as patched:
            patched.setattr(bridge.flushes, "later", lambda number: None)
            trigger(bridge)
        await pass_time(0.01)
        assert not ear.wakes()
        beat()
        await pass_time(0.01)
        assert len(ear.wakes()) == 1
        assert any(isinstance(frame, BridgeHeartbeat) for frame in ear.said)


@simulated
async def test_a_subscriber_that_raises_loses_that_wake_and_delays_nobody() -> None:
    """Webhooks, event streams and topics hear of the same announcement, and it of the next one."""
    async with Bridge() as bridge:
        announcer = Announcer(bridge)
        heard: list[int] = []
        once = [RuntimeError("gone")]

        def first(wake: Wake) -> None:
            if once:
                raise once.pop()
            heard.append(1)

        announcer.subscribe([QUEUE], writable=lambda: True, send=first)
        announcer.subscribe(None, writable=lambda: True, send=lambda wake: heard.append(2))
        trigger(bridge)
        await pass_time(0.01)
        assert heard == [2]
        trigger(bridge)
        await pass_time(0.01)
        assert heard == [2, 1, 2]
        announcer.close()


@simulated
async def test_who_takes_turns_is_told_although_another_of_the_same_way_raises() -> None:
    told: list[str] = []
    async with Bridge() as bridge:
        bridge.callbacks.turn_subscribers["way"] = [fails, lambda tell: told.append(tell.queue)]
        bridge.scheduler.dispatch.commands.append(AnnounceInTurn("way", QUEUE, "again"))
        bridge.drive()
    assert told == [QUEUE]


def test_a_log_handler_that_raises_does_not_reach_the_code_that_logs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the collector is away")

    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler = Raising()
    logging.getLogger().addHandler(handler)
    before = swallowed.counts["a log handler"]
    try:
        for name in swallowed.LOGGERS:
            logging.getLogger(name).error("x")
    finally:
        logging.getLogger().removeHandler(handler)
    assert swallowed.counts["a log handler"] - before == len(swallowed.LOGGERS)


def test_what_is_swallowed_is_logged_once_a_minute_and_each_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    what = "a call of this test"
    for _ in range(3):
        with swallowed.swallowing(what):
            fails()
    lines = [record for record in caplog.records if what in record.getMessage()]
    assert (len(lines), swallowed.counts[what]) == (1, 3)
    assert lines[0].exc_info
    with pytest.raises(asyncio.CancelledError), swallowed.swallowing(what):
        raise asyncio.CancelledError


@simulated
async def test_while_the_clocks_cannot_be_read_nothing_is_proven_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspend may have passed unseen: the rules learn that the clocks are there, and that they were not read."""
    heard: list[tuple[object, bool]] = []

    class Turns:
        def watch(self, clocks: object, *, there: bool) -> None:
            heard.append((clocks, there))

    async with Bridge(boottime=lambda: 0.0) as bridge:
        with monkeypatch.context() as patched:
            patched.setattr(bridge.scheduler, "coordinator", Turns())
            bridge.notice_suspend()
            patched.setattr(bridge.suspends, "_clocks", fails)
            bridge.notice_suspend()
    assert [(clocks is None, there) for clocks, there in heard] == [(False, True), (True, True)]
