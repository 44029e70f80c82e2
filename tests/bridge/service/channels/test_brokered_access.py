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
import json
import logging
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bridge.brokers.base import Incoming
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.framing import LAST_COUNT, instance_of, seq_of
from bridge.contract.wire import DownFrame, Hello, Subscription, decode_down
from bridge.core.grants import Verb
from bridge.core.jwks import Mistimed, mistimed
from bridge.core.keys import AccessList, Identity, new_key, with_terms, without
from bridge.observe.facts import AccessRefused, Fact
from bridge.service.access import access_file
from bridge.service.access.watch import AccessWatch
from bridge.service.announcing import Announcer
from bridge.service.bridge import Bridge
from bridge.service.channels.brokered import CHECKS_MAX, FULL_RETRY_S, BrokeredSessions
from bridge.triggers.attachment import Attachment
from tests.support.access import NOW, listed, written
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
        return await self.say("hello", **{**said, **more})

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
            assert not watch.leaves, "what has ended is not watched any more"


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where the access file is."""
    return tmp_path / "access.json"


PATTERNS: dict[str, dict[str, bool]] = {
    "*": {"a/x": True, "a/y": True, "b/x": True, "a/orders-p1": True},
    "a/*": {"a/x": True, "a/y": True, "b/x": False, "a/orders-p1": True},
    "a/x": {"a/x": True, "a/y": False, "b/x": False, "a/orders-p1": False},
    "a/orders:2": {"a/x": False, "a/orders-p1": True, "a/orders-p2": False, "a/orders": False},
}


@pytest.mark.parametrize("kind", ["nats", "mqtt"])
async def test_the_matrix(kind: str, path: pathlib.Path) -> None:
    """Only `take`, and only on what its pattern covers, begins a session; every other verb is refused."""
    principals = {
        f"p{number}": {verb.value: [pattern]}
        for number, (verb, pattern) in enumerate((verb, pattern) for verb in Verb for pattern in PATTERNS)
        if verb is not Verb.OPERATE or pattern == "*"
    }
    secrets = written(path, principals)
    async with site(path, kind) as place:
        for number, (name, grants) in enumerate(principals.items()):
            ((verb, (pattern,)),) = grants.items()
            for turn, (queue, covered) in enumerate(PATTERNS[pattern].items()):
                peer = await place.peer(secrets[name], f"{number * 10 + turn:032x}")
                told = await peer.hello(queue)
                if verb == "take" and covered:
                    assert told[:1] == ["welcome"], (verb, pattern, queue)
                    assert place.reasons() == []
                    assert await peer.say("bye") == ["bye"]
                else:
                    assert told == ["forbidden"], (verb, pattern, queue)
                    ((reason, who, about),) = place.reasons()
                    assert (reason, who) == ("forbidden", name)
                    assert about == queue
        assert place.listeners() == []


@pytest.mark.parametrize("kind", ["nats", "mqtt"])
@pytest.mark.parametrize("secret", [None, "", "qb_", "qb_" + "f" * 64, "x" * 9000, "a.b.c", "é"])
async def test_who_proves_nothing(secret: str | None, kind: str, path: pathlib.Path) -> None:
    """An error that says what to do, no session, one fact, and nothing of what was given in any of them."""
    written(path, {"worker": {"take": ["*"]}})
    async with site(path, kind) as place:
        peer = await place.peer(secret)
        assert await peer.hello() == ["unauthenticated"]
        words = peer.frames[-1]["message"]
        assert ("api_key" in words) if not secret else ("not known here" in words)
        assert place.reasons() == [("unauthenticated", "", "")]
        assert len(place.sessions) == 0
        assert place.listeners() == []
        assert await peer.beat() == [], "told once a second"
        assert place.reasons() == [("unauthenticated", "", "")]


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
            (each.queue, each.listener, each.code, each.why) for each in place.bridge.bell.rejections.recent(0.0)
        ] == [(QUEUE, "peer", "forbidden", words), (OTHER, "peer", "forbidden", words)]
        assert {each.queue for each in place.bridge.bell.rejections.recent(place.bridge.now())} == {QUEUE, OTHER}
        assert "'take' is not granted on a/y" in peer.frames[-2]["message"]
        assert (await peer.hello(QUEUE))[0] == "welcome", "with what it may, it comes back"
        assert [reason for reason, _, _ in place.reasons()] == ["forbidden", "forbidden"]


@pytest.mark.parametrize("how", ["revoked", "less", "expired"])
@pytest.mark.parametrize("kind", ["nats", "mqtt"])
async def test_what_ends_with_its_key(how: str, kind: str, path: pathlib.Path) -> None:
    """The session, with an error that says why; one of another key goes on, and hears no more of it."""
    now = NOW
    found, secrets = listed({"worker": {"take": [QUEUE]}}, expires_at=NOW + 60)
    more, others = new_key(found, "other", {"take": [QUEUE]}, chance=b"\x09" * 32, now=NOW)
    access_file.change(path, lambda _: more)
    async with site(path, kind, wall=lambda: now) as place:
        peer, bystander = await place.peer(secrets["worker"]), await place.peer(others, SECOND)
        assert (await peer.hello())[0] == (await bystander.hello())[0] == "welcome"
        before = len(bystander.frames)
        if how == "revoked":
            access_file.change(path, lambda found: without(found, "worker")[0])
        elif how == "less":
            access_file.change(path, _less)
        else:
            now = NOW + 60
        place.watch.look()
        await rest()
        code = "forbidden" if how == "less" else "unauthenticated"
        assert [frame.get("code", frame["type"]) for frame in peer.frames[-2:]] == [code, "bye"]
        assert ("less is granted" if how == "less" else "revoked or has expired") in peer.frames[-2]["message"]
        assert len(place.bridge.listeners()) == 1
        assert len(bystander.frames) == before
        assert await bystander.beat() == ["heartbeat"]
        again = await peer.hello(instance=ONE)
        assert again in (["forbidden"], ["unauthenticated"], []), "its error was said a moment ago, or is said now"
        assert len(place.bridge.listeners()) == 1


def _less(found: AccessList) -> AccessList:
    found.principals["worker"] = {"take": [OTHER]}
    return found


@pytest.mark.parametrize("principal", ["one", "two"])
@pytest.mark.parametrize("ticket", [SECOND, None], ids=["its own ticket", "no ticket"])
async def test_nobody_takes_over_the_session_of_another(path: pathlib.Path, ticket: str | None, principal: str) -> None:
    """By its instance, with a good key, also before its owner is back: who drew the instance is who has its ticket."""
    secrets = written(path, {"one": {"take": ["a/*"]}, "two": {"take": ["a/*"]}})
    async with site(path) as place:
        owner, thief = await place.peer(secrets["one"]), await place.peer(secrets[principal], ticket, ONE)
        thief.seq = 100
        assert await thief.hello(OTHER) == ([] if ticket else ["unauthenticated"])
        assert await thief.beat() == [] and place.listeners() == []
        assert place.reasons() == [("unauthenticated", "", "")] * 2
        assert (await owner.hello())[0] == "welcome"
        before = len(owner.frames)
        for _ in range(2):
            await thief.hello(OTHER)
        assert place.reasons() == [("unauthenticated", "", "")] * 2
        assert len(owner.frames) == before, "it hears nothing of it"
        assert await owner.beat() == ["heartbeat"]
        assert place.bridge.describe(OTHER) is None
        assert len(place.bridge.listeners()) == 1


async def test_a_session_stays_its_principals_also_with_its_ticket(path: pathlib.Path) -> None:
    """Whoever has learnt a ticket and has a key of their own is told so, and the session goes on."""
    secrets = written(path, {"one": {"take": ["a/*"]}, "two": {"take": ["a/*"]}})
    async with site(path) as place:
        owner, rival = await place.peer(secrets["one"]), await place.peer(secrets["two"])
        assert (await owner.hello())[0] == "welcome"
        rival.seq = 100
        assert await rival.hello(OTHER) == ["forbidden"]
        assert rival.frames[-1]["message"] == "the session of this instance is another's"
        assert place.reasons() == [("forbidden", "two", "")]
        assert (place.bridge.describe(OTHER), len(place.sessions)) == (None, 1)


@pytest.mark.parametrize(
    "forged",
    [
        {"type": "bye"},
        {"type": "bye", "seq": seq_of(0, LAST_COUNT)},
        {"type": "cover", "queue": QUEUE, "boot": "BOOT", "gen": 1, "age_ms": 0},
        {"type": "heartbeat", "stamp": 1, "to": "f" * 32},
        {"type": "heartbeat", "stamp": "wrong"},
        {"type": "hello", "listener": "thief", "queues": []},
        {"type": "hello", "listener": 7, "queues": []},
        {"type": "bye", "ticket": "8" * 32},
        {"type": "bye", "ticket": "é"},
        {"type": "bye", "ticket": 7},
        "no json",
    ],
    ids=str,
)
async def test_who_has_heard_an_instance_cannot_speak_for_it(forged: Any, path: pathlib.Path) -> None:
    """A frame without the ticket is counted: the session stays, believes nothing of it, and its owner hears nothing."""
    secrets = written(path, {"worker": {"take": [QUEUE]}})
    async with site(path) as place:
        await place.bridge.store.put(QUEUE, [b"x"])
        peer = await place.peer(secrets["worker"])
        assert (await peer.hello())[:2] == ["welcome", "wake"]
        before = len(peer.frames)
        if isinstance(forged, dict):
            frame = {"instance": ONE, "seq": 1000, **forged}
            raw = msgspec.json.encode(frame).replace(b"BOOT", place.bridge.boot.encode())
        else:
            raw = forged.encode()
        hello = isinstance(forged, dict) and forged["type"] == "hello"
        stranger = await place.peer(None, SECOND)
        stranger.broker.publish(("queuebell", "hello") if hello else ("queuebell", "session", ONE, "up"), raw)
        await rest()
        assert len(peer.frames) == before
        assert place.reasons() == [("unauthenticated", "", "")]
        assert place.listeners() == ["peer"]
        state = place.bridge.describe(QUEUE)
        assert state is not None
        assert state.dirty
        assert await peer.beat() == ["heartbeat"], "and its own next frame is no stale one"


@pytest.mark.parametrize("seated", [False, True], ids=["stranger", "holder of another session"])
async def test_a_frame_on_another_topic_does_not_end_a_session(seated: bool, path: pathlib.Path) -> None:
    """It may name any instance, and say that it is for another bridge: only what it came on is its sender's own."""
    secrets = written(path, {"worker": {"take": [QUEUE]}, "thief": {"take": [OTHER]}})
    async with site(path) as place:
        peer = await place.peer(secrets["worker"])
        assert (await peer.hello())[0] == "welcome"
        thief = await place.peer(secrets["thief"], SECOND)
        if seated:
            assert (await thief.hello(OTHER))[0] == "welcome"
        before = len(peer.frames)
        await thief.say("heartbeat", stamp=1, instance=ONE, seq=1000, to="f" * 32)
        assert len(peer.frames) == before, "nor does its owner hear of it"
        assert await peer.beat() == ["heartbeat"]
        assert len(place.bridge.listeners()) == 1 + seated


@pytest.mark.parametrize("known", [True, False])
async def test_who_shows_no_ticket_is_told_what_is_missing(path: pathlib.Path, known: bool) -> None:
    """The key first, and of a worker of another make that has one the ticket."""
    secrets = written(path, {"worker": {"take": [QUEUE]}})
    async with site(path) as place:
        peer = await place.peer(secrets["worker"] if known else None, None)
        assert await peer.hello() == ["unauthenticated"]
        assert ("show the ticket" if known else "asks for a key") in peer.frames[-1]["message"]
        assert place.listeners() == []


class Elsewhere:
    """The bridge's end of a session that came another way."""

    kind = "websocket"
    closed = False

    def writable(self) -> bool:
        return True

    def send(self, frame: DownFrame) -> None:
        pass

    def close(self, code: int, reason: str) -> None:
        self.closed = True


async def test_an_instance_is_a_principals_own_whichever_way_it_came(path: pathlib.Path) -> None:
    """Over a broker nobody replaces what another said hello as over HTTP; its own session it does."""
    secrets = written(path, {"worker": {"take": [QUEUE]}})
    async with site(path) as place:
        mine = place.watch.identify(secrets["worker"])
        assert mine is not None
        leave = place.watch.leave(mine, Verb.TAKE, lambda _: None)
        others, own = Elsewhere(), Elsewhere()
        for outlet, instance in ((others, ONE), (own, leave.instance(ONE))):
            place.bridge.connect(outlet).feed(Hello(instance, "http", [Subscription(QUEUE, 1)]))
        leave.close()
        peer = await place.peer(secrets["worker"])
        assert (await peer.hello())[0] == "welcome"
        assert (others.closed, own.closed) == (False, True)


async def test_a_hello_again_changes_the_session_there_is(path: pathlib.Path) -> None:
    """It is watched once; a hello for nothing at all needs the verb, too."""
    secrets = written(path, {"worker": {"take": ["a/*"]}, "putter": {"put": ["*"]}})
    async with site(path) as place:
        peer = await place.peer(secrets["worker"])
        for queues in ((QUEUE,), (QUEUE, OTHER), (OTHER,)):
            assert (await peer.hello(*queues))[0] == "welcome"
            assert [each.queues for each in place.watch.leaves] == [frozenset(queues)]
        assert await (await place.peer(secrets["putter"], SECOND)).hello(queues=[]) == ["forbidden"]
        assert place.reasons() == [("forbidden", "putter", "")]


async def test_a_frame_without_a_session_is_counted(path: pathlib.Path) -> None:
    """As after a restart: it is told to say hello, and does."""
    secrets = written(path, {"worker": {"take": [QUEUE]}})
    async with site(path) as place:
        peer = await place.peer(secrets["worker"])
        assert await peer.beat() == ["unknown_session"]
        assert place.reasons() == [("unauthenticated", "", "")]
        assert (await peer.hello())[0] == "welcome"


async def test_a_wake_over_a_broker_carries_no_message(path: pathlib.Path) -> None:
    """Though the listener takes them; and the secret is in nothing that the bridge says."""
    secrets = written(path, {"worker": {"take": [QUEUE]}})
    async with site(path) as place:
        await place.bridge.store.create(QUEUE)
        peer = await place.peer(secrets["worker"])
        assert (await peer.hello())[0] == "welcome"
        await place.bridge.store.put(QUEUE, [b"private"])
        await rest()
        (wake,) = [frame for frame in peer.frames if frame["type"] == "wake"]
        assert wake.get("messages") is None
        down = b"".join(payload for topic, payload in place.server.log if topic[-1] == "down")
        assert secrets["worker"].encode() not in down
        assert TICKET.encode() not in down
        assert secrets["worker"] not in str(place.bridge.listeners())


async def limited(path: pathlib.Path, place: Site, **limits: float) -> None:
    """Write these limits of ``worker``, and have the bridge see them."""
    given = {name: str(value) for name, value in limits.items()}
    access_file.change(path, lambda found: with_terms(found, "worker", {}, limits=given))
    place.watch.look()


@pytest.mark.parametrize("kind", ["nats", "mqtt"])
@pytest.mark.parametrize("end", ["bye", "will", "wrong", "revoked", "elsewhere"])
async def test_sessions_are_connections_of_their_principal(end: str, kind: str, path: pathlib.Path) -> None:
    """With those over HTTP; one that ends, however, makes room, and a hello again is none more."""
    secrets = written(path, {"worker": {"take": ["a/*"]}, "other": {"take": ["a/*"]}})
    async with site(path, kind) as place:
        worker = place.watch.principal("worker")
        assert worker is not None
        await limited(path, place, connections=2)
        elsewhere = place.watch.connect(place.watch.principal("worker") or worker)
        first, second = await place.peer(secrets["worker"]), await place.peer(secrets["worker"], SECOND)
        assert (await first.hello())[0] == "welcome"
        assert (await first.hello(QUEUE, OTHER))[0] == "welcome"
        assert await second.hello() == ["too_many_requests"]
        assert second.frames[-1]["retry_after_s"] == 5
        assert "at most 2 sessions and streams" in second.frames[-1]["message"]
        assert place.reasons() == [("limit", "worker", "")]
        assert (await (await place.peer(secrets["other"], "3" * 32)).hello())[0] == "welcome"
        if end == "bye":
            assert await first.say("bye") == ["bye"]
        elif end == "will":
            await first.say("bye", seq=seq_of(0, LAST_COUNT))
        elif end == "wrong":
            assert await first.say("heartbeat", stamp="wrong") == ["bad_parameter"]
        elif end == "revoked":
            access_file.change(path, _less)
            place.watch.look()
            access_file.change(path, _more)
            place.watch.look()
        else:
            elsewhere()
        assert (await second.hello())[0] == "welcome"
        if end != "elsewhere":
            elsewhere()
        assert place.watch.allowance(worker).connections == (2 if end == "elsewhere" else 1)


def _more(found: AccessList) -> AccessList:
    found.principals["worker"] = {"take": ["a/*"]}
    return found


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
                     "queues": [], "seq": 1, "credential": "bad.token"}
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


async def test_a_token_of_another_time_is_told_so(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds one hears by how much, and so does the log; it begins no session."""
    written(path, {"worker": {"take": [QUEUE]}})
    words = mistimed({"exp": NOW - 3600}, NOW)

    async def identify_token(self: AccessWatch, token: str) -> Identity | None:
        raise Mistimed(words)

    monkeypatch.setattr(AccessWatch, "identify_token", identify_token)
    async with site(path) as place:
        peer = await place.peer("old.token")
        assert await peer.hello() == ["unauthenticated"]
        assert peer.frames[-1]["message"] == words
        assert [each.why for each in place.refused] == [words]
        assert place.listeners() == []


_odd = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=12), st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(["SECRET", "qb_" + "f" * 64, "SECRET ", "secret", TICKET, "7" * 31, TICKET + "\0", "7" * 9000]),
)  # fmt: skip
_frames = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["hello", "hello", "heartbeat", "bye", "cover", "more", "started"]) | _odd,
        "instance": st.sampled_from([ONE, TWO]) | _odd,
        "listener": st.just("peer") | _odd,
        "queues": st.just([{"queue": QUEUE, "capacity": 8, "own": True}]) | _odd,
        "credential": _odd,
        "ticket": _odd,
        "seq": st.integers(1, 1 << 40) | _odd,
        "to": st.none() | _odd,
    }
)
_payloads = st.tuples(_frames, st.integers(0, 400), st.binary(max_size=4), st.booleans())


@pytest.mark.parametrize("held", [False, True])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([({"type": "hello", "instance": TWO, "queues": [], "seq": 1, "credential": "\udcff\ud800"}, 999, b"", True)])
@example([({"type": "bye", "instance": ONE, "seq": 1 << 50, "ticket": "\u00e9"}, 999, b"", True)])
@given(st.lists(_payloads, min_size=3, max_size=8))
def test_whatever_a_hello_shows(
    path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    held: bool,
    payloads: list[tuple[dict[str, Any], int, bytes, bool]],
) -> None:
    """A session is whose credential proves it, and goes on whatever is said without its ticket; nothing is repeated."""
    secret = written(path, {"worker": {"take": [QUEUE]}})["worker"]

    async def run() -> None:
        async with site(path) as place:
            owner = await place.peer(secret)
            if held:
                assert (await owner.hello())[0] == "welcome"
                begun = place.sessions._outlets[ONE].session
            stranger = await place.peer(None, SECOND)
            proven = held
            for frame, at, noise, on_hello in payloads:
                shown = {name: secret if value == "SECRET" else value for name, value in frame.items()}
                forged = held and shown.get("ticket") == TICKET
                raw = json.dumps({name: value for name, value in shown.items() if value is not None}).encode()
                raw = raw[:at] + noise + raw[at:]
                instance = ONE if frame.get("instance") == ONE else TWO
                topic = ("queuebell", "hello") if on_hello else ("queuebell", "session", instance, "up")
                if not forged:
                    stranger.broker.publish(topic, raw)
                    await rest()
                    proven = proven or secret.encode() in raw
            if held:
                assert place.sessions._outlets[ONE].session is begun, "nobody without its ticket ends it"
            assert proven or place.listeners() == []
            down = str(owner.frames + stranger.frames)
            assert secret not in down and TICKET not in down
            assert not [each for each in place.refused if secret in str(each) or TICKET in str(each)]

    asyncio.run(run())
    assert secret not in caplog.text and TICKET not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
    caplog.clear()


@pytest.mark.parametrize("kind", ["nats", "mqtt"])
async def test_triggers_and_wakes_are_for_brokers_that_are_trusted(
    kind: str, path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused, counted and not acknowledged; nothing of a queue is published, and one line at the start says so."""
    written(path, {"worker": {"take": [QUEUE]}})
    with caplog.at_level(logging.WARNING, "queuebell"):
        async with site(path, kind) as place:
            assert [record.message for record in caplog.records if "trust_brokers" in record.message]
            place.server.deliver(("queuebell", "trigger", "a", "x"), b"", qos=True)
            await rest()
            assert place.reasons() == [("unauthenticated", "", QUEUE)]
            assert place.bridge.describe(QUEUE) is None
            assert sum(each.acknowledgements for each in place.server.connections) == 0
            await place.bridge.store.put(OTHER, [b"x"])
            place.bridge.trigger([CloudQueueWorkDetected("a", "z")], bus="http")
            await rest()
            assert sum(topic[1] == "trigger" for topic, _ in place.server.log) == 1, (
                "what came by HTTP is not told here"
            )
            assert [topic for topic, _ in place.server.log if topic[1] == "wake"] == []
    caplog.clear()
    async with site(path, kind, trusted=True) as place:
        place.server.deliver(("queuebell", "trigger", "a", "x"), b"", qos=True)
        await rest()
        state = place.bridge.describe(QUEUE)
        assert state is not None
        assert state.dirty
        assert place.reasons() == []
        assert [topic for topic, _ in place.server.log if topic[1] == "wake"] == [("queuebell", "wake", "a", "x")]
        assert not caplog.records
