"""`queuebell serve --cluster`: bridges on one NATS, with one engine or none, as processes; and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import urllib.request

import pytest

from queuebell.bridge import Publisher
from queuebell.bridge.contract.errors import StoreError, Unsupported
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.queues.jetstream.store import JetStreamStore
from queuebell.bridge.queues.postgres.schema import init
from queuebell.listeners import Listener, Message
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.queuebell.command.test_serve_store import QUEUE, working
from tests.support.brokers import NatsServer
from tests.support.command import Serving, perform, serving
from tests.support.processes import PATIENCE_S, until

__all__ = ["schema", "server", "url"]


def ask(served: Serving, path: str) -> str:
    with urllib.request.urlopen(f"{served.url}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def cluster_of(served: Serving) -> dict[str, object]:
    return dict(json.loads(ask(served, "/v1/cluster")))


def members(*bridges: Serving) -> bool:
    """Whether each of these hears all the others, and itself."""
    seen = [cluster_of(served) for served in bridges]
    return all(len(each["members"]) == len(bridges) and not each["alone"] for each in seen)  # type: ignore[arg-type]


def done(served: Serving) -> int:
    """Return what a bridge's history says of the messages handled."""
    return sum(row.get("done", 0) for row in json.loads(ask(served, f"/v1/queues/{QUEUE}/history?span=1h"))["rows"])


@pytest.mark.system
async def test_three_bridges_are_one_service_and_two_may_die(tmp_path: pathlib.Path, url: str) -> None:
    """C1, C8: every put that was acknowledged is handled by the worker of the one that is left."""
    await init(url, notify=True)
    async with NatsServer(tmp_path, jetstream=False) as nats:
        env = {
            "QUEUEBELL_STORE": url,
            "QUEUEBELL_NATS": f"nats://127.0.0.1:{nats.port}",
            "QUEUEBELL_CLUSTER": "shop",
            "QUEUEBELL_SWEEP_S": "0",
        }
        with contextlib.ExitStack() as stack:
            bridges = [stack.enter_context(serving(tmp_path / name, env=env)) for name in "abc"]
            await until(lambda: members(*bridges), "everybody hears everybody", PATIENCE_S)
            assert "cluster shop: with " in bridges[0].client("status")
            acknowledged: set[str] = set()
            async with working(bridges[2].url) as (handled, more):
                for place, served in enumerate(bridges):
                    async with HttpStore(served.url) as store:
                        for number in range(3):
                            # One after the other, so that each finds the worker asleep: no sweep finds it here.
                            await store.put(QUEUE, [f"{place}-{number}"])
                            acknowledged.add(f"{place}-{number}")
                            async with asyncio.timeout(PATIENCE_S), more:
                                await more.wait_for(lambda: acknowledged <= handled)
                for killed in bridges[:2]:
                    async with HttpStore(killed.url) as store:
                        for number in range(50):
                            with contextlib.suppress(StoreError):
                                await store.put(QUEUE, [f"{killed.url}-{number}"])
                                acknowledged.add(f"{killed.url}-{number}")
                            if number == 25:
                                killed.process.kill()
                async with asyncio.timeout(PATIENCE_S), more:
                    await more.wait_for(lambda: acknowledged <= handled)
                assert len(acknowledged) >= 59
                await until(lambda: members(bridges[2]) or None, "the others are gone", PATIENCE_S)
            code, log = bridges[2].stop()
            assert code == 0
            assert "another bridge joined the cluster" in log
            assert "a bridge left the cluster" in log
            for killed in bridges[:2]:
                killed.process.wait()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "cluster: its bridges connect through one NATS cluster"),
        (
            ["--nats", "nats://a", "--azure-queue", "127.0.0.1:0"],
            "azure_queue: with --cluster it needs a store",
        ),
        (["--store", "redis://127.0.0.1:1"], "cluster: its bridges connect through one NATS cluster"),
        (["--store", "redis://127.0.0.1:1", "--nats", "nats://a", "--nats", "nats://b"], "set nats exactly once"),
        (
            ["--store", "redis://127.0.0.1:1", "--nats", "embedded"],
            "cluster: an embedded NATS server belongs to this bridge",
        ),
    ],
)
def test_what_cannot_be_a_cluster_is_refused(tmp_path: pathlib.Path, words: list[str], said: str) -> None:
    given = ("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--cluster", "shop", *words)
    done = perform(*given, code=78)
    assert said in done.stderr.decode().strip().splitlines()[-1]


def test_whose_own_file_holds_messages_does_not_join(tmp_path: pathlib.Path) -> None:
    """C8: without a store of all they would be seen by nobody."""
    with serving(tmp_path) as served:
        assert served.client("queue", "put", QUEUE, "hello") is not None
        assert served.stop()[0] == 0
    given = ("serve", "--data", str(tmp_path), "--cluster", "shop", "--nats", "nats://127.0.0.1:1")
    said = perform(*given, code=78).stderr.decode()
    assert "cluster: " in said
    assert "holds 1 messages that would not be served: start the bridge without --cluster" in said


async def test_a_cluster_without_a_store_serves_queues_elsewhere_and_none_of_its_own(tmp_path: pathlib.Path) -> None:
    """C8: triggers, sessions and what is shown work; a put at its own door is refused, with the way out."""
    async with NatsServer(tmp_path) as nats, contextlib.AsyncExitStack() as stack:
        address = f"nats://127.0.0.1:{nats.port}"
        env = {"QUEUEBELL_NATS": address, "QUEUEBELL_CLUSTER": "shop", "QUEUEBELL_SWEEP_S": "0"}
        env["QUEUEBELL_HEARTBEAT_S"] = "1"
        bridges = [stack.enter_context(serving(tmp_path / name, env=env)) for name in "abc"]
        await until(lambda: members(*bridges), "everybody hears everybody", PATIENCE_S)
        store = await stack.enter_async_context(JetStreamStore(address))
        await store.create(QUEUE)
        handled: set[bytes] = set()

        async def handle(message: Message) -> None:
            handled.add(message.body)

        listener = Listener(store, QUEUE, handle, bridge=bridges[0].url, handle_signals=False)
        running = asyncio.create_task(listener.run(), name="worker")
        await until(lambda: listener.state().mode == "push", "the worker is welcome", PATIENCE_S)
        for place, served in enumerate(bridges):
            await store.put(QUEUE, [b"%d" % place])
            async with Publisher(served.url) as publisher:
                await publisher.publish(QUEUE)
            await until(lambda count=place + 1: len(handled) == count, "handled", PATIENCE_S)
        status = bridges[1].client("status")
        assert "store: ok none: this bridge serves queues in external stores only" in status
        assert "cluster shop: with " in status
        # The worker is at the first; who asks the second is told to ask others too.
        assert "no listeners\n" in status
        assert f"these are the listeners of {bridges[1].url} only; --bridge" in status
        numbers = bridges[1].client("check", "--bridge", bridges[1].url, code=None)
        assert "the queues are in a store that several bridges may serve" in numbers and "own queues (of" not in numbers
        # Handled is not settled: the worker's empty receive comes after it.
        await until(
            lambda: "a trigger now would wake 1 of 1" in bridges[0].client("explain", QUEUE), "settled", PATIENCE_S
        )
        assert json.loads(ask(bridges[2], f"/v1/queues/{QUEUE}"))["triggers"] == 3
        async with HttpStore(bridges[1].url) as own:
            refused = (own.put(QUEUE, [b"lost"]), own.receive(QUEUE), own.create(QUEUE), own.peek(QUEUE))
            for call in refused:
                with pytest.raises(Unsupported, match="the same --store URL, or serve them from one bridge without"):
                    await call
        await until(lambda: {done(served) for served in bridges} == {3}, "each shows the history of all", PATIENCE_S)
        await listener.stop()
        await running
        for served in bridges:
            code, log = served.stop()
            assert code == 0
            assert "this bridge keeps no queues of its own" in log


def test_a_name_is_a_word(tmp_path: pathlib.Path) -> None:
    """It stands in words between bridges and in log lines."""
    done = perform("serve", "--data", str(tmp_path), "--cluster", "a b", "--store", "redis://127.0.0.1:1", code=78)
    assert "cluster: a name is 1 to 63 letters, digits, - and _" in done.stderr.decode()
