"""Where a webhook connects to, and what it does not do there (S25 to S27, S32)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.wire import Wake
from queuebell.bridge.http.webhooks.deliver import Courier, PinnedResolver, Refused, resolve_by_system
from queuebell.bridge.http.webhooks.rules import Outcome
from queuebell.bridge.http.webhooks.settings import check_webhooks
from queuebell.bridge.http.webhooks.shell import Webhooks
from queuebell.bridge.service.bridge import Bridge
from tests.support.hooks import SECRET, Receiver, hook, hooked, mark, receiver, state
from tests.support.web import Served

WAKE = Wake("a/b", "b" * 32, 1, "trigger", 1, 0)


async def test_s27_a_target_that_does_not_answer_is_a_failure() -> None:
    """The whole attempt has one time-out; stopping does not wait for it."""
    async with receiver() as target, hooked(hook(target.url), timeout=0.2) as (bridge, webhooks):
        let = asyncio.Event()

        async def late(request: web.BaseRequest) -> web.StreamResponse:
            await let.wait()
            return web.Response(status=204)

        target.answer = late
        mark(bridge)
        row = await state(webhooks, "failing")
        assert row.detail == "no answer within 0.2 s"
        let.set()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_s32_the_bridge_itself_is_no_target(host: str, served: Served) -> None:
    own = ("127.0.0.1", served.server.port)
    async with hooked(hook(f"http://{host}:{served.server.port}/v1/triggers"), own=own) as (bridge, webhooks):
        mark(bridge)
        row = await state(webhooks, "failing")
        assert row.detail == "refused: it is this bridge itself"


async def test_a_target_that_is_not_there_is_a_failure() -> None:
    """Refused connections are told by their kind; nothing of the address's path is."""
    async with receiver() as target:
        url = target.url
    async with hooked(hook(url)) as (bridge, webhooks):
        mark(bridge)
        row = await state(webhooks, "failing")
        assert row.detail == "could not be reached (ClientConnectorError)"
        assert "hook" not in str(row.listener)


NOW = 1_800_000_000


@contextlib.asynccontextmanager
async def courier_to(target: Receiver, **options: Any) -> AsyncIterator[Courier]:
    """A courier whose clock stands."""
    (checked,) = check_webhooks([hook(target.url, **options)])
    courier = Courier(checked, lambda address, port: False, wall=lambda: NOW + 0.9)
    try:
        yield courier
    finally:
        await courier.close()
        await courier.close()


async def test_a_trace_that_no_header_can_carry_is_left_out() -> None:
    async with receiver() as target, courier_to(target, handshake=False) as courier:
        for trace in ("00-x", "00-ü"):
            assert (await courier.deliver(msgspec.structs.replace(WAKE, traceparent=trace))).delivered
        assert [got.headers.get("traceparent") for got in target.posts] == ["00-x", None]


async def test_s29_what_refuses_consent_is_told_and_its_wait_is_kept() -> None:
    """A good status is no delivery; the consent is asked for once it was given no more, and its rate is known."""
    async with receiver() as target, courier_to(target) as courier:
        target.consent = {"Retry-After": "9"}
        told = await courier.deliver(WAKE)
        assert (told.status, told.retry_after_s, courier.rate) == (None, 9.0, None)
        assert told.detail.startswith("the target did not consent: it must answer OPTIONS with WebHook-Allowed-Origin")
        target.consent_status = 403
        assert (await courier.deliver(WAKE)).status == 403
        target.consent, target.consent_status = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "60"}, 200
        for _ in range(2):
            assert (await courier.deliver(WAKE)).delivered
        assert (courier.rate, [got.method for got in target.got]) == (60.0, ["OPTIONS"] * 3 + ["POST"] * 2)


async def test_what_was_checked_is_what_is_connected_to() -> None:
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["192.0.2.1", "2001:db8::1"]

    own: list[tuple[str, int]] = []
    resolver = PinnedResolver(True, lambda address, port: (address, port) in own, resolve)
    found = await resolver.resolve("hooks.example.com", 8443)
    assert [(each["hostname"], each["host"], each["port"], each["family"]) for each in found] == [
        ("hooks.example.com", "192.0.2.1", 8443, socket.AF_INET),
        ("hooks.example.com", "2001:db8::1", 8443, socket.AF_INET6),
    ]
    assert {(each["proto"], each["flags"]) for each in found} == {(socket.IPPROTO_TCP, socket.AI_NUMERICHOST)}
    own.append(("2001:db8::1", 8443))
    with pytest.raises(Refused, match="this bridge itself"):
        await resolver.resolve("hooks.example.com", 8443)
    assert asked == [("hooks.example.com", 8443)] * 2
    assert set(await resolve_by_system("localhost", 80)) <= {"127.0.0.1", "::1"}


GOOD, BUSY, GONE = Outcome(204), Outcome(503, "it returned status 503"), Outcome(410, "it returned status 410")


async def test_s30_what_failed_is_tried_again_with_the_newest_wake(caplog: pytest.LogCaptureFixture) -> None:
    """After a second the pending wake goes, merged with what came; one log line as it breaks, one as it heals."""
    caplog.set_level(logging.INFO, "queuebell.webhook")
    async with receiver() as target, hooked(hook(target.url)) as (bridge, webhooks):

        async def busy(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=503, headers={"Retry-After": "0"})

        async def fine(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=200, text="thanks")

        target.answer = busy
        mark(bridge)
        await state(webhooks, "failing")
        for _ in range(100):
            gen = mark(bridge)
        target.answer = fine
        wake = (await target.until(2))[1].verify()
        assert (wake["gen"], wake["size"]) == (gen, 101)
        row = await state(webhooks, "ok")
        assert (row.delivered, row.failures, len(target.posts)) == (1, 0, 2)
    lines = [record.getMessage() for record in caplog.records if record.name == "queuebell.webhook"]
    assert len(lines) == 2
    assert not any("/hook" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"queue": "orders"}, "queue"),
        ({"url": "https://127.0.0.1/", "allow_private": False}, "url"),
        ({"url": "http://example.com/", "allow_http": False}, "url"),
        ({"secret": "hunter2"}, "secret"),
        ({"secret": ()}, "secret"),
    ],
)
async def test_a_faulty_entry_is_named(changes: dict[str, Any], key: str) -> None:
    good = {"url": "https://example.com/", "queue": "a/b"}
    async with Bridge() as bridge:
        with pytest.raises(ConfigurationError, match=rf"^webhook 2: {key}: ") as caught:
            Webhooks(bridge, [hook(**good), hook(**{**good, **changes})])
    assert "hunter2" not in str(caught.value)
    assert SECRET not in repr(hook(**good))
