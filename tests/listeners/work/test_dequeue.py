"""From a wake to settled messages, in virtual time, with a bridge played by hand."""

from __future__ import annotations

import asyncio
import datetime
import types

import msgspec
import pytest

from bridge.contract.errors import QueueNotFound, StoreUnavailable, UnknownOutcome
from bridge.contract.wire import Bye, CarriedMessage, Cover, ListenerHeartbeat, More, Room, Started, encode_frame
from bridge.queues.base import Claim, StoredMessage
from listeners import Message, Retry
from listeners.figures import QueueFigures
from listeners.work.take import carried_message
from tests.listeners.rig import QUEUE, Store, hanging, listening, raising, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulated


def carried(body: str, message: str = "m1", receipt: str = "r1") -> CarriedMessage:
    """Return a message as a wake carries it."""
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).isoformat()
    return CarriedMessage(message, receipt, 1, now, body=body)


@simulated
async def test_a_wake_brings_work_to_the_handler() -> None:
    """A wake: `started`, a receive, the handler, a delete, a cover; then nothing is asked any more."""
    store, seen = Store(), []
    bridge = FakeBridge()

    async def handle(message: Message) -> None:
        seen.append((message.text(), message.attempt, message.wake_source, message.queue))

    async with listening(store, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        assert store.receives == 0, "B10: a welcome starts no receive"
        await store.fill(b"a", b"b")
        gen = bridge.wake(QUEUE, 2)
        await settled(listener, 2)
        assert seen == [("a", 1, "trigger", QUEUE), ("b", 1, "trigger", QUEUE)]
        assert [frame.gen for frame in bridge.of(Started)] == [gen]
        (cover,) = bridge.of(Cover)
        assert (cover.queue, cover.boot, cover.gen) == (QUEUE, bridge.boot, gen)
        depth = await store.depth(QUEUE)
        assert (depth.visible, depth.invisible) == (0, 0)
        assert store.receives == 1
        bridge.wake(QUEUE)
        await bridge.until(Cover, 2)
        assert listener.state().queues[QUEUE] == QueueFigures(
            state="idle",
            depth=0,
            active_receives=0,
            total_receives=2,
            empty_receives=1,
            failed_receives=0,
            carried=0,
            active_handlers=0,
            free=32,
            held=0,
            epoch=2,
            covered=2,
            gen=gen + 1,
            handled=2,
            retried=0,
            buried=0,
            given_back=0,
            lost_leases=0,
            too_short=0,
            visibility_s=30.0,
            wake_sources={"trigger": 1},
            last_burial=None,
        )


@simulated
async def test_an_idle_listener_asks_nothing() -> None:
    """O5: while the bridge says that the queue is covered, fifteen idle minutes cost no receive."""
    store, bridge = Store(), FakeBridge()
    bridge.covered_age_ms = 0

    async def handle(message: Message) -> None:
        raise AssertionError

    async with listening(store, handle, bridge=bridge):
        await pass_time(900)
        assert store.receives == 0
        assert len(bridge.beats) == pytest.approx(180, abs=3)


@simulated
async def test_the_dead_man_looks_when_no_cover_is_heard_of() -> None:
    """L10: 96 to 106 s after the last coverage heard of, it looks by itself, and its own cover counts."""
    store, bridge = Store(), FakeBridge()

    async def handle(message: Message) -> None:
        pass

    async with listening(store, handle, bridge=bridge) as listener:
        await pass_time(95)
        assert store.receives == 0
        await store.fill(b"lost trigger")
        await pass_time(12)
        assert store.receives == 1
        assert listener.state().queues[QUEUE].wake_sources == {"deadman": 1}
        await pass_time(80)
        assert store.receives == 1


@simulated
async def test_a_long_handler_never_starves_the_queue() -> None:
    """L2: receives do not wait for handlers; what is put while one runs long is handled at once."""
    store, bridge, done = Store(), FakeBridge(), []
    release = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body == b"long":
            await release.wait()
        done.append((message.text(), asyncio.get_running_loop().time()))

    async with listening(store, handle, bridge=bridge, concurrency=2) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"long")
        bridge.wake(QUEUE)
        await pass_time(10)
        began = asyncio.get_running_loop().time()
        for number in range(3):
            await store.fill(b"short %d" % number)
            bridge.wake(QUEUE)
            await settled(listener, number + 1)
        assert [name for name, _ in done] == ["short 0", "short 1", "short 2"]
        assert done[-1][1] - began < 1.0
        release.set()
        await settled(listener, 4)


@simulated
async def test_a_long_handler_keeps_its_lease() -> None:
    """Renewed at half of its time: ten minutes of work under a lease of 30 s are handled once, by one delete."""
    store, bridge, runs = Store(), FakeBridge(), []

    async def handle(message: Message) -> None:
        runs.append(message.attempt)
        await pass_time(600)

    async with listening(store, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"slow")
        bridge.wake(QUEUE)
        await pass_time(100)
        assert bridge.beats[-1].leases[QUEUE] != []
        await settled(listener, 1)
        assert runs == [1]
        extensions = [s for s in store.settlements if s.extend]
        assert len(extensions) == pytest.approx(40, abs=2)
        assert listener.state().queues[QUEUE].lost_leases == 0


@simulated
async def test_renewals_of_many_messages_travel_together() -> None:
    """One timer and one call renew a whole batch."""
    store, bridge = Store(), FakeBridge()

    async def handle(message: Message) -> None:
        await pass_time(20)

    async with listening(store, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(*[b"x"] * 30)
        bridge.wake(QUEUE, 30)
        await settled(listener, 30)
        assert [(len(s.extend), len(s.delete)) for s in store.settlements] == [(30, 0), (0, 30)]


@simulated
async def test_a_lost_lease_cancels_the_handler_and_settles_nothing() -> None:
    """A message that came back to somebody else is not deleted here, and what follows is leased for longer."""
    store, bridge = Store(), FakeBridge()
    cancelled = asyncio.Event()

    async def handle(message: Message) -> None:
        try:
            await pass_time(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with listening(store, handle, bridge=bridge, max_attempts=0, grace=0) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x")
        bridge.wake(QUEUE)
        await pass_time(1)
        # Somebody clears the queue: the renewal finds no message.
        await store.clear(QUEUE)
        await cancelled.wait()
        figures = listener.state().queues[QUEUE]
        assert (figures.lost_leases, figures.too_short, figures.visibility_s) == (1, 1, 45.0)
        assert not [s for s in store.settlements if s.delete or s.release]


@simulated
async def test_a_store_that_fails_is_asked_again() -> None:
    """L11: a receive that fails is tried again with back-off, and its message handled."""
    store, bridge, seen = Store(), FakeBridge(), []

    async def handle(message: Message) -> None:
        seen.append(message.body)

    async with listening(store, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x")
        store.receiving = [raising(StoreUnavailable("busy")), raising(RuntimeError("a defect in an adapter"))]
        bridge.wake(QUEUE)
        await settled(listener, 1)
        assert seen == [b"x"]
        assert listener.state().queues[QUEUE].failed_receives == 2
        assert bridge.of(More)
        assert await bridge.until(Room)


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
async def test_settlements_are_tried_again_within_the_lease() -> None:
    """A delete that fails is brought again, and one of unknown outcome that was carried out counts as done."""
    store, bridge = Store(), FakeBridge()

    async def handle(message: Message) -> None:
        pass

    async def carried_out() -> None:
        settlement = store.settlements[-1]
        assert [type(item) for item in settlement.delete] == [Claim]
        await super(Store, store).settle(QUEUE, settlement)
        raise UnknownOutcome("the answer was lost")

    async with listening(store, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x")
        store.settling = [raising(StoreUnavailable("busy")), hanging(), carried_out]
        bridge.wake(QUEUE)
        await settled(listener, 1)
        assert len(store.settlements) == 4
        assert listener.state().queues[QUEUE].lost_leases == 0


@simulated
async def test_what_cannot_be_settled_within_its_lease_is_let_go() -> None:
    """A message whose lease ended unsettled counts as lost, and is looked for again (L7)."""
    store, bridge, runs = Store(), FakeBridge(), []

    async def handle(message: Message) -> None:
        runs.append(message.attempt)

    async with listening(store, handle, bridge=bridge, visibility_timeout=5) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x")
        store.settling = [raising(StoreUnavailable("busy")) for _ in range(8)]
        bridge.wake(QUEUE)
        await settled(listener, 1)
        assert runs == [1, 2]
        assert listener.state().queues[QUEUE].lost_leases == 1


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
async def test_carried_messages_are_handled_without_a_receive() -> None:
    """O7: `started` at once, the carried receipt deletes, and `room` follows; no receive at all."""
    store, seen = Store(), []
    bridge = FakeBridge(store)
    bridge.covered_age_ms = 0

    async def handle(message: Message) -> None:
        seen.append(message.text())

    async with listening(bridge, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        assert bridge.hellos[0].accept == ["messages"]
        assert bridge.hellos[0].queues[0].own
        await store.fill(b"x")
        (stored,) = (await store.receive(QUEUE, 1, 2.0)).messages
        store.receives = 0
        bridge.wake(QUEUE, 1, messages=[carried("x", stored.id, stored.pop_receipt)])
        await settled(listener, 1)
        assert seen == ["x"]
        assert store.receives == 0
        assert [type(frame) for frame in bridge.frames] == [Started, Room]
        (settlement,) = store.settlements
        assert settlement.delete == [Claim(stored.id, stored.pop_receipt)]


@simulated
async def test_a_carried_message_that_takes_longer_is_accepted() -> None:
    """O7: still running after 0.1 s, its lease is extended to V and its handler goes on."""
    store = Store()
    bridge = FakeBridge(store)

    async def handle(message: Message) -> None:
        await pass_time(10)

    async with listening(bridge, handle, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x")
        (stored,) = (await store.receive(QUEUE, 1, 2.0)).messages
        bridge.wake(QUEUE, 1, messages=[carried("x", stored.id, stored.pop_receipt)])
        await pass_time(0.15)
        assert [len(s.extend) for s in store.settlements] == [1]
        await settled(listener, 1)
        assert listener.state().queues[QUEUE].lost_leases == 0


@simulated
async def test_carried_messages_beyond_the_slots_are_given_back() -> None:
    """O7: never more handlers than slots; the surplus is released at once."""
    store = Store()
    bridge = FakeBridge(store)
    running, most = 0, 0

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await pass_time(1)
        running -= 1

    async with listening(bridge, handle, bridge=bridge, concurrency=1) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x", b"y")
        both = (await store.receive(QUEUE, 2, 2.0)).messages
        bridge.wake(QUEUE, 2, messages=[carried("x", m.id, m.pop_receipt) for m in both])
        await settled(listener, 1, "given_back")
        (taken,) = (await store.receive(QUEUE, 1, 2.0)).messages
        bridge.wake(QUEUE, 1, messages=[carried("y", taken.id, taken.pop_receipt)])
        await settled(listener, 2, "given_back")
        bridge.wake(QUEUE, 1)
        await settled(listener, 2)
        assert (most, listener.state().queues[QUEUE].carried) == (1, 3)


@simulated
async def test_several_queues_share_one_session() -> None:
    """One hello names them all, and each has slots of its own."""
    store, bridge, seen = Store(), FakeBridge(), []
    queues = ["billing/orders", "billing/refunds"]

    async def handle(message: Message) -> None:
        if message.queue == "billing/orders":
            await pass_time(5)
        seen.append(message.queue)

    async with listening(store, handle, queues, bridge=bridge, concurrency=1) as listener:
        await bridge.until(ListenerHeartbeat)
        assert [sub.queue for sub in bridge.hellos[0].queues] == queues
        assert bridge.hellos[0].accept == []
        for queue in queues:
            await store.fill(b"x", queue=queue)
            bridge.wake(queue)
        await settled(listener, 1)
        assert seen == ["billing/refunds", "billing/orders"]
        assert bridge.connects == 1


@pytest.mark.parametrize("own", [True, False])
@simulated
async def test_a_queue_that_does_not_exist_yet_tells_whose_it_is(own: bool) -> None:
    """O0: the refusal names the boot too, where the queue is a bridge's; without it the bridge would sweep its own."""
    bridge, store = FakeBridge(), Store()
    store.boot = ""

    async def refuse() -> None:
        if own:
            store.boot = bridge.boot  # as the header of every answer tells it
        else:
            del store.boot
        raise QueueNotFound("no such queue")

    store.receiving.append(refuse)

    async def handle(message: Message) -> None: ...

    # A way to a bridge elsewhere: one of this process would be known by its store.
    way = types.SimpleNamespace(connect=bridge.connect, close=bridge.close)
    async with listening(store, handle, bridge=way) as listener:
        await bridge.until(ListenerHeartbeat)
        assert not bridge.hellos[-1].queues[0].own
        bridge.wake(QUEUE, 1)
        await bridge.until(Cover)
        assert (bridge.hellos[-1].queues[0].own, listener.state().queues[QUEUE].failed_receives) == (own, 0)


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


@simulated
async def test_the_end_of_a_lease_of_others_is_told_until_a_look_is_due_before_it() -> None:
    """Whoever holds it may tell nobody: the cover says when to look, and the next one has nothing to add."""
    store, bridge = Store(), FakeBridge()

    async def handle(message: Message) -> None: ...

    await store.fill(b"theirs")
    assert (await store.receive(QUEUE, 1, 60.0)).messages
    async with listening(store, handle, bridge=bridge):
        await bridge.until(ListenerHeartbeat)
        covers: list[Cover] = []
        for count in (1, 2):
            bridge.wake(QUEUE)
            covers = await bridge.until(Cover, count)
            await pass_time(10)
        first, second = (cover.next_visible_in_ms for cover in covers)
        assert first is not None and 59_000 <= first <= 60_000
        assert second is None


def test_a_carried_message_is_read_as_a_store_hands_it_out() -> None:
    """Text or bytes, with all that comes along; what is malformed is refused."""
    inserted, expires = (datetime.datetime(2026, 1, day, tzinfo=datetime.UTC) for day in (1, 2))
    told = CarriedMessage("m", "r", 3, str(inserted), body_base64="/wA=", expires_at=str(expires), key="k", headers={})
    assert carried_message(told) == StoredMessage("m", "r", b"\xff\0", 3, inserted, expires, "k", {})
    assert carried_message(carried("\u00e9")).body == "\u00e9".encode()
    for wrong in ({"body_base64": "/w*A="}, {"inserted_at": "yesterday"}, {"expires_at": "tomorrow"}):
        with pytest.raises(ValueError):
            carried_message(msgspec.structs.replace(told, **wrong))
