"""`queuebell serve --cluster`: bridges on one engine and one NATS, as processes, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import urllib.request

import pytest

from bridge.contract.errors import StoreError
from bridge.queues.http import HttpStore
from bridge.queues.postgres.schema import init
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
            assert "another bridge of the cluster is there" in log
            assert "a bridge of the cluster is gone" in log
            for killed in bridges[:2]:
                killed.process.wait()


@pytest.mark.system
async def test_a_rolling_restart_of_all_loses_nothing(tmp_path: pathlib.Path, url: str) -> None:
    """C7: each leaves in order, and its worker finds what waits at the next."""
    await init(url, notify=True)
    async with NatsServer(tmp_path, jetstream=False) as nats:
        env = {"QUEUEBELL_STORE": url, "QUEUEBELL_NATS": f"nats://127.0.0.1:{nats.port}", "QUEUEBELL_CLUSTER": "shop"}
        with contextlib.ExitStack() as stack:
            bridges = [stack.enter_context(serving(tmp_path / f"{place}", env=env)) for place in range(2)]
            await until(lambda: members(*bridges), "everybody hears everybody", PATIENCE_S)
            acknowledged: set[str] = set()
            for place in range(2):
                stays = bridges[1 - place]
                async with working(stays.url) as (handled, more), HttpStore(stays.url) as store:
                    for number in range(40):
                        if number == 20:
                            assert bridges[place].stop()[0] == 0
                        await store.put(QUEUE, [f"{place}-{number}"])
                        acknowledged.add(f"{place}-{number}")
                    mine = {body for body in acknowledged if body.startswith(f"{place}-")}
                    async with asyncio.timeout(PATIENCE_S), more:
                        await more.wait_for(lambda mine=mine, handled=handled: mine <= handled)  # type: ignore[misc]
                bridges[place] = stack.enter_context(serving(tmp_path / f"{place} again", env=env))
                await until(lambda: members(*bridges), "it is back", PATIENCE_S)
            for served in bridges:
                assert served.stop()[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "cluster: its bridges serve queues that all of them reach"),
        (["--store", "redis://127.0.0.1:1"], "cluster: its bridges hear each other on one NATS cluster"),
        (["--store", "redis://127.0.0.1:1", "--nats", "nats://a", "--nats", "nats://b"], "give nats exactly once"),
        (["--store", "redis://127.0.0.1:1", "--nats", "embedded"], "cluster: an embedded NATS server is this bridge's"),
    ],
)
def test_what_cannot_be_a_cluster_is_refused(tmp_path: pathlib.Path, words: list[str], said: str) -> None:
    """One line each, with the way out."""
    given = ("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--cluster", "shop", *words)
    done = perform(*given, code=78)
    assert said in done.stderr.decode().strip().splitlines()[-1]


def test_a_name_is_a_word(tmp_path: pathlib.Path) -> None:
    """It stands in words between bridges and in log lines."""
    done = perform("serve", "--data", str(tmp_path), "--cluster", "a b", "--store", "redis://127.0.0.1:1", code=78)
    assert "cluster: a name is 1 to 63 letters, digits, - and _" in done.stderr.decode()
