"""Where a webhook connects to, and what it does not do there (S25 to S27, S32)."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from bridge.contract.wire import Wake
from bridge.http.webhooks.deliver import Courier, PinnedResolver, Refused, resolve_by_system
from bridge.http.webhooks.rules import Outcome
from bridge.http.webhooks.settings import check_webhooks
from tests.support.hooks import Receiver, hook, hooked, mark, receiver, state
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


@pytest.mark.parametrize(
    ("status", "wait", "retry_after_s"),
    [
        (200, None, None),
        (204, "7", 7.0),
        (429, "7", 7.0),
        (503, email.utils.formatdate(NOW + 31, usegmt=True), 30.1),
        (302, None, None),
        (500, "soon", None),
    ],
)
async def test_an_answer_is_told_by_its_status(status: int, wait: str | None, retry_after_s: float | None) -> None:
    """With how long it asks to be left alone; what is sent is signed for now, and carries no cookie of the answer."""
    async with receiver() as target, courier_to(target, handshake=False) as courier:

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=status, headers={"Set-Cookie": "a=b"} | ({"Retry-After": wait} if wait else {}))

        target.answer = answer
        for _ in range(2):
            told = await courier.deliver(WAKE)
            assert (told.status, told.detail) == (status, f"it answered {status}")
            assert told.retry_after_s == (None if retry_after_s is None else pytest.approx(retry_after_s))
        for got in target.posts:
            assert (got.headers["webhook-timestamp"], got.headers["user-agent"]) == (str(NOW), "queuebell")
            assert "cookie" not in got.headers and "traceparent" not in got.headers


async def test_a_trace_that_no_header_can_carry_is_left_out() -> None:
    """The wake goes all the same."""
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
        assert told.detail.startswith("the target did not consent: it answers OPTIONS with WebHook-Allowed-Origin")
        target.consent_status = 403
        assert (await courier.deliver(WAKE)).status == 403
        target.consent, target.consent_status = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "60"}, 200
        for _ in range(2):
            assert (await courier.deliver(WAKE)).delivered
        assert (courier.rate, [got.method for got in target.got]) == (60.0, ["OPTIONS"] * 3 + ["POST"] * 2)


async def test_a_name_that_cannot_be_resolved_is_told_as_that() -> None:
    """And nothing of the resolver's own words."""

    async def away(host: str, port: int) -> list[str]:
        raise OSError("hidden")

    (checked,) = check_webhooks([hook("http://hooks.example.com/hook")])
    courier = Courier(checked, lambda address, port: False, resolve=away)
    assert await courier.deliver(WAKE) == Outcome(None, "its name cannot be resolved")
    await courier.close()


async def test_what_was_checked_is_what_is_connected_to() -> None:
    """Each address by its family, as it is; one that is not to be connected to refuses all."""
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
