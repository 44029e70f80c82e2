"""What the front door keeps beside the queues, in one JSON file next to theirs.

It is small and seldom written, so that every change writes all of it: to a second file, flushed, and renamed.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Sequence

import msgspec

from bridge.contract.errors import StoreDamaged, StoreError
from bridge.queue_service.azure.policies import Policy
from bridge.queue_service.azure.properties import ServiceProperties

VERSION = 1
_DEFAULT = ServiceProperties()


class _Content(msgspec.Struct, frozen=True):
    version: int = VERSION
    properties: dict[str, ServiceProperties] = {}
    policies: dict[str, tuple[Policy, ...]] = {}


class JsonRecords:
    """Properties by account and policies by queue reference, in ``path``; None keeps them in memory.

    Making one reads the file; raises `StoreDamaged` where it is not one of ours, and `StoreError` where it cannot be
    read. The process that owns the data directory is the only one that writes it.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else pathlib.Path(path)
        self._content = _Content() if self._path is None else _read(self._path)
        self._lock = asyncio.Lock()
        self._writing: dict[asyncio.Task[None], None] = {}

    def properties(self, account: str) -> ServiceProperties:
        """Return the properties set last, or the defaults."""
        return self._content.properties.get(account, _DEFAULT)

    async def set_properties(self, account: str, properties: ServiceProperties) -> None:
        """Keep the properties of an account; raises `StoreError` where that failed, and nothing was changed."""
        await self._change("properties", account, None if properties == _DEFAULT else properties)

    def policies(self, queue: str) -> Sequence[Policy]:
        """Return the stored access policies of a queue reference, none by default."""
        return self._content.policies.get(queue, ())

    async def set_policies(self, queue: str, policies: Sequence[Policy]) -> None:
        """Keep the policies of a queue reference; raises `StoreError` where that failed, and nothing was changed."""
        await self._change("policies", queue, tuple(policies) or None)

    async def _change(self, table: str, key: str, value: object | None) -> None:
        # A caller that gives up must not leave the file ahead of what is in memory.
        task = asyncio.create_task(self._write(table, key, value), name="write the Azure front door's records")
        self._writing[task] = None
        task.add_done_callback(self._writing.pop)
        await asyncio.shield(task)

    async def _write(self, table: str, key: str, value: object | None) -> None:
        async with self._lock:
            rows = dict(getattr(self._content, table))
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
            content = msgspec.structs.replace(self._content, **{table: rows})
            if self._path is not None:
                await asyncio.to_thread(_replace, self._path, content)
            self._content = content


def _read(path: pathlib.Path) -> _Content:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return _Content()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}; the queues are not touched by this") from None
    try:
        content = msgspec.json.decode(raw, type=_Content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreDamaged(
            f"{path} is not what the Azure front door wrote; the queues are not touched by this. Put a copy of it "
            "back, or move it away: service properties and access policies are then those of a new account"
        ) from None
    if content.version > VERSION:
        raise StoreDamaged(f"{path} was written by a newer release (version {content.version}); run that one")
    return content


def _replace(path: pathlib.Path, content: _Content) -> None:
    raw = msgspec.json.format(msgspec.json.encode(content), indent=1)
    draft = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; what was kept before is safe") from None
