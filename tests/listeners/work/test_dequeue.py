"""From a wake to settled messages, in virtual time, with a bridge played by hand."""

from __future__ import annotations

import asyncio
import datetime
import itertools
from typing import Any

import msgspec
import pytest

from queuebell.bridge.contract.errors import StoreUnavailable
from queuebell.bridge.contract.wire import Bye, CarriedMessage, EmptyReceive, Hello, ListenerHeartbeat, encode_frame
from queuebell.bridge.queues.base import NewMessage, StoredMessage
from queuebell.listeners import Failure, Message, Retry
from queuebell.listeners.work.lease import carried_message
from tests.listeners.rig import POISON, QUEUE, Store, hanging, listening, raising, run_until, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulate, simulated


def carried(body: str, message: str = "m1", receipt: str = "r1") -> CarriedMessage:
    """Return a message as a wake carries it."""
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).isoformat()
    return CarriedMessage(message, receipt, 1, now, body=body)


@simulated
async def test_the_bridge_hears_which_handler_runs_long() -> None:
    """S2: the message that was begun first, once it has run for 5 s, until it ends; nothing where all are quick."""
    store, bridge, gate = Store(), FakeBridge(), asyncio.Event()

    async def handle(message: Message) -> None:
        await gate.wait()

    async with listening(store, handle, bridge=bridge):
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"first", b"second")
        bridge.wake(QUEUE, 2)
        await pass_time(62)
        told = bridge.beats[-1].running[QUEUE]
        assert (told.attempt, 55_000 <= told.ms <= 62_000) == (1, True)
        assert any(b"running" not in encode_frame(beat) for beat in bridge.beats)
        # What was handled and waits for its delete keeps nobody at work.
        store.settling = [hanging()] * 1000
        gate.set()
        await pass_time(8)
        assert b"running" not in encode_frame(bridge.beats[-1])


@simulated
async def test_an_empty_receive_says_when_more_becomes_visible() -> None:
    """The end of another client's lease, unless a check is due before it; what is delayed. A heartbeat counts it."""
    store, bridge = Store(), FakeBridge()

    async def handle(message: Message) -> None: ...

    async def told() -> int | None:
        bridge.wake(QUEUE)
        return (await bridge.until(EmptyReceive, len(bridge.of(EmptyReceive)) + 1))[-1].next_visible_in_ms

    async with listening(store, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"another's")
        await store.receive(QUEUE, 1, 60.0)
        assert await told() == 60_000
        await pass_time(10)
        assert await told() is None
        await store.put(QUEUE, [NewMessage(b"later", 30_000)])
        assert await told() == 30_000
        await bridge.until(ListenerHeartbeat, len(bridge.beats) + 2)
        depth = [depth for beat in bridge.beats if (depth := beat.queues[QUEUE].depth) is not None][-1]
        assert (depth.visible, depth.invisible) == (0, 2)
        figures = listener.state().queues[QUEUE]
        assert (figures.empty_receives, figures.total_receives) == (3, 3)
        await store.fill(b"x")
        bridge.wake(QUEUE)
        await settled(listener, 1)
        assert listener.state().queues[QUEUE].total_receives == 4, "fewer than it asked for: there are no more"


@simulated
async def test_a_carried_message_is_leased_for_as_long_as_its_wake_says() -> None:
    """Until the store has accepted it (O7). A worker that comes back says how many slots are free."""
    store, bridge = Store(), FakeBridge()

    async def handle(message: Message) -> None:
        await pass_time(100)

    async with listening(store, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        store.settling = [hanging()] * 9
        bridge.wake(QUEUE, messages=[msgspec.structs.replace(carried("x"), visible_in_ms=20_000)])
        (left,) = (await bridge.until(ListenerHeartbeat, len(bridge.beats) + 1))[-1].leases[QUEUE]
        assert 10_000 <= left <= 20_000
        bridge.cut()
        first, again = await bridge.until(Hello, 2)
        assert (first.queues[0].free, again.queues[0].free) == (None, 31)
        listener.signalled(2)


@pytest.mark.parametrize("error", [StoreUnavailable("nobody there"), RuntimeError("a defect in an adapter")])
@simulated
async def test_the_bridge_hears_since_when_receives_fail(error: Exception) -> None:
    """S2: a level of each heartbeat, absent from all others, so that a healthy listener's cost nothing more."""
    store, bridge = Store(), FakeBridge()

    async def handle(message: Message) -> None:
        pass

    async with listening(store, handle, bridge=bridge):
        await bridge.until(ListenerHeartbeat)
        assert b"failing_ms" not in encode_frame(bridge.beats[-1])
        store.receiving = [raising(error)] * 1000
        bridge.wake(QUEUE)
        await pass_time(62)
        failing = bridge.beats[-1].queues[QUEUE].failing_ms
        assert failing is not None and 55_000 <= failing <= 62_000
        store.receiving.clear()
        await pass_time(40)
        assert b"failing_ms" not in encode_frame(bridge.beats[-1])


@simulated
async def test_a_receive_without_an_answer_ends_by_our_own_timer() -> None:
    """L3, L6: after 10 s its outcome is unknown: a lease in the heartbeats, and a look when it has ended."""
    store, bridge = Store(), FakeBridge()
    bridge.covered_age_ms = 0

    async def handle(message: Message) -> None:
        pass

    async with listening(store, handle, bridge=bridge, visibility_timeout=60) as listener:
        await bridge.until(ListenerHeartbeat)
        store.receiving = [hanging()]
        bridge.wake(QUEUE)
        await pass_time(20)
        assert store.receives == 2
        assert listener.state().queues[QUEUE].state == "idle"
        (left,) = bridge.beats[-1].leases[QUEUE]
        assert 45_000 <= left <= 60_000
        await pass_time(70)
        assert store.receives == 3
        assert bridge.beats[-1].leases == {}


@simulated
async def test_a_retry_is_announced_when_it_is_due() -> None:
    """L7: a delayed release of a store that is not the bridge's stays in `leases` until due, then a look."""
    store, bridge, seen = Store(), FakeBridge(), []
    bridge.covered_age_ms = 0

    async def handle(message: Message) -> None:
        seen.append(asyncio.get_running_loop().time())
        if message.attempt == 1:
            raise Retry(40)

    async with listening(store, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x")
        bridge.wake(QUEUE)
        await settled(listener, 1, "retried")
        await bridge.until(ListenerHeartbeat, len(bridge.beats) + 1)
        (left,) = bridge.beats[-1].leases[QUEUE]
        assert 34_000 <= left <= 41_000
        await settled(listener, 1)
        assert seen[1] - seen[0] == pytest.approx(40, abs=0.5)
        assert listener.state().queues[QUEUE].wake_sources == {"trigger": 1, "due": 1}


@simulated
async def test_receives_that_are_cut_off_at_the_end_are_told_in_the_bye() -> None:
    """L6, L12: each may have leased a message that nobody heard of; a wake's size began as many as it is worth."""
    store, bridge = Store(), FakeBridge()
    store.receiving = [hanging(), hanging()]

    async def handle(message: Message) -> None: ...

    async with listening(store, handle, bridge=bridge, batch=1, visibility_timeout=60) as listener:
        await bridge.until(ListenerHeartbeat)
        bridge.wake(QUEUE, 2)
        await pass_time(0.1)
        assert listener.state().queues[QUEUE].active_receives == 2
        listener.signalled(2)
    (bye,) = bridge.of(Bye)
    assert [59_000 <= left <= 62_000 for left in bye.leases[QUEUE]] == [True]


def test_a_carried_message_is_read_as_a_store_hands_it_out() -> None:
    """Text or bytes, with all that comes along; what is malformed is refused."""
    inserted, expires = (datetime.datetime(2026, 1, day, tzinfo=datetime.UTC) for day in (1, 2))
    told = CarriedMessage("m", "r", 3, str(inserted), body_base64="/wA=", expires_at=str(expires), key="k", headers={})
    assert carried_message(told) == StoredMessage("m", "r", b"\xff\0", 3, inserted, expires, "k", {})
    assert carried_message(carried("\u00e9")).body == "\u00e9".encode()
    for wrong in ({"body_base64": "/w*A="}, {"inserted_at": "yesterday"}, {"expires_at": "tomorrow"}):
        with pytest.raises(ValueError):
            carried_message(msgspec.structs.replace(told, **wrong))


async def attempts(error: Exception, **options: Any) -> tuple[list[float], list[bytes]]:
    """Fail every attempt with ``error``; return the pauses between them, and what was buried."""
    store = Store()
    begun: list[float] = []

    async def handle(message: Message) -> None:
        begun.append(asyncio.get_running_loop().time())
        raise error

    await store.fill(b"x")
    await run_until(listening(store, handle, **options), 1, "buried")
    return [after - before for before, after in itertools.pairwise(begun)], await store.bodies(POISON)


@pytest.mark.parametrize("answer", [None, "permanent", RuntimeError("broken rule")])
def test_a_rule_that_fails_buries_nothing_early(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Raising, or giving no class: the failure counts as unclear and has all its attempts."""

    def rule(error: BaseException) -> Failure:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    pauses, _ = simulate(attempts(ValueError("x"), failures=rule))
    assert len(pauses) == 4
    assert ("the `failures` function raised" in caplog.text) == isinstance(answer, Exception)
