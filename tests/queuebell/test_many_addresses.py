"""A list of bridges wherever one may be named: workers, producers, outbox, frameworks and commands.

Two doors of one service stand for bridges that share a store. What goes on when bridges themselves go is in
`tests/services/test_many_bridges.py`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.listeners.rig import QUEUE
from tests.queuebell.frameworks.django.shop import Shop, sqlite
from tests.support.command import Serving, perform, serving
from tests.support.processes import Processes, free_port


@pytest.mark.rest
async def test_django(tmp_path: pathlib.Path) -> None:
    """``OPTIONS`` takes a list, for whoever enqueues and for the worker."""
    async with Processes(tmp_path) as processes:
        bridge = await processes.serve()
        urls = [f"http://127.0.0.1:{free_port()}", bridge.url]
        shop = Shop(processes, bridge, sqlite(tmp_path, range(1, 3)), {"store": urls})
        worker = await shop.worker()
        await shop.run("charge.enqueue(1)\ncharge.enqueue(2)\n")
        await shop.tells("charged", 2)
        assert await worker.stop() == 0, worker.errors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Serve once for the commands."""
    with serving(tmp_path_factory.mktemp("one")) as one:
        yield one


def asked(url: str, *words: str, code: int | None = 0) -> str:
    """Perform a command at these addresses, and return what it said."""
    done = perform(*words, env={"QUEUEBELL_BRIDGE": url, "QUEUEBELL_STORE": url}, code=code)
    return done.stdout.decode() + done.stderr.decode()


def test_every_command_asks_the_one_that_is_there(served: Serving) -> None:
    """Begun at random, so each several times; and it says whom it asked."""
    dead = f"http://127.0.0.1:{free_port()}"
    for url in (f"{dead},{served.url}", f"{served.url},{dead.removeprefix('http://')}"):
        for _ in range(3):
            assert "put 1" in asked(url, "queue", "put", QUEUE, "x")
            assert "1 visible" in asked(url, "queue", "depth", QUEUE)
            assert QUEUE in asked(url, "queue", "list")
            assert asked(url, "queue", "peek", QUEUE) == asked(url, "queue", "get", QUEUE) == "x\n"
            assert f"bridge at {served.url}: ready" in asked(url, "status")
            told = json.loads(asked(url, "status", "--json"))["bridge"]
            assert told["url"] == served.url and all(dead in gone for gone in told["gone"])
            assert asked(url, "explain", QUEUE).startswith(f"{QUEUE}: ")
            assert "published" in asked(url, "publish", "billing/elsewhere")


def test_nobody_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 69, and each address with its reason."""
    one, two = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    for words in (["status"], ["explain", QUEUE], ["queue", "forget", QUEUE], ["check", "--bridge", f"{one},{two}"]):
        said = asked(f"{one},{two}", *words, code=69)
        assert f"at {one}" in said and f"at {two}" in said
    assert "no bridge answers" in asked(f"{one},{two}", "publish", QUEUE, code=69)
    assert "no bridge answers at" in asked(f"{one},{two}", "queue", "depth", QUEUE, code=69)


def test_check_looks_at_each(served: Serving, tmp_path: pathlib.Path) -> None:
    """One that is gone is a problem that clients hide; so are two that hold queues of their own."""
    dead = f"http://127.0.0.1:{free_port()}"
    said = asked(served.url, "check", "--bridge", f"{served.url},{dead}", code=1)
    assert f"bridge at {served.url}: " in said and f"{dead}: no bridge answers" in said
    with serving(tmp_path / "two") as other:
        asked(served.url, "queue", "put", QUEUE, "x")
        both = f"{served.url},{other.url}"
        told = json.loads(asked(both, "check", "--json", code=None))
        assert [each["url"] for each in told["bridges"]] == [served.url, other.url] and told["bridge"]["answers"]
        codes = [problem["code"] for problem in told["problems"]]
        assert "apart" not in codes and codes.count("disconnected") == 2
        asked(other.url, "queue", "put", QUEUE, "x")
        told = json.loads(asked(both, "check", "--json", code=1))
        assert "apart" in [problem["code"] for problem in told["problems"]]
        assert "each has its own embedded queues" in asked(both, "check", code=1)


def test_each_is_told_to_forget(served: Serving, tmp_path: pathlib.Path) -> None:
    """Names are each bridge's own: a queue is forgotten by all that know it, and by none where one refuses."""
    name = "billing/mistake"
    with serving(tmp_path / "two") as other:
        both = f"{served.url},{other.url}"
        for url in (served.url, other.url, other.url):
            asked(url, "publish", name)
            assert "forgotten" in asked(both, "queue", "forget", name)
            for each in (served.url, other.url):
                assert name not in asked(each, "explain", name, code=1).partition(":")[0]
        asked(both, "queue", "forget", name, code=1)
