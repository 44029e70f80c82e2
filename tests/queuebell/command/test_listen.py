"""`queuebell listen` as a process, with a function and with a command, against a real bridge."""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.storage.claim_check import ClaimCheck
from queuebell.bridge.storage.tables.memory import MemoryTable
from queuebell.command.listen import _listen, load_function
from queuebell.command.listen_settings import ListenSettings, load, retry_of
from queuebell.listeners import PULL_ONLY, Message
from tests.support.command import COMMAND, Serving, environment, perform, serving


def stopped(process: subprocess.Popen[bytes]) -> str:
    """Stop it in order and return its log."""
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=300)
    assert process.returncode == 0, log.decode()
    return log.decode()


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
        env=environment(),
        cwd=here,
    )


def test_a_program_of_its_own_ends_with_a_handler_that_hangs(tmp_path: pathlib.Path) -> None:
    """`run` returns when the grace is over, and the thread does not keep the interpreter."""
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, threading\n"
        "from queuebell.bridge import NewMessage, open_store\n"
        "from queuebell.listeners import PULL_ONLY, Listener\n"
        "async def main():\n"
        "    began = asyncio.Event()\n"
        "    loop = asyncio.get_running_loop()\n"
        "    def handle(message):\n"
        "        loop.call_soon_threadsafe(began.set)\n"
        "        threading.Event().wait()\n"
        "    async with open_store('memory:own') as store:\n"
        "        await store.put('a/b', [NewMessage(b'x')])\n"
        "        listener = Listener(store, 'a/b', handle, bridge=PULL_ONLY, grace=0)\n"
        "        running = asyncio.create_task(listener.run())\n"
        "        await began.wait()\n"
        "        await listener.stop()\n"
        "        await running\n"
        "        print(listener.unended(), (await store.depth('a/b')).visible)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False, env=environment()
    )
    assert (ended.returncode, ended.stdout) == (0, "1 1\n"), ended.stderr
    assert "a/b: __main__:main.<locals>.handle is still running" in ended.stderr


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


@pytest.mark.parametrize(("address", "words"), [("0.0.0.0:0", "--insecure-public"), ("9464", "metrics: is HOST:PORT")])
def test_metrics_are_shown_to_others_only_if_somebody_says_so(bridge: Serving, address: str, words: str) -> None:
    """A worker that would tell strangers of queues and handlers, or cannot be told where, does not start."""
    ended = perform("listen", bridge.url, "metrics/q", "--exec", "true", "--metrics", address, code=78)
    assert words in ended.stderr.decode()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempts": "9223372036854775808"}, "option --max-attempts: must be a whole number"),
        ({"retry_first": "0"}, "option --retry-first: must be a number, 0.001 or more"),
        ({"retry_first": "121"}, "retry_first: retry: first_s is at most ceiling_s, which is 120"),
        ({"retry_ceiling": "604801"}, "option --retry-ceiling: must be a number, 604800 or less"),
        ({"retry_factor": "0.5"}, "option --retry-factor: must be a number, 1 or more"),
        ({"retry_jitter": "2"}, "option --retry-jitter: must be a number, 1 or less"),
        ({"retry_jitter": "nan"}, "option --retry-jitter: must be a number"),
        ({"max_attempts": "-1"}, "option --max-attempts: must be a whole number, 0 or more"),
        ({"retry_transient": "factor=0"}, "retry_transient: retry: factor is from 1 to 100"),
        ({"retry_transient": "first=121"}, "retry_transient: retry: first_s is at most ceiling_s, which is 120"),
        ({"retry_transient": "factr=4"}, "retry_transient: is NAME=NUMBER, of attempts, first, ceiling, factor,"),
        ({"retry_transient": "factor"}, "retry_transient: is NAME=NUMBER"),
        ({"retry_transient": "attempts=2.5"}, "retry_transient: is NAME=NUMBER"),
        ({"retry_transient": "factor=4,factor=5"}, "retry_transient: is NAME=NUMBER"),
    ],
)
def test_a_retry_policy_that_cannot_be_is_refused_by_its_key(options: dict[str, str], words: str) -> None:
    """Before anything is opened, as any other setting."""
    with pytest.raises(ConfigurationError) as refused:
        retry_of(load(None, environment={}, options=options))
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(
    "call",
    [
        "run(listener)",
        "asyncio.run(listener.run())",
        "asyncio.run(Scaler('http://127.0.0.1:1', 'billing/orders', ['true']).run())",
        "try:\n        run(listener)\n    except BaseException:\n        pass",
        "try:\n        run(listener)\n    except Exception:\n        raise SystemExit(0)",
        "try:\n        run(listener)\n    finally:\n        import no_such_module_here",
    ],
)
def test_a_module_that_runs_a_worker_while_it_is_imported_is_refused(
    call: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it swallows that; it would run that worker instead. Below a guard for `__main__` all is well."""
    monkeypatch.chdir(tmp_path)
    text = """
import asyncio
from queuebell import Listener, Message, Scaler, run

async def charge(message: Message) -> None:
    "Do nothing."

listener = Listener("http://127.0.0.1:1", "billing/orders", charge)
"""
    name = f"worker_{len(call)}"
    (tmp_path / f"{name}.py").write_text(f"{text}if True:\n    {call}\n")
    with pytest.raises(
        ConfigurationError, match=f"module {name} runs a worker or a scaler while it is imported"
    ) as refused:
        load_function(f"{name}:charge")
    assert 'if __name__ == "__main__":' in str(refused.value)
    (tmp_path / f"{name}_guarded.py").write_text(f'{text}if __name__ == "__main__":\n    {call}\n')
    assert load_function(f"{name}_guarded:charge").__name__ == "charge"


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
            _listen(f"memory:{name}", ["billing/orders"], handle, PULL_ONLY, settings), name="listen"
        )
        async with asyncio.timeout(300):
            await done.wait()
            while (entities := await table.entities("billing.orders")) == [] or b'"done"' not in entities[0].data:
                await asyncio.sleep(0.01)
        listening.cancel()
        await asyncio.wait([listening])
    assert seen == [b"large" * 20_000]


def test_a_function_handles_messages(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """A handler of the current directory gets what was put before and after it came, and deletes it."""
    (tmp_path / "orders.py").write_text(
        "async def handle(message):\n    print(message.queue, message.text(), message.attempt, flush=True)\n"
    )
    bridge.client("queue", "put", "fn/q", "before")
    process = listen(bridge, tmp_path, "fn/q", "--bridge", bridge.url, "orders:handle")
    try:
        assert process.stdout.readline() == b"fn/q before 1\n"
        bridge.client("queue", "put", "fn/q", "after")
        assert process.stdout.readline() == b"fn/q after 1\n"
        stopped(process)
    finally:
        process.kill()
        process.communicate()
    assert bridge.client("queue", "depth", "fn/q") == "fn/q: 0 visible, 0 invisible\n"


def test_retries_are_those_of_the_settings() -> None:
    given = {"max_attempts": "7", "retry_first": "2", "retry_ceiling": "60", "retry_factor": "3", "retry_jitter": "0.5"}
    policy = retry_of(load(None, environment={}, options=given))
    found = (policy.attempts, policy.first_s, policy.ceiling_s, policy.factor, policy.jitter)
    assert found == (7, 2.0, 60.0, 3.0, 0.5)


def test_a_worker_is_drained(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """By its name or its instance: its handler ends, it takes nothing more and exits with 0; others go on."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, asyncio\nasync def handle(message):\n    print(message.text(), flush=True)\n"
        "    while not pathlib.Path('go').exists():\n        await asyncio.sleep(0.01)\n    print('done', flush=True)\n"
    )
    bridge.client("queue", "put", "drained/q", "first", "second")
    process = listen(
        bridge, tmp_path, "drained/q", "--bridge", bridge.url, "--name", "shop", "--concurrency", "1", "slow:handle"
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"first\n"
        bridge.client("drain", "nobody", code=1)
        (asked,) = json.loads(bridge.client("drain", "shop", "--json"))["asked"]
        assert bridge.client("drain", asked) == f"asked 1 worker to stop: {asked}\n"
        (tmp_path / "go").touch()
        out, log = process.communicate(timeout=100)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (0, b"done\n") and b"somebody asked the bridge" in log
    assert bridge.client("queue", "depth", "drained/q") == "drained/q: 1 visible, 0 invisible\n"
    assert json.loads(bridge.client("drain", "shop", "--json", code=1)) == {"asked": []}


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
        lines = {process.stdout.readline(), process.stdout.readline()}
        assert lines == {b"sh/q good 1\n", b"sh/q bad 1\n"}
        while bridge.client("queue", "depth", "sh/q-poison", code=None) != "sh/q-poison: 1 visible, 0 invisible\n":
            assert process.poll() is None
        stopped(process)
    finally:
        process.kill()
        process.communicate()
    assert bridge.client("queue", "depth", "sh/q") == "sh/q: 0 visible, 0 invisible\n"
