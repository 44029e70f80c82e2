"""Sessions over a broker, the bridge's half, with listeners played by hand: S1 to S3 frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from queuebell.bridge.brokers.base import Incoming
from queuebell.bridge.contract.framing import LAST_COUNT, seq_of
from queuebell.bridge.contract.wire import decode_down
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.service.channels.brokered import FULL_RETRY_S, SESSIONS_MAX, BrokeredSessions
from queuebell.bridge.triggers.attachment import Attachment
from tests.support.memory_broker import MemoryBroker, MemoryServer

ONE, TWO = "1" * 32, "2" * 32
QUEUE = "billing/orders"


class Peer:
    """A listener played by hand; ``sessions`` are those of the bridge that it speaks with."""

    sessions: BrokeredSessions

    def __init__(self, broker: MemoryBroker, instance: str = ONE) -> None:
        self.broker = broker
        self.instance = instance
        self.frames: list[dict[str, Any]] = []
        self.seq = 0

    async def open(self) -> Peer:
        await self.broker.connect()
        await self.broker.subscribe(("queuebell", "session", self.instance, "down"), self._hear)
        return self

    def _hear(self, incoming: Incoming) -> None:
        decode_down(incoming.payload)
        self.frames.append(msgspec.json.decode(incoming.payload))

    async def say(self, type_: str, *, seq: int | None = None, topic: str = "", **fields: Any) -> list[str]:
        """Say one frame and return the types of what came back."""
        if seq is None:
            self.seq += 1
            seq = self.seq
        frame = {"type": type_, "instance": self.instance, "seq": seq, **fields}
        where = ("queuebell", "hello") if type_ == "hello" and not topic else self.up
        before = len(self.frames)
        self.broker.publish(where, msgspec.json.encode(frame))
        await rest()
        return [frame["type"] for frame in self.frames[before:]]

    async def hello(self, **more: Any) -> list[str]:
        queues = [{"queue": QUEUE, "capacity": 8}]
        return await self.say("hello", **{"listener": "peer", "queues": queues, "version": 2, **more})

    async def cover(self, **more: Any) -> list[str]:
        wake = next(frame for frame in reversed(self.frames) if frame["type"] == "wake")
        fields = {"queue": QUEUE, "boot": wake["boot"], "gen": wake["gen"], "age_ms": 0}
        return await self.say("cover", **{**fields, **more})

    @property
    def up(self) -> tuple[str, ...]:
        return ("queuebell", "session", self.instance, "up")


async def rest() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def site(
    server: MemoryServer, sessions_max: int = SESSIONS_MAX
) -> AsyncIterator[tuple[Bridge, Attachment, Peer]]:
    """Run a bridge on the broker, and give it a listener that has not spoken yet."""
    async with Bridge() as bridge:
        sessions = BrokeredSessions(bridge, "queuebell", sessions_max=sessions_max)
        bus = Attachment(
            bridge, server.broker, "nats", server.kind,
            prefix="queuebell", sessions=sessions, announcer=None, brokers=["nats"], republish=True,
        )  # fmt: skip
        await bus.start()
        while not bus.check()[0]:
            await asyncio.sleep(0)
        peer = await Peer(server.broker()).open()
        peer.sessions = sessions
        try:
            yield bridge, bus, peer
        finally:
            await bus.stop()


def dirty(bridge: Bridge) -> bool:
    state = bridge.describe(QUEUE)
    return state is not None and state.dirty


async def test_a_worker_of_another_version_is_told_so() -> None:
    """It gets no session, and an error that names the remedy."""
    async with site(MemoryServer()) as (bridge, _, peer):
        assert await peer.hello(version=1) == ["error"]
        assert peer.frames[-1]["code"] == "unsupported" and "upgrade it" in peer.frames[-1]["message"]
        assert bridge.listeners() == []
        assert "welcome" in await peer.hello()


async def test_stale_frames_are_dropped_except_covers() -> None:
    """A cover is a fact whenever it comes; what says how things stand is only true in order."""
    async with site(MemoryServer()) as (bridge, bus, peer):
        await peer.hello()
        assert dirty(bridge)
        await peer.say("heartbeat", stamp=1, seq=50)
        assert await peer.say("heartbeat", stamp=2, seq=50) == []
        assert await peer.say("heartbeat", stamp=2, seq=49) == []
        assert await peer.say("bye", seq=48) == []
        assert len(bridge.listeners()) == 1
        await peer.cover(seq=2)
        assert not dirty(bridge)


@pytest.mark.parametrize("instance", ["", "*", "1" * 31, "G" * 32, "A" * 32, "../" * 10 + "..", "1" * 33])
async def test_an_instance_that_is_none_is_not_answered(instance: str) -> None:
    server = MemoryServer()
    async with site(server) as (bridge, bus, peer):
        before = len(server.log)
        await Peer(peer.broker, instance).hello()
        bus.way.hear_up(Incoming(("queuebell", "session", instance, "up"), b'{"type":"heartbeat","stamp":1}'))
        assert len(server.log) == before + 1, "only the hello itself"
        assert bridge.listeners() == []


@pytest.mark.parametrize("payload", [b"", b"null", b"[]", b"{", b"\xff", b'{"type":"hello"}', b"x" * 70_000])
async def test_what_is_no_frame_does_no_harm(payload: bytes) -> None:
    """On the hello topic nobody can be told; on a session's own topic its instance is."""
    async with site(MemoryServer()) as (bridge, bus, peer):
        await peer.hello()
        peer.broker.publish(("queuebell", "hello"), payload)
        await rest()
        assert len(bridge.listeners()) == 1
        peer.broker.publish(peer.up, payload)
        await rest()
        assert peer.frames[-1]["type"] == "error"
        assert bridge.listeners() == [], "as over WebSocket, a frame that is wrong ends its session"
        assert [each.queue for each in bridge.scheduler.rejections.recent(bridge.now())] == [QUEUE], (
            "and the worker is shown as rejected"
        )
        assert await peer.hello() == ["welcome", "wake"]


async def test_a_hello_from_before_the_end_of_its_session_opens_none() -> None:
    """The broker may deliver it again, or late; a newer one opens a session."""
    async with site(MemoryServer()) as (bridge, _, peer):
        await peer.hello()
        await peer.say("bye")
        assert bridge.listeners() == []
        assert await peer.hello(seq=1) == []
        assert bridge.listeners() == []
        assert "welcome" in await peer.hello()


async def test_the_will_of_a_connection_that_was_replaced_is_ignored() -> None:
    """The broker may find out long after the listener came back that its first connection is dead."""
    async with site(MemoryServer("mqtt")) as (bridge, bus, peer):
        await peer.hello(seq=seq_of(0, 1))
        await peer.hello(seq=seq_of(1, 1))
        await peer.say("bye", seq=seq_of(0, LAST_COUNT))
        assert len(bridge.listeners()) == 1
        await peer.say("bye", seq=seq_of(1, LAST_COUNT))
        assert bridge.listeners() == []
        await peer.hello(seq=seq_of(2, 1))
        assert len(bridge.listeners()) == 1


async def test_sessions_are_bounded() -> None:
    """Strangers with ever new instances cannot grow the bridge for ever."""
    server = MemoryServer()
    async with site(server, 1) as (bridge, bus, peer):
        await peer.hello()
        other = await Peer(server.broker(), TWO).open()
        assert await other.hello() == ["error"]
        told = other.frames[-1]
        assert (told["code"], told["message"], told["retry_after_s"]) == (
            "too_many_requests", "this bridge has reached its limit of sessions", FULL_RETRY_S,
        )  # fmt: skip
        await peer.say("bye")
        assert await other.hello() == ["welcome", "wake"]


async def test_a_hello_that_fails_half_way_leaves_nothing_of_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection ends with it here: its seats, its name and its instance go at once, and the next hello is met."""
    async with site(MemoryServer()) as (bridge, bus, peer):
        wake_sessions = bridge.scheduler.dispatch.wake_sessions
        failing = [RuntimeError("a defect, half-way through the hello")]

        def fail_once(*arguments: Any, **named: Any) -> bool:
            if failing:
                raise failing.pop()
            return wake_sessions(*arguments, **named)

        monkeypatch.setattr(bridge.scheduler.dispatch, "wake_sessions", fail_once)
        await peer.hello()
        assert not failing and bridge.listeners() == []
        assert not len(bridge.scheduler.pending.by_queue[QUEUE].sessions)
        assert "welcome" in await peer.hello()
        assert len(bridge.listeners()) == 1
        bridge.drain()
        await rest()
        assert [frame["type"] for frame in peer.frames].count("drain") == 1, "there is no session but this"
