"""Rings the relays of this process: for databases that tell no other process of a commit."""

from __future__ import annotations

from collections.abc import Callable

_bells: set[Callable[[], object]] = set()


def ring_here(*_: object) -> None:
    """Have every relay of this process look at once; from any thread. What it is called with does not matter.

    It never raises: it is called amid a commit.
    """
    for bell in tuple(_bells):
        try:
            bell()
        except RuntimeError:  # its event loop was closed before the relay was left
            _bells.discard(bell)


def hang(bell: Callable[[], object]) -> Callable[[], None]:
    """Call ``bell``, from any thread, whenever a relay should look; returns what ends that."""
    _bells.add(bell)
    return lambda: _bells.discard(bell)
