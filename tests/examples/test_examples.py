"""Every example, run as a program of its own against a real bridge."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.queues.postgres.schema import init
from tests.support.postgres import running

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
WITHIN_S = 300.0
LINES_MAX = 40
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith("QUEUEBELL_")},
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "error",
}


@asynccontextmanager
async def program(*command: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**ENVIRONMENT, **variables},
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def lines_of(name: str, *arguments: str) -> list[str]:
    """Run an example to its end, which must be a good one, and return what it printed."""
    async with program(sys.executable, str(EXAMPLES / name), *arguments) as process:
        out, err = await process.communicate()
        # Python shows the library's log (a handler failed, a message is buried) where nobody configured it: it may.
        assert process.returncode == 0, err.decode()
        assert [word for word in ("Unclosed", "Warning", "never ") if word in err.decode()] == []
        return out.decode().splitlines()


async def line_of(process: asyncio.subprocess.Process) -> str:
    return (await process.stdout.readline()).decode().rstrip("\n")


async def end(process: asyncio.subprocess.Process) -> None:
    """Ask a program to end by SIGTERM; it must do so in good order."""
    process.send_signal(signal.SIGTERM)
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()


@pytest_asyncio.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Serve on a free port and give the bridge's address."""
    command = ("-m", "queuebell", "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    async with program(sys.executable, *command) as process:
        ready = await line_of(process)
        assert ready.startswith("queuebell ready on "), (await process.communicate())[1].decode()
        yield ready.removeprefix("queuebell ready on ")


def test_short() -> None:
    """No example is longer than a screen, and each says how it is run."""
    for path in EXAMPLES.iterdir():
        if path.is_file():
            text = path.read_text()
            assert len(text.splitlines()) <= LINES_MAX, path.name
            assert f"examples/{path.name}" in text, path.name


def test_all_are_run() -> None:
    """Every example is named in this file, so that none is forgotten."""
    text = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.iterdir() if path.is_file() and f'"{path.name}"' not in text] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["embedded.py", "5"], [f"charged order {number}" for number in range(1, 6)]),
        (["blocking.py", "URL"], ["left: 1", "order 1: charged", "order 2: later"]),
        (["ingestion.py", "URL", "2"], ["order 1: taken", "order 2: known", "order 2: taken"]),
        (["typed_payload.py", "URL"], ["ada pays 12.50", "last pays 0.99"]),
        (
            ["supervisor.py", "URL"],
            [
                "to Ada: delivered, after 1 burial",
                "to nowhere: money back, no such address",
                "to the moon: reported, attempt 1 of 1: ConnectionError: no drone",
            ],
        ),
    ],
    ids=lambda each: each[0],
)
async def test_what_it_says_it_does(url: str, words: list[str], expected: list[str]) -> None:
    assert sorted(await lines_of(*(url if word == "URL" else word for word in words))) == expected


async def test_pools() -> None:
    """Urgent work has all slots but the one that is reserved for bulk work."""
    (line,) = await lines_of("pools.py")
    assert line.startswith("of the first 12 handled, ")
    urgent = int(line.split()[5])
    assert 8 <= urgent <= 10


async def test_producer_and_worker(url: str) -> None:
    """A worker that was there first charges what a producer puts, and SIGTERM ends it in good order."""
    async with program(sys.executable, str(EXAMPLES / "worker.py"), url) as worker:
        assert await lines_of("producer.py", url, "2") == ["put order 1", "put order 2"]
        assert sorted([await line_of(worker), await line_of(worker)]) == [
            "charged order 1, attempt 1",
            "charged order 2, attempt 1",
        ]
        await end(worker)


async def test_scale(url: str, tmp_path: Path) -> None:
    """A worker starts for what a producer puts, and none is left when the scaler has ended in good order."""
    file = tmp_path / "scale.toml"
    text = (EXAMPLES / "scale.toml").read_text()
    file.write_text(text.replace("http://127.0.0.1:8470", url).replace('"python ', f'"{sys.executable} '))
    async with program(sys.executable, "-m", "queuebell", "scale", "--config", str(file)) as scaler:
        assert await lines_of("producer.py", url, "1") == ["put order 1"]
        said = ""
        while "charged order 1, attempt 1" not in said:
            said = (await scaler.stderr.readline()).decode()
            assert said, "it ended"
        worker = int(re.search(r"\[(\d+)\]", said)[1])
        await end(scaler)
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


async def test_a_web_application(url: str) -> None:
    """What an endpoint puts is charged by the same application, also what has begun when uvicorn is told to stop."""
    app = Path("fastapi_app.py").stem + ":app"
    command = ("-m", "uvicorn", "--app-dir", str(EXAMPLES), app, "--port", "0", "--no-access-log")
    async with program(sys.executable, *command, BRIDGE=url) as served:
        while "running on" not in (said := (await served.stderr.readline()).decode()):
            assert said, "it ended"
        (address,) = re.findall(r"http://[\d.:]+", said)
        async with aiohttp.ClientSession(address) as client:
            async with client.post("/orders/17") as answer:
                assert (answer.status, await answer.json()) == (202, {"accepted": 17})
            assert await line_of(served) == "charging order 17"
            async with client.get("/worker") as answer:
                assert await answer.json() == {"mode": "push"}
        served.send_signal(signal.SIGTERM)
        out, err = await served.communicate()
        assert out.decode().splitlines() == ["charged order 17"]
        assert served.returncode == -signal.SIGTERM, err.decode()


async def test_handler_test() -> None:
    command = ("-m", "pytest", "-p", "no:cacheprovider", str(EXAMPLES / "test_handler.py"))
    async with program(sys.executable, *command) as tested:
        out, err = await tested.communicate()
        assert tested.returncode == 0 and "1 passed" in out.decode(), (out + err).decode()


async def test_flask_application(url: str) -> None:
    """An endpoint puts, whichever thread of the server it runs in."""
    command = ("-m", "flask", "--app", str(EXAMPLES / "flask_app.py"), "run", "--port", "0")
    async with program(sys.executable, *command, BRIDGE=url) as served:
        while "Running on" not in (said := (await served.stderr.readline()).decode()):
            assert said, "it ended"
        (address,) = re.findall(r"http://[\d.:]+", said)
        async with aiohttp.ClientSession(address) as client:
            for number in (17, 18):
                async with client.post(f"/orders/{number}") as answer:
                    assert (answer.status, await answer.json()) == (202, {"accepted": number})
            async with client.get("/orders") as answer:
                assert await answer.json() == {"waiting": 2}


async def test_django_tasks(url: str) -> None:
    """What `enqueue` puts in one process is carried out by the worker in another, which SIGTERM ends in good order."""
    path = str(EXAMPLES / "django_app.py")
    async with program(sys.executable, path, "queuebell_worker", BRIDGE=url) as worker:
        enqueue = ("shell", "-v", "0", "-c", "from __main__ import charge; charge.enqueue(17)")
        async with program(sys.executable, path, *enqueue, BRIDGE=url) as producer:
            _, err = await producer.communicate()
            assert producer.returncode == 0, err.decode()
        assert await line_of(worker) == "charged order 17"
        await end(worker)


async def test_partitioned(url: str) -> None:
    """All orders are charged once, from several partitions, and those of one customer from one."""
    lines = await lines_of("partitioned.py", url, "20")
    where = {int(line.split()[2]): line.split()[4] for line in lines}
    assert len(lines) == 20
    assert sorted(where) == list(range(20))
    assert all(where[number] == where[number % 5] for number in where)
    assert 1 < len(set(where.values())) <= 5


@pytest.mark.system
async def test_in_transaction() -> None:
    """The order that is known already has no second message."""
    with running() as server:
        await init(server.url(), notify=True)
        lines = await lines_of("in_transaction.py", server.url())
        assert lines == ["order 1: taken", "order 2: taken", "order 1: known", "messages: 2"]


async def test_outbox(url: str, tmp_path: Path) -> None:
    """The order that is known already has no second message, and those of the others are in the bridge's queue."""
    lines = await lines_of("outbox.py", f"sqlite+aiosqlite:///{tmp_path}/orders.db", url)
    assert lines == ["order 1: taken", "order 2: taken", "order 1: known"]
    async with HttpStore(url) as store:
        taken = (await store.receive("billing/orders", 32)).messages
    assert [message.body for message in taken] == [b"order 1", b"order 2"]


async def test_retry_and_bury(url: str) -> None:
    """Each word of a handler has its effect, and the supervisor gets what nobody could handle."""
    lines = await lines_of("retry_and_bury.py", url)
    assert {"fine, attempt 1", "busy, attempt 1", "broken, attempt 1", "cursed, attempt 1", "cursed, attempt 2"} <= {
        *lines
    }
    assert sorted(line for line in lines if line.startswith("buried")) == ["buried: broken", "buried: cursed"]
    assert "broken, attempt 2" not in lines


async def test_taskiq(url: str) -> None:
    """A worker of taskiq's does what the script puts and what the scheduler's minute puts, and SIGTERM ends it well."""
    app, path = Path("taskiq_app.py").stem, ("--app-dir", str(EXAMPLES))
    command = (sys.executable, "-m", "taskiq")
    async with program(*command, "worker", *path, "--workers", "1", f"{app}:broker", BRIDGE=url) as worker:
        async with program(sys.executable, str(EXAMPLES / "taskiq_app.py"), BRIDGE=url) as script:
            _, err = await script.communicate()
            assert (script.returncode, err) == (0, b"")
        assert await line_of(worker) == "charged order 17"
        async with program(*command, "scheduler", *path, f"{app}:scheduler", BRIDGE=url):
            assert await line_of(worker) == "reminded"
        await end(worker)


async def test_celery(url: str) -> None:
    """A worker of Celery's does what the script puts, and SIGTERM ends it well."""
    broker, command = url.replace("http", "queuebell", 1), (sys.executable, "-m", "celery", "--workdir", str(EXAMPLES))
    options = ("--quiet", "-A", "celery_app", "worker", "--concurrency", "1")
    # Celery warns of root.
    async with program(*command, *options, BROKER=broker, PYTHONWARNINGS="") as worker:
        async with program(sys.executable, str(EXAMPLES / "celery_app.py"), BROKER=broker) as script:
            out, err = await script.communicate()
            assert (script.returncode, err) == (0, b"")
        assert out.decode().splitlines() == ["charged order 17", "charged order 18", "done after 1 retry"]
        await end(worker)


async def test_batch_handler(url: str) -> None:
    """Many messages come in few calls, all of them once."""
    lines = await lines_of("batch_handler.py", url, "40")
    counts = [int(line.split()[3]) for line in lines]
    assert sum(counts) == 40
    assert max(counts) > 1


@pytest.mark.parametrize("over_http", [False, True])
async def test_pull_only(url: str, over_http: bool) -> None:
    """A worker without a bridge polls and gets everything, in its own process and over HTTP."""
    lines = await lines_of("pull_only.py", *([url] if over_http else []))
    assert lines[:3] == ["delivered letter 1", "delivered letter 2", "delivered letter 3"]


async def test_shell_worker(url: str) -> None:
    """The documented command runs a shell script per message, and its exit codes have their meaning."""
    script = EXAMPLES / "shell_worker.sh"
    command = ("-m", "queuebell", "listen", url, "text/lines", "--bridge", url, "--exec", f"sh {script}")
    async with program(sys.executable, *command) as worker:
        async with program(
            sys.executable, "-m", "queuebell", "queue", "put", "text/lines", "hello", "--store", url
        ) as put:
            _, err = await put.communicate()
            assert put.returncode == 0, err.decode()
        assert await line_of(worker) == "text/lines, attempt 1: HELLO"
        await end(worker)
