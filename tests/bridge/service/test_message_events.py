"""What is recorded of a watched queue, in which order, and how much of it."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import NoReturn

import pytest

from queuebell.bridge import Bridge
from queuebell.bridge.contract.burial import Burial, write_burial
from queuebell.bridge.observe.facts import HandedBack, OwnerStuck, StartMissed, Unannounced, Woken
from queuebell.bridge.queues.base import Claim, Extend, NewMessage, Release, Settlement
from queuebell.bridge.service import message_events
from queuebell.bridge.service.message_events import Events, MessageEvents
from queuebell.listeners import Listener, Message
from tests.support.sim_loop import pass_time, simulated

Q = "billing/orders"
NOON = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)


def read(events: MessageEvents, queue: str = Q, after: int = 0, id_: str = "") -> Events:
    found = events.read(queue, after, id_)
    assert found is not None
    return found


def told(events: MessageEvents, after: int = 0, id_: str = "") -> list[tuple[str, str, str]]:
    return [(each.what, each.id, each.detail) for each in read(events, Q, after, id_).events]


async def test_the_way_of_a_message_through_a_store() -> None:
    """Put, received, renewed, returned, refused, deleted, discarded; nothing before somebody watches."""
    async with Bridge() as bridge:
        store, events = bridge.store, bridge.events
        await store.put(Q, [b"before"])
        assert read(events).events == []
        (late,) = await store.put(Q, [NewMessage(b"late", 5000)])
        await store.put_once(Q, "key", b"once")
        assert await store.put_once(Q, "key", b"once") is None
        first, once = (await store.receive(Q, 2, 30, source="trigger")).messages
        (renewed,) = (await store.settle(Q, Settlement(extend=[Extend(first.id, first.pop_receipt, 60)]))).extend
        assert renewed.pop_receipt is not None
        release = [Release(first.id, renewed.pop_receipt, 7000, uncounted=True)]
        await store.settle(Q, Settlement([Claim(once.id, once.pop_receipt)], release))
        await store.settle(Q, Settlement([Claim(once.id, once.pop_receipt)]))
        await store.receive(Q)
        await store.put("billing/other", [b"not watched"])
        because = "attempt 1, leased for 30 s, because of trigger"
        way = [
            ("put", late.id, "visible in 5 s"),
            ("put", once.id, ""),
            ("received", first.id, because),
            ("received", once.id, because),
            ("lease renewed", first.id, "for 60 s"),
            ("done", once.id, ""),
            ("returned", first.id, "visible in 7 s, uncounted"),
            ("not deleted", once.id, "message_not_found"),
            ("nothing received", "", ""),
        ]
        assert told(events) == way
        assert told(events, id_=once.id) == [each for each in way if each[1] == once.id]
        assert [each.n for each in read(events, Q, 7).events] == [8, 9] and read(events).last == 9
        assert told(events, id_="key") == told(events, id_=once.id)
        for poison in ("m/x-poison", f"{Q}-poison"):  # another account's says nothing of this queue
            facts = write_burial(Burial(Q, first.id, NOON, NOON, "no price", 3), b"x", 10_000)
            assert facts is not None
            (letter,) = await store.put(poison, [facts])
        assert told(events, after=9)[0] == ("dead letter", first.id, f"as {letter.id} of {Q}-poison")
        assert [*events.watched] == [Q]


async def test_a_worker_is_woken_with_a_message() -> None:
    """The put stands before the wake that carries its message, once, and the worker has its name."""
    async with Bridge() as bridge:
        bridge.events.read(Q)
        handled: list[str] = []

        async def handle(message: Message) -> None:
            handled.append(message.id)
            if len(handled) == 2:
                await listener.stop()

        listener = Listener(bridge.store, Q, handle, bridge=bridge, name="shop", handle_signals=False)
        running = asyncio.create_task(listener.run(), name="listener")
        await listener.started()
        for body in (b"one", b"two"):
            await bridge.store.put(Q, [body])
        await running
        for id_ in handled:
            whats = [what for what, *_ in told(bridge.events, id_=id_)]
            assert whats[0] == "put" and whats[-1] == "done" and whats.count("put") == 1
        assert any(what == "wake" and detail.startswith("to shop: ") for what, _, detail in told(bridge.events))


@simulated
async def test_a_recorder_that_raises_costs_its_events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that is stored is acknowledged, each message is handled, once."""
    called: set[str] = set()

    def raising(name: str) -> Callable[..., NoReturn]:
        def call(*_: object, **__: object) -> NoReturn:
            called.add(name)
            raise RuntimeError(name)

        return call

    async with Bridge() as bridge:
        bridge.events.read(Q)
        for name in ("put", "received", "settled", "carried"):
            monkeypatch.setattr(bridge.events, name, raising(name))
        handled: list[bytes] = []
        first = asyncio.Event()

        async def handle(message: Message) -> None:
            handled.append(message.body)
            first.set()
            if len(handled) == 3:
                await listener.stop()

        listener = Listener(bridge.store, Q, handle, bridge=bridge, handle_signals=False)
        assert len(await bridge.store.put(Q, [b"early"])) == 1
        running = asyncio.create_task(listener.run(), name="listener")
        await listener.started()
        await first.wait()
        await pass_time(2)
        assert len(await bridge.store.put(Q, [b"one"])) == 1
        assert await bridge.store.put_once(Q, "key", b"two") is not None
        await running
        assert sorted(handled) == [b"early", b"one", b"two"] and called == {"put", "received", "settled", "carried"}
        assert not await bridge.store.peek(Q)


def test_what_goes_wrong_is_recorded_too() -> None:
    events = MessageEvents(lambda number: f"worker {number}", lambda _: None)
    events.read(Q)
    for fact in (
        Woken(Q, 7, "sweep", 0.0125, 0), StartMissed(Q, 1, 2), OwnerStuck(Q, 7), HandedBack(Q, 3), Unannounced(Q, 4),
        Woken("billing/other", 7, "sweep", 0.1, 0),
    ):  # fmt: skip
        events(fact)
    assert told(events) == [
        ("wake", "", "to worker 7: sweep, after 12.5 ms"),
        ("wake unanswered", "", "2 more are woken"),
        ("worker stuck", "", "worker 7; its work went to another"),
        ("taken back", "", "3 messages that a worker did not accept"),
        ("found without a trigger", "", "4 times: a publish was lost"),
    ]


def test_a_watch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In events, in queues and in time; the answer says what is no longer kept."""
    now = [0.0]
    monkeypatch.setattr(message_events, "EVENTS_MAX", 300)
    watching: list[bool] = []
    events = MessageEvents(str, watching.append, clock=lambda: now[0], wall=lambda: NOON.timestamp() + now[0])
    assert read(events).since == "2026-11-29T12:00:00.000Z"
    for number in range(500):
        events.discarded(Q, str(number))
    found = read(events)
    assert (found.last, found.dropped, len(found.events), found.events[-1].id) == (500, 200, 200, "499")
    for number in range(9):
        now[0] += 1
        read(events, f"a/q{number}")
    assert events.read("a/more") is None and Q in events.watched
    now[0] = 126.5
    assert read(events, "a/more").dropped == 0
    assert [*events.watched] == ["a/q6", "a/q7", "a/q8", "a/more"] and watching == [True]
    now[0] = 1300
    for queue in ("a/q6", "a/more", Q):
        events.discarded(queue, "late")
    assert not events.watched and watching == [True, False]
