"""A worker that cannot work says so: it ends where nothing can mend itself, and warns where something may."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from queuebell.bridge.contract.errors import (
    ChannelLost,
    ConfigurationError,
    NotPrepared,
    StoreError,
    StoreUnavailable,
)
from queuebell.bridge.contract.wire import (
    Welcome,
    WelcomedQueue,
)
from queuebell.bridge.queues.base import Capabilities
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.listeners import PULL_ONLY, Listener, Message, collector
from queuebell.listeners.work.failures import ReceiveFailures, StoreReached
from queuebell.listeners.work.metrics_port import MetricsPort
from tests.listeners.rig import QUEUE, Store, listening, raising
from tests.support.command import COMMAND
from tests.support.fake_bridge import FakeBridge, FakeLink
from tests.support.sim_loop import pass_time, simulated

_numbers = itertools.count()


async def handle(message: Message) -> None:
    """Succeed."""


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
        (("memory:x", "a/b", "--exec", "true"), 78, "name one with --bridge URL, or give --pull-only"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(words: tuple[str, ...], code: int, said: str) -> None:
    """One line on standard error, before anything is opened."""
    ended = listen(*words)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


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
        monkeypatch.setattr("queuebell.listeners.listener.open_store", lambda given, api_key: (store, True))
        listener = Listener("memory:x", QUEUE, handle, bridge=Away(), handle_signals=False)
        running = asyncio.create_task(listener.run(), name="listener")
        while not (listener.state().queues or running.done()):
            await asyncio.sleep(0)
        running.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)

    asyncio.run(story())
    assert closed == ["channel", "store"]


async def nothing(message: Message) -> None:
    """Handle a message."""


class Tuned(FakeBridge):
    """A bridge whose welcome says a queue's own numbers."""

    def __init__(self, **numbers: int) -> None:
        super().__init__()
        self.numbers = numbers

    def heard(self, link: FakeLink, frame: Any) -> None:
        super().heard(link, frame)
        kept = []
        while not link.down.empty():
            down = link.down.get_nowait()
            if isinstance(down, Welcome):
                states = [WelcomedQueue(s.queue, s.gen, s.clean, s.covered_age_ms, **self.numbers) for s in down.queues]
                down = Welcome(down.boot, down.heartbeat_ms, down.sweep_ms, down.sessions, states)
            kept.append(down)
        for down in kept:
            link.down.put_nowait(down)


@simulated
async def test_a_receive_ends_at_the_queues_own_r_and_what_the_store_needs() -> None:
    """R from the welcome, longer by the time that a store may poll by design."""

    class Polling(Store):
        capabilities = Capabilities(receive_s=2.0)  # type: ignore[assignment]

    store, bridge = Polling(), Tuned(store_call_ms=1000)
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await pass_time(1e6)

    async with listening(store, nothing, bridge=bridge) as listener:
        await pass_time(1)
        store.receiving.append(hang)
        bridge.wake(QUEUE)
        await begun.wait()
        await pass_time(2.9)
        assert listener.state().queues[QUEUE].failed_receives == 0
        await pass_time(0.2)
        assert listener.state().queues[QUEUE].failed_receives == 1


async def get(url: str, **headers: str) -> tuple[int, str]:
    async with ClientSession() as client, client.get(url, headers=headers) as answer:
        if answer.ok:
            assert answer.headers["Content-Type"] == CONTENT_TYPE_LATEST
        return answer.status, await answer.text()


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
async def test_a_page_cannot_read_it(address: str) -> None:
    """A name that leads to this machine, and other paths and verbs, find nothing."""
    async with MetricsPort(address, collector()) as port:
        assert (await get(port.url))[0] == 200
        assert (await get(port.url, Host="evil.example"))[0] == 403
        assert (await get(port.url.replace("/metrics", "/")))[0] == 404


async def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"metrics: cannot listen on {address}"):
            async with MetricsPort(address, collector()):
                pass


def test_a_store_that_has_answered_ends_no_worker() -> None:
    """Of whichever queue the answer was: its address is right, and what changed there may change back."""
    reach = StoreReached()
    one, other = ReceiveFailures(reach), ReceiveFailures(reach)
    assert not one.answered()
    assert not other.ends(ConfigurationError("this user is not let in"))


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ConfigurationError("its client is not installed"), True),
        (NotPrepared("the tables are missing"), False),
        (StoreUnavailable("away"), False),
        (StoreError("refused"), False),
    ],
)
def test_only_what_cannot_mend_itself_ends_a_worker(error: Exception, ends: bool) -> None:
    """Tables may be made while workers run, and a store may come back; a client that is missing stays missing."""
    assert ReceiveFailures().ends(error) is ends
