"""Empty receives of one queue that are about to be reported to the other bridges, merged into one word (C4)."""

from __future__ import annotations

import math

import msgspec

from bridge.contract.cluster import NAMES_BYTES_MAX, NAMES_MAX, Covered, Name


class Telling(msgspec.Struct):
    """What is merged: the newest begin, the names of the newest marks, and when the next message becomes visible.

    ``begun_at`` is by the clock that goes on while the machine sleeps, ``visible_at`` by the rules' own.
    """

    store: str | None
    begun_at: float | None = None
    ids: list[Name] = []
    visible_at: float | None = None

    def merge(self, begun: float | None, visible_at: float | None, names: list[Name]) -> None:
        """Add one empty receive."""
        if begun is not None:
            self.begun_at = begun if self.begun_at is None else max(self.begun_at, begun)
        if visible_at is not None:
            self.visible_at = visible_at if self.visible_at is None else min(self.visible_at, visible_at)
        # Under load the newest: what is older, its time alone proves (C4).
        self.ids = [*self.ids, *names][-NAMES_MAX:]

    def word(self, boot: str, queue: str, at: float, now: float, heard: dict[str, tuple[int, int]]) -> Covered:
        """Return it as a word, at the moments ``at`` and ``now`` of the two clocks."""
        ids: list[Name] = []
        room = NAMES_BYTES_MAX
        for name in self.ids:
            room -= len(name[0]) + len(name[1])
            if room >= 0:
                ids.append(name)
        return Covered(
            boot=boot,
            queue=queue,
            store=self.store,
            begun_age_ms=None if self.begun_at is None else max(0, math.ceil((at - self.begun_at) * 1000)),
            heard=heard,
            ids=tuple(ids),
            next_visible_in_ms=None if self.visible_at is None else max(0, math.ceil((self.visible_at - now) * 1000)),
        )
