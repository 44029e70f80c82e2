"""The OpenAPI file says what the bridge does: every route, code, limit and answer, and nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.contract.errors import STATUS_BY_CODE
from queuebell.bridge.contract.event import EVENT_BYTES_MAX, REQUEST_BYTES_MAX
from queuebell.bridge.contract.wire import FRAME_BYTES_MAX
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.api.queues import BULK_BYTES_MAX, SEARCHED_MAX
from queuebell.bridge.http.api.routes import Routes
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.observe.history import QUEUES_MAX
from queuebell.bridge.queues.base import BATCH_MAX
from queuebell.bridge.queues.http.shapes import ReceiveRequest
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.service.message_events import SHOWN_MAX
from tests.reference.__main__ import FILES, OPENAPI
from tests.reference.exchange import DOCUMENT, Exchange, watch
from tests.reference.openapi.operations import OPERATIONS
from tests.reference.openapi.refusals import MEANINGS
from tests.support.command import ROOT
from tests.support.processes import environment
from tests.support.web import JSON, Reply, request, serving

QUEUE = "/v1/queues/billing/orders"


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    }


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [found for each in part.values() for found in references(each)]
    if isinstance(part, list):
        return [found for each in part for found in references(each)]
    return []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_file_is_that_of_the_code(file: Path) -> None:
    """`python -m tests.reference` would write the same."""
    assert file.read_text(encoding="utf-8") == FILES[file](), "run: python -m tests.reference"


LIMITS = {
    "publishTriggers": {REQUEST_BYTES_MAX, EVENT_BYTES_MAX},
    "putMessages": {1, BATCH_MAX, BULK_BYTES_MAX},
    "receiveMessages": {int(ReceiveRequest().visibility_timeout_s)},
    "settleMessages": {BATCH_MAX, BULK_BYTES_MAX},
    "peekMessages": {SEARCHED_MAX},
    "showBuried": {BATCH_MAX},
    "openSession": {FRAME_BYTES_MAX, 6455},
    "showHistory": {QUEUES_MAX},
    "watchMessages": {SHOWN_MAX},
    "beginSignIn": {STATUS_BY_CODE["not_found"]},
}


def test_the_numbers_in_the_words_of_a_call_are_its_limits() -> None:
    """A route's docstring cannot name a constant."""
    found = {each.id: {*map(int, re.findall(r"(?<![\w-])\d+\b", " ".join(each.words())))} for each in OPERATIONS}
    assert {id_: numbers for id_, numbers in found.items() if numbers} == LIMITS


async def test_every_route_is_in_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    added: dict[tuple[str, str], Verb | None] = {}
    add = Routes.add

    def adding(self: Routes, method: str, path: str, verb: Verb | None, route: Any, **more: bool) -> None:
        added[method, path.replace("{queue}", "{account}/{queue}")] = verb
        add(self, method, path, verb, route, **more)

    monkeypatch.setattr(Routes, "add", adding)
    async with serving():
        pass
    assert set(added) == set(operations(DOCUMENT.document))
    # What each asks for: the verb that its description names, and nothing where there is none.
    for call, operation in operations(DOCUMENT.document).items():
        verb = added[call]
        keyed = verb is not None or call == ("GET", "/v1/sessions")
        assert operation.get("security", []) == ([{}, {"key": []}] if keyed else [])
        granted = "" if verb is None else f"With `--auth` it requires the permission `{verb.value}`."
        assert operation.get("description", "").endswith(granted)
        assert {"401", "403"} <= set(operation["responses"]) if verb else ("401" in operation["responses"]) is keyed


async def test_methods_are_those_that_are_allowed() -> None:
    """What 405 says in Allow: those of the file, and HEAD beside GET where there is no handshake."""
    async with serving() as served:
        for path, item in DOCUMENT.document["paths"].items():
            filled = path.format(account="billing", queue="orders", id="order-17")
            reply = await served.ask("PATCH", filled)
            allowed = {method.upper() for method in item if method != "parameters"}
            if "GET" in allowed and path != "/v1/sessions":
                allowed.add("HEAD")
            assert (reply.status, reply.headers["allow"]) == (405, ", ".join(sorted(allowed))), path


async def test_the_bridge_serves_it() -> None:
    async with serving() as served:
        reply = await served.ask("GET", "/openapi.json")
    assert reply.status == 200
    assert reply.json == DOCUMENT.document


def test_it_is_whole() -> None:
    """References lead somewhere, and all that is there is referred to; names are unique, schemas are schemas."""
    for reference in references(DOCUMENT.document):
        DOCUMENT.resolve({"$ref": reference})
    names = [operation["operationId"] for operation in operations(DOCUMENT.document).values()]
    assert len(set(names)) == len(names)
    for schema in DOCUMENT.document["components"]["schemas"].values():
        jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT.document["components"]})
    used = {reference.rpartition("/")[2] for reference in references(DOCUMENT.document)}
    # A scheme is referred to by its name alone.
    used |= {
        name
        for operation in operations(DOCUMENT.document).values()
        for one in operation.get("security", [])
        for name in one
    }
    assert [name for part in DOCUMENT.document["components"].values() for name in part if name not in used] == [
        f"{status}-{code}" for code, status in STATUS_BY_CODE.items() if code in NOT_IN_ANSWERS
    ]


NOT_IN_ANSWERS = (
    "unknown_session",
    "method_not_allowed",
    "pop_receipt_mismatch",
    "store_mismatch",
)
"""Codes of items of a settlement, of sessions, and of methods that no operation has."""


def test_every_code_is_in_it() -> None:
    """Each code has words and an example; each is in some answer, except those that are told elsewhere."""
    assert list(MEANINGS) == list(STATUS_BY_CODE)
    schemas = DOCUMENT.document["components"]["schemas"]
    assert schemas["ErrorCode"]["enum"] == list(STATUS_BY_CODE)
    told = {
        code
        for response in DOCUMENT.document["components"]["responses"].values()
        for code in response["content"]["application/problem+json"]["examples"]
    }
    assert set(STATUS_BY_CODE) - told == set(NOT_IN_ANSWERS)


def test_examples_are_right() -> None:
    seen = 0

    def look(part: Any) -> None:
        nonlocal seen
        if isinstance(part, dict):
            if "schema" in part:
                given = [part["example"]] if "example" in part else []
                given += [DOCUMENT.resolve(each)["value"] for each in part.get("examples", {}).values()]
                for example in given:
                    DOCUMENT.validate(part["schema"], example)
                    seen += 1
            for each in part.values():
                look(each)
        elif isinstance(part, list):
            for each in part:
                look(each)

    look(DOCUMENT.document)
    assert seen > 60


def exchange(head: bytes, reply: Reply) -> Exchange:
    method, target, _ = head.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)
    return Exchange(method, target, {}, b"", reply.status, reply.headers, reply.body)


HUGE = b"x" * 70_000
REFUSED = {
    "400 bad_parameter": request("POST", f"{QUEUE}/receive", b'{"max": 33}', media=JSON),
    "400 bad_json": request("POST", f"{QUEUE}/settle", b"{", media=JSON),
    "400 bad_trigger": request("POST", "/v1/triggers/a/b", b"body"),
    "400 bad_queue_reference": request("GET", "/v1/queues/-/b"),
    "403 forbidden_origin": request("GET", "/metrics", Origin="http://elsewhere.example"),
    "404 queue_not_found": request("POST", "/v1/queues/no/such/receive"),
    "408 request_timeout": request("PUT", QUEUE, None, media=JSON, Content_Length="2"),
    "409 message_conflict": request("PUT", f"{QUEUE}/messages/taken", b"another"),
    "413 message_too_large": request("PUT", f"{QUEUE}/messages/large", HUGE),
    "414 uri_too_long": request("GET", "/v1/queues?prefix=" + "a" * 3000),
    "415 unsupported_media_type": request("POST", f"{QUEUE}/settle", b"{}", media="text/plain"),
    "421 unknown_host": request("GET", "/livez", Host="elsewhere.example"),
    "431 headers_too_large": request("GET", "/livez", **{f"X{n}": "1" for n in range(80)}),
}  # fmt: skip


@pytest.mark.parametrize("told", REFUSED)
async def test_refusals_are_as_told(told: str) -> None:
    """Each that a request can provoke by itself, over the wire."""
    async with serving(body_timeout=0.05) as served:
        await served.ask("PUT", f"{QUEUE}/messages/taken", b"one")
        reply = await served.ask_raw(REFUSED[told])
    assert f"{reply.status} {reply.code}" == told
    DOCUMENT.check(exchange(REFUSED[told], reply))


async def test_a_bridge_that_stops_is_as_told() -> None:
    async with serving() as served:
        served.bridge.drain()
        for method, path, status in (
            ("POST", "/v1/triggers/a/b", 503),
            ("POST", f"{QUEUE}/messages", 503),
            ("GET", "/v1/sessions", 503),
            ("GET", "/v1/wakes?queue=a/b", 200),
        ):
            call = request(method, path)
            reply = await served.ask_raw(call)
            assert reply.status == status
            DOCUMENT.check(exchange(call, reply))


async def test_a_store_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch, DOCUMENT)
    async with serving() as served, HttpStore(served.server.url) as store:
        await store.put("billing/orders", ["order 17"])
        (put,) = seen
        assert (put.method, put.target, put.status) == ("POST", f"{QUEUE}/messages", 201)
        assert json.loads(put.body) == {"messages": [{"body": "order 17"}]}
        assert json.loads(put.answer)["messages"][0]["visible_in_ms"] == 0


@pytest.mark.parametrize(
    "planted",
    [
        Exchange("GET", "/livez", {}, b"", 418, {}, b""),
        Exchange("DELETE", f"{QUEUE}?now=1", {}, b"", 204, {"queuebell-boot": "0" * 32}, b""),
        Exchange("PUT", QUEUE, {"content-type": JSON}, b'{"metadata": 1}', 204, {"queuebell-boot": "0" * 32}, b""),
        Exchange("GET", "/livez", {}, b"", 200, {"queuebell-boot": "0" * 32, "content-type": JSON}, b"{}"),
    ],
    ids=["status", "parameter", "body", "answer"],
)
def test_the_check_can_fail(planted: Exchange) -> None:
    with pytest.raises(AssertionError):
        DOCUMENT.check(planted)


CONFIG = ROOT / "tests" / "reference" / "schemathesis.toml"


async def fuzz(tmp_path: Path, file: Path, *words: str) -> tuple[int, str]:
    # Streams have no end and no fuzzer waits for one: with room for none, each ends at once with the same head.
    async with (
        Bridge(tmp_path / "data") as bridge,
        WebServer(bridge, WebSettings(port=0, streams=0, shutdown_timeout=0.2)) as server,
    ):
        # The queue of the examples.
        await bridge.store.put("billing/orders", ["order 17"] * 32)
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file", str(CONFIG), "run", str(file), "--url", server.url, *words,
            "--generation-deterministic", "--request-timeout", "100", "--suppress-health-check", "all",
            "--max-failures", "20", "--no-color",
            cwd=tmp_path,
            env=environment(COLUMNS="120"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode(errors="replace")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--phases", "coverage,stateful", "--max-examples", "3"), "57 selected / 57 total"),
        pytest.param(("--phases", "examples,fuzzing,stateful", "--max-examples", "10"), "", marks=pytest.mark.rest),
    ],
    ids=["every limit", "anything"],
)
async def test_no_fault_and_no_answer_outside_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, words: tuple[str, ...], said: str
) -> None:
    """Each operation at either side of each bound, and one after another; `schemathesis` asks them all."""
    code, told = await fuzz(tmp_path, OPENAPI, *words)
    assert code == 0 and said in told, told
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
