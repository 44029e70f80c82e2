"""The client commands on ``ACCOUNT/QUEUE:COUNT``, against a real `queuebell serve`."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from bridge.contract.partitioning import Partitions
from tests.support.command import COMMAND, Serving, environment, perform, serving


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One bridge for this file; each test has a queue of its own."""
    with serving(tmp_path_factory.mktemp("data")) as started:
        yield started


def counts(bridge: Serving, queue: str) -> list[int]:
    """Return what is visible in each partition, as `depth --json` says it."""
    answer = json.loads(bridge.client("queue", "depth", queue, "--json"))
    visible = [part.get("visible", 0) for part in answer["partitions"]]
    assert sum(visible) == answer["visible"]
    return visible


def test_puts_go_in_turn_or_by_key(bridge: Serving) -> None:
    """Batches of standard input in turn, 32 each; with --key all to one partition, that which the library chooses."""
    lines = "".join(f"{number}\n" for number in range(128)).encode()
    assert bridge.client("queue", "put", "put/orders:4", stdin=lines) == "put/orders:4: put 128\n"
    assert counts(bridge, "put/orders:4") == [32, 32, 32, 32]
    bridge.client("queue", "put", "put/orders:4", "a", "b", "--key", "customer 4711")
    assert Partitions("put/orders", 4).of("customer 4711") == "put/orders-p2"
    assert counts(bridge, "put/orders:4") == [32, 32, 34, 32]


def test_get_and_peek_go_through_all_partitions(bridge: Serving) -> None:
    """One after the other until there are enough; a partition that was never put to is empty."""
    bridge.client("queue", "put", "get/orders-p0", "one")
    bridge.client("queue", "put", "get/orders-p2", "two", "three")
    assert bridge.client("queue", "peek", "get/orders:3") == "one\ntwo\nthree\n"
    assert bridge.client("queue", "peek", "get/orders:3", "--max", "2") == "one\ntwo\n"
    assert bridge.client("queue", "get", "get/orders:3", "--max", "2") == "one\ntwo\n"
    assert bridge.client("queue", "get", "get/orders:3", "--max", "9") == "three\n"
    bridge.client("queue", "get", "none/orders:3", code=1)
    bridge.client("queue", "peek", "get/orders:3", "--max", "33", code=2)


def test_all_partitions_are_made_counted_paused_cleared_and_removed(bridge: Serving) -> None:
    """Each in one word, for people and for scripts."""
    queue = "all/orders:3"
    bridge.client("queue", "depth", queue, code=1)
    assert bridge.client("queue", "create", queue, "--metadata", "team=billing") == f"{queue}: created 3\n"
    assert json.loads(bridge.client("queue", "create", "all/orders:4", "--json")) == {
        "queue": "all/orders:4",
        "created": 1,
    }
    bridge.client("queue", "put", queue, "x")
    assert bridge.client("queue", "pause", queue) == f"{queue}: paused\n"
    assert counts(bridge, queue) == [0, 0, 0]
    assert bridge.client("queue", "resume", queue) == f"{queue}: resumed\n"
    shown = bridge.client("queue", "depth", "all/orders:5").splitlines()
    assert shown[0] == "all/orders:5: 1 visible, 0 invisible"
    assert shown[-1] == "  all/orders-p4: does not exist"
    assert bridge.client("queue", "clear", queue) == f"{queue}: cleared\n"
    assert counts(bridge, queue) == [0, 0, 0]
    assert bridge.client("queue", "delete", queue) == f"{queue}: deleted\n"
    assert bridge.client("queue", "list", "--prefix", "all/") == "all/orders-p3\n"


def test_what_cannot_be_done_with_partitions_is_refused(bridge: Serving) -> None:
    """Export and import keep a message where it is; a key without partitions chooses nothing; near misses."""
    for words in (
        ["queue", "export", "no/orders:4"],
        ["queue", "import", "no/orders:4"],
        ["queue", "put", "no/orders", "x", "--key", "k"],
        ["queue", "put", "no/orders:4", "x", "--key", ""],
        ["queue", "put", "no/orders:04", "x"],
        ["queue", "put", "no/Orders:4", "x"],
        ["publish", "no/orders", "--key", "k"],
        ["publish", "no/orders:0"],
    ):
        bridge.client(*words, code=2)
    assert bridge.client("queue", "list", "--prefix", "no/") == ""
    done = perform("queue", "export", "no/orders:4", env={"QUEUEBELL_STORE": bridge.url}, code=2)
    assert b"no/orders-p0" in done.stderr


def test_publish_tells_all_partitions_or_the_one_of_a_key(bridge: Serving) -> None:
    """Who put in turn does not know where: each is told of its share; a key says where."""
    lines = [
        json.loads(line) for line in bridge.client("publish", "pub/orders:3", "--size", "7", "--json").splitlines()
    ]
    assert [line["queue"] for line in lines] == [f"pub/orders-p{number}" for number in range(3)]
    assert len({line["id"] for line in lines}) == 3
    assert bridge.client("publish", "pub/orders:3", "--size", "7") == "".join(
        f"published pub/orders-p{number}: 3\n" for number in range(3)
    )
    assert bridge.client("publish", "pub/orders:4", "--key", "customer 4711", "--size", "7") == (
        "published pub/orders-p2: 7\n"
    )


def test_a_put_tells_a_named_bridge_of_its_partition(bridge: Serving) -> None:
    """With --bridge the trigger names the physical queue; here the put itself is the trigger, and one is counted."""
    bridge.client("queue", "put", "told/orders:4", "x", "--key", "customer 4711", "--bridge", bridge.url)
    status = json.loads(bridge.client("status", "told/orders-p2", "--json"))
    assert [(queue["queue"], queue["triggers"]) for queue in status["queues"]] == [("told/orders-p2", 1)]
    shown = json.loads(bridge.client("status", "--json"))["queues"]
    assert [queue["queue"] for queue in shown if queue["queue"].startswith("told/")] == ["told/orders-p2"]


def test_a_command_listens_at_all_partitions(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """One process for all; it says of each message where it came from, and buries in one place."""
    bridge.client("queue", "put", "listen/orders-p0", "good")
    bridge.client("queue", "put", "listen/orders-p3", "bad")
    command = 'body=$(cat); if [ "$body" = bad ]; then exit 100; fi; echo "$QUEUEBELL_QUEUE $body"'
    words = [*COMMAND, "listen", bridge.url, "listen/orders:4", "--exec", command, "--bridge", bridge.url]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=tmp_path)
    try:
        assert process.stdout.readline() == b"listen/orders-p0 good\n"
        while bridge.client("queue", "peek", "listen/orders-poison", code=None) == "":
            assert process.poll() is None
        bridge.client("queue", "put", "listen/orders:4", "again", "--key", "customer 4711")
        assert process.stdout.readline() == b"listen/orders-p2 again\n"
        process.terminate()
        process.communicate(timeout=200)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
