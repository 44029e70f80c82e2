"""The tests that kombu has for its transports, from its own source distribution, on ours."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.command import ROOT, environment, serving
from tests.support.redis import RedisServer

SUITE = """
import uuid
import kombu
import pytest
import queuebell.frameworks.celery
from t.integration.common import BaseEventLoop, BaseExchangeTypes, BaseMessage, BaseTimeToLive, BasicFunctionality

@pytest.fixture()
def connection():
    return kombu.Connection("{url}/k" + uuid.uuid4().hex[:8])

@pytest.fixture()
def invalid_connection():
    return kombu.Connection("queuebell://127.0.0.1:1")

class test_Basic(BasicFunctionality): pass
class test_Exchanges(BaseExchangeTypes): pass
class test_Loop(BaseEventLoop): pass
class test_Message(BaseMessage): pass
class test_TimeToLive(BaseTimeToLive): pass
"""


def unpacked(name: str, folder: Path) -> Path:
    """Fetch the source distribution of what is installed, by the lock's hashes."""
    lock = (ROOT / "requirements-dev.lock").read_text()
    pinned = re.search(rf"^{name}==([\d.]+) (?:.*\\\n)*.*\n", lock, re.MULTILINE)
    assert pinned is not None
    (folder / "lock").write_text(pinned[0])
    download = ("download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", name, "--require-hashes")
    words = [sys.executable, "-m", "pip", *download, "-r", str(folder / "lock"), "-d", str(folder)]
    subprocess.run(words, env=environment(), check=True, timeout=500)
    with tarfile.open(folder / f"{name}-{pinned[1]}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"{name}-{pinned[1]}"


def ran(folder: Path, source: Path, *words: str, **more: str) -> str:
    """Run tests beside a source distribution, and return what pytest said; none fails."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", "-W", "ignore", *words],
        cwd=folder,
        env=environment({"PYTHONPATH": f"{source}:{folder}:{ROOT}", **more}),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-1000:]
    return done.stdout


def test_the_suite_of_kombu(tmp_path: Path) -> None:
    """All but priorities, which we refuse, and failover: for us several addresses are one service."""
    source = unpacked("kombu", tmp_path)
    with serving(tmp_path / "data") as bridge:
        (tmp_path / "test_ours.py").write_text(SUITE.replace("{url}", bridge.url.replace("http", "queuebell", 1)))
        (tmp_path / "pytest.ini").write_text("[pytest]\npython_classes = test_*\n")
        assert "26 passed" in ran(tmp_path, source, "test_ours.py")


OTHERWISE = (
    "test_scheduled",  # A task for later is in the store, and not in the worker.
    # They read the log of a worker of the same process, or race with it, on each broker.
    "test_trace_log_arguments",
    "test_replaced_task_nesting_level_0",
)
UNKNOWN = "test_class_based_task_retried"
"""Its task is unknown to the worker, whose loop ends with a KeyError; only with Redis is that a lost connection to
kombu, and there the test fails, too."""
OF_POOLS = {  # They fail with Redis, too.
    "prefork": (),
    # A worker answers nobody during a task.
    "solo": ("test_active", "test_query_task", "(test_revoked and not simple_canvas)", UNKNOWN),
    # It has no processes, and looks whether a task has expired before that waits for a thread.
    "threads": ("test_stats", "test_expired", UNKNOWN),
}


@pytest.mark.long
@pytest.mark.system
@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
async def test_the_suite_of_celery(tmp_path: Path, pool: str) -> None:
    """Tasks and remote control, with results in Redis; minutes for each pool."""
    source = await asyncio.to_thread(unpacked, "celery", tmp_path)
    conftest = source / "t/integration/conftest.py"
    conftest.write_text(conftest.read_text().replace("return 'prefork'", f"return '{pool}'"))
    (source / "registers.py").write_text("import queuebell.frameworks.celery\n")
    async with RedisServer(tmp_path / "redis") as server:
        with serving(tmp_path / "data") as bridge:
            place = {
                "TEST_BROKER": bridge.url.replace("http", "queuebell", 1),
                "TEST_BACKEND": server.url(),
                "REDIS_HOST": "127.0.0.1",
                "REDIS_PORT": str(server.port),
            }
            files = (f"t/integration/{name}.py" for name in ("test_inspect", "test_tasks"))
            words = (
                "-p",
                "registers",
                "-p",
                "celery.contrib.pytest",
                "-p",
                "no:timeout",  # its seconds are those of a machine that does nothing else
                "-k",
                " and ".join(f"not {name}" for name in (*OTHERWISE, *OF_POOLS[pool])),
            )
            told = await asyncio.to_thread(ran, source, source, *words, *files, **place)
    assert "passed" in told
