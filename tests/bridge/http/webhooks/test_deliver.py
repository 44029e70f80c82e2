"""Where a webhook connects to, and what it does not do there (S25 to S27, S32)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from bridge.contract.errors import ConfigurationError
from bridge.contract.wire import Wake
from bridge.http.webhooks.deliver import Courier, PinnedResolver, Refused, resolve_by_system
from bridge.http.webhooks.rules import Outcome
from bridge.http.webhooks.settings import check_webhooks
from bridge.http.webhooks.shell import Endpoint, Webhooks
from bridge.service.bridge import Bridge
from bridge.service.state import ListenerState, Subscribed
from tests.support.hooks import SECRET, Receiver, hook, hooked, mark, receiver, state
from tests.support.sim_loop import pass_time, simulated
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
    """By address or by name, whatever is allowed."""
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


GOOD, BUSY, GONE = Outcome(204), Outcome(503, "it answered 503"), Outcome(410, "it answered 410")


class Played:
    """A courier, the wakes that it was given and when, and an endpoint that has it."""

    def __init__(self, *outcomes: Outcome | Exception) -> None:
        self.outcomes = deque(outcomes)
        self.took: list[tuple[float, int]] = []
        self.rate: float | None = None
        self.closed = False
        self._began = asyncio.get_running_loop().time()
        (checked,) = check_webhooks([hook("https://hooks.example.com:8443/way?secret=1")])
        bridge: Any = SimpleNamespace(newest=lambda queue: (1, True))
        self.endpoint = Endpoint(checked, self, lambda: 0.0, bridge)  # type: ignore[arg-type]

    async def deliver(self, wake: Wake) -> Outcome:
        """Do what the test says."""
        self.took.append((round(asyncio.get_running_loop().time() - self._began, 2), wake.gen))
        outcome = self.outcomes.popleft() if self.outcomes else GOOD
        if isinstance(outcome, Exception):
            raise outcome
        await asyncio.sleep(0)
        return outcome

    async def close(self) -> None:
        """Note it."""
        self.closed = True

    def offer(self, gen: int) -> None:
        """Have a wake delivered."""
        self.endpoint.offer(Wake("a/b", "b" * 32, gen, "trigger", 1, 0))

    def row(self, **differs: Any) -> ListenerState:
        """What is to be told."""
        name = "https://hooks.example.com:8443"
        plain: dict[str, Any] = {"state": "ok", "detail": "", "delivered": 0, "failures": 0, "dropped": 0}
        queues = [Subscribed(queue="a/b")]
        return ListenerState(listener=name, channel="webhook", queues=queues, **{**plain, "pending": False, **differs})


@simulated
async def test_what_is_told_while_an_endpoint_breaks_heals_and_goes(caplog: pytest.LogCaptureFixture) -> None:
    """One line as it breaks, heals and goes for good; a fault of our own is an attempt that failed."""
    caplog.set_level(logging.INFO, "queuebell.webhook")
    played = Played(GOOD, BUSY, ZeroDivisionError(), GOOD, GONE)
    running = asyncio.create_task(played.endpoint.run(), name="webhook")
    assert played.endpoint.row() == played.row()
    await pass_time(5)
    assert played.took == []
    played.offer(1)
    assert played.endpoint.row() == played.row(pending=True)
    await pass_time(0.1)
    assert played.endpoint.row() == played.row(delivered=1)
    played.offer(2)
    await pass_time(1)
    told = played.endpoint.row()
    assert told == played.row(state="failing", detail="it answered 503", delivered=1, failures=1, pending=True)
    while len(played.took) < 3:
        await pass_time(0.1)
    assert played.endpoint.row().detail == "internal fault"
    await pass_time(60)
    assert played.endpoint.row() == played.row(delivered=2)
    played.offer(3)
    await pass_time(10)
    assert running.done() and played.closed
    assert played.endpoint.row() == played.row(state="disabled", detail="it answered 410", delivered=2, failures=1)
    assert [gen for _, gen in played.took] == [1, 2, 2, 2, 3]
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        ("WARNING", "webhook: it answered 503; it is tried again, at longer and longer intervals"),
        ("ERROR", "webhook: an attempt failed by a fault of its own"),
        ("INFO", "webhook: delivers again"),
        ("WARNING", "webhook: the endpoint answered 410 and is left alone from now on"),
    ]
    assert {getattr(record, "endpoint", "") for record in caplog.records} == {"https://hooks.example.com:8443"}
    assert {getattr(record, "queue", "a/b") for record in caplog.records} == {"a/b"}
    assert caplog.records[1].exc_info


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
    """Which entry and which key; never the secret."""
    good = {"url": "https://example.com/", "queue": "a/b"}
    async with Bridge() as bridge:
        with pytest.raises(ConfigurationError, match=rf"^webhook 2: {key}: ") as caught:
            Webhooks(bridge, [hook(**good), hook(**{**good, **changes})])
    assert "hunter2" not in str(caught.value)
    assert SECRET not in repr(hook(**good))
