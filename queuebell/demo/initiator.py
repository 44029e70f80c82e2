"""The process initiator: takes the whole job apart into work items and puts them on the input queue."""

from __future__ import annotations

import itertools
import os
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bridge.queues.base import NewMessage, QueueStore
from queuebell.demo.work import INPUT_QUEUE, AnalyseFile, Probe

NOT_THE_LIBRARY: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})


def library_root() -> str:
    """Return the folder of the running Python's standard library, also from within a virtual environment."""
    return sysconfig.get_path("stdlib")


def find_sources(root: str) -> list[str]:
    """Return all ``.py`` files below ``root`` in ascending order, relative to it, without installed packages."""
    return sorted(_walk(root))


def _walk(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_THE_LIBRARY]
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py") and path.is_file():
                yield str(path.relative_to(root))


def sample(sources: Sequence[str], count: int | None) -> list[str]:
    """Return ``count`` of the sources, evenly spread; all of them for None or where there are fewer."""
    if count is None or count >= len(sources):
        return list(sources)
    return [sources[index * len(sources) // count] for index in range(count)]


def split(sources: Sequence[str], bursts: int) -> list[list[str]]:
    """Deal the sources out into bursts of equal size, give or take one, each with files from everywhere."""
    return [list(sources[start::bursts]) for start in range(bursts)]


class Initiator:
    """Puts work items on the input queue and remembers which ones."""

    def __init__(self, store: QueueStore, root: str) -> None:
        self._store = store
        self._root = root
        self._ids = itertools.count(1)
        self.sources: dict[int, str] = {}
        """The source of every file item put, by item id."""
        self.probes = 0

    @property
    def put(self) -> int:
        """Messages put so far."""
        return len(self.sources) + self.probes

    async def put_burst(self, sources: Sequence[str]) -> None:
        """Put one item for each source, in as few calls as the store's batch allows."""
        size = self._store.capabilities.batch_max
        for start in range(0, len(sources), size):
            items = [self._item(source) for source in sources[start : start + size]]
            await self._store.put(INPUT_QUEUE, [NewMessage(msgspec.json.encode(item)) for item in items])

    async def put_probe(self) -> None:
        """Put one probe."""
        self.probes += 1
        item = Probe(next(self._ids), time.monotonic_ns())
        await self._store.put(INPUT_QUEUE, [NewMessage(msgspec.json.encode(item))])

    def _item(self, source: str) -> AnalyseFile:
        number = next(self._ids)
        self.sources[number] = source
        return AnalyseFile(number, str(Path(self._root, source)), time.monotonic_ns())
