"""Where receives come from, from the machine to the bridge's metric, and the numbers that a welcome brings."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from bridge import Bridge
from bridge.contract.errors import StoreUnavailable
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import (
    FRAME_BYTES_MAX,
    RUNNING_CHARS_MAX,
    BuriedCount,
    Depth,
    ListenerHeartbeat,
    QueueBeat,
    Running,
    StoreDepth,
    Welcome,
    WelcomedQueue,
    encode_frame,
)
from bridge.queues.base import Capabilities, NewMessage, Received
from bridge.service import explaining
from listeners import Message
from listeners.core.found import REPORT_BYTES
from listeners.core.periods import Periods
from listeners.session.session import FRAME_EXTRA_BYTES, Session, periods_of
from tests.listeners.rig import QUEUE, Store, listening, settled
from tests.support.fake_bridge import FakeBridge, FakeLink
from tests.support.sim_loop import pass_time, simulated


async def nothing(message: Message) -> None:
    """Handle a message."""


def counted(bridge: Bridge, result: str, source: str) -> float:
    """Return the bridge's own count."""
    value = bridge.metrics.registry.get_sample_value(
        "queuebell_receives_total", {"result": result, "wake_source": source}
    )
    return value or 0.0


@simulated
async def test_an_own_store_counts_receives_by_source() -> None:
    """The receive says why it looks; carried messages count as found by their wake; clients may say nothing."""
    async with Bridge() as bridge:
        await bridge.store.put(QUEUE, [NewMessage(b"before")])
        async with listening(bridge, nothing, bridge=bridge) as listener:
            await settled(listener, 1)
            await bridge.store.put(QUEUE, [NewMessage(b"carried")])
            await settled(listener, 2)
            await pass_time(11)  # heartbeats must not tell again what the store has counted
        await bridge.store.receive(QUEUE)
        described = bridge.describe(QUEUE)
        assert (described.receives.total, described.receives.empty) == (2, 1)
        assert described.wake_sources == {"trigger": 2}, "one receive, and one wake that carried"
        assert counted(bridge, "found", "trigger") == 2
        assert counted(bridge, "empty", "unreported") == 1
        assert counted(bridge, "found", "unreported") == 0


@simulated
async def test_a_store_elsewhere_is_counted_by_heartbeats() -> None:
    """What the bridge cannot see, the listener tells it, once; an idle session tells nothing more."""
    store = Store()
    async with Bridge() as bridge, listening(store, nothing, bridge=bridge) as listener:
        await pass_time(1)
        await store.fill(b"one")
        bridge.gap()
        await settled(listener, 1)
        await pass_time(20)
        described = bridge.describe(QUEUE)
        assert described.wake_sources == {"resync": 1}
        assert counted(bridge, "found", "resync") == 1
        assert counted(bridge, "empty", "resync") == 1, "the first look, of a queue never heard of"
        await pass_time(90)
        assert counted(bridge, "empty", "due") == 0, "the lease was settled, so that its end costs no look"
        assert counted(bridge, "empty", "sweep") == 1
        assert counted(bridge, "found", "resync") == 1


@simulated
async def test_a_publish_that_was_lost_is_counted_and_nothing_else() -> None:
    """Found by the sweep; not what a gap's look finds, what was published, or what a dead worker had held."""
    store = Store()
    async with Bridge() as bridge, listening(store, nothing, bridge=bridge) as listener:
        await pass_time(1)
        await store.fill(b"put while the bus was away")
        bridge.gap()
        await settled(listener, 1)
        await store.fill(b"put and published")
        bridge.trigger([CloudQueueWorkDetected("billing", "orders")], bus="http")
        await settled(listener, 2)
        await store.fill(b"held by somebody whom the bridge never heard of")
        assert len((await store.receive(QUEUE, visibility_s=30)).messages) == 1
        await settled(listener, 3)
        await pass_time(20)
        described = bridge.describe(QUEUE)
        assert described.wake_sources["sweep"] == 1
        assert described.unannounced == 0
        await store.fill(b"put and not published")
        await settled(listener, 4)
        await pass_time(20)
        described = bridge.describe(QUEUE)
        assert (described.wake_sources["sweep"], described.unannounced) == (2, 1)


@simulated
async def test_a_put_that_a_sweep_met_before_its_trigger_is_no_lost_publish() -> None:
    """The trigger came before the bridge heard of the receive; what is lost later is counted all the same."""
    store, late = Store(), b"published a moment after it was found"

    async def publish(message: Message) -> None:
        if message.body == late:
            bridge.trigger([CloudQueueWorkDetected("billing", "orders")], bus="http")

    async with Bridge() as bridge, listening(store, publish, bridge=bridge) as listener:
        await pass_time(1)
        await store.fill(late)
        await settled(listener, 1)
        await pass_time(40)
        described = bridge.describe(QUEUE)
        assert (described.wake_sources["sweep"], described.unannounced) == (1, 0)
        await store.fill(b"never published")
        await settled(listener, 2)
        await pass_time(20)
        assert bridge.describe(QUEUE).unannounced == 1


@pytest.mark.parametrize("counts", [True, False])
@simulated
async def test_what_a_store_elsewhere_counted_is_shown(counts: bool) -> None:
    """As of the listener's newest receive, with its age; where the store counts nothing that is said, not a zero."""
    store = Store()
    look = store.receive

    async def silent(*args: Any, **kinds: Any) -> Received:
        return msgspec.structs.replace(await look(*args, **kinds), depth=None)

    async def blind(queue: str) -> None:
        raise StoreUnavailable("it cannot be counted")

    if not counts:
        store.receive, store.counts = silent, blind  # type: ignore[method-assign, assignment]
    async with Bridge() as bridge, listening(store, nothing, bridge=bridge, concurrency=1, batch=1) as listener:
        described = bridge.describe(QUEUE)
        assert described is None or (described.exists, described.depth) == (None, None)
        await store.put(QUEUE, [NewMessage(b"later", 600_000), NewMessage(b"now")])
        bridge.gap()
        await settled(listener, 1)
        await pass_time(20)
        described, explained = bridge.describe(QUEUE), explaining.of(bridge, QUEUE)
        assert described.depth == (Depth(0, 1) if counts else None)
        assert described.exists is (True if counts else None)
        assert described.receives.total - described.receives.empty == 1
        age = described.depth_age_ms
        assert (isinstance(age, int) and 0 < age <= 21_000) if counts else age is None
        assert (explained.exists, explained.depth) == (described.exists, described.depth)


@simulated
async def test_heartbeats_carry_counts_only_until_they_are_echoed() -> None:
    """Ten thousand idle sessions must not pay for it."""
    store, bridge = Store(), FakeBridge()
    bridge.covered_age_ms = 0
    async with listening(store, nothing, bridge=bridge) as listener:
        await pass_time(6)
        assert all(beat.queues[QUEUE].receives is None for beat in bridge.beats)
        await store.fill(b"one")
        bridge.wake(QUEUE)
        await settled(listener, 1)
        bridge.beats.clear()
        await pass_time(14)
        told = [beat.queues[QUEUE].receives for beat in bridge.beats]
        assert told[0] == {"trigger": (1, 0)}
        assert told[1:] == [None] * len(told[1:])


@simulated
async def test_work_that_nobody_announced_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """On a healthy system the dead-man finds nothing; if it does, the line says what to check, once."""
    caplog.set_level(logging.WARNING, "queuebell.listener")
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge) as listener:
        await pass_time(1)
        for number in (1, 2):
            await store.fill(b"no trigger")
            await settled(listener, number)
    lines = [record.getMessage() for record in caplog.records if "no trigger asked" in record.getMessage()]
    assert len(lines) == 1
    assert QUEUE in lines[0] and "deadman" in lines[0] and "publishes" in lines[0]
    told = [beat.queues[QUEUE] for beat in bridge.beats if beat.queues[QUEUE].receives]
    assert (told[-1].receives, told[-1].unannounced) == ({"deadman": (2, 0)}, 2)


class Tuned(FakeBridge):
    """A bridge whose welcome says a queue's own numbers."""

    def __init__(self, **numbers: int) -> None:
        super().__init__()
        self.numbers = numbers

    def heard(self, link: FakeLink, frame: Any) -> None:
        super().heard(link, frame)
        kept = []
        while not link.down.empty():
            down = link.down.get_nowait()
            if isinstance(down, Welcome):
                states = [WelcomedQueue(s.queue, s.gen, s.clean, s.covered_age_ms, **self.numbers) for s in down.queues]
                down = Welcome(down.boot, down.heartbeat_ms, down.sweep_ms, down.sessions, states)
            kept.append(down)
        for down in kept:
            link.down.put_nowait(down)


def test_a_welcome_brings_the_queues_own_numbers() -> None:
    """Absent ones are the session's sweep and the protocol's defaults."""
    assert periods_of(WelcomedQueue("a/b", 0, True, None), 60_000) == Periods()
    assert periods_of(WelcomedQueue("a/b", 0, True, None), 5_000) == Periods(sweep_s=5.0)
    state = WelcomedQueue("a/b", 0, True, None, sweep_ms=2000, slack_ms=1000, spread_ms=0, store_call_ms=500)
    own = Periods(sweep_s=2.0, slack_s=1.0, spread_s=0.0, store_call_s=0.5)
    assert periods_of(state, 60_000) == own


@simulated
async def test_a_receive_ends_at_the_queues_own_r_and_what_the_store_needs() -> None:
    """R from the welcome, longer by the time that a store may poll by design."""

    class Polling(Store):
        capabilities = Capabilities(receive_s=2.0)  # type: ignore[assignment]

    store, bridge = Polling(), Tuned(store_call_ms=1000)
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await pass_time(1e6)

    async with listening(store, nothing, bridge=bridge) as listener:
        await pass_time(1)
        store.receiving.append(hang)
        bridge.wake(QUEUE)
        await begun.wait()
        await pass_time(2.9)
        assert listener.state().queues[QUEUE].failed_receives == 0
        await pass_time(0.2)
        assert listener.state().queues[QUEUE].failed_receives == 1


@simulated
async def test_a_blocked_store_is_asked_again_after_an_own_settlement() -> None:
    """L8: the answer that a limit kept short is no cover, and the delete that lifts the limit looks at once."""

    class Blocked(Store):
        async def receive(
            self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
        ) -> Received:
            depth = await self.depth(queue)
            if depth is not None and depth.invisible:
                self.receives += 1
                return Received([], blocked=True)
            answer = await super().receive(queue, 1, visibility_s, source=source)
            return Received(answer.messages, blocked=bool(answer.depth and answer.depth.visible))

    store, bridge = Blocked(), FakeBridge()

    async def work(message: Message) -> None:
        await pass_time(7)

    async with listening(store, work, bridge=bridge) as listener:
        await pass_time(1)
        await store.fill(b"one", b"two")
        bridge.wake(QUEUE, size=2)
        await pass_time(7.5)
        figures = listener.state().queues[QUEUE]
        assert (figures.handled, figures.active_handlers) == (1, 1), "the second began when the first was deleted"
        await settled(listener, 2)


@simulated
async def test_a_rough_depth_never_clears_and_asks_for_another_look() -> None:
    """L8: a store that counts roughly; zero is no cover by itself, and more than zero goes into the cover."""

    class Rough(Store):
        capabilities = Capabilities(exact_depth=False, next_visible=False)  # type: ignore[assignment]

        async def receive(
            self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
        ) -> Received:
            answer = await super().receive(queue, limit, visibility_s, source=source)
            return Received(answer.messages, answer.depth)

    store, bridge = Rough(), FakeBridge()
    await store.put(QUEUE, [NewMessage(b"later", visible_after_ms=3_600_000)])
    async with listening(store, nothing, bridge=bridge):
        from bridge.contract.wire import Cover

        await pass_time(1)
        bridge.wake(QUEUE)
        (cover,) = await bridge.until(Cover)
        assert cover.next_visible_in_ms == 15_000


FULL = StoreDepth(*[999_999_999_999] * 3, True, *[999_999_999_999] * 3)
LONG = BuriedCount(999_999_999_999, 999_999_999_999, f"{'a' * 63}/{'q' * 120}-poison")


class Port:
    """A queue that always owes a full report."""

    def __init__(self) -> None:
        self.reports = 0

    def owes_report(self) -> int:
        return REPORT_BYTES

    def running(self, now: float) -> Running:
        return Running("i" * RUNNING_CHARS_MAX, round(now))

    def report(self, stamp: int, beat: QueueBeat) -> QueueBeat:
        self.reports += 1
        receives = {f"source-{number}": (999_999_999_999, 999_999_999_999) for number in range(8)}
        return msgspec.structs.replace(beat, receives=receives, depth=FULL, buried=LONG)


def session_of(ports: dict[str, Any]) -> Session:
    """A session with these queues, over a channel that is not asked for."""
    return Session(
        FakeBridge(),
        "i" * 32,
        "label",
        ports,
        accepts=bool,
        welcomed=lambda boot: None,
        draw=lambda: 0.5,  # type: ignore[arg-type]
    )


@simulated
async def test_a_heartbeat_of_many_queues_fits_its_frame() -> None:
    """Reports take turns, so that a frame stays under 64 KiB and each queue is told of in the end."""
    ports = {f"{'a' * 40}/{'q' * 36}{number:03}": Port() for number in range(180)}
    session = session_of(ports)
    for stamp in range(20):
        beats = {queue: QueueBeat(10**10, 10**10, 10**6, 10**6) for queue in ports}
        frame = ListenerHeartbeat(stamp, beats, {queue: [604_800_000] * 5 for queue in ports})
        session._add_reports(frame)
        assert len(encode_frame(frame)) < FRAME_BYTES_MAX
        assert any(beat.receives for beat in frame.queues.values())
    assert min(port.reports for port in ports.values()) >= 1
    assert max(port.reports for port in ports.values()) <= 4


@simulated
async def test_which_receives_fail_gives_way_in_a_frame_that_is_full() -> None:
    """A store that is down must not end the session of a listener of many queues; what fits is told."""
    ports = {f"{'a' * 60}/{'q' * 57}{number:03}": Port() for number in range(290)}
    session = session_of(ports)
    beats = {queue: QueueBeat(10**10, 10**10, 10**6, 10**6, failing_ms=86_400_000) for queue in ports}
    frame = ListenerHeartbeat(7, beats)
    assert len(encode_frame(frame)) > FRAME_BYTES_MAX
    session._fit_failures(frame)
    assert len(encode_frame(frame)) <= FRAME_BYTES_MAX - FRAME_EXTRA_BYTES
    assert any(beat.failing_ms for beat in frame.queues.values())


@simulated
async def test_which_handlers_run_gives_way_in_a_frame_that_is_full() -> None:
    """Of 20 queues at most, of fewer where less room is left, and of none where there is none."""
    session = session_of({f"{'a' * 60}/{'q' * 57}{number:03}": Port() for number in range(330)})
    told = []
    for padding in (100, 270, 330):
        beats = {queue: QueueBeat(10**10, 10**10, 10**6, 10**6) for queue in list(session._ports)[:padding]}
        frame = session._with_running(ListenerHeartbeat(7, beats), 1e9)
        assert padding == 330 or len(encode_frame(frame)) <= FRAME_BYTES_MAX - FRAME_EXTRA_BYTES
        told.append(len(frame.running))
    assert told[0] == 20 > told[1] > told[2] == 0
    assert not session._with_running(ListenerHeartbeat(7), 4999.0).running


@simulated
async def test_wakes_that_one_receive_answers_are_told_together() -> None:
    """What comes while a receive is under way is for the next one, with the traces of all; a later wake has its own."""
    store, bridge = Store(), FakeBridge()
    seen: list[Message] = []
    gates = [asyncio.Event(), asyncio.Event()]
    traces = [f"00-{n:032x}-{n:016x}-01" for n in range(1, 5)]

    async def handle(message: Message) -> None:
        seen.append(message)

    async with listening(store, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        store.receiving = [gate.wait for gate in gates]
        for trace in traces[:3]:
            bridge.wake(QUEUE, traceparent=trace)
            await pass_time(0.1)
        gates[0].set()
        await pass_time(0.1)
        await store.fill(b"x")
        gates[1].set()
        await settled(listener, 1, "handled")
        await store.fill(b"y")
        bridge.wake(QUEUE, traceparent=traces[3])
        await settled(listener, 2, "handled")
    assert [message.traces for message in seen] == [tuple(traces[1:3]), (traces[3],)]
