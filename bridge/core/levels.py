"""The newest levels of each instance, by which repeated levels are told from new work; pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, Generic, TypeVar

import msgspec

PACKED_MAX: Final = 4 * 1024 * 1024
"""Bytes that the packed levels of lost instances take at most."""

K = TypeVar("K")
L = TypeVar("L")


class Levels(Generic[K, L]):
    """Remembers the levels of each instance by key: as they are while it has a session, packed after it was lost.

    An instance that said bye never comes back: it is forgotten at once, and what it did is in the sums. Beyond ``most``
    levels of instances with a session, and beyond 4 MiB of packed ones, the instance that was silent longest is
    forgotten first. ``kind`` is the type of one instance's levels.
    """

    def __init__(self, kind: Any, most: int) -> None:
        self.forgot = False
        """Whether an instance was forgotten that may come back."""
        self._kind = kind
        self._most = most
        self._live: OrderedDict[str, dict[K, L]] = OrderedDict()
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._count = 0
        self._bytes = 0

    def get(self, instance: str, key: K) -> L | None:
        """Return the level that is remembered."""
        levels = self._live.get(instance)
        if levels is None and (packed := self._packed.pop(instance, None)) is not None:
            self._bytes -= len(packed)
            levels = self._live[instance] = msgspec.msgpack.decode(packed, type=self._kind)
            self._count += len(levels)
        return None if levels is None else levels.get(key)

    def keep(self, instance: str, key: K, level: L) -> None:
        """Remember a level of an instance that was heard just now, after `get`."""
        levels = self._live.setdefault(instance, {})
        self._count += key not in levels
        levels[key] = level
        self._live.move_to_end(instance)
        while self._count > self._most:
            oldest, others = next(iter(self._live.items()))
            del others[next(iter(others))]
            self._count -= 1
            self.forgot = True
            if not others:
                del self._live[oldest]

    def lost(self, instance: str) -> None:
        """Pack the levels of an instance whose session is gone."""
        levels = self._live.pop(instance, None)
        if levels is not None:
            self._count -= len(levels)
            packed = self._packed[instance] = msgspec.msgpack.encode(levels)
            self._bytes += len(packed)
            while self._bytes > PACKED_MAX:
                self._bytes -= len(self._packed.popitem(last=False)[1])
                self.forgot = True

    def ended(self, instance: str) -> None:
        """Forget an instance that never comes back."""
        self._count -= len(self._live.pop(instance, ()))
        self._bytes -= len(self._packed.pop(instance, b""))
