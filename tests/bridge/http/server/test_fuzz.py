"""Anything at all: never a 5xx, never a traceback, never silence."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.web import JSON, Served, request, serving

CALLS = [
    ("POST", "/v1/triggers"),
    ("POST", "/v1/triggers/a/b"),
    ("POST", "/v1/queues/a/b/messages"),
    ("POST", "/v1/queues/a/b/receive"),
    ("POST", "/v1/queues/a/b/settle"),
    ("PUT", "/v1/queues/a/b"),
]

# JSON that is nearly right reaches deeper than noise: real names, odd values.
_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(["a", "YQ==", "b"])
)
_names = st.sampled_from(
    ["messages", "body", "body_base64", "ttl_s", "visible_after_ms", "max", "visibility_timeout_s", "delete", "release",
     "extend", "id", "pop_receipt", "after_ms", "metadata", "storage_account", "queue_name", "payload_size", "time",
     "not_before_ms", "source", "traceparent"]
)  # fmt: skip
_json = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_names, inner, max_size=6)),
    max_leaves=20,
)
_bodies = st.one_of(st.binary(max_size=300), _json.map(lambda value: json.dumps(value).encode()))
_paths = st.one_of(
    st.sampled_from([path for _, path in CALLS]),
    st.text(alphabet="/abv1%2F.?&=#\\~_-*queuestrig\x7fé", max_size=40).map(lambda text: "/v1/queues/" + text),
)


def check(caplog: pytest.LogCaptureFixture, statuses: list[int]) -> None:
    """Fail for any server error and any traceback."""
    assert statuses
    assert not [status for status in statuses if status >= 500], statuses
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    caplog.clear()


fuzzed = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@fuzzed
@given(bodies=st.lists(st.tuples(st.sampled_from(CALLS), _bodies), min_size=5, max_size=15))
def test_any_body_on_any_call(bodies: list[tuple[tuple[str, str], bytes]], caplog: pytest.LogCaptureFixture) -> None:
    """Noise and nearly right JSON, over one connection that stays good."""

    async def run(served: Served) -> list[int]:
        statuses = []
        async with served.client() as client:
            for (method, path), body in bodies:
                await client.send(request(method, path, body, media=JSON))
                statuses.append((await client.reply()).status)
        return statuses

    check(caplog, asyncio.run(_with_server(run)))


@fuzzed
@given(parts=st.lists(st.binary(max_size=200), min_size=1, max_size=4), head=st.booleans())
def test_any_bytes_on_the_socket(parts: list[bytes], head: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever comes, the connection ends and the server answers the next."""

    async def run(served: Served) -> list[int]:
        async with served.client() as client:
            if head:
                await client.send(b"POST /v1/triggers HTTP/1.1\r\nHost: localhost\r\n")
            for part in parts:
                await client.send(part)
            client.writer.write_eof()
            answer = await client.rest()
            first = [int(answer.split(b" ", 2)[1])] if answer else []
        return [*first, (await served.ask("GET", "/livez")).status]

    check(caplog, asyncio.run(_with_server(run)))


@fuzzed
@given(paths=st.lists(_paths, min_size=5, max_size=15), method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]))
def test_any_address(paths: list[str], method: str, caplog: pytest.LogCaptureFixture) -> None:
    """Segments, escapes, queries and fragments of all kinds."""

    async def run(served: Served) -> list[int]:
        return [(await served.ask(method, path)).status for path in paths]

    check(caplog, asyncio.run(_with_server(run)))


async def _with_server(run):  # type: ignore[no-untyped-def]
    async with serving(header_timeout=0.2, body_timeout=0.2, linger=0.05) as served:
        return await run(served)
