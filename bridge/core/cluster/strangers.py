"""Why another bridge on the same subjects is not a member of this bridge's cluster (C8)."""

from __future__ import annotations

from typing import Final

from bridge.contract.cluster import MEMBERS_MAX, Member

OTHER_NAME: Final = "its cluster has another name, on the same subjects"
OTHER_ENGINE: Final = "it works on another engine under this cluster's name"
OTHER_MACHINE: Final = "the address of its store is ours and leads to another engine there"
OTHER_ADDRESS: Final = "it reaches our engine, or a copy of it, by another address: give all the same --store"
TOO_MANY: Final = f"a cluster has at most {MEMBERS_MAX} bridges"


def why_not(mine: Member, engine: str | None, other: Member) -> str | None:
    """Return why ``other`` is refused; None for a member of the same cluster, as far as can be said.

    Two engines under one name would each be asked in turn, and every other put be late. ``engine`` is what ours says of
    itself. A copy says the same as its original, so this proves another engine and never the same one: the address has
    to be the same too. Older versions, which say nothing, are judged by the address alone.
    """
    if other.cluster != mine.cluster:
        return OTHER_NAME
    same = None if engine is None or other.engine is None else engine == other.engine
    if other.store != mine.store:
        return OTHER_ADDRESS if same else OTHER_ENGINE
    return OTHER_MACHINE if same is False else None
