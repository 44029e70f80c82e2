"""Webhooks over real sockets: what is sent, when, and to whom (S28 to S30)."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook

from bridge.contract.errors import ConfigurationError
from bridge.contract.event import CloudQueueWorkDetected
from bridge.http.webhooks.shell import Webhooks
from bridge.service.bridge import Bridge
from tests.support.hooks import SECRET, hook, hooked, mark, receiver, state

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_a_wake_is_a_signed_event() -> None:
    """S28: signature and event pass the official libraries; the trace goes along, cookies and encodings do not."""
    async with receiver() as target, hooked(hook(target.url)) as (bridge, webhooks):
        gen = mark(bridge, size=3, trace=TRACE)
        (got,) = await target.until(1)
        wake = got.verify()
        assert (wake["queue"], wake["gen"], wake["size"], wake["reason"]) == ("a/b", gen, 3, "trigger")
        assert got.headers["content-type"] == "application/cloudevents+json"
        assert got.headers["traceparent"] == wake["traceparent"] == TRACE
        assert got.headers["accept-encoding"] == "identity"
        assert got.headers["queuebell-hop"] == "1"
        mark(bridge, "a/other")
        second = mark(bridge)
        assert (await target.until(2))[1].verify()["gen"] == second
        await state(webhooks, "ok")


async def test_s28_with_two_secrets_each_signs() -> None:
    """A receiver that knows either of them accepts."""
    other = "whsec_" + base64.b64encode(bytes(24)).decode()
    async with receiver() as target, hooked(hook(target.url, secret=(other, SECRET))) as (bridge, _):
        mark(bridge)
        (got,) = await target.until(1)
        got.verify()
        Webhook(other).verify(got.body, got.headers)


async def test_s29_the_target_consents_first() -> None:
    """OPTIONS asks once; every POST then repeats our origin."""
    async with receiver() as target, hooked(hook(target.url)) as (bridge, _):
        mark(bridge)
        await target.until(1)
        mark(bridge)
        await target.until(2)
        assert [got.method for got in target.got] == ["OPTIONS", "POST", "POST"]
        asked = target.got[0].headers
        assert int(asked["webhook-request-rate"]) > 0
        assert {got.headers["webhook-request-origin"] for got in target.got} == {asked["webhook-request-origin"]}


@pytest.mark.parametrize(
    "consent",
    [
        {},
        {"WebHook-Allowed-Origin": "evil.example"},
        {"WebHook-Allowed-Rate": "100"},
        {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "0"},
        {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "lots"},
    ],
)
async def test_s29_without_consent_nothing_is_posted(consent: dict[str, str]) -> None:
    """A good status is no consent; the state says what to do about it, and the target may still change its mind."""
    async with receiver() as target, hooked(hook(target.url)) as (bridge, webhooks):
        target.consent = consent
        mark(bridge)
        row = await state(webhooks, "failing")
        assert "consent" in str(row.detail)
        assert target.posts == []
        target.consent = {"webhook-allowed-origin": "queuebell"}
        (got,) = await target.until(1)
        got.verify()


async def test_the_operator_may_vouch_for_a_target() -> None:
    """`handshake = false`: no OPTIONS at all."""
    async with receiver() as target, hooked(hook(target.url, handshake=False)) as (bridge, _):
        mark(bridge)
        await target.until(1)
        assert [got.method for got in target.got] == ["POST"]
        assert "webhook-request-origin" not in target.got[0].headers


async def test_s30_gone_disables(caplog: pytest.LogCaptureFixture) -> None:
    """410: one line, and never a request again."""
    caplog.set_level(logging.INFO, "queuebell.webhook")
    async with receiver() as target, hooked(hook(target.url)) as (bridge, webhooks):

        async def gone(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=410)

        target.answer = gone
        mark(bridge)
        await state(webhooks, "disabled")
        for _ in range(100):
            mark(bridge)
            await asyncio.sleep(0)
        assert len(target.posts) == 1
        assert webhooks.rows()[0].pending is False
    assert len([record for record in caplog.records if record.name == "queuebell.webhook"]) == 1


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


async def test_i5_a_slow_target_delays_no_other_and_keeps_one_wake() -> None:
    """100,000 triggers while one of three does not answer: the others hear the last, and it then hears it too."""
    async with receiver() as slow, receiver() as fast:
        entries = [hook(slow.url), hook(fast.url), hook(fast.url, "a/c")]
        async with hooked(*entries) as (bridge, webhooks):
            let = asyncio.Event()

            async def wait(request: web.BaseRequest) -> web.StreamResponse:
                await let.wait()
                return web.Response(status=204)

            slow.answer = wait
            mark(bridge)
            await slow.until(1)
            event = CloudQueueWorkDetected("a", "b")
            for _ in range(100):
                bridge.trigger([event] * 1000, bus="test")
                await asyncio.sleep(0)
            newest = bridge.newest("a/b")[0]
            last = mark(bridge, "a/c")
            async with asyncio.timeout(200):
                while {got.verify()["gen"] for got in fast.posts} & {newest, last} != {newest, last}:
                    await fast.until(len(fast.posts) + 1)
            assert len(slow.posts) == 1
            let.set()
            # However many came meanwhile, what is pending is one wake.
            assert (await slow.until(2))[1].verify()["gen"] == newest
            async with asyncio.timeout(200):
                while webhooks.rows()[0].pending:
                    await asyncio.sleep(0)
            assert len(slow.posts) == 2


async def test_what_was_marked_before_the_start_is_told() -> None:
    """A bridge that starts with work in its file announces it before its webhooks begin."""
    async with receiver() as target, Bridge() as bridge:
        gen = mark(bridge)
        webhooks = Webhooks(bridge, [hook(target.url)])
        await webhooks.start()
        assert (await target.until(1))[0].verify()["gen"] == gen
        await webhooks.stop()


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
    """Which entry and which key; never the secret."""
    good = {"url": "https://example.com/", "queue": "a/b"}
    async with Bridge() as bridge:
        with pytest.raises(ConfigurationError, match=rf"^webhook 2: {key}: ") as caught:
            Webhooks(bridge, [hook(**good), hook(**{**good, **changes})])
    assert "hunter2" not in str(caught.value)
    assert SECRET not in repr(hook(**good))
