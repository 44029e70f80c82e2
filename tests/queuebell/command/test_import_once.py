"""`queuebell queue import --once` and `export --delete` say the same when they are said again."""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib

import pytest

from bridge.contract.errors import BadInput, Unsupported
from bridge.queues.base import NewMessage
from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.sqs.store import SqsStore
from queuebell.command import queue_transfer

QUEUE = "pay/orders"
_names = itertools.count()


def store() -> MemoryStore:
    return MemoryStore(f"once-{next(_names)}")


async def export(given: MemoryStore, file: pathlib.Path) -> None:
    assert await queue_transfer.export(given, argparse.Namespace(queue=QUEUE, file=str(file), delete=True)) == 0


async def import_(given: MemoryStore, file: pathlib.Path, **more: object) -> None:
    args = argparse.Namespace(
        **{"queue": QUEUE, "file": str(file), "once": True, "partitions": None, "bridge": None} | more
    )
    assert await queue_transfer.import_(given, args) == 0


async def bodies(given: MemoryStore) -> list[bytes]:
    return [message.body for message in await given.peek(QUEUE)]


async def test_what_is_exported_again_stands_behind_and_is_put_once(tmp_path: pathlib.Path) -> None:
    """Two exports into one file, the line of the first cut off: its message was not deleted and comes again."""
    file = tmp_path / "lines"
    async with store() as one, store() as two:
        await one.put(QUEUE, ["a", "b"])
        await export(one, file)
        whole = file.read_bytes()
        file.write_bytes(whole + whole[: len(whole) // 3])
        await one.put(QUEUE, ["c", b"\xff"])
        await export(one, file)
        assert file.read_bytes().startswith(whole)
        assert file.read_bytes().count(b"\n") == 4
        file.write_bytes(file.read_bytes() + whole)
        for _ in range(2):
            await import_(two, file)
            assert sorted(await bodies(two)) == [b"a", b"b", b"c", b"\xff"]
        await import_(two, file, once=False)
        assert len(await bodies(two)) == 4 + 6


async def test_a_file_without_a_whole_line_is_begun_anew(tmp_path: pathlib.Path) -> None:
    """A first line that was cut off is no message, however long it is."""
    file = tmp_path / "lines"
    file.write_bytes(b'{"body": "' + b"x" * 600_000)
    async with store() as one:
        await one.put(QUEUE, ["a"])
        await export(one, file)
    assert [json.loads(line)["body"] for line in file.read_text().splitlines()] == ["a"]


async def test_lines_written_by_hand_are_each_for_themselves(tmp_path: pathlib.Path) -> None:
    """Equal bodies without an id are as many messages, and no more when they are imported again."""
    file = tmp_path / "lines"
    file.write_text('{"body": "x"}\n{"body": "x"}\n\n{"body": "y", "key": "own"}\n')
    async with store() as one:
        for _ in range(2):
            await import_(one, file)
            assert sorted(await bodies(one)) == [b"x", b"x", b"y"]
        assert await one.put_once(QUEUE, "own", NewMessage("y")) is None, "its own id is kept"


async def test_once_is_refused_where_it_cannot_be(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For partitions, and by a store that puts nothing once: nothing is put."""
    file = tmp_path / "lines"
    file.write_text('{"body": "x"}\n')
    async with store() as one:
        with pytest.raises(BadInput, match="one partition"):
            await import_(one, file, partitions=object())
        monkeypatch.setattr(type(one), "capabilities", SqsStore.capabilities)
        with pytest.raises(Unsupported):
            await import_(one, file)
        assert not await one.exists(QUEUE)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"expires_at": "2036-01-01T00:00:00"}, "timezone"),
        ({"expires_at": "2026-01-01T00:00:00"}, "timezone"),
        ({"inserted_at": "2026-01-01T00:00:00"}, "timezone"),
        ({"expires_at": "soon"}, "RFC3339"),
        ({"expires_at": 5}, "datetime"),
        ({"ttl_s": 10**30}, "ttl_s"),
        ({"ttl_s": -5}, "ttl_s"),
        ({"visible_after_ms": 10**30}, "visible_after_ms"),
        ({"visible_after_ms": -1}, "visible_after_ms"),
        ({"headers": {"a": 5}}, "str"),
        ({"delay_ms": 5}, "the known ones are: body, body_base64, visible_after_ms"),
    ],
    ids=str,
)
@pytest.mark.parametrize("keyed", [True, False])
async def test_a_line_that_is_no_message_is_named(
    fields: dict[str, object], told: str, keyed: bool, tmp_path: pathlib.Path
) -> None:
    """Whatever is wrong with a date, a number or a field: the line, the fault, and nothing is put."""
    file = tmp_path / "lines"
    file.write_text(json.dumps({"body": "x"}) + "\n" + json.dumps({"body": "y", **fields}) + "\n")
    async with store() as one:
        await one.create(QUEUE)
        with pytest.raises(BadInput, match=f"^line 2: .*{told}"):
            await import_(one, file, once=keyed)
        assert await bodies(one) == []


async def test_a_message_that_expires_in_a_thousand_years_never_does(tmp_path: pathlib.Path) -> None:
    """Some stores write so that a message never expires; no store takes it as a time to live."""
    file = tmp_path / "lines"
    file.write_text('{"body": "x", "expires_at": "9999-12-31T23:59:59Z"}\n')
    async with store() as one:
        await import_(one, file)
        assert [message.expires_at for message in await one.peek(QUEUE)] == [None]
