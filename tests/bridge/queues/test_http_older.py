"""The store over HTTP at a bridge of an older version, which drops headers: such a put is refused before it is made."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bridge.contract.errors import NotAllowed, StoreUnavailable, Unsupported
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import NewMessage
from bridge.queues.http import CARRIES, SERVICE_ABLE_HEADER, HttpStore
from bridge.storage.blobs import open_blobs
from bridge.storage.claim_check import ClaimCheck
from tests.bridge.queues.scripted_server import Answering
from tests.bridge.queues.test_http_many import among, hanging_up, refusing, well
from tests.support.buses import RecordingBus
from tests.support.outboxes import SqlAlchemyRig, put
from tests.support.processes import until
from tests.support.web import serving

QUEUE = "billing/orders"
ASK = ("GET", "/v1/queues")
PUT = ("POST", f"/v1/queues/{QUEUE}/messages")
PUT_ONCE = ("PUT", f"/v1/queues/{QUEUE}/messages/k")
WITH = NewMessage("x", headers={"a": "b"})
PUTS: dict[str, tuple[Callable[[HttpStore], Any], tuple[str, str]]] = {
    "put": (lambda store: store.put(QUEUE, ["y", WITH]), PUT),
    "put_once": (lambda store: store.put_once(QUEUE, "k", WITH), PUT_ONCE),
}


def said(answering: Answering, abilities: str = CARRIES) -> Answering:
    """Answer so as a bridge of this version, which names what it can do."""

    def answer(request: web.Request, body: bytes) -> web.Response:
        response = answering(request, body)
        response.headers[SERVICE_ABLE_HEADER] = abilities
        return response

    return answer


async def test_a_bridge_names_what_it_can_do_in_every_answer() -> None:
    """A refusal tells it too, so that a key that may only put learns it."""
    async with serving() as served:
        for path in ("/v1/queues", f"/v1/queues/{QUEUE}", "/healthz", "/v1/nothing"):
            assert (await served.ask("GET", path)).headers[SERVICE_ABLE_HEADER.lower()] == CARRIES
        store = HttpStore(served.server.url)
        await store.put(QUEUE, [WITH])
        assert [each.headers for each in await store.peek(QUEUE)] == [{"a": "b"}]
        await store.close()


@pytest.mark.parametrize("abilities", [CARRIES, f"more, {CARRIES}", f"{CARRIES},more"])
@pytest.mark.parametrize("call", PUTS)
async def test_a_bridge_is_asked_once_and_only_for_headers(call: str, abilities: str) -> None:
    """A put without headers costs one request, and one with headers too once any answer has come."""
    does, sent = PUTS[call]
    async with among(said(well, abilities)) as (store, (server,)):
        await does(store)
        await does(store)
        assert server.asked == [ASK, sent, sent]
    async with among(said(well, abilities)) as (store, (server,)):
        await store.put(QUEUE, ["y"])
        await does(store)
        assert server.asked == [PUT, sent]
    async with among(well) as (store, (server,)):
        await store.put(QUEUE, ["y"])
        await store.put_once(QUEUE, "k", "y")
        assert server.asked == [PUT, PUT_ONCE]


@pytest.mark.parametrize("abilities", [None, "", "more", "headers-of-tomorrow"])
@pytest.mark.parametrize("call", PUTS)
async def test_an_older_bridge_is_asked_and_nothing_is_put(call: str, abilities: str | None) -> None:
    """The error says so and has a stable code; once the bridge is upgraded the same store puts."""
    does, sent = PUTS[call]
    answers = {"now": well if abilities is None else said(well, abilities)}
    async with among(lambda request, body: answers["now"](request, body)) as (store, (server,)):
        await store.depth(QUEUE)
        for _ in range(2):
            with pytest.raises(Unsupported, match=f"{QUEUE}: nothing was put: .*older version") as refused:
                await does(store)
            assert refused.value.code == "unsupported"
        assert server.asked[1:] == [ASK, ASK]
        assert not store.capabilities.headers
        answers["now"] = said(well)
        await does(store)
        assert server.asked[3:] == [ASK, sent]


@pytest.mark.parametrize("call", PUTS)
async def test_of_several_bridges_the_older_are_passed_over(call: str) -> None:
    """Only puts with headers pass them over; where all are older the put is refused."""
    does, sent = PUTS[call]
    async with among(well, said(well)) as (store, (older, newer)):
        await does(store)
        assert (older.asked, newer.asked) == ([ASK], [ASK, sent])
    async with among(well, well) as (store, servers):
        with pytest.raises(Unsupported):
            await does(store)
        assert [server.asked for server in servers] == [[ASK], [ASK]]
    async with among(well, None) as (store, (older, _)):
        with pytest.raises(StoreUnavailable):
            await does(store)
        await store.put(QUEUE, ["y"])
        assert older.asked == [ASK, PUT]


@pytest.mark.parametrize("call", PUTS)
async def test_a_question_that_is_not_answered_has_put_nothing(call: str) -> None:
    """The put is safe to try again, and the error says that."""
    async with among(hanging_up) as (store, (server,)):
        with pytest.raises(StoreUnavailable, match="nothing was put"):
            await PUTS[call][0](store)
        assert server.asked == [ASK]


async def test_a_key_that_may_only_put_is_answered_all_the_same() -> None:
    """Its question is refused, and the refusal names what the bridge can do; a wrong key is refused as such."""

    def putting(request: web.Request, body: bytes) -> web.Response:
        return (refusing(403, "forbidden") if request.method == "GET" else well)(request, body)

    async with among(said(putting)) as (store, (server,)):
        await store.put(QUEUE, [WITH])
        assert server.asked == [ASK, PUT]
    async with among(putting) as (store, _):
        with pytest.raises(Unsupported):
            await store.put(QUEUE, [WITH])
    async with among(refusing(401, "unauthenticated")) as (store, (server,)):
        with pytest.raises(NotAllowed):
            await store.put(QUEUE, [WITH])
        assert server.asked == [ASK]


async def test_a_refusal_that_names_nothing_takes_nothing_back() -> None:
    """A proxy's, or one under load: the bridge behind it is the one that it was."""
    answers = {"now": said(well)}
    async with among(lambda request, body: answers["now"](request, body)) as (store, (server,)):
        await store.put(QUEUE, [WITH])
        answers["now"] = refusing(429, "too_many_requests")
        with pytest.raises(StoreUnavailable):
            await store.put(QUEUE, [WITH])
        assert store.capabilities.headers
        answers["now"] = said(well)
        await store.put(QUEUE, [WITH])
        assert server.asked == [ASK, PUT, PUT, PUT]


async def test_a_bridge_replaced_by_an_older_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """One put may meet it before it has said so: its headers are lost, and the log says that; the next is refused."""
    answers = {"now": said(well)}
    async with among(lambda request, body: answers["now"](request, body)) as (store, _):
        await store.put(QUEUE, [WITH])
        answers["now"] = well
        await store.put(QUEUE, [WITH])
        assert [each.levelno for each in caplog.records if "without its headers" in each.message] == [logging.ERROR]
        with pytest.raises(Unsupported):
            await store.put(QUEUE, [WITH])


async def test_the_outbox_keeps_a_row_that_an_older_bridge_would_strip(tmp_path: Path) -> None:
    """Its reason stands in the row, and what has no headers goes on."""
    rig = SqlAlchemyRig(str(tmp_path / "application.db"))
    await rig.create()
    await rig.write(put(WITH, "two"))
    async with among(well) as (store, (server,)), rig.relay(store, interval_s=0.02) as relay:
        await until(lambda: (relay.state().sent, relay.state().refused) == (1, 1), "both are asked about")
        assert [method for method, _ in server.asked] == ["GET", "PUT"]
    ((reason,),) = await rig.query("SELECT refused FROM queuebell_outbox")
    assert reason.startswith("unsupported: ") and "older version" in reason
    await rig.close()


async def test_a_body_put_aside_for_an_older_bridge_is_removed() -> None:
    """No blob stays behind for a message that was refused."""
    async with among(well) as (store, _), Publisher(RecordingBus()) as publisher, open_blobs("memory:older") as blobs:
        queue = PublishingQueue(store, publisher, claim_check=ClaimCheck(blobs, limit=0))
        with pytest.raises(Unsupported):
            await queue.put(QUEUE, [WITH])
        assert await blobs.blobs(f"{QUEUE}/", "") == []


@pytest.mark.parametrize("command", ["put", "import"])
async def test_commands_refuse_before_they_put(command: str, tmp_path: Path) -> None:
    """Their exit code is not 0, and what they print names the queue and the remedy."""
    lines = tmp_path / "lines"
    lines.write_text(json.dumps({"id": "1", "body": "x", "headers": {"a": "b"}}))
    more = {"put": ["x", "--header", "a=b"], "import": ["--file", str(lines)]}[command]
    async with among(well) as (_, (server,)):
        words = ["-m", "queuebell", "queue", command, QUEUE, *more, "--store", server.url]
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
        _, told = await process.communicate()
        assert process.returncode not in (0, None)
        assert {method for method, _ in server.asked} == {"GET"}
    assert f"{QUEUE}: nothing was put".encode() in told and b"Upgrade it" in told
