"""The listener as a whole: its arguments, hooks, modes, and the order of stopping."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from queuebell.bridge.contract.errors import BadInput, BadQueueReference, ConfigurationError
from queuebell.bridge.contract.wire import Bye, Hello, ListenerHeartbeat, More
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import Depth, NewMessage
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.listeners import PULL_ONLY, Listener, Message
from tests.listeners.rig import QUEUE, Store, listening, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.processes import environment
from tests.support.sim_loop import pass_time, simulated


async def nothing(message: Message) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 0},
        {"batch": 33},
        {"concurrency": 0},
        {"visibility_timeout": 0},
        {"visibility_timeout": 604_801},
        {"max_attempts": -1},
        {"handler_timeout": 0},
        {"grace": -1},
        {"name": "a\nb"},
        {"poison_queue": "no/such/reference"},
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """At once, by a `ValueError` that says what would be right."""
    with pytest.raises(BadInput):
        Listener("memory:x", QUEUE, nothing, bridge=PULL_ONLY, **options)


async def test_urls_of_no_known_kind_are_refused() -> None:
    """Store and bridge alike, by an error that names the setting."""
    with pytest.raises(ConfigurationError, match="store"):
        await Listener("ftp://x", QUEUE, nothing, bridge=PULL_ONLY).run()
    with pytest.raises(ConfigurationError, match="bridge"):
        await Listener("memory:x", QUEUE, nothing, bridge="ftp://x").run()


def test_importing_listeners_loads_no_web_library() -> None:
    """A worker that needs none pays for none."""
    code = (
        "import sys, queuebell.listeners, queuebell.listeners.testing; "
        "print([m for m in ('aiohttp', 'sqlite3', 'nats') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@simulated
async def test_hooks_are_called_and_cannot_do_harm() -> None:
    """Plain or async, with the queue or without; what they raise is logged."""
    store, bridge, told = Store(), FakeBridge(), []

    async def empty(queue: str) -> None:
        told.append(("empty", queue))
        raise RuntimeError("harmless")

    def work() -> None:
        told.append(("work", ""))
        raise RuntimeError("harmless")

    async with listening(store, nothing, bridge=bridge, on_queue_empty=empty, on_work_detected=work) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x")
        bridge.wake(QUEUE)
        await settled(listener, 1)
        assert told == [("work", ""), ("empty", QUEUE)]


@pytest.mark.parametrize("stubborn", [False, True])
@simulated
async def test_a_hook_that_goes_on_ends_with_its_listener(stubborn: bool) -> None:
    """It is cancelled; one that swallows that is waited for a second, and left."""
    store, bridge, began, ended = Store(), FakeBridge(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def empty() -> None:
        began.set()
        try:
            await pass_time(600)
        except asyncio.CancelledError:
            if stubborn:
                await pass_time(5)
            ended.set()

    async with listening(store, nothing, bridge=bridge, on_queue_empty=empty) as listener:
        await bridge.until(ListenerHeartbeat)
        bridge.wake(QUEUE)
        await began.wait()
        at = loop.time()
        await listener.stop()
    assert (loop.time() - at, ended.is_set()) == (pytest.approx(1.0 if stubborn else 0.0, abs=0.01), not stubborn)
    await ended.wait()


@simulated
async def test_what_outlives_the_grace_is_cancelled_and_given_back() -> None:
    """The message is visible again at once, and announced (L7)."""
    store, bridge = Store(), FakeBridge()

    async def handle(message: Message) -> None:
        await pass_time(1000)

    async with listening(store, handle, bridge=bridge, grace=10) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x")
        bridge.wake(QUEUE)
        await pass_time(1)
        before = len(bridge.of(More))
        began = asyncio.get_running_loop().time()
        await listener.stop()
        assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=0.5)
        assert await store.bodies(QUEUE) == [b"x"]
        assert len(bridge.of(More)) == before + 2, "one to hand the debt back, one for the release"
        assert listener.state().queues[QUEUE].given_back == 1


@simulated
async def test_stopping_before_running_and_twice_is_harmless() -> None:
    """`stop` may come at any time; a listener runs once."""
    listener = Listener(Store(), QUEUE, nothing, bridge=PULL_ONLY, handle_signals=False)
    await listener.stop()
    await listener.run()
    await listener.stop()
    with pytest.raises(RuntimeError, match="once"):
        await listener.run()


@simulated
async def test_stopping_lets_handlers_finish() -> None:
    """L12: capacity 0 and `more`, no new receive, the running handler ends and is settled, `bye` last."""
    store, bridge, done = Store(), FakeBridge(), []

    async def handle(message: Message) -> None:
        await pass_time(5)
        done.append(message.body)

    async with listening(store, handle, bridge=bridge, concurrency=1) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"x", b"y")
        bridge.wake(QUEUE, 2)
        await pass_time(1)
        await listener.stop()
        assert done == [b"x"]
        assert await store.bodies(QUEUE) == [b"y"]
        assert bridge.hellos[-1].queues[0].capacity == 0
        assert bridge.of(More)
        assert isinstance(bridge.frames[-1], Bye)
        assert bridge.frames[-1].leases == {}


@simulated
async def test_without_a_bridge_it_degrades_and_comes_back() -> None:
    """L9: no welcome in 5 s: it polls; a welcome ends that; a bridge that falls silent is left after 15 s."""
    store, bridge = Store(), FakeBridge()
    bridge.away, bridge.covered_age_ms = True, 0
    await store.fill(b"x")
    async with listening(store, nothing, bridge=bridge) as listener:
        await pass_time(4)
        assert listener.state().mode == "connecting"
        assert store.receives == 0
        await pass_time(40)
        assert listener.state().mode == "degraded"
        assert listener.state().queues[QUEUE].wake_sources == {"poll": 1}
        bridge.away = False
        await bridge.until(Hello)
        await pass_time(1)
        assert listener.state().mode == "push"
        before = store.receives
        await pass_time(60)
        assert store.receives == before
        bridge.silent = True
        await pass_time(50)
        assert listener.state().mode == "degraded"
        assert not listener.state().session
        assert store.receives > before
        bridge.silent = False
        await pass_time(12)
        assert listener.state().mode == "push"


@simulated
async def test_pull_only_polls_with_back_off_and_finds_what_is_put() -> None:
    """Without a bridge one poller is kept: a look at once, then pauses of up to 30 s."""
    store = Store()
    async with listening(store, nothing) as listener:
        await pass_time(600)
        idle = store.receives
        assert 20 < idle < 40
        assert listener.state().mode == "pull-only"
        await store.fill(b"x")
        await pass_time(31)
        assert listener.state().queues[QUEUE].handled == 1


def test_queues_are_checked_when_the_listener_is_made() -> None:
    """A malformed reference, none at all, the same twice, or one whose poison queue would not fit a token."""
    for queues in ("orders", [], [QUEUE, QUEUE]):
        with pytest.raises(BadInput):
            Listener("memory:x", queues, nothing, bridge=PULL_ONLY)
    with pytest.raises(BadQueueReference):
        Listener("memory:x", "a/" + "q" * 75, nothing, bridge=PULL_ONLY)
    Listener("memory:x", "a/" + "q" * 75, nothing, bridge=PULL_ONLY, poison_queue="a/bad")
    Listener("memory:x", "a/" + "q" * 73 + "-poison", nothing, bridge=PULL_ONLY)


async def test_the_first_signal_stops_gracefully_and_the_second_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """SIGTERM lets handlers finish; a second one cancels them and gives their messages back."""
    before = signal.getsignal(signal.SIGTERM)
    for signals in (1, 2):
        store = MemoryStore(f"signals-{signals}")
        await store.put(QUEUE, [NewMessage(b"x")])
        started, release = asyncio.Event(), asyncio.Event()

        async def handle(message: Message, started: asyncio.Event = started, release: asyncio.Event = release) -> None:
            started.set()
            await release.wait()

        running = asyncio.create_task(
            Listener(store, QUEUE, handle, bridge=PULL_ONLY, grace=600, name="it").run(), name="listener"
        )
        await started.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.02)
        assert not running.done()
        if signals == 1:
            release.set()
        else:
            os.kill(os.getpid(), signal.SIGTERM)
        await running
        depth = await store.depth(QUEUE)
        assert depth.visible == signals - 1
        await store.close()
        assert caplog.text.count("it: stopping; a second signal stops at once") == signals
    assert signal.getsignal(signal.SIGTERM) is before


async def test_a_second_cancellation_still_lets_go_of_everything() -> None:
    """It only makes it hurry: no connection and no store is left open."""
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with open_store("memory:cancelled-twice") as producer:
        await producer.put("a/twice", [NewMessage(b"1")])
        listener = Listener("memory:cancelled-twice", "a/twice", handle, bridge=PULL_ONLY, handle_signals=False)
        running = asyncio.create_task(listener.run(), name="listener")
        await begun.wait()
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await producer.depth("a/twice")) == Depth(1, 0)
    # What is in memory is gone with the last who had it open.
    async with open_store("memory:cancelled-twice") as again:
        assert await again.depth("a/twice") is None


@simulated
async def test_a_short_break_of_the_session_does_not_degrade() -> None:
    """A bridge that restarts within 5 s costs a hello and no receive (I6)."""
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        bridge.boot, bridge.gen = "d" * 32, 3
        bridge.cut()
        await bridge.until(Hello, 2)
        await bridge.until(ListenerHeartbeat, 2)
        assert bridge.hellos[1].instance == bridge.hellos[0].instance
        seen = bridge.hellos[1].queues[0].seen
        assert seen.boot == "b" * 32
        assert listener.state().mode == "push"
        assert listener.state().queues[QUEUE].gen == 3
        assert store.receives == 0


@simulated
async def test_a_cancelled_run_gives_back_and_leaves() -> None:
    """Cancelling `run` takes no grace: handlers are cancelled, messages returned, `bye` said."""
    store, bridge = Store(), FakeBridge()

    async def handle(message: Message) -> None:
        await pass_time(1000)

    listener = Listener(store, QUEUE, handle, bridge=bridge, handle_signals=False)
    running = asyncio.create_task(listener.run(), name="listener")
    await bridge.until(ListenerHeartbeat)
    await store.fill(b"x")
    bridge.wake(QUEUE)
    await pass_time(1)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert await store.bodies(QUEUE) == [b"x"]
    assert bridge.of(Bye)
    await listener.stop()


def test_the_example_of_its_docstring_runs() -> None:
    text = inspect.getdoc(Listener) or ""
    example = textwrap.dedent(text.split("::\n", 1)[1].split("\nAll times", 1)[0])
    done = subprocess.run(
        [sys.executable, "-c", example], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("charging order 20\n", "", 0)
