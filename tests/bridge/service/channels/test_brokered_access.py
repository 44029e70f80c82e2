"""Sessions over a broker where the bridge asks for keys: who may begin one, keep it, change it and speak for it (S35).

The matrix below asks every verb on every form of a pattern over NATS and MQTT. What a session can meet besides:

| met with | what must hold |
|---|---|
| no key, a wrong one, one that expired | an error, no session, counted |
| another queue in the first or in a later hello | an error; the session there was ends |
| a key that is revoked, a grant that is taken away, an expiry | an error and `bye`; sessions of others go on |
| the same instance by another principal, by the same one over HTTP | another session; nobody takes over |
| frames of somebody who heard the instance on the broker | counted; neither believed nor the end of the session |
| a frame without a session (a restart, a stranger) | an error, counted; said hello, it goes on |
| a token that waits for its issuer's keys; a flood of them | one check each, and an end with the bridge |
| carried messages | none: whoever may subscribe to all sessions would read them |
| more sessions, hellos or frames than its principal may | an error with the time to come again, counted; dropped |
| triggers and wakes | refused and counted, not published; with trust, as ever |
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.keys import Identity, with_terms
from queuebell.bridge.brokers.base import Incoming
from queuebell.bridge.contract.framing import instance_of
from queuebell.bridge.contract.wire import decode_down
from queuebell.bridge.observe.facts import AccessRefused, Fact
from queuebell.bridge.service.announcing import Announcer
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.service.channels.brokered import CHECKS_MAX, FULL_RETRY_S, BrokeredSessions
from queuebell.bridge.triggers.attachment import Attachment
from tests.support.access import written
from tests.support.memory_broker import MemoryBroker, MemoryServer

TICKET, SECOND = "7" * 32, "8" * 32
ONE, TWO = instance_of(TICKET), instance_of(SECOND)
QUEUE, OTHER = "a/x", "a/y"


class Peer:
    """Whoever is on the broker, a listener or not, played by hand."""

    def __init__(self, broker: MemoryBroker, secret: str | None, ticket: str | None = TICKET, instance: str = ""):
        self.broker = broker
        self.secret = secret
        self.instance = instance or instance_of(ticket or "")
        self.ticket = ticket
        self.frames: list[dict[str, Any]] = []
        self.seq = 0

    async def open(self) -> Peer:
        await self.broker.connect()
        await self.broker.subscribe(("queuebell", "session", self.instance, "down"), self._hear)
        return self

    def _hear(self, incoming: Incoming) -> None:
        decode_down(incoming.payload)
        self.frames.append(msgspec.json.decode(incoming.payload))

    async def say(self, type_: str, **fields: Any) -> list[str]:
        """Say one frame; return the types of what came back, of errors their codes."""
        self.seq += 1
        frame = {"type": type_, "instance": self.instance, "seq": self.seq, "ticket": self.ticket, **fields}
        where = ("queuebell", "hello") if type_ == "hello" else ("queuebell", "session", self.instance, "up")
        before = len(self.frames)
        self.broker.publish(where, msgspec.json.encode({k: v for k, v in frame.items() if v is not None}))
        await rest()
        return [frame.get("code", frame["type"]) for frame in self.frames[before:]]

    async def hello(self, *queues: str, **more: Any) -> list[str]:
        subscriptions = [{"queue": queue, "capacity": 8, "own": True} for queue in queues or (QUEUE,)]
        said = {"listener": "peer", "queues": subscriptions, "credential": self.secret, "accept": ["messages"]}
        return await self.say("hello", **{**said, "version": 2, **more})

    async def beat(self, **more: Any) -> list[str]:
        return await self.say("heartbeat", stamp=1, **more)


async def rest() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Site:
    """A bridge that asks for keys, on one broker."""

    def __init__(self, server: MemoryServer, bridge: Bridge, sessions: BrokeredSessions, watch: AccessWatch) -> None:
        self.server = server
        self.bridge = bridge
        self.sessions = sessions
        self.watch = watch
        self.refused: list[AccessRefused] = []
        bridge.observe(self._fact)

    def _fact(self, fact: Fact) -> None:
        if isinstance(fact, AccessRefused):
            self.refused.append(fact)

    async def peer(self, secret: str | None, ticket: str | None = TICKET, instance: str = "") -> Peer:
        return await Peer(self.server.broker(), secret, ticket, instance).open()

    def reasons(self) -> list[tuple[str, str, str]]:
        """What was refused since this was asked last."""
        assert {(each.verb, each.address) for each in self.refused} <= {
            (verb, self.server.kind) for verb in ("take", "ring")
        }
        told = [(each.reason, each.principal, each.queue) for each in self.refused]
        self.refused.clear()
        return told

    def listeners(self) -> list[str]:
        return sorted(each.listener for each in self.bridge.listeners())


@asynccontextmanager
async def site(path: pathlib.Path, kind: str = "nats", *, trusted: bool = False, **watched: Any) -> AsyncIterator[Site]:
    server = MemoryServer(kind)
    async with Bridge() as bridge, AccessWatch(path, **watched) as watch:
        sessions = BrokeredSessions(bridge, "queuebell", access=watch)
        announcer = Announcer(bridge)
        bus = Attachment(
            bridge, server.broker, kind, kind,
            prefix="queuebell", sessions=sessions, announcer=announcer, brokers=[kind], republish=True, trusted=trusted,
        )  # fmt: skip
        await bus.start()
        while not bus.check()[0]:
            await asyncio.sleep(0)
        try:
            yield Site(server, bridge, sessions, watch)
        finally:
            bridge.end_sessions()
            await bus.stop()
            await sessions.stop()
            announcer.close()
            assert not watch.permits, "what has ended is not watched any more"


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where the access file is."""
    return tmp_path / "access.json"


async def test_one_queue_more_ends_the_session(path: pathlib.Path) -> None:
    """In the first hello as in a later one; nothing of it was subscribed."""
    secrets = written(path, {"worker": {"take": [QUEUE]}})
    async with site(path) as place:
        peer = await place.peer(secrets["worker"])
        assert await peer.hello(QUEUE, OTHER) == ["forbidden"]
        assert place.listeners() == []
        peer = await place.peer(secrets["worker"], SECOND)
        assert (await peer.hello(QUEUE))[0] == "welcome"
        assert await peer.hello(QUEUE, OTHER) == ["forbidden", "bye"]
        assert place.listeners() == []
        assert place.bridge.describe(OTHER) is None
        words = "'take' is not granted on a/y"
        assert [
            (each.queue, each.listener, each.code, each.why) for each in place.bridge.scheduler.rejections.recent(0.0)
        ] == [(QUEUE, "peer", "forbidden", words), (OTHER, "peer", "forbidden", words)]
        assert {each.queue for each in place.bridge.scheduler.rejections.recent(place.bridge.now())} == {QUEUE, OTHER}
        assert "'take' is not granted on a/y" in peer.frames[-2]["message"]
        assert (await peer.hello(QUEUE))[0] == "welcome", "with what it may, it comes back"
        assert [reason for reason, _, _ in place.reasons()] == ["forbidden", "forbidden"]


async def test_a_session_stays_its_principals_also_with_its_ticket(path: pathlib.Path) -> None:
    """Whoever has learnt a ticket and has a key of their own is told so, and the session goes on."""
    secrets = written(path, {"one": {"take": ["a/*"]}, "two": {"take": ["a/*"]}})
    async with site(path) as place:
        owner, rival = await place.peer(secrets["one"]), await place.peer(secrets["two"])
        assert (await owner.hello())[0] == "welcome"
        rival.seq = 100
        assert await rival.hello(OTHER) == ["forbidden"]
        assert rival.frames[-1]["message"] == "this instance belongs to another principal"
        assert place.reasons() == [("forbidden", "two", "")]
        assert (place.bridge.describe(OTHER), len(place.sessions)) == (None, 1)


@pytest.mark.parametrize("known", [True, False])
async def test_who_shows_no_ticket_is_told_what_is_missing(path: pathlib.Path, known: bool) -> None:
    """The key first, and of a worker of another make that has one the ticket."""
    secrets = written(path, {"worker": {"take": [QUEUE]}})
    async with site(path) as place:
        peer = await place.peer(secrets["worker"] if known else None, None)
        assert await peer.hello() == ["unauthenticated"]
        assert ("show the ticket" if known else "requires a key") in peer.frames[-1]["message"]
        assert place.listeners() == []


async def limited(path: pathlib.Path, place: Site, **limits: float) -> None:
    """Write these limits of ``worker``, and have the bridge see them."""
    given = {name: str(value) for name, value in limits.items()}
    access_file.change(path, lambda found: with_terms(found, "worker", {}, limits=given))
    place.watch.check()


async def test_hellos_and_frames_are_requests_of_their_principal(path: pathlib.Path) -> None:
    """Past the rate they are dropped and counted, the session stays, and its `bye` is heard at any time."""
    now = 1000.0
    secrets = written(path, {"worker": {"take": [QUEUE]}, "other": {"take": [QUEUE]}})
    async with site(path, clock=lambda: now) as place:
        await limited(path, place, requests_per_second=3)
        peer, more = await place.peer(secrets["worker"]), await place.peer(secrets["worker"], SECOND)
        assert (await peer.hello())[0] == "welcome"
        assert [await peer.beat(), await peer.say("strange")] == [["heartbeat"], []]
        assert await peer.beat() == ["too_many_requests"]
        assert peer.frames[-1]["retry_after_s"] == 1
        assert await peer.beat() == [], "told once a second"
        assert await more.hello() == ["too_many_requests"]
        assert place.reasons() == [("limit", "worker", "")] * 3
        assert (await (await place.peer(secrets["other"], "3" * 32)).hello())[0] == "welcome"
        now += 1
        assert await peer.beat() == ["heartbeat"]
        assert (await more.hello())[0] == "welcome"
        assert await more.beat() == ["heartbeat"]
        assert await more.beat() == []
        assert await peer.say("bye") == ["bye"]
        assert len(place.sessions) == 2


async def test_tokens_wait_for_their_issuer_one_check_each(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hello that is repeated waits for the same answer, of a flood the rest is told so, and none outlives the bus."""
    written(path, {"worker": {"take": [QUEUE]}})
    gate, asked = asyncio.Event(), 0

    async def identify_token(self: AccessWatch, token: str) -> Identity | None:
        nonlocal asked
        asked += 1
        await gate.wait()
        return self.identify("qb_" + "0" * 64) if token == "good.token" else None

    monkeypatch.setattr(AccessWatch, "identify_token", identify_token)
    async with site(path) as place:
        peer = await place.peer("good.token")
        assert await peer.hello() == await peer.hello() == []
        assert asked == 1
        for number in range(CHECKS_MAX):
            peer.broker.publish(
                ("queuebell", "hello"),
                msgspec.json.encode(
                    {"type": "hello", "instance": instance_of(f"{number}"), "ticket": f"{number}", "listener": "s",
                     "queues": [], "seq": 1, "credential": "bad.token", "version": 2}
                ),
            )  # fmt: skip
        await rest()
        assert asked == CHECKS_MAX
        late = await place.peer("good.token", SECOND)
        assert await late.hello() == ["too_many_requests"]
        assert (late.frames[-1]["message"], late.frames[-1]["retry_after_s"]) == (
            "too many tokens are being checked", FULL_RETRY_S,
        )  # fmt: skip
        gate.set()
        await rest()
        assert place.listeners() == ["peer"]
        assert [reason for reason, _, _ in place.reasons()] == ["unauthenticated"] * (CHECKS_MAX - 1)
        gate.clear()
        assert await (await place.peer("good.token", "3" * 32)).hello() == []
