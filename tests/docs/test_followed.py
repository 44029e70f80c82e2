"""Tutorials, how-to pages and docs/how-to/secure.md, followed word for word: all is seen that one should see."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bridge.queues.pgmq_rig import pgmq_sql, run_script
from tests.docs.follower import follow
from tests.docs.snippets import FOLLOWED_PAGES, Snippet, snippets
from tests.readme.user import User
from tests.support.azurite import ACCOUNT, KEY
from tests.support.moto import KEYS as AWS_KEYS
from tests.support.moto import moto
from tests.support.postgres import running
from tests.support.processes import READY, ROOT, Processes, Service
from tests.support.redis import RedisServer

TUTORIALS = ROOT / "docs" / "tutorials"
HOW_TO = ROOT / "docs" / "how-to"
PLAIN = ("tutorials/first-worker", "how-to/testing")
AT_LENGTH = tuple(
    f"how-to/{name}"
    for name in ("two-hosts", "several-queues", "from-zero", "large-messages", "sqs", "azure", "backup")
)
ON_POSTGRES = ("tutorials/postgres", "how-to/upgrade", "how-to/several-bridges", "how-to/cluster", "how-to/pgmq")
ON_REDIS = ("how-to/redis",)
BY_A_READER = ("how-to/brokers",)
"""Followed in tests/readme, with the README."""
HERE = {
    "10.0.0.5": "127.0.0.1",
    # The emulator's account, at a port that is free here.
    "UseDevelopmentStorage=true": f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
    f"QueueEndpoint=http://127.0.0.1:10001/{ACCOUNT};",
}


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_every_page_with_terminals_is_followed() -> None:
    """Each page that names a terminal stands in one of the lists; the blocks of others are read by what reads them."""
    there = {
        f"{path.parent.name}/{path.stem}"
        for room in (TUTORIALS, HOW_TO)
        for path in room.glob("*.md")
        if re.search(r"in the \w+ terminal", path.read_text("utf-8"), re.IGNORECASE)
        or path.stem in {"brokers", "testing"}
    }
    listed = {*PLAIN, *AT_LENGTH, *ON_POSTGRES, *ON_REDIS, *BY_A_READER}
    assert listed == FOLLOWED_PAGES
    assert there <= listed


@pytest.mark.parametrize("name", [*PLAIN, *(pytest.param(name, marks=pytest.mark.rest) for name in AT_LENGTH)])
async def test_a_page_is_followed(processes: Processes, tmp_path: Path, name: str) -> None:
    user = User(processes, tmp_path)
    user.words = dict(HERE)
    if name != "how-to/sqs":
        await follow(page(name), user)
        return
    with moto() as server:
        user.environment |= AWS_KEYS
        user.words["sqs://eu-central-1"] = f"sqs://eu-central-1?endpoint={server.url}"
        await follow(page(name), user)


@pytest.mark.system
@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_a_page_is_followed_on_postgres(processes: Processes, tmp_path: Path, name: str) -> None:
    with running() as server:
        user = User(processes, tmp_path)
        if name == "how-to/pgmq":
            await run_script(server.url(), pgmq_sql())
        user.ports["5432"] = str(server.port)
        await follow(page(name), user)


@pytest.mark.system
async def test_a_page_is_followed_on_redis(processes: Processes, tmp_path: Path) -> None:
    user = User(processes, tmp_path)
    server = RedisServer(tmp_path / "redis")
    server.port = int(user.ports["6379"])
    async with server:
        await follow(page("how-to/redis"), user)


SECURITY = ROOT / "docs" / "how-to" / "secure.md"
UNITS = ROOT / "deploy" / "systemd"
EXPOSURE_MOST = 15
"""Tenths of what `systemd-analyze security` says; below 20 is what it calls OK at most."""
WORKER = """
import asyncio
from queuebell import Listener

async def handle(message):
    print("handled", message.text(), flush=True)

asyncio.run(Listener("https://localhost:8470", "billing/orders", handle).run())
"""

BLOCKS = [block for block in snippets() if block.page == SECURITY]


def block_with(word: str) -> Snippet:
    (found,) = (each for each in BLOCKS if word in each.text and each.language == "sh")
    return found


@pytest.mark.system
async def test_two_hosts(processes: Processes, tmp_path: Path) -> None:
    """Keys, certificate, bridge, worker and curl, word for word; the name of the other host is that of this one."""
    user = User(processes, tmp_path)
    user.words["bridge.internal"] = "localhost"
    del user.environment["QUEUEBELL_LISTEN"]
    user.save("worker.py", WORKER)
    listed = await user.run(block_with("queuebell key list").text)
    assert len(listed) == 4
    for name in ("worker", "producer", "me"):
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o077 == 0
    await user.run(block_with("openssl req").text)
    serve: Service = await user.start(f"exec {block_with('serve --listen').text}", "serve", Service)
    await serve.line(READY)
    assert "the new files cannot be used" not in serve.errors and "expired" not in serve.errors
    lines = block_with("python worker.py").text.splitlines()
    worker: Service = await user.start("\n".join([*lines[:-1], f"exec {lines[-1]}"]), "worker", Service)
    await user.run(block_with("curl --cacert").text)
    await worker.line("handled order 17")


@pytest.mark.system
@pytest.mark.parametrize("name", ["queuebell.service", "queuebell-scaler.service", "queuebell-worker@.service"])
def test_the_unit_is_taken_by_systemd(name: str, tmp_path: Path) -> None:
    here = tmp_path / name.replace("@.", "@1.")
    here.write_text((UNITS / name).read_text("utf-8").replace("/opt/queuebell/bin/queuebell", sys.executable))

    def analyzed(*words: str) -> subprocess.CompletedProcess[str]:
        line = ["systemd-analyze", *words]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=100)

    verified = analyzed("verify", str(here))
    assert (verified.returncode, str(here) in verified.stderr) == (0, False), verified.stderr
    assert analyzed("security", "--offline=true", f"--threshold={EXPOSURE_MOST}", str(here)).returncode == 0
