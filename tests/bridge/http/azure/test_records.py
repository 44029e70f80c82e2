"""What the Azure endpoint keeps beside the queues survives restarts, full disks and callers that give up."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib

import msgspec
import pytest

from bridge.contract.errors import QueueNotFound, StoreDamaged, StoreError
from bridge.http.azure.cors import CorsRule
from bridge.http.azure.policies import Policy
from bridge.http.azure.properties import Logging, ServiceProperties
from bridge.http.azure.records import JsonRecords

PROPERTIES = ServiceProperties(cors=(CorsRule(("*",), ("GET",)),))
POLICY = Policy("reader", permissions="r")
STANDING = {f"acme/{name}": number for number, name in enumerate("abcd", 1)}


async def test_a_restart_finds_what_was_kept(tmp_path: pathlib.Path) -> None:
    """Both kinds come back, each under its key; what was forgotten stays forgotten."""
    path = tmp_path / "below" / "azure.json"
    records = JsonRecords(path, STANDING.get)
    assert records.properties("acme") == ServiceProperties()
    await records.change_properties("acme", lambda before: PROPERTIES)
    await asyncio.gather(*(records.set_policies(f"acme/{name}", [POLICY]) for name in "abcd"))
    await records.set_policies("acme/b", ())
    again = JsonRecords(path, STANDING.get)
    assert again.properties("acme") == PROPERTIES
    assert again.properties("other") == ServiceProperties()
    assert [tuple(again.policies(f"acme/{name}")) for name in "abcd"] == [(POLICY,), (), (POLICY,), (POLICY,)]
    assert sorted(each.name for each in path.parent.iterdir()) == ["azure.json"]


async def test_without_a_path_nothing_is_written() -> None:
    """A bridge in memory keeps them in memory."""
    records = JsonRecords(None, STANDING.get)
    await records.set_policies("acme/a", [POLICY])
    assert tuple(records.policies("acme/a")) == (POLICY,)


async def test_a_failed_write_changes_nothing(tmp_path: pathlib.Path) -> None:
    """The caller hears of it, memory and file stay as they were."""
    path = tmp_path / "azure.json"
    records = JsonRecords(path, STANDING.get)
    await records.set_policies("acme/a", [POLICY])
    (tmp_path / "azure.json.new").mkdir()
    with pytest.raises(StoreError, match="what was kept before is safe"):
        await records.set_policies("acme/b", [POLICY])
    assert records.policies("acme/b") == ()
    assert tuple(JsonRecords(path, STANDING.get).policies("acme/a")) == (POLICY,)


async def test_a_caller_that_gives_up_leaves_file_and_memory_alike(tmp_path: pathlib.Path) -> None:
    """A write that has begun is finished, and the next one comes after it."""
    path = tmp_path / "azure.json"
    records = JsonRecords(path, STANDING.get)
    task = asyncio.create_task(records.set_policies("acme/a", [POLICY]))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await records.set_policies("acme/b", [POLICY])
    assert tuple(records.policies("acme/a")) == (POLICY,) == tuple(JsonRecords(path, STANDING.get).policies("acme/a"))


async def test_changes_of_properties_come_one_after_the_other(tmp_path: pathlib.Path) -> None:
    """Each is told what the one before has made, and one that is refused changes nothing."""
    records = JsonRecords(tmp_path / "azure.json", STANDING.get)

    def refuse(before: ServiceProperties) -> ServiceProperties:
        raise ValueError(before)

    outcomes = await asyncio.gather(
        records.change_properties("acme", lambda before: msgspec.structs.replace(before, cors=PROPERTIES.cors)),
        records.change_properties("acme", refuse),
        records.change_properties("acme", lambda before: msgspec.structs.replace(before, logging=Logging(read=True))),
        return_exceptions=True,
    )
    assert [type(one) for one in outcomes] == [type(None), ValueError, type(None)]
    assert records.properties("acme") == ServiceProperties(cors=PROPERTIES.cors, logging=Logging(read=True))


async def test_policies_end_with_their_queue(tmp_path: pathlib.Path) -> None:
    """A queue of the same name has none of them, and the next change takes them out of the file."""
    path = tmp_path / "azure.json"
    standing = dict(STANDING)
    records = JsonRecords(path, standing.get)
    await records.set_policies("acme/a", [POLICY])
    await records.set_policies("acme/b", [POLICY])
    del standing["acme/a"]
    assert records.policies("acme/a") == ()
    with pytest.raises(QueueNotFound):
        await records.set_policies("acme/a", [POLICY])
    standing["acme/a"] = 5
    for found in (records, JsonRecords(path, standing.get)):
        assert found.policies("acme/a") == ()
        assert tuple(found.policies("acme/b")) == (POLICY,)
    await records.set_policies("acme/c", [POLICY])
    assert "acme/a" not in path.read_text()
    await records.set_policies("acme/a", [POLICY])
    assert tuple(JsonRecords(path, standing.get).policies("acme/a")) == (POLICY,)


async def test_a_file_of_the_version_before_is_for_the_queues_of_its_time(tmp_path: pathlib.Path) -> None:
    """They have the number 0; what was made since has another."""
    path = tmp_path / "azure.json"
    path.write_text('{"version": 1, "policies": {"acme/a": [{"id": "reader", "permissions": "r"}]}}')
    assert tuple(JsonRecords(path, {"acme/a": 0}.get).policies("acme/a")) == (POLICY,)
    assert JsonRecords(path, {"acme/a": 1}.get).policies("acme/a") == ()


@pytest.mark.parametrize("text", ["", "{", '{"policies": 3}', '{"version": 3}'])
async def test_a_file_that_is_not_ours_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    """It is named, and left as it is."""
    path = tmp_path / "azure.json"
    path.write_text(text)
    with pytest.raises(StoreDamaged, match=r"azure\.json"):
        JsonRecords(path, STANDING.get)
    assert path.read_text() == text
