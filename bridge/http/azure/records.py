"""What the Azure endpoint keeps beside the queues, in one JSON file next to theirs.

It is small and seldom written, so that every change writes all of it: to a second file, flushed, and renamed.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Callable, Sequence

import msgspec

from bridge.contract.errors import QueueNotFound, StoreDamaged, StoreError, Unsupported
from bridge.http.azure.policies import Policy
from bridge.http.azure.properties import ServiceProperties
from bridge.queues.embedded.file import make_folder

VERSION = 2
_DEFAULT = ServiceProperties()


class _Content(msgspec.Struct, frozen=True):
    """``made`` holds the own number of each queue of ``policies``, 0 by default: version 1 had none.

    The queues of that time have the number 0 as well.
    """

    version: int = VERSION
    properties: dict[str, ServiceProperties] = {}
    policies: dict[str, tuple[Policy, ...]] = {}
    made: dict[str, int] = {}


class JsonRecords:
    """Properties by account and policies by queue reference, in ``path``; None keeps them in memory.

    ``made`` gives a queue's own number (`EmbeddedStore.number`): policies end with their queue. Making one
    reads the file; raises `StoreDamaged` where it is not one of ours, and `StoreError` where it cannot be read. The
    process that owns the data directory is the only one that writes it.
    """

    def __init__(self, path: str | os.PathLike[str] | None, made: Callable[[str], int | None]) -> None:
        self._made = made
        self._path = None if path is None else pathlib.Path(path)
        self._content = _Content() if self._path is None else _read(self._path)
        self._lock = asyncio.Lock()
        self._writing: dict[asyncio.Task[None], None] = {}

    def properties(self, account: str) -> ServiceProperties:
        """Return the properties set last, or the defaults."""
        return self._content.properties.get(account, _DEFAULT)

    async def change_properties(self, account: str, change: Callable[[ServiceProperties], ServiceProperties]) -> None:
        """Keep what ``change`` makes of them, which may raise; `StoreError` where that failed, and nothing changed."""

        def apply(content: _Content) -> _Content:
            rows = dict(content.properties)
            properties = change(rows.pop(account, _DEFAULT))
            if properties != _DEFAULT:
                rows[account] = properties
            return msgspec.structs.replace(content, version=VERSION, properties=rows)

        await self._change(apply)

    def policies(self, queue: str) -> Sequence[Policy]:
        """Return the stored access policies of a queue as it stands, none by default.

        They end with the queue, whoever deletes it: one of the same name has none of them.
        """
        found = self._content.policies.get(queue)
        return found if found and self._stands(self._content, queue) else ()

    async def set_policies(self, queue: str, policies: Sequence[Policy]) -> None:
        """Keep the policies of a queue as it stands, and forget those of queues that are gone.

        Raises `QueueNotFound`, and `StoreError` where it failed, and nothing was changed.
        """

        def apply(content: _Content) -> _Content:
            number = self._made(queue)
            if number is None:
                raise QueueNotFound("there is no such queue")
            rows = {name: kept for name, kept in content.policies.items() if self._stands(content, name)}
            rows.pop(queue, None)
            if policies:
                rows[queue] = tuple(policies)
            made = {name: content.made.get(name, 0) for name in rows} | ({queue: number} if policies else {})
            return msgspec.structs.replace(content, version=VERSION, policies=rows, made=made)

        await self._change(apply)

    def _stands(self, content: _Content, queue: str) -> bool:
        return self._made(queue) == content.made.get(queue, 0)

    async def _change(self, apply: Callable[[_Content], _Content]) -> None:
        # A caller that gives up must not leave the file ahead of what is in memory.
        task = asyncio.create_task(self._write(apply), name="write the Azure endpoint's records")
        self._writing[task] = None
        task.add_done_callback(self._writing.pop)
        await asyncio.shield(task)

    async def _write(self, apply: Callable[[_Content], _Content]) -> None:
        async with self._lock:
            content = apply(self._content)
            if self._path is not None:
                await asyncio.to_thread(_replace, self._path, content)
            self._content = content


class NoRecords(JsonRecords):
    """Those of an endpoint whose queues are in an engine: a file of one bridge would say nothing to the others."""

    def __init__(self) -> None:
        super().__init__(None, lambda _: None)

    async def change_properties(self, account: str, change: Callable[[ServiceProperties], ServiceProperties]) -> None:
        """Raise `Unsupported`."""
        raise Unsupported("Service properties cannot be stored if several bridges share the queues")

    async def set_policies(self, queue: str, policies: Sequence[Policy]) -> None:
        """Raise `Unsupported`."""
        raise Unsupported("Stored access policies cannot be stored if several bridges share the queues")


def _read(path: pathlib.Path) -> _Content:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return _Content()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}; the queues are not affected") from None
    try:
        content = msgspec.json.decode(raw, type=_Content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreDamaged(
            f"{path} was not written by the Azure Queue endpoint; the queues are not affected. Restore a "
            "copy of it, or move it away: service properties and access policies are then those of a new "
            "account"
        ) from None
    if content.version > VERSION:
        raise StoreDamaged(f"{path} was written by a newer release (version {content.version}); use that one")
    return content


def _replace(path: pathlib.Path, content: _Content) -> None:
    raw = msgspec.json.format(msgspec.json.encode(content), indent=1)
    draft = path.with_name(path.name + ".new")
    try:
        make_folder(path.parent)
        draft.unlink(missing_ok=True)
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
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
        raise StoreError(f"cannot write {path}: {error.strerror or error}; existing data is safe") from None
