"""What the front door keeps beside the queues survives restarts, full disks and callers that give up."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib

import pytest

from bridge.contract.errors import StoreDamaged, StoreError
from bridge.queue_service.azure.cors import CorsRule
from bridge.queue_service.azure.policies import Policy
from bridge.queue_service.azure.properties import ServiceProperties
from bridge.queue_service.azure.records import JsonRecords

pytestmark = pytest.mark.asyncio

PROPERTIES = ServiceProperties(cors=(CorsRule(("*",), ("GET",)),))
POLICY = Policy("reader", permissions="r")


async def test_a_restart_finds_what_was_kept(tmp_path: pathlib.Path) -> None:
    """Both kinds come back, each under its key; what was forgotten stays forgotten."""
    path = tmp_path / "below" / "azure.json"
    records = JsonRecords(path)
    assert records.properties("acme") == ServiceProperties()
    await records.set_properties("acme", PROPERTIES)
    await asyncio.gather(*(records.set_policies(f"acme/{name}", [POLICY]) for name in "abcd"))
    await records.set_policies("acme/b", ())
    again = JsonRecords(path)
    assert again.properties("acme") == PROPERTIES
    assert again.properties("other") == ServiceProperties()
    assert [tuple(again.policies(f"acme/{name}")) for name in "abcd"] == [(POLICY,), (), (POLICY,), (POLICY,)]
    assert sorted(each.name for each in path.parent.iterdir()) == ["azure.json"]


async def test_without_a_path_nothing_is_written() -> None:
    """A bridge in memory keeps them in memory."""
    records = JsonRecords(None)
    await records.set_policies("acme/a", [POLICY])
    assert tuple(records.policies("acme/a")) == (POLICY,)


async def test_a_failed_write_changes_nothing(tmp_path: pathlib.Path) -> None:
    """The caller hears of it, memory and file stay as they were."""
    path = tmp_path / "azure.json"
    records = JsonRecords(path)
    await records.set_policies("acme/a", [POLICY])
    (tmp_path / "azure.json.new").mkdir()
    with pytest.raises(StoreError, match="what was kept before is safe"):
        await records.set_policies("acme/b", [POLICY])
    assert records.policies("acme/b") == ()
    assert tuple(JsonRecords(path).policies("acme/a")) == (POLICY,)


async def test_a_caller_that_gives_up_leaves_file_and_memory_alike(tmp_path: pathlib.Path) -> None:
    """A write that has begun is finished, and the next one comes after it."""
    path = tmp_path / "azure.json"
    records = JsonRecords(path)
    task = asyncio.create_task(records.set_policies("acme/a", [POLICY]))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await records.set_policies("acme/b", [POLICY])
    assert tuple(records.policies("acme/a")) == (POLICY,) == tuple(JsonRecords(path).policies("acme/a"))


@pytest.mark.parametrize("text", ["", "{", '{"policies": 3}', '{"version": 2}'])
async def test_a_file_that_is_not_ours_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    """It is named, and left as it is."""
    path = tmp_path / "azure.json"
    path.write_text(text)
    with pytest.raises(StoreDamaged, match=r"azure\.json"):
        JsonRecords(path)
    assert path.read_text() == text
