"""`queuebell listen` as a process, with a function and with a command, against a real bridge."""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from bridge.claim_check import ClaimCheck
from bridge.contract.errors import ConfigurationError
from bridge.queue import NewMessage
from bridge.queues.memory import MemoryStore
from bridge.tables.memory import MemoryTable
from listeners import Message
from listeners.cli import _listen, load_function
from listeners.config import ListenSettings, load
from tests.support.command import COMMAND, Serving, environment, serving


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One bridge for this file; each test has a queue of its own."""
    with serving(tmp_path_factory.mktemp("data")) as started:
        yield started


def listen(bridge: Serving, here: pathlib.Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "listen", bridge.url, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment({"QUEUEBELL_BRIDGE": bridge.url}),
        cwd=here,
    )


def stopped(process: subprocess.Popen[bytes]) -> str:
    """Stop it in order and return its log."""
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0, log.decode()
    return log.decode()


def test_two_queues_share_a_pool(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """`--pool` is the number of handlers of all queues together, and `--pool-limit` that of one."""
    (tmp_path / "orders.py").write_text("def handle(message):\n    print(message.queue, flush=True)\n")
    for queue in ("pool/urgent", "pool/bulk"):
        bridge.client("queue", "put", queue, "x")
    options = ("--bridge", bridge.url, "--pool", "2", "--pool-weight", "pool/urgent=4", "--pool-limit", "pool/bulk=1")
    process = listen(bridge, tmp_path, "pool/urgent,pool/bulk", "orders:handle", *options)
    try:
        assert process.stdout is not None
        assert {process.stdout.readline() for _ in range(2)} == {b"pool/urgent\n", b"pool/bulk\n"}
    finally:
        stopped(process)


def test_a_function_handles_messages(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """A handler of the current directory gets what was put before and after it came, and deletes it."""
    (tmp_path / "orders.py").write_text(
        "async def handle(message):\n    print(message.queue, message.text(), message.attempt, flush=True)\n"
    )
    bridge.client("queue", "put", "fn/q", "before")
    process = listen(bridge, tmp_path, "fn/q", "--bridge", bridge.url, "orders:handle")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"fn/q before 1\n"
        bridge.client("queue", "put", "fn/q", "after")
        assert process.stdout.readline() == b"fn/q after 1\n"
        stopped(process)
    finally:
        process.kill()
        process.communicate()
    assert bridge.client("queue", "depth", "fn/q") == "fn/q: 0 visible, 0 invisible\n"


def test_a_command_handles_messages(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """Exit code 0 deletes, 100 buries: the message stands on the poison queue."""
    process = listen(
        bridge,
        tmp_path,
        "sh/q",
        "--exec",
        'body=$(cat); echo "$QUEUEBELL_QUEUE $body $QUEUEBELL_ATTEMPT"; [ "$body" = bad ] && exit 100; exit 0',
    )
    try:
        bridge.client("queue", "put", "sh/q", "good", "bad")
        assert process.stdout is not None
        lines = {process.stdout.readline(), process.stdout.readline()}
        assert lines == {b"sh/q good 1\n", b"sh/q bad 1\n"}
        while bridge.client("queue", "depth", "sh/q-poison", code=None) != "sh/q-poison: 1 visible, 0 invisible\n":
            assert process.poll() is None
        stopped(process)
    finally:
        process.kill()
        process.communicate()
    assert bridge.client("queue", "depth", "sh/q") == "sh/q: 0 visible, 0 invisible\n"


def test_status_names_the_listener(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """A listener with a name is shown with it while it listens."""
    process = listen(bridge, tmp_path, "named/q", "--exec", "true", "--name", "the-worker")
    try:
        while "the-worker" not in bridge.client("status"):
            assert process.poll() is None
        shown = json.loads(bridge.client("status", "--json"))
        assert "the-worker" in [row["listener"] for row in shown["listeners"]]
        stopped(process)
    finally:
        process.kill()
        process.communicate()


def test_settings_come_from_the_listeners_table(tmp_path: pathlib.Path) -> None:
    """The file's table, its top level for what both share, the environment, the options: the later wins."""
    file = tmp_path / "queuebell.toml"
    file.write_text('bridge = "http://b:1"\ndata = "x"\n[listener]\nconcurrency = 4\nbatch = 2\n')
    settings = load(str(file), environment={"QUEUEBELL_BATCH": "3"}, options={"concurrency": None, "grace": "1.5"})
    assert (settings.bridge, settings.concurrency, settings.batch, settings.grace) == ("http://b:1", 4, 3, 1.5)
    file.write_text("[listener]\nconcurency = 4\n")
    with pytest.raises(ConfigurationError, match="did you mean 'concurrency'"):
        load(str(file), environment={})
    file.write_text("listener = 4\n")
    with pytest.raises(ConfigurationError, match="table"):
        load(str(file), environment={})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("json", "MODULE:FUNCTION"),
        (":f", "MODULE:FUNCTION"),
        ("no_such_module_here:f", "no module"),
        ("json.nothing:f", "no module"),
        ("json:nothing", "has no nothing"),
        ("json:__name__", "no function"),
    ],
)
def test_a_wrong_function_is_named(spec: str, words: str) -> None:
    """What cannot be loaded says what is missing."""
    with pytest.raises(ConfigurationError, match=words):
        load_function(spec)


def test_nested_functions_are_found() -> None:
    """A dotted path within the module is followed."""
    assert load_function("json:JSONDecoder.decode").__name__ == "decode"


@pytest.mark.asyncio
async def test_large_bodies_and_the_ledger_are_options() -> None:
    """`--claim-check` has the handler see the whole body, and `--ledger` writes that it is done."""
    name = uuid.uuid4().hex
    seen: list[bytes] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append(message.body)
        done.set()

    async with MemoryStore(name) as store, ClaimCheck(f"memory:{name}") as check, MemoryTable(name) as table:
        large = await check.put_aside("billing/orders", NewMessage(b"large" * 20_000), 1024)
        await store.put("billing/orders", [large])
        settings = ListenSettings(claim_check=f"memory:{name}", ledger=f"memory:{name}")
        listening = asyncio.create_task(
            _listen(f"memory:{name}", ["billing/orders"], handle, None, settings), name="listen"
        )
        async with asyncio.timeout(30):
            await done.wait()
            while (entities := await table.entities("billing.orders")) == [] or b'"done"' not in entities[0].data:
                await asyncio.sleep(0.01)
        listening.cancel()
        await asyncio.wait([listening])
    assert seen == [b"large" * 20_000]
