"""A customer's day: when how much work arrives, and how long the handling of one message takes. Pure."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from bench.cost.clockwork import CALL_S, START_S
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import BadInput

PUTS_PER_S: Final = 1000
"""How fast the items of a burst are put; each second's worth becomes visible, and is announced, together."""
BUSY_SHARE: Final = 0.25
"""The share of the working hours that the white paper's customer has work."""


class Burst(msgspec.Struct, frozen=True):
    """``items`` messages, the first of them put at ``at`` seconds of the day."""

    at: float
    items: int


class Day(msgspec.Struct, frozen=True):
    """A day of ``length_s`` seconds; a handler takes ``handler_s`` for a message.

    A process takes ``start_s`` from its start until its listener says hello.
    """

    length_s: float
    handler_s: float = 0.0
    bursts: tuple[Burst, ...] = ()
    start_s: float = START_S

    @property
    def items(self) -> int:
        """All messages of the day."""
        return sum(burst.items for burst in self.bursts)

    def puts(self) -> list[tuple[float, int]]:
        """Return when how many messages become visible together, in the order of time."""
        return sorted(
            (burst.at + second, min(PUTS_PER_S, burst.items - second * PUTS_PER_S))
            for burst in self.bursts
            for second in range(math.ceil(burst.items / PUTS_PER_S))
        )


def draw_day(
    *,
    length_s: float,
    busy_s: float,
    bursts: int,
    items_min: int,
    items_max: int,
    threads: int,
    draw: Draw,
    start_s: float = START_S,
) -> Day:
    """Draw a day on which ``threads`` single slots are at work for ``busy_s`` seconds in all, in so many bursts.

    Sizes are drawn evenly on a logarithmic scale from ``items_min`` to ``items_max``. The handler's time follows from
    them: it is what fills the busy time. The rest of the working hours, which the busy time is a quarter of, lies
    between the bursts in pieces drawn at random; the night comes last. Raises `BadInput` if there is no such day.
    """
    if not 0 < busy_s <= length_s:
        raise BadInput("bad_parameter", "the busy hours are more than none and no more than the day")
    if not 1 <= items_min <= items_max or bursts < 1 or threads < 1:
        raise BadInput("bad_parameter", "a day needs a burst, a thread, and 1 <= MIN <= MAX items in a burst")
    sizes = [round(items_min * (items_max / items_min) ** draw()) for _ in range(bursts)]
    # A slot is taken from a receive's beginning to its handler's end.
    handler_s = busy_s * threads / sum(sizes) - CALL_S
    if handler_s < CALL_S:
        raise BadInput(
            "bad_parameter",
            f"{sum(sizes):,} messages leave {threads} threads no time to handle them within {busy_s / 3600:g} busy "
            f"hours; use fewer or smaller bursts, more threads, or more busy hours",
        )
    idle_s = min(length_s, busy_s / BUSY_SHARE) - busy_s
    cuts = sorted(draw() for _ in range(bursts))
    worked = 0
    placed = []
    for cut, size in zip(cuts, sizes, strict=True):
        placed.append(Burst(idle_s * cut + busy_s * worked / sum(sizes), size))
        worked += size
    return Day(length_s, handler_s, tuple(placed), start_s)
