"""What the answer to a receive proves: whether it covers the looks owed before it began (L8)."""

from __future__ import annotations

import msgspec


class Receive(msgspec.Struct, frozen=True):
    """One receive in flight, with the snapshot taken before it went to the transport (L1)."""

    epoch: int
    boot: str | None
    gen: int
    began_at: float
    limit: int
    source: str
    confirms: bool
    """Whether it began after an empty answer of the same epoch, which an incomplete store needs."""
    after_s: float = 0.0
    """How long its listener knew of ``gen`` when it began."""


class Evidence:
    """Judges answers; remembers the first of the two empty ones that an incomplete store needs."""

    __slots__ = ("_empty_epoch",)

    def __init__(self) -> None:
        self._empty_epoch: int | None = None

    def half(self, epoch: int) -> bool:
        """Say whether one empty answer of this epoch came from a store that needs two."""
        return self._empty_epoch == epoch

    def covers(
        self, receive: Receive, n: int, visible: int | None, complete: bool, epoch: int, blocked: bool = False
    ) -> bool:
        """Say whether ``n`` messages, with ``visible`` left if the store tells, prove that no more was due.

        On a complete store that is a depth of 0 or a batch shorter than asked; on another, two empty answers in a row
        at the same, still current ``epoch``. A store that says that something is left is believed; an answer that
        something else than emptiness limited (``blocked``) proves nothing.
        """
        if blocked:
            return False
        if complete:
            return visible == 0 or (n < receive.limit and not visible)
        if n or visible:
            return False
        if receive.confirms:
            return True
        if receive.epoch == epoch:
            self._empty_epoch = epoch
        return False
