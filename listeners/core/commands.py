"""What the wake machine tells its shell to do."""

from __future__ import annotations

import msgspec


class StartReceive(msgspec.Struct, frozen=True):
    """Begin a receive of up to ``limit`` messages; ``source`` is the reason of the wake it answers."""

    rid: int
    limit: int
    source: str


class SendStarted(msgspec.Struct, frozen=True):
    """Tell the bridge that a receive begins that knows of ``gen`` (L4)."""

    boot: str
    gen: int


class SendCover(msgspec.Struct, frozen=True):
    """Tell the bridge of an empty receive that began ``age_s`` ago knowing of ``gen`` (B7)."""

    boot: str
    gen: int
    age_s: float
    next_visible_s: float | None
    after_s: float = 0.0
    """How long it knew of ``gen`` when that receive began (C4)."""


class SendMore(msgspec.Struct, frozen=True):
    """Tell the bridge that somebody else should look (L5).

    ``unannounced`` where the reason to look is none of the bridge's wakes, and was not told in this session (L6, L7).
    """

    depth: int | None
    unannounced: bool = False


class SendRoom(msgspec.Struct, frozen=True):
    """Tell the bridge how many slots are free; wakes up to ``gen`` are counted in it."""

    free: int
    gen: int


class TellEmpty(msgspec.Struct, frozen=True):
    """Call the host's hook: the queue has run empty."""


class TellWork(msgspec.Struct, frozen=True):
    """Call the host's hook: there is work, as ``source`` says."""

    source: str


Command = StartReceive | SendStarted | SendCover | SendMore | SendRoom | TellEmpty | TellWork
