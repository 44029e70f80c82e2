"""Tutorials and how-to pages, followed word for word: files saved, commands typed, all seen that one should see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.follower import follow
from tests.readme.user import User
from tests.support.azurite import ACCOUNT, KEY
from tests.support.moto import KEYS as AWS_KEYS
from tests.support.moto import moto
from tests.support.postgres import running
from tests.support.processes import ROOT, Processes
from tests.support.redis import RedisServer

TUTORIALS = ROOT / "docs" / "tutorials"
HOW_TO = ROOT / "docs" / "how-to"
PLAIN = ("tutorials/first-worker", "how-to/testing")
AT_LENGTH = tuple(
    f"how-to/{name}"
    for name in ("two-hosts", "several-queues", "from-zero", "large-messages", "sqs", "azure", "backup")
)
ON_POSTGRES = ("tutorials/postgres", "how-to/upgrade", "how-to/several-bridges", "cluster")
ON_REDIS = ("how-to/redis",)
BY_A_READER = ("how-to/tour", "how-to/brokers")
"""Followed in tests/readme, with the README: their programs need each other."""
HERE = {
    "10.0.0.5": "127.0.0.1",
    # The emulator's account, at a port that is free here.
    "UseDevelopmentStorage=true": f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
    f"QueueEndpoint=http://127.0.0.1:10001/{ACCOUNT};",
}


def page(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_every_page_is_followed() -> None:
    """Each tutorial and each how-to stands in one of the lists."""
    there = {f"{path.parent.name}/{path.stem}" for room in (TUTORIALS, HOW_TO) for path in room.glob("*.md")}
    listed = [*PLAIN, *AT_LENGTH, *ON_POSTGRES, *ON_REDIS, *BY_A_READER]
    assert sorted(listed) == sorted({*there, "cluster"} - {"how-to/README"})


@pytest.mark.parametrize("name", [*PLAIN, *(pytest.param(name, marks=pytest.mark.rest) for name in AT_LENGTH)])
async def test_a_page_is_followed(processes: Processes, tmp_path: Path, name: str) -> None:
    """With nothing but this checkout; moto is the cloud of the page about SQS."""
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
    """A real server stands where the page has one."""
    with running() as server:
        user = User(processes, tmp_path)
        user.ports["5432"] = str(server.port)
        await follow(page(name), user)


@pytest.mark.system
async def test_a_page_is_followed_on_redis(processes: Processes, tmp_path: Path) -> None:
    """Likewise."""
    user = User(processes, tmp_path)
    server = RedisServer(tmp_path / "redis")
    server.port = int(user.ports["6379"])
    async with server:
        await follow(page("how-to/redis"), user)
