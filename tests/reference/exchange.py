"""Requests and answers held against the OpenAPI file: what is not in it fails."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import jsonschema_rs
import pytest

from queuebell.bridge.brokers.wire import Wire
from queuebell.bridge.http.server.answer import PROBLEM_TYPE
from tests.reference.openapi.document import described


class Exchange(NamedTuple):
    """One request and its answer; names of headers in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    status: int
    answer_headers: Mapping[str, str]
    answer: bytes


class Document:
    """A document that checks values, and exchanges where it has paths."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._ways = [
            (re.compile(re.sub(r"\\{\w+\\}", "([^/]+)", re.escape(path))), path)
            # What is fixed comes before what is not: `/v1/queues` has names of calls beside those of queues.
            for path in sorted(document.get("paths", {}), key=lambda path: path.count("{"))
        ]
        self._validators: dict[str, Any] = {}

    def check(self, exchange: Exchange) -> None:
        """Fail where the request or the answer is not as the document says; a refused request may be anything."""
        target = urlsplit(exchange.target)
        path = next((path for pattern, path in self._ways if pattern.fullmatch(target.path)), None)
        assert path is not None, f"{target.path} is not in the document"
        operations = self.document["paths"][path]
        assert exchange.method.lower() in operations, f"{exchange.method} {path} is not in the document"
        operation = operations[exchange.method.lower()]
        if exchange.status < 400:
            self._check_request(operations.get("parameters", []) + operation.get("parameters", []), exchange)
            self._check_body(operation.get("requestBody"), exchange)
        self._check_answer(operation["responses"], exchange)

    def resolve(self, part: Any) -> Any:
        while "$ref" in part:
            found: Any = self.document
            for token in part["$ref"].removeprefix("#/").split("/"):
                found = found[token.replace("~1", "/").replace("~0", "~")]
            part = found
        return part

    def validate(self, schema: dict[str, Any], value: Any) -> None:
        """Fail where a value is not of a schema of the document."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self._validators:
            whole = {**schema, "components": self.document["components"]}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        errors = [f"{error.instance_path}: {error.message}" for error in self._validators[key].iter_errors(value)]
        assert not errors, errors

    def _check_request(self, parameters: list[dict[str, Any]], exchange: Exchange) -> None:
        known = {each["name"]: each["schema"] for each in parameters if each["in"] == "query"}
        query = parse_qsl(urlsplit(exchange.target).query, keep_blank_values=True)
        for name, text in query:
            assert name in known, f"?{name}= is not in the document"
            schema = known[name]
            if schema["type"] == "array":
                self.validate(schema["items"], text)
            else:
                self.validate(schema, int(text) if schema["type"] == "integer" else text)

    def _check_body(self, described: dict[str, Any] | None, exchange: Exchange) -> None:
        if not exchange.body:
            assert not (described or {}).get("required"), "a body is required"
            return
        assert described is not None, "no body is in the document"
        media = exchange.headers["content-type"].partition(";")[0]
        assert media in described["content"], f"{media} is not in the document"
        if media.endswith("json"):
            self.validate(described["content"][media]["schema"], json.loads(exchange.body))

    def _check_answer(self, responses: dict[str, Any], exchange: Exchange) -> None:
        assert str(exchange.status) in responses, f"{exchange.status} is not in the document: {exchange.answer!r}"
        response = self.resolve(responses[str(exchange.status)])
        for name, header in response.get("headers", {}).items():
            header = self.resolve(header)
            text = exchange.answer_headers.get(name.lower())
            if text is None and not header["required"]:
                continue
            assert text is not None, f"{exchange.status} without {name}"
            self.validate(header["schema"], int(text) if header["schema"]["type"] == "integer" else text)
        content = response.get("content", {})
        media = exchange.answer_headers.get("content-type")
        if not content:
            assert media is None and not exchange.answer, f"{exchange.status} has no body in the document"
            return
        assert media in content, f"{exchange.status} as {media} is not in the document"
        if media.endswith("json") and exchange.method != "HEAD":
            self.validate(content[media]["schema"], json.loads(exchange.answer))


DOCUMENT: Final = Document(described())
"""That of this code."""


def watch(monkeypatch: pytest.MonkeyPatch, document: Document) -> list[Exchange]:
    """Hold all that is asked by clients of aiohttp and over wires against a document, and return it as it comes.

    What is not in the document fails in the call itself.
    """
    seen: list[Exchange] = []
    tracing = aiohttp.TraceConfig(trace_config_ctx_factory=lambda **_: SimpleNamespace(body=b"", response=None))

    async def sent(_: object, call: Any, chunk: aiohttp.TraceRequestChunkSentParams) -> None:
        call.body += chunk.chunk

    async def answered(_: object, call: Any, end: aiohttp.TraceRequestEndParams) -> None:
        call.response = end.response

    async def read(_: object, call: Any, chunk: aiohttp.TraceResponseChunkReceivedParams) -> None:
        response = call.response
        asked = {name.lower(): value for name, value in response.request_info.headers.items()}
        told = {name.lower(): value for name, value in response.headers.items()}
        target = response.request_info.url.raw_path_qs
        exchange = Exchange(response.method, target, asked, call.body, response.status, told, chunk.chunk)
        document.check(exchange)
        seen.append(exchange)

    tracing.on_request_chunk_sent.append(sent)
    tracing.on_request_end.append(answered)
    tracing.on_response_chunk_received.append(read)
    make = aiohttp.ClientSession.__init__

    def making(self: aiohttp.ClientSession, *args: Any, **options: Any) -> None:
        make(self, *args, **{**options, "trace_configs": [*options.get("trace_configs", ()), tracing]})

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", making)
    call = Wire.call

    async def calling(
        self: Wire, owner: object, method: str, target: str, body: bytes, media: str, within_s: float
    ) -> Any:
        answer, ready = await call(self, owner, method, target, body, media, within_s), self.ready.result()
        asked = {"content-type": media} if body else {}
        told = {"queuebell-able": ",".join(ready.able), **answer.headers}
        if ready.boot is not None:
            told["queuebell-boot"] = ready.boot
        if answer.body:
            told["content-type"] = PROBLEM_TYPE if answer.status >= 400 else "application/json"
        exchange = Exchange(method, target, asked, body, answer.status, told, answer.body)
        document.check(exchange)
        seen.append(exchange)
        return answer

    monkeypatch.setattr(Wire, "call", calling)
    return seen
