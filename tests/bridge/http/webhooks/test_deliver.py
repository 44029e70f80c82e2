"""Where a webhook connects to, and what it does not do there (S25 to S27, S32)."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from bridge.contract.wire import Wake
from bridge.http.webhooks.deliver import Courier
from bridge.http.webhooks.settings import check_webhooks
from tests.support.hooks import hook, hooked, mark, receiver, state
from tests.support.web import Served

WAKE = Wake("a/b", "b" * 32, 1, "trigger", 1, 0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_s27_redirects_are_not_followed(status: int) -> None:
    """They are failures, and nothing is asked of where they lead."""
    async with receiver() as target, hooked(hook(target.url)) as (bridge, webhooks):

        async def elsewhere(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": f"http://127.0.0.1:{target.port}/inside"})

        target.answer = elsewhere
        mark(bridge)
        row = await state(webhooks, "failing")
        assert row.detail == f"it answered {status}"
        assert {got.path for got in target.got} == {"/hook"}


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


async def test_s27_of_an_endless_answer_little_is_read() -> None:
    """4 KiB at most, and then the connection is closed: what its sender thinks of that is its own business."""
    async with receiver() as target, hooked(hook(target.url)) as (bridge, webhooks):
        cut = asyncio.Event()

        async def endless(request: web.BaseRequest) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Encoding": "gzip"})
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"x" * 65_536)
            except ConnectionError:
                cut.set()
            return response

        target.answer = endless
        mark(bridge)
        async with asyncio.timeout(200):
            await cut.wait()
            while not webhooks.rows()[0].delivered:
                await asyncio.sleep(0.01)
        await state(webhooks, "ok")


async def test_s25_the_name_is_resolved_and_checked_at_every_delivery() -> None:
    """The connection goes to the address that was checked, under the name; a name that moves inside is refused."""
    answers = [["127.0.0.1"]]
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return answers[-1]

    async with receiver() as target:
        entry = hook(f"http://hooks.example.com:{target.port}/hook")
        (checked,) = check_webhooks([entry])
        courier = Courier(checked, lambda address, port: False, resolve=resolve)
        try:
            assert (await courier.deliver(WAKE)).delivered
            (got,) = target.posts
            assert got.headers["host"] == f"hooks.example.com:{target.port}"
            # Once for OPTIONS and once for POST: no connection is kept past its check.
            assert asked == ["hooks.example.com"] * 2
            for bad in (["169.254.169.254"], ["127.0.0.1", "169.254.169.254"], ["::ffff:169.254.169.254"], []):
                answers.append(bad)
                assert (await courier.deliver(WAKE)).detail.startswith("refused: ")
            assert len(target.posts) == 1
        finally:
            await courier.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"])
async def test_s26_a_public_name_of_a_private_address_is_refused(address: str) -> None:
    """Without allow_private nothing is connected to; the state says why without the address."""

    async def resolve(host: str, port: int) -> list[str]:
        return [address]

    entry = hook("http://hooks.example.com/hook", allow_private=False)
    async with hooked(entry, resolve=resolve) as (bridge, webhooks):
        mark(bridge)
        row = await state(webhooks, "failing")
        assert row.detail == "refused: it is not public; allow_private = true allows it"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_s32_the_bridge_itself_is_no_target(host: str, served: Served) -> None:
    """By address or by name, whatever is allowed."""
    own = ("127.0.0.1", served.server.port)
    async with hooked(hook(f"http://{host}:{served.server.port}/v1/triggers"), own=own) as (bridge, webhooks):
        mark(bridge)
        row = await state(webhooks, "failing")
        assert row.detail == "refused: it is this bridge itself"


async def test_s27_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would see every wake, and resolve names unchecked."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with receiver() as target, hooked(hook(target.url)) as (bridge, _):
        mark(bridge)
        await target.until(1)


async def test_a_target_that_is_not_there_is_a_failure() -> None:
    """Refused connections are told by their kind; nothing of the address's path is."""
    async with receiver() as target:
        url = target.url
    async with hooked(hook(url)) as (bridge, webhooks):
        mark(bridge)
        row = await state(webhooks, "failing")
        assert row.detail == "could not be reached (ClientConnectorError)"
        assert "hook" not in str(row.listener)
