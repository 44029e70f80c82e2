"""Who may do what over HTTP: every route asked with every verb, on queues that are granted and on others.

The table below is written by hand, and the routes of the server are held against it: a route that is added without a
verb, or with another one, is found here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import pathlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from bridge.contract.errors import ChannelLost, NotAllowed
from bridge.contract.wire import Hello, Subscription, Welcome, encode_frame
from bridge.core.grants import Verb
from bridge.core.keys import AccessList, without
from bridge.http.api.routes import Routes
from bridge.observe.facts import AccessRefused, Administered, Fact
from bridge.queues.http import HttpStore
from bridge.service.access import access_file
from bridge.service.access.watch import AccessWatch
from listeners import Listener, Message
from listeners.session.channels.base import Link
from listeners.session.channels.websocket import WebSocketChannel
from tests.support.access import NOW, listed, written
from tests.support.web import JSON, Served, serving

QUEUE = "/v1/queues/{queue}"
WANTED: dict[tuple[str, str], Verb | None] = {
    ("GET", "/livez"): None,
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/"): None,
    ("GET", "/page.js"): None,
    ("GET", "/login.js"): None,
    ("GET", "/told.js"): None,
    ("GET", "/parts.js"): None,
    ("GET", "/plots.js"): None,
    ("GET", "/picture.js"): None,
    ("GET", "/queues.js"): None,
    ("GET", "/queue.js"): None,
    ("GET", "/buried.js"): None,
    ("GET", "/listeners.js"): None,
    ("GET", "/bridge.js"): None,
    ("GET", "/v1/login"): None,
    ("POST", "/v1/login"): None,
    ("GET", "/page.css"): None,
    ("GET", "/icon.svg"): None,
    ("GET", "/metrics"): Verb.OPERATE,
    ("GET", "/v1/listeners"): Verb.OPERATE,
    ("GET", "/v1/findings"): Verb.OPERATE,
    ("GET", "/v1/cluster"): Verb.OPERATE,
    ("POST", QUEUE + "/forget"): Verb.OPERATE,
    ("POST", "/v1/triggers"): Verb.RING,
    ("POST", "/v1/triggers/{queue}"): Verb.RING,
    ("POST", QUEUE + "/messages"): Verb.PUT,
    ("PUT", QUEUE + "/messages/{id}"): Verb.PUT,
    ("GET", "/v1/sessions"): Verb.TAKE,
    ("POST", QUEUE + "/receive"): Verb.TAKE,
    ("POST", QUEUE + "/settle"): Verb.TAKE,
    ("GET", "/v1/queues"): Verb.LOOK,
    ("GET", QUEUE): Verb.LOOK,
    ("GET", QUEUE + "/explain"): Verb.LOOK,
    ("GET", QUEUE + "/peek"): Verb.LOOK,
    ("GET", "/v1/wakes"): Verb.LOOK,
    ("GET", "/v1/watch"): Verb.LOOK,
    ("GET", "/v1/watch/listeners"): Verb.OPERATE,
    ("GET", "/v1/watch/bridge"): Verb.OPERATE,
    ("GET", QUEUE + "/watch"): Verb.LOOK,
    ("GET", QUEUE + "/buried"): Verb.LOOK,
    ("POST", QUEUE + "/replay"): Verb.TAKE,
    ("POST", QUEUE + "/discard"): Verb.TAKE,
    ("PUT", QUEUE): Verb.MANAGE,
    ("DELETE", QUEUE): Verb.MANAGE,
    ("DELETE", QUEUE + "/messages"): Verb.MANAGE,
    ("POST", QUEUE + "/pause"): Verb.MANAGE,
    ("POST", QUEUE + "/resume"): Verb.MANAGE,
}
BODIES = {
    ("POST", "/v1/triggers"): b'{"storage_account":"%s","queue_name":"%s"}',
    ("POST", QUEUE + "/settle"): b'{"delete":[]}',
}
GRANTED, OTHER = "a/x", "a/y"


@pytest_asyncio.fixture
async def guarded(tmp_path: pathlib.Path) -> AsyncIterator[tuple[Served, dict[str, str], pathlib.Path]]:
    """A bridge that asks for keys: a principal for each verb, on one queue (the bridge, for operate)."""
    path = tmp_path / "access.json"
    secrets = written(path, {v.value: {v.value: ["*" if v is Verb.OPERATE else GRANTED]} for v in Verb})
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        yield served, secrets, path


def bearer(secret: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {secret}"}


def target_of(path: str, queue: str) -> str:
    """A path with its queue, and what else it cannot be without."""
    target = path.replace("{queue}", queue).replace("{id}", "k-1")
    return target + f"?queue={queue}" if path == "/v1/wakes" else target


def test_every_route_has_the_verb_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own table is this one, whole."""
    added: dict[tuple[str, str], Verb | None] = {}
    monkeypatch.setattr(Routes, "add", lambda self, method, path, verb, route: added.update({(method, path): verb}))

    async def serve() -> None:
        async with serving():
            pass

    asyncio.run(serve())
    assert added == WANTED


async def asked(served: Served, method: str, path: str, queue: str, headers: dict[str, str]) -> tuple[int, str]:
    """Return the status and the code of one request; an event stream is left once it has begun."""
    body = BODIES.get((method, path), b"{}" if method in ("POST", "PUT") and "messages" not in path else b"x")
    if b"%s" in body:
        body = body % tuple(part.encode() for part in queue.split("/"))
    media = "text/plain" if "messages" in path else JSON
    if path == "/v1/triggers/{queue}":
        body, media = b"", ""
    async with aiohttp.ClientSession() as client:
        url = served.server.url + target_of(path, queue)
        async with client.request(
            method, url, data=body if method in ("POST", "PUT") else None, headers={"Content-Type": media, **headers}
        ) as answer:
            if answer.content_type == "text/event-stream":
                return answer.status, ""
            raw = await answer.read()
            code = json.loads(raw).get("code", "") if answer.status >= 400 else ""
            return answer.status, code


@pytest.mark.parametrize(("method", "path"), list(WANTED), ids=[f"{method} {path}" for method, path in WANTED])
async def test_each_route_with_each_verb(
    method: str, path: str, guarded: tuple[Served, dict[str, str], pathlib.Path]
) -> None:
    """The matrix: who has the verb on the queue is served, everybody else is refused before anything is done.

    Each refusal is audited, and so is whatever manages queues or asks the bridge itself.
    """
    served, secrets, _ = guarded
    wanted = WANTED[method, path]
    of_queue = "{queue}" in path or path in ("/v1/triggers", "/v1/wakes")
    audited: list[Fact] = []
    served.bridge.observe(lambda fact: audited.append(fact) if isinstance(fact, AccessRefused | Administered) else None)

    def told() -> list[Fact]:
        facts = audited[:]
        audited.clear()
        return facts

    for verb, queue in itertools.product(Verb, (GRANTED, OTHER)):
        status, code = await asked(served, method, path, queue, bearer(secrets[verb.value]))
        named = queue if "{queue}" in path else ""
        if wanted is None or (verb is wanted and (queue == GRANTED or not of_queue or verb is Verb.OPERATE)):
            assert status not in (401, 403), (verb, queue, status, code)
            done = [Administered(verb.value, verb.value, named, "127.0.0.1", method)]
            assert told() == (done if wanted in (Verb.MANAGE, Verb.OPERATE) else [])
        else:
            assert (status, code) == (403, "forbidden"), (verb, queue)
            about = queue if verb is wanted else named
            assert told() == [AccessRefused("forbidden", verb.value, wanted.value, about, "127.0.0.1")]
    nobody = [{}, bearer("qb_" + "f" * 64), bearer(""), {"Authorization": f"Basic {secrets['put']}"}]
    for headers in nobody:
        status, code = await asked(served, method, path, GRANTED, headers)
        assert (wanted is None and status not in (401, 403)) or (status, code) == (401, "unauthenticated")
        named = GRANTED if "{queue}" in path else ""
        assert told() == (
            [] if wanted is None else [AccessRefused("unauthenticated", "", wanted.value, named, "127.0.0.1")]
        )
    assert await served.bridge.store.queues("", "", 10) in ([], [GRANTED], ["a/y"] if wanted is None else [GRANTED])


async def test_what_a_refusal_says(guarded: tuple[Served, dict[str, str], pathlib.Path]) -> None:
    """RFC 6750: a challenge, with an error only for who gave something; the detail says what to do."""
    served, secrets, _ = guarded
    nothing = await served.ask("GET", "/metrics")
    assert nothing.headers["www-authenticate"] == 'Bearer realm="queuebell"'
    assert "Authorization: Bearer qb_" in nothing.json["detail"]
    wrong = await served.ask("GET", "/metrics", Authorization="Bearer qb_1")
    assert wrong.headers["www-authenticate"] == 'Bearer realm="queuebell", error="invalid_token"'
    basic = await served.ask("GET", "/metrics", Authorization="Basic bWU6cWJfMQ==")
    assert (basic.headers["www-authenticate"], basic.json["detail"]) == (
        nothing.headers["www-authenticate"],
        nothing.json["detail"],
    ), "who proves itself in another way hears which one is meant"
    two = await served.ask_raw(
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\nAuthorization: Bearer x\r\n\r\n"
        % secrets["operate"].encode()
    )
    assert two.code == "unauthenticated"
    less = await served.ask("GET", "/metrics", Authorization=f"Bearer {secrets['put']}")
    assert (less.code, less.json["detail"]) == ("forbidden", "'operate' is not granted on any queue")
    assert "www-authenticate" not in less.headers
    right = await served.ask("GET", "/metrics", Authorization=f"bearer  {secrets['operate']}")
    assert b'queuebell_refusals_total{reason="unauthenticated"} 4.0' in right.body
    assert b'queuebell_refusals_total{reason="forbidden"} 1.0' in right.body


async def test_several_triggers_are_all_or_nothing(guarded: tuple[Served, dict[str, str], pathlib.Path]) -> None:
    """One that is not granted refuses them all, and nothing was marked."""
    served, secrets, _ = guarded
    events = [{"storage_account": "a", "queue_name": name} for name in ("x", "y")]
    answer = await served.ask(
        "POST", "/v1/triggers", json.dumps(events).encode(), media=JSON, Authorization=f"Bearer {secrets['ring']}"
    )
    assert answer.code == "forbidden"
    assert served.bridge.describe(GRANTED) is None


async def test_a_list_names_only_what_may_be_seen(tmp_path: pathlib.Path) -> None:
    """Pages are of those too, and the place where a page ends tells of no other queue."""
    path = tmp_path / "access.json"
    secrets = written(path, {"one": {"look": ["b/*", "a/q7"]}, "all": {"look": ["*"]}, "none": {"put": ["*"]}})
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        names = [f"{account}/q{number}" for account in "abc" for number in range(10)]
        for name in names:
            await served.bridge.store.create(name)
        for who, seen in (("one", ["a/q7", *(n for n in names if n.startswith("b/"))]), ("all", names)):
            found: list[str] = []
            after: str | None = ""
            while after is not None:
                page = await served.ask(
                    "GET", f"/v1/queues?limit=4&after={after}", Authorization=f"Bearer {secrets[who]}"
                )
                assert len(page.json["queues"]) == 4 or page.json["next"] is None
                found += page.json["queues"]
                after = page.json["next"]
                assert after is None or after == found[-1]
            assert found == seen
        assert (await served.ask("GET", "/v1/queues", Authorization=f"Bearer {secrets['none']}")).code == "forbidden"


@contextlib.asynccontextmanager
async def session(served: Served, secret: str, listener: str = "one") -> AsyncIterator[Link]:
    """A listener's session on the granted queue, welcomed."""
    channel = WebSocketChannel(served.server.url, api_key=secret)
    link = await channel.connect()
    try:
        link.send(Hello("a" * 32, listener, [Subscription(GRANTED, 4)]))
        assert isinstance(await link.receive(), Welcome)
        yield link
    finally:
        await link.close()
        await channel.close()


async def lost(link: Link) -> str:
    """Wait for the end of a session, and return why."""
    async with asyncio.timeout(100):
        while True:
            try:
                await link.receive()
            except ChannelLost as error:
                return str(error)


def hello(*queues: str, instance: str = "a" * 32) -> str:
    """A hello for these queues."""
    return encode_frame(Hello(instance, "one", [Subscription(queue, 4) for queue in queues])).decode()


async def test_a_session_has_only_what_it_may_take(guarded: tuple[Served, dict[str, str], pathlib.Path]) -> None:
    """A queue more in the hello, also in a later one, ends the session with 4403, and nothing was subscribed."""
    served, secrets, _ = guarded
    async with aiohttp.ClientSession(headers=bearer(secrets["take"])) as client:
        for first in ([hello(GRANTED, OTHER)], [hello(GRANTED), hello(OTHER)]):
            async with client.ws_connect(f"{served.server.url}/v1/sessions", protocols=("queuebell.v1",)) as session:
                for frame in first:
                    await session.send_str(frame)
                told = [message.data async for message in session]
                assert session.close_code == 4403
                assert json.loads(told[-1])["code"] == "forbidden"
                assert json.loads(told[0])["type"] == ("welcome" if len(first) == 2 else "error")
    assert served.bridge.listeners() == []
    for wrong in (secrets["put"], "qb_x"):
        channel = WebSocketChannel(served.server.url, api_key=wrong)
        with pytest.raises(ChannelLost, match=r"the key does not grant 'take'|the bridge knows no such key"):
            await channel.connect()
        await channel.close()


async def test_nobody_takes_over_the_session_of_another(tmp_path: pathlib.Path) -> None:
    """An instance is a principal's own: the same name under another key is another session (S20)."""
    path = tmp_path / "access.json"
    secrets = written(path, {"one": {"take": ["a/*"]}, "two": {"take": ["a/*"]}})
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        async with session(served, secrets["one"], "one"), session(served, secrets["two"], "two"):
            assert sorted(row.listener for row in served.bridge.listeners()) == ["one", "two"]
            async with session(served, secrets["two"], "three"):
                assert sorted(row.listener for row in served.bridge.listeners()) == ["one", "three"]


async def test_a_key_that_is_revoked_ends_what_it_opened(
    guarded: tuple[Served, dict[str, str], pathlib.Path],
) -> None:
    """The session with 4401, the stream as any other that ends; those of others go on, and no request is taken."""
    served, secrets, path = guarded
    stream_url = f"{served.server.url}/v1/wakes?queue={GRANTED}"
    async with session(served, secrets["take"]) as link, aiohttp.ClientSession() as client:
        async with client.get(stream_url, headers=bearer(secrets["look"])) as stream:
            access_file.change(path, lambda found: without(found, "take")[0])
            assert "knows no such key" in await lost(link)
            assert (await asked(served, "POST", QUEUE + "/receive", GRANTED, bearer(secrets["take"])))[0] == 401
            status, _ = await asked(served, "POST", "/v1/triggers/{queue}", GRANTED, bearer(secrets["ring"]))
            assert status == 202
            await stream.content.readuntil(b"event: wake\n")
            access_file.change(path, lambda found: without(found, "look")[0])
            async with asyncio.timeout(100):
                await stream.content.read()


async def test_a_grant_that_is_taken_away_ends_the_session(
    guarded: tuple[Served, dict[str, str], pathlib.Path],
) -> None:
    """With 4403: the key stays, and what it was opened for is not granted any more."""
    served, secrets, path = guarded

    def less(found: AccessList) -> AccessList:
        found.principals["take"] = {"take": ["b/x"]}
        return found

    async with session(served, secrets["take"]) as link:
        access_file.change(path, less)
        assert "does not grant 'take'" in await lost(link)
    assert (await asked(served, "POST", QUEUE + "/receive", GRANTED, bearer(secrets["take"])))[0] == 403


async def test_a_session_that_is_closing_is_given_no_work(tmp_path: pathlib.Path) -> None:
    """A peer that takes its time to answer the close, or never does, is chosen for nothing meanwhile."""
    path = tmp_path / "access.json"
    secrets = written(path, {"take": {"take": [GRANTED]}})
    async with AccessWatch(path) as watch, serving(access=watch) as served, session(served, secrets["take"]) as link:
        access_file.change(path, lambda found: without(found, "take")[0])
        watch.look()
        # Not a turn of the loop later: its peer has heard nothing yet.
        assert served.bridge.listeners() == []
        assert "knows no such key" in await lost(link)


async def test_a_worker_and_a_producer_with_keys(tmp_path: pathlib.Path) -> None:
    """The whole way: put, wake, handle, and a burial in the poison queue, each with what it is granted and no more."""
    path = tmp_path / "access.json"
    secrets = written(path, {"worker": {"take": [GRANTED]}, "producer": {"put": [GRANTED]}})
    handled: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message: Message) -> None:
        await handled.put(message.text())
        if message.text() == "bad":
            raise ValueError("bad")

    async with AccessWatch(path) as watch, serving(access=watch) as served:
        worker = Listener(served.server.url, GRANTED, handle, api_key=lambda: secrets["worker"], max_attempts=1)
        running = asyncio.create_task(worker.run(), name="worker")
        store = HttpStore(served.server.url, api_key=secrets["producer"])
        await store.put(GRANTED, [b"good"])
        assert await handled.get() == "good"
        await store.put(GRANTED, [b"bad"])
        assert await handled.get() == "bad"
        with pytest.raises(NotAllowed, match="'put' is not granted on a/y") as refused:
            await store.put(OTHER, [b"x"])
        assert refused.value.code == "forbidden"
        with pytest.raises(NotAllowed):
            await store.receive(GRANTED, 1, 30.0)
        while not await served.bridge.store.depth(f"{GRANTED}-poison"):
            await asyncio.sleep(0.01)
        await worker.stop()
        await running
        await store.close()


async def test_keys_expire_while_a_session_is_open(tmp_path: pathlib.Path) -> None:
    """At the moment that was said, by the bridge's clock."""
    path = tmp_path / "access.json"
    found, secrets = listed({"p": {"take": [GRANTED]}}, expires_at=NOW + 60)
    access_file.change(path, lambda _: found)
    now = NOW
    async with AccessWatch(path, wall=lambda: now) as watch, serving(access=watch) as served:
        async with session(served, secrets["p"]) as link:
            now = NOW + 60
            assert await lost(link)


async def test_what_was_buried_is_told_to_whom_the_poison_queue_is_granted(tmp_path: pathlib.Path) -> None:
    """Anybody else reads that nothing is granted there, and no number."""
    path = tmp_path / "access.json"
    secrets = written(path, {"clerk": {"look": ["a/x"]}, "undertaker": {"look": ["a/x", "a/x-poison"]}})
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        for queue in ("a/x", "a/x-poison"):
            await served.bridge.store.put(queue, ["1"])
        for name, buried in (("clerk", None), ("undertaker", 1)):
            answer = await served.ask("GET", "/v1/queues/a/x", Authorization=f"Bearer {secrets[name]}")
            assert (answer.status, answer.json["buried"]) == (200, buried)
            assert ("buried" in answer.json["untold"]) is (buried is None)
