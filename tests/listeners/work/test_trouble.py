"""A worker that cannot work says so: it ends where nothing can mend itself, and warns where something may."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridge.contract.errors import (
    BadInput,
    BadQueueReference,
    ChannelLost,
    ConfigurationError,
    NotPrepared,
    StoreUnavailable,
)
from bridge.contract.wire import ErrorFrame, Hello, ListenerHeartbeat
from bridge.observe.logs import FactLog
from bridge.queues.base import NewMessage
from bridge.queues.embedded.memory import MemoryStore
from bridge.service.bridge import Bridge
from bridge.storage.blobs.memory import MemoryBlobs
from bridge.storage.claim_check import ClaimCheck
from listeners import PULL_ONLY, Bury, Listener, Message, Pool, Replay, Share
from listeners.session.opening import name_of
from listeners.testing import run_once
from tests.listeners.rig import POISON, QUEUE, Store, listening, raising, run_until, settled
from tests.support.command import COMMAND
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulated

_numbers = itertools.count()
CLAIM = b'queuebell-claim:1 {"blob": "'


async def handle(message: Message) -> None:
    """Succeed."""


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """Return the warnings with these words; what is below a warning, Python shows nobody."""
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in said if words in line]


# A store that fails --------------------------------------------------------------------------------------------------


@simulated
async def test_a_store_that_can_never_work_ends_the_worker() -> None:
    """`run` raises what the store said, at its first receive."""
    store = Store()
    store.receiving = [raising(ConfigurationError("its client is not installed"))] * 9
    with pytest.raises(ConfigurationError, match="not installed"):
        async with asyncio.timeout(60):
            await Listener(store, [QUEUE, "billing/others"], handle, bridge=PULL_ONLY, handle_signals=False).run()
    assert store.receives <= 2


@pytest.mark.parametrize("error", [NotPrepared("no tables yet"), StoreUnavailable("nobody there")])
@simulated
async def test_a_store_that_may_come_back_is_warned_of(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """At the first failure, once a minute after it, and once when it works again; queue and store are named."""
    store = Store()
    store.receiving = [raising(error)] * 1000
    async with listening(store, handle) as listener:
        await pass_time(0.5)
        assert len(lines(caplog, str(error))) == 1
        await pass_time(180)
        said = lines(caplog, str(error))
        assert 3 <= len(said) <= 4
        assert all(line.startswith(f"{QUEUE}: receives from {store} fail (") for line in said)
        assert listener.state().queues[QUEUE].failed_receives > len(said)
        store.receiving.clear()
        await store.fill(b"x", b"y")
        await settled(listener, 2)
    assert len(lines(caplog, f"{QUEUE}: receives from {store} work again")) == 1


@simulated
async def test_a_store_that_answered_before_ends_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A password that is being changed stops no worker that runs."""
    store = Store()
    await store.fill(b"x")
    async with listening(store, handle) as listener:
        await settled(listener, 1)
        store.receiving = [raising(ConfigurationError("this user is not let in"))] * 3
        await pass_time(120)
        await store.fill(b"y")
        await settled(listener, 2)
    assert len(lines(caplog, "not let in")) == 1


@simulated
async def test_a_queue_that_the_store_cannot_have_is_refused_at_the_start() -> None:
    """A reference of a foreign account, with a bridge and without: nothing is asked of the store."""

    class Elsewhere(Store):
        def fingerprint(self, queue: str) -> str:
            raise BadQueueReference("the reference names another account")

    for bridge in (PULL_ONLY, "http://127.0.0.1:9"):
        store = Elsewhere()
        with pytest.raises(BadQueueReference, match="another account"):
            async with asyncio.timeout(60):
                await Listener(store, QUEUE, handle, bridge=bridge, handle_signals=False).run()
        assert store.receives == 0


def listen(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "listen", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def test_a_client_that_is_not_installed_ends_the_command(tmp_path: Path) -> None:
    """Exit code 78, with what to install, as `queuebell queue put` says it."""
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "__init__.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    ended = listen("redis://127.0.0.1:9", "a/b", "--exec", "true", "--pull-only", environment={"PYTHONPATH": path})
    assert (ended.returncode, ended.stdout) == (78, "")
    assert "client is not installed" in ended.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("billing/orders", "orders:handle"), 78, "store: it comes before the queue"),
        (("redis:/x", "a/b", "--exec", "true"), 78, "begins with redis://"),
        (("memory:x", "a/b", "--exec", "true", "--pool", "4", "--pool-limit", "a/b=9"), 2, "a limit of 9, above"),
        (("memory:x", "a/b", "--exec", "true", "--pull-only", "--ledger", "sqlite:/no/such/l.db"), 78, "ledger: the"),
        (("memory:x", "a/b", "--exec", "true"), 78, "name one with --bridge URL, or say --pull-only"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(words: tuple[str, ...], code: int, said: str) -> None:
    """One line on standard error, before anything is opened."""
    ended = listen(*words)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("store", ["billing/orders", "redis:/x", "gopher://x", "http:x", ""])
def test_a_store_that_is_no_url_is_refused_before_its_queue_is_read(store: str) -> None:
    """The first words of the refusal are of the store, whatever else is wrong; what was given is not repeated."""
    with pytest.raises(ConfigurationError, match=r"^store: ") as refused:
        Listener(store, "http://queue", handle, bridge=PULL_ONLY)
    assert not store or store not in str(refused.value)


def test_a_pool_is_a_pool() -> None:
    """A number is not one, and a limit above the size would limit nothing."""
    with pytest.raises(TypeError, match=r"Pool\(32\)"):
        Listener("memory:x", QUEUE, handle, bridge=PULL_ONLY, pool=3)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="a limit of 9, above its size, 4"):
        Pool(4, {QUEUE: Share(limit=9)})
    Pool(4, {QUEUE: Share(limit=4)})


def test_the_log_names_a_strange_store_by_its_class() -> None:
    """The stores of ours have a name of their own; one of the host's need have none."""

    class Strange:
        pass

    strange: Any = Strange()
    assert name_of(strange) == "Strange"


@pytest.mark.parametrize("steps", range(6))
def test_what_was_opened_is_closed_where_the_event_loop_ends(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.run` cancels all tasks at its end, those of a listener that is on its way out among them."""
    closed: list[str] = []

    class Noted(MemoryStore):
        async def close(self) -> None:
            await super().close()
            closed.append("store")

    class Away:
        async def connect(self) -> Any:
            raise ChannelLost("nobody there")

        async def close(self) -> None:
            closed.append("channel")

    async def story() -> None:
        store = Noted(f"ending-{next(_numbers)}")
        monkeypatch.setattr("listeners.listener.open_store", lambda given, api_key: (store, True))
        listener = Listener("memory:x", QUEUE, handle, bridge=Away(), handle_signals=False)
        running = asyncio.create_task(listener.run(), name="listener")
        while not (listener.state().queues or running.done()):
            await asyncio.sleep(0)
        running.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)

    asyncio.run(story())
    assert closed == ["channel", "store"]


# A bridge that refuses -----------------------------------------------------------------------------------------------


MISMATCH = ErrorFrame("store_mismatch", "another listener of billing/orders uses a different store")


class Refusing:
    """A bridge that refuses every session (`listeners.session.channels.base.Channel`); over a broker nobody closes."""

    def __init__(self, closes: bool, said: ErrorFrame = MISMATCH) -> None:
        self.closes = closes
        self.said = said
        self.asked: list[float] = []

    async def connect(self) -> Any:
        self.asked.append(asyncio.get_running_loop().time())
        return RefusingLink(self.closes, self.said)

    async def close(self) -> None:
        pass


class RefusingLink:
    def __init__(self, closes: bool, said: ErrorFrame) -> None:
        self._closes = closes
        self._frames: list[Any] = [said]

    def send(self, frame: Any) -> None:
        assert isinstance(frame, Hello)

    async def receive(self) -> Any:
        if self._frames:
            return self._frames.pop()
        if not self._closes:
            await asyncio.Event().wait()
        raise ChannelLost("the connection was closed (1008)")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("closes", [True, False], ids=["websocket", "broker"])
@simulated
async def test_a_refusal_is_told_once_a_minute_with_its_remedy(closes: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The bridge is asked again ever more rarely, the worker polls meanwhile, and one line says what to do."""
    caplog.set_level(logging.INFO, "queuebell.listener")
    store, refusing = Store(), Refusing(closes)
    await store.fill(b"x")
    async with listening(store, handle, bridge=refusing, name="worker") as listener:
        await settled(listener, 1)
        await pass_time(300)
    assert len([at for at in refusing.asked if at <= refusing.asked[0] + 1]) <= 4
    assert 10 <= len(refusing.asked) <= 60
    said = lines(caplog, "refuses us (")
    assert 3 <= len(said) <= 6
    assert "with the same store" in said[0]
    assert f"the store is {store}, the others" in said[0]
    assert len(lines(caplog, "the bridge lives but refuses us; polling until it lets us in")) == 1
    assert not lines(caplog, "no living bridge")
    assert not [record for record in caplog.records if "did not say welcome" in record.getMessage()]
    assert not [record for record in caplog.records if "the session with the bridge" in record.getMessage()]


@simulated
async def test_a_refusal_that_says_when_to_come_again_is_kept_to() -> None:
    """Also where the pauses of its own are shorter, as the first ones are."""
    store, refusing = Store(), Refusing(False, ErrorFrame("too_many_requests", "at most 2 sessions", 20))
    async with listening(store, handle, bridge=refusing, name="worker"):
        await pass_time(300)
    gaps = [later - sooner for sooner, later in itertools.pairwise(refusing.asked)]
    assert len(gaps) >= 5
    assert min(gaps) >= 20


class Stranger:
    """An address at which something else answers (`listeners.session.channels.base.Channel`)."""

    def __str__(self) -> str:
        return "http://bell.example:8470"

    async def connect(self) -> Any:
        raise ChannelLost("what answers there is no bridge: it answers 404")

    async def close(self) -> None:
        pass


@simulated
async def test_no_living_bridge_is_told_with_its_address_and_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    """In the one warning that there is; the worker polls meanwhile."""
    caplog.set_level(logging.INFO, "queuebell.listener")
    store = Store()
    await store.fill(b"x")
    async with listening(store, handle, bridge=Stranger(), name="worker") as listener:
        await settled(listener, 1)
        await pass_time(300)
    (said,) = lines(caplog, "no living bridge")
    assert "at http://bell.example:8470: what answers there is no bridge: it answers 404." in said


@pytest.mark.parametrize(
    ("address", "own"),
    [("http://127.0.0.1:8470", True), ("nats://127.0.0.1:4222", False), ("nats://a:1,b:2", False)],
)
@simulated
async def test_only_a_web_server_that_is_store_and_bridge_is_the_bridges_own(
    monkeypatch: pytest.MonkeyPatch, address: str, own: bool
) -> None:
    """A broker that is both has none of the bridge's queues: taken for own, they would never be woken for."""
    bridge, store = FakeBridge(), Store()
    if own:
        monkeypatch.setattr(store, "bridge_url", address, raising=False)  # as a store over HTTP says
    monkeypatch.setattr("listeners.listener.open_store", lambda given, api_key: (store, True))
    monkeypatch.setattr("listeners.listener.open_channel", lambda given, instance, api_key: bridge)
    async with listening(address, handle, bridge=address):
        await bridge.until(ListenerHeartbeat)
    assert bridge.hellos[0].queues[0].own is own


@simulated
async def test_the_bridge_names_the_queue_and_logs_a_refusal_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often the stranger asks; and it is let in, and told so, once the others are gone."""
    caplog.set_level(logging.INFO, "queuebell")
    clock = asyncio.get_running_loop().time
    mine, other = (MemoryStore(f"trouble-{next(_numbers)}", clock=clock) for _ in range(2))
    async with Bridge() as bridge:
        bridge.observe(FactLog())
        async with listening(mine, handle, bridge=bridge, name="production") as first:
            while not first.state().session:
                await asyncio.sleep(0.01)
            async with listening(other, handle, bridge=bridge, name="staging") as stranger:
                await pass_time(60)
                assert not stranger.state().session
                refused = [record for record in caplog.records if record.name == "queuebell.bridge"]
                told = [record for record in refused if "is refused" in record.getMessage()]
                assert [(one.listener, one.code) for one in told] == [("staging", "store_mismatch")]
                assert QUEUE in told[0].reason
                await first.stop()
                await pass_time(35)
                assert stranger.state().session
    assert len(lines(caplog, "staging: the bridge refuses us no more")) == 1


# A body that cannot be handed over -----------------------------------------------------------------------------------


class Order(msgspec.Struct):
    number: int


@simulated
async def test_a_supervisor_sees_what_does_not_decode() -> None:
    """With the value None, and the facts that say why; what does decode has its value as ever."""
    store = Store()
    seen: list[tuple[bytes, Any, str | None]] = []

    async def supervise(message: Message) -> None:
        seen.append((message.body, message.value, message.burial and message.burial.failure))

    async def refuse(message: Message) -> None:
        raise Bury("not this one")

    await store.fill(b"notjson", b'{"number": 7}')
    await run_until(listening(store, refuse, payload=Order), 2, "buried")
    await store.fill(b"a stranger's", queue=POISON)
    await run_until(listening(store, supervise, POISON, payload=Order), 3, queue=POISON)
    assert sorted(seen, key=lambda one: one[0]) == [
        (b"a stranger's", None, None),
        (b"notjson", None, "undecodable"),
        (b'{"number": 7}', Order(7), "poisoned"),
    ]


async def test_run_once_does_as_a_listener_with_what_does_not_decode() -> None:
    """Buried unseen on a queue, handled on its poison queue."""
    seen: list[Any] = []

    async def supervise(message: Message) -> None:
        seen.append(message.value)

    assert isinstance(await run_once(supervise, "notjson", payload=Order), Bury)
    assert seen == []
    await run_once(supervise, "notjson", payload=Order, queue=POISON)
    assert seen == [None]


class Aside:
    """A store with one message whose body was put aside, or that begins as if it were."""

    def __init__(self) -> None:
        self.store = Store()
        self.check = ClaimCheck(MemoryBlobs(f"trouble-{next(_numbers)}", clock=asyncio.get_running_loop().time))

    async def fill(self, body: bytes, queue: str = QUEUE) -> bytes:
        ready = body
        if not body.startswith(CLAIM):
            message = await self.check.put_aside(queue, NewMessage(body), self.store.capabilities.body_bytes_max)
            ready = message.body
        await self.store.fill(ready, queue=queue)
        return ready


@pytest.mark.parametrize("body", [b"large" * 50_000, CLAIM + b'../x"}'])
@pytest.mark.parametrize("batches", [False, True])
@simulated
async def test_without_a_claim_check_no_handler_sees_a_claim(
    body: bytes, batches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its attempts fail, with one line that names the remedy; it is buried as it stands, and the reason says why."""
    site, seen = Aside(), []
    claim = await site.fill(body)

    async def one(message: Message) -> None:
        seen.append(message.body)

    async def many(messages: list[Message]) -> None:
        seen.extend(message.body for message in messages)

    await site.store.fill(b"small")
    async with listening(site.store, many if batches else one, max_attempts=3) as listener:
        await settled(listener, 1, "buried")
        figures = listener.state().queues[QUEUE]
        assert (figures.handled, figures.retried, figures.buried) == (1, 2, 1)
    assert seen == [b"small"]
    (burial,) = await site.store.burials()
    assert (burial.failure, burial.attempts, len(burial.history)) == ("exhausted", 3, 3)
    assert "no claim_check" in burial.reason
    assert await site.store.bodies(POISON) == [claim]
    assert len(lines(caplog, "with the claim_check of its producers")) == 1


@simulated
async def test_what_was_buried_for_want_of_a_claim_check_can_be_replayed() -> None:
    """A supervisor without one leaves it alone; one that has it sends the whole body back."""
    site, body, seen = Aside(), b"large" * 50_000, []
    await site.fill(body)

    async def see(message: Message) -> None:
        seen.append(message.body)

    async def replay(message: Message) -> None:
        seen.append(message.body)
        raise Replay

    await run_until(listening(site.store, see, max_attempts=1), 1, "buried")
    async with listening(site.store, replay, POISON) as supervisor:
        await settled(supervisor, 3, "retried", POISON)
        assert supervisor.state().queues[POISON].replayed == 0
    assert seen == []
    await run_until(listening(site.store, replay, POISON, claim_check=site.check), 1, "replayed", POISON)
    await run_until(listening(site.store, see, claim_check=site.check), 1)
    assert seen == [body, body]
