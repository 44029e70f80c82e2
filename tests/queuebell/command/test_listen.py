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

from bridge.contract.errors import ConfigurationError
from bridge.queues.base import NewMessage
from bridge.queues.embedded.memory import MemoryStore
from bridge.storage.claim_check import ClaimCheck
from bridge.storage.tables.memory import MemoryTable
from listeners import PULL_ONLY, Message, RetryPolicy
from queuebell.command.listen import _listen, load_function
from queuebell.command.listen_settings import ListenSettings, load, retry_of
from tests.support.command import COMMAND, Serving, environment, perform, serving


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


def stopped(process: subprocess.Popen[bytes]) -> str:
    """Stop it in order and return its log."""
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=300)
    assert process.returncode == 0, log.decode()
    return log.decode()


def test_two_queues_share_a_pool(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """`--pool` is the number of handlers of all queues together, and `--pool-limit` that of one."""
    # Two threads: `print` writes a line and its end apart, and another line may come between.
    (tmp_path / "orders.py").write_text(
        "import sys\n\ndef handle(message):\n    sys.stdout.write(message.queue + '\\n')\n"
    )
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
        lines = {process.stdout.readline(), process.stdout.readline()}
        assert lines == {b"sh/q good 1\n", b"sh/q bad 1\n"}
        while bridge.client("queue", "depth", "sh/q-poison", code=None) != "sh/q-poison: 1 visible, 0 invisible\n":
            assert process.poll() is None
        stopped(process)
    finally:
        process.kill()
        process.communicate()
    assert bridge.client("queue", "depth", "sh/q") == "sh/q: 0 visible, 0 invisible\n"


HANGING = """
import asyncio, threading, time

def thread(message):
    print("began", flush=True)
    threading.Event().wait()

async def swallows(message):
    print("began", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def in_a_thread(message):
    print("began", flush=True)
    await asyncio.to_thread(threading.Event().wait)

def slow(message):
    print("began", flush=True)
    time.sleep(0.5)
    print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.prove)])
@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("thread", "the handler hanging:thread does not end"),
        ("swallows", "#1 does not end"),
        ("in_a_thread", "calls of a handler that do not end: 1"),
    ],
)
def test_a_handler_that_hangs_does_not_keep_the_worker(
    bridge: Serving, tmp_path: pathlib.Path, handler: str, said: str, number: signal.Signals
) -> None:
    """One signal is enough: once the grace is over the message is given back, and the process ends with 1."""
    (tmp_path / "hanging.py").write_text(HANGING)
    queue = f"hang/{handler}-{number.name}"
    bridge.client("queue", "put", queue, "x")
    process = listen(bridge, tmp_path, queue, f"hanging:{handler}", "--grace", "0.5")
    try:
        assert process.stdout.readline() == b"began\n"
        process.send_signal(number)
        _, log = process.communicate(timeout=200)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1, log.decode()
    assert said in log.decode()
    assert f"error listener: {queue}: " in log.decode() or handler == "in_a_thread"
    assert "Traceback" not in log.decode()
    left_to_its_lease = handler == "swallows"  # it may end with its message yet
    depth = "0 visible, 1 invisible" if left_to_its_lease else "1 visible, 0 invisible"
    assert bridge.client("queue", "depth", queue) == f"{queue}: {depth}\n"


def test_a_second_signal_does_not_wait_for_a_handler_that_hangs(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """Nor for the grace: its message is given back, and the process ends with 1 and without a traceback."""
    (tmp_path / "hanging.py").write_text(HANGING)
    bridge.client("queue", "put", "hang/twice", "x")
    process = listen(bridge, tmp_path, "hang/twice", "hanging:thread", "--grace", "600")
    try:
        assert process.stderr is not None
        assert process.stdout.readline() == b"began\n"
        process.send_signal(signal.SIGINT)
        while b"a second signal stops at once" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=200)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1, log.decode()
    assert "stopping at once" in log.decode()
    assert "Traceback" not in log.decode()
    assert bridge.client("queue", "depth", "hang/twice") == "hang/twice: 1 visible, 0 invisible\n"


def test_a_thread_that_ends_within_the_grace_is_waited_for(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """Also where its attempt had run out of time; the process then ends with 0."""
    (tmp_path / "hanging.py").write_text(HANGING)
    for options in ((), ("--handler-timeout", "0.1")):
        bridge.client("queue", "put", "hang/slow", "x")
        process = listen(bridge, tmp_path, "hang/slow", "hanging:slow", *options)
        try:
            assert process.stdout.readline() == b"began\n"
            process.send_signal(signal.SIGTERM)
            told, log = process.communicate(timeout=200)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 0, log.decode()
        assert told == b"ended\n"
        bridge.client("queue", "clear", "hang/slow")


def test_a_function_that_hangs_ends_as_a_dead_letter_in_a_worker_that_has_no_slot_left(
    bridge: Serving, tmp_path: pathlib.Path
) -> None:
    """The worker has one slot and one thread for it, and `check` names what holds the slot."""
    (tmp_path / "hanging.py").write_text(HANGING)
    bridge.client("queue", "put", "hang/dead", "x")
    options = ("--concurrency", "1", "--handler-timeout", "0.1", "--retry-first", "0.01", "--grace", "0")
    process = listen(bridge, tmp_path, "hang/dead", "hanging:thread", "--max-attempts", "3", *options)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"began\n"
        while not bridge.client("queue", "depth", "hang/dead-poison", code=None).startswith("hang/dead-poison: 1 "):
            assert process.poll() is None
        while "1 of its 1 handler slots" not in (told := bridge.client("check", "--bridge", bridge.url, code=None)):
            assert process.poll() is None
        assert "on hang/dead" in told
        process.send_signal(signal.SIGTERM)
        rest, log = process.communicate(timeout=200)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, rest) == (1, b"")
    assert "hang/dead: every handler slot is held by a call of hanging:thread" in log.decode()


def test_a_worker_without_a_slot_ends_for_its_supervisor_where_it_was_told_to(
    bridge: Serving, tmp_path: pathlib.Path
) -> None:
    """With 1, by itself, and its messages wait in the queue."""
    (tmp_path / "hanging.py").write_text(HANGING)
    bridge.client("queue", "put", "hang/stuck", "x")
    options = ("--concurrency", "1", "--handler-timeout", "0.1", "--grace", "0", "--end-when-stuck")
    process = listen(bridge, tmp_path, "hang/stuck", "hanging:thread", *options)
    try:
        _, log = process.communicate(timeout=200)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1, log.decode()
    assert "the process ends for its supervisor to restart it: hang/stuck: every handler slot" in log.decode()
    assert "Traceback" not in log.decode()
    peeked = bridge.client("queue", "depth", "hang/stuck")
    assert peeked in {f"hang/stuck: {count}\n" for count in ("1 visible, 0 invisible", "0 visible, 1 invisible")}


def test_a_program_of_its_own_ends_with_a_handler_that_hangs(tmp_path: pathlib.Path) -> None:
    """`run` returns when the grace is over, and the thread does not keep the interpreter."""
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, threading\n"
        "from bridge import NewMessage, open_store\n"
        "from listeners import PULL_ONLY, Listener\n"
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
    assert "a/b: the handler __main__:main.<locals>.handle does not end" in ended.stderr


def test_status_names_the_listener(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """A listener with a name is shown with it while it listens: at the bridge of its store, though none was named."""
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


def test_where_metrics_are_shown_is_a_setting(tmp_path: pathlib.Path) -> None:
    """Of the file, the environment or the options; nowhere unless somebody says where."""
    assert ListenSettings().metrics is None
    file = tmp_path / "queuebell.toml"
    file.write_text('[listener]\nmetrics = "127.0.0.1:9464"\ninsecure_public = true\n')
    settings = load(str(file), environment={"QUEUEBELL_METRICS": "127.0.0.1:0"}, options={"metrics": None})
    assert (settings.metrics, settings.insecure_public) == ("127.0.0.1:0", True)
    assert load(None, environment={}, options={"metrics": "[::1]:9464"}).metrics == "[::1]:9464"


@pytest.mark.parametrize(("address", "words"), [("0.0.0.0:0", "--insecure-public"), ("9464", "metrics: is HOST:PORT")])
def test_metrics_are_shown_to_others_only_if_somebody_says_so(bridge: Serving, address: str, words: str) -> None:
    """A worker that would tell strangers of queues and handlers, or cannot be told where, does not start."""
    ended = perform("listen", bridge.url, "metrics/q", "--exec", "true", "--metrics", address, code=78)
    assert words in ended.stderr.decode()


def test_the_retry_policy_is_made_of_settings(tmp_path: pathlib.Path) -> None:
    """From the file, the environment and the options; transient failures have the others' numbers but for theirs."""
    assert retry_of(ListenSettings()) == RetryPolicy()
    file = tmp_path / "queuebell.toml"
    file.write_text('[listener]\nmax_attempts = 4\nretry_factor = 3\nretry_transient = ["factor=5", "attempts=20"]\n')
    environment = {"QUEUEBELL_RETRY_FIRST": "2", "QUEUEBELL_RETRY_FACTOR": "4"}
    settings = load(str(file), environment=environment, options={"retry_ceiling": "30", "retry_jitter": "0"})
    given = {"first_s": 2, "ceiling_s": 30, "jitter": 0}
    transient = RetryPolicy(attempts=20, factor=5, **given)
    assert retry_of(settings) == RetryPolicy(attempts=4, factor=4, transient=transient, **given)
    settings = load(None, environment={}, options={"retry_transient": "first = 1, ceiling=1, jitter=1"})
    assert retry_of(settings).transient == RetryPolicy(first_s=1, ceiling_s=1, jitter=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempts": "9223372036854775808"}, "option --max-attempts: has to be a whole number"),
        ({"retry_first": "0"}, "option --retry-first: has to be a number, 0.001 or more"),
        ({"retry_first": "121"}, "retry_first: retry: first_s is at most ceiling_s, which is 120"),
        ({"retry_ceiling": "604801"}, "option --retry-ceiling: has to be a number, 604800 or less"),
        ({"retry_factor": "0.5"}, "option --retry-factor: has to be a number, 1 or more"),
        ({"retry_jitter": "2"}, "option --retry-jitter: has to be a number, 1 or less"),
        ({"retry_jitter": "nan"}, "option --retry-jitter: has to be a number"),
        ({"max_attempts": "-1"}, "option --max-attempts: has to be a whole number, 0 or more"),
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


def test_the_command_line_names_a_retry_policy(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """The first failure's line tells its schedule, and the attempts come as it says."""
    options = ("--max-attempts", "3", "--retry-first", "0.1", "--retry-ceiling", "0.12", "--retry-jitter", "0")
    bridge.client("queue", "put", "again/q", "x")
    process = listen(bridge, tmp_path, "again/q", "--exec", "echo $QUEUEBELL_ATTEMPT; exit 1", *options)
    try:
        assert [process.stdout.readline() for _ in range(3)] == [b"1\n", b"2\n", b"3\n"]
        while "1 visible" not in bridge.client("queue", "depth", "again/q-poison", code=None):
            assert process.poll() is None
        log = stopped(process)
    finally:
        process.kill()
        process.communicate()
    assert "next in about 0.1 s, then 0.12 s; buried after attempt 3, in about 0.22 s altogether" in log


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


def test_nested_functions_are_found() -> None:
    """A dotted path within the module is followed."""
    assert load_function("os:path.basename").__name__ == "basename"


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
