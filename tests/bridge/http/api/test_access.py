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
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.keys import AccessList, new_key, with_terms, without
from queuebell.bridge.contract.wire import SUBPROTOCOL, Hello, Subscription, Welcome, encode_frame
from queuebell.bridge.http.server.tls import Certificates
from queuebell.bridge.observe.facts import AccessRefused, Administered, Fact
from queuebell.listeners.session.channel import Link
from queuebell.listeners.session.websocket import WebSocketChannel
from tests.support.access import NOW, secret_of, written
from tests.support.certificates import write_self_signed
from tests.support.web import JSON, Served, request, serving

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
    # Asks for a key, and for no grant: each call and session has its own.
    ("GET", "/v1/sessions"): None,
    ("POST", QUEUE + "/receive"): Verb.TAKE,
    ("POST", QUEUE + "/settle"): Verb.TAKE,
    ("GET", "/v1/queues"): Verb.LOOK,
    ("GET", QUEUE): Verb.LOOK,
    ("GET", QUEUE + "/explain"): Verb.LOOK,
    ("GET", QUEUE + "/peek"): Verb.LOOK,
    ("GET", QUEUE + "/messages/{id}"): Verb.LOOK,
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
        known = path == "/v1/sessions"
        open_to_all = wanted is None and not known
        assert (open_to_all and status not in (401, 403)) or (status, code) == (401, "unauthenticated")
        named = GRANTED if "{queue}" in path else ""
        verb_told = "connect" if wanted is None else wanted.value
        refused = AccessRefused("unauthenticated", "", verb_told, named, "127.0.0.1")
        assert told() == ([] if open_to_all else [refused])
    assert await served.bridge.store.queues("", "", 10) in ([], [GRANTED], ["a/y"] if wanted is None else [GRANTED])


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


def hello(*queues: str, instance: str = "a" * 32) -> str:
    """A hello for these queues."""
    return encode_frame(Hello(instance, "one", [Subscription(queue, 4) for queue in queues])).decode()


async def test_nobody_takes_over_the_session_of_another(tmp_path: pathlib.Path) -> None:
    """An instance is a principal's own: the same name under another key is another session (S20)."""
    path = tmp_path / "access.json"
    secrets = written(path, {"one": {"take": ["a/*"]}, "two": {"take": ["a/*"]}})
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        async with session(served, secrets["one"], "one"), session(served, secrets["two"], "two"):
            assert sorted(row.listener for row in served.bridge.listeners()) == ["one", "two"]
            async with session(served, secrets["two"], "three"):
                assert sorted(row.listener for row in served.bridge.listeners()) == ["one", "three"]


GRANTS = {"producer": {"put": ["a/x"], "ring": ["a/x"]}, "worker": {"take": ["a/x"]}}


@pytest_asyncio.fixture
async def guarded_access_attacks(tmp_path: pathlib.Path) -> AsyncIterator[tuple[Served, dict[str, str], pathlib.Path]]:
    """A bridge that asks for keys."""
    path = tmp_path / "access.json"
    secrets = written(path, GRANTS)
    async with AccessWatch(path) as watch, serving(access=watch) as served:
        yield served, secrets, path


def bearer_access_attacks(secret: str) -> dict[str, Any]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {secret}"}


async def test_the_key_stands_in_no_answer_log_or_metric(
    guarded_access_attacks: tuple[Served, dict[str, str], pathlib.Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither one that is granted nor one that is wrong; no address of a request is written to the log (S17)."""
    served, secrets, _ = guarded_access_attacks
    canary = "qb_" + "c" * 64
    caplog.set_level("DEBUG")
    for secret in (canary, secrets["worker"]):
        for target in ("/metrics", f"/metrics?access_token={secret}", "/v1/queues/a/x"):
            answer = await served.ask("GET", target, **bearer_access_attacks(secret))
            assert secret.encode() not in answer.body
    metrics = served.bridge.metrics.render()
    for secret in (canary, secrets["worker"]):
        assert secret not in caplog.text
        assert secret.encode() not in metrics


@pytest.mark.parametrize("clients_show_one", [False, True])
async def test_who_never_ends_a_handshake_takes_a_quarter(clients_show_one: bool, tmp_path: pathlib.Path) -> None:
    """Connections that say nothing before TLS stands are counted and bounded; whoever speaks is served beside them."""
    cert, key = write_self_signed(tmp_path)
    certificates = Certificates(str(cert), str(key), "tls", str(cert) if clients_show_one else None)
    async with serving(tls=certificates.current, connections=40) as served:
        silent = [await asyncio.open_connection("127.0.0.1", served.server.port) for _ in range(30)]
        try:
            async with asyncio.timeout(100):
                turned_away = [reader for reader, _ in silent[10:]]
                for reader in turned_away:
                    try:
                        assert await reader.read() == b""
                    except ConnectionError:
                        pass
        finally:
            for _, writer in silent:
                writer.close()
        trusting = ssl.create_default_context(cafile=str(cert))
        async with asyncio.timeout(100):
            while True:
                try:
                    async with served.client(ssl=trusting) as client:
                        await client.send(request("GET", "/livez"))
                        assert (await client.reply()).status == 200
                        break
                except (ConnectionError, ssl.SSLError):
                    await asyncio.sleep(0.01)


WAYS: dict[str, tuple[str, str, bytes, str]] = {
    "put": ("POST", "/v1/queues/a/x/messages", b"x", "text/plain"),
    "put once": ("PUT", "/v1/queues/a/x/messages/k-1", b"x", "text/plain"),
    "receive": ("POST", "/v1/queues/a/x/receive", b"{}", JSON),
    "settle": ("POST", "/v1/queues/a/x/settle", b"{}", JSON),
    "ring": ("POST", "/v1/triggers/a/x", b"", ""),
    "look": ("GET", "/v1/queues/a/x", b"", ""),
}
AHEAD_S = 60.0


class Holder:
    """Whoever comes by one key: a session and an event stream that stay open, and a put whose body does not end."""

    def __init__(self, served: Served, secret: str, number: int) -> None:
        self.served, self.headers, self.number = served, bearer(secret), number

    async def comes(self, opened: contextlib.AsyncExitStack) -> None:
        """Open them."""
        web = await opened.enter_async_context(aiohttp.ClientSession(self.served.server.url, headers=self.headers))
        self.session = await opened.enter_async_context(
            web.ws_connect("/v1/sessions", protocols=(SUBPROTOCOL,), autoclose=False)
        )
        assert (await self.session.receive_json())["type"] == "ready"
        await self.session.send_str(hello(GRANTED, instance=f"{self.number:032x}"))
        assert (await self.session.receive_json())["type"] == "welcome"
        self.stream = await opened.enter_async_context(web.get("/v1/wakes", params={"queue": GRANTED}))
        self.slow = await opened.enter_async_context(self.served.client())
        whole = request("POST", "/v1/queues/a/x/messages", b"late", media="text/plain", **self.headers)
        await self.slow.send(whole[:-2])

    async def statuses(self) -> set[int]:
        """Ask by every way, each over a connection of its own."""
        return {
            (await self.served.ask(method, path, body, media=media or None, **self.headers)).status
            for method, path, body, media in WAYS.values()
        }

    async def ends(self) -> tuple[int, int, bool]:
        """Return how its session ended, what its slow put is answered, and whether its stream ended."""
        code = 0
        async for message in self.session:
            told = json.loads(message.data)
            code = told["code"] if told["type"] == "ended" else code
            if code:
                break
        await self.stream.content.read()
        return code or self.session.close_code or 0, (await self._ends_its_put()), self.stream.content.at_eof()

    async def stays(self) -> None:
        """Hear of a trigger over both that are open, and end the put."""
        assert (await self.served.ask("POST", "/v1/triggers/a/x", b"", **self.headers)).status == 202
        async for message in self.session:
            if json.loads(message.data)["type"] == "wake":
                break
        assert await self.stream.content.readuntil(b"data: ")
        assert await self._ends_its_put() == 201

    async def _ends_its_put(self) -> int:
        await self.slow.send(b"te")
        return (await self.slow.reply()).status


@pytest.mark.parametrize(("how", "status"), [("revoked", 401), ("expired", 401), ("shrunk", 403)])
async def test_what_a_key_opened_ends_with_it(how: str, status: int, tmp_path: pathlib.Path) -> None:
    """By every way, in the middle of a body too; another key of the principal and everybody else notice nothing.

    Where a principal's grants shrink, all its keys are refused.
    """
    path, now = tmp_path / "access.json", [NOW]
    grants = {verb.value: ["a/*"] for verb in (Verb.PUT, Verb.TAKE, Verb.RING, Verb.LOOK)}
    found, secrets = AccessList(), []
    for number, name in enumerate(("a", "a", "b")):
        ends = NOW + AHEAD_S if (how, number) == ("expired", 0) else None
        found, secret = new_key(found, name, grants, chance=secret_of(number), now=NOW, expires_at=ends)
        secrets.append(secret)
    access_file.change(path, lambda _: found)
    async with (
        AccessWatch(path, wall=lambda: now[0]) as watch,
        serving(access=watch) as served,
        contextlib.AsyncExitStack() as opened,
    ):
        holders = [Holder(served, secret, number) for number, secret in enumerate(secrets)]
        for each in holders:
            await each.comes(opened)
            assert all(200 <= status < 300 for status in await each.statuses())
        if how == "expired":
            now[0] += AHEAD_S + 1
        else:
            less = (
                with_terms(found, "a", {"take": ["shop/*"]}, limits={})
                if how == "shrunk"
                else without(found, found.keys[0].id)[0]
            )
            access_file.change(path, lambda _: less)
        watch.check()
        gone = holders[: 2 if how == "shrunk" else 1]
        for each in gone:
            assert await each.statuses() == {status}
            assert await each.ends() == (4000 + status, status, True)
        for each in holders[len(gone) :]:
            assert all(200 <= status < 300 for status in await each.statuses())
            await each.stays()
