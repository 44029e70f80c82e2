"""Leases: when to renew them, when they count as lost, and how long the next ones should be."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

ACCEPT_AFTER_S: Final = 0.1
"""A carried message whose handler still runs after this is accepted by its first renewal (O7)."""
LENGTHEN: Final = 1.5
LONGEST_S: Final = 604_800.0
BUCKETS_MAX: Final = 32


def shortest_visibility(store_call_s: float, receive_s: float = 0.0) -> float:
    """Return the visibility timeout (V) below which one call that hangs for its time-out (R) may cost a lease.

    A lease is renewed at half of its time, and the other half must hold the call that hangs and another one; what is
    received must not be due back before a receive that waits ``receive_s`` by design has answered.
    """
    return max(2 * store_call_s, store_call_s + receive_s)


class Visibility:
    """How long what is received stays leased: ``base`` seconds, longer once that has proved too short.

    It never shrinks: work that took too long once does so again, and a message handled twice costs more than one that
    waits a little longer after a crash. Leases that were taken before it grew prove nothing about the longer one: what
    one pause of the process loses, however much that is, lengthens it once.
    """

    __slots__ = ("_proves_from", "base", "seconds", "too_short")

    def __init__(self, base: float) -> None:
        self.base = base
        self.seconds = base
        self.too_short = 0
        self._proves_from = 0.0

    def proved_short(self, now: float) -> None:
        """Count a message that came back while it was still being handled, and lease what follows for longer."""
        self.too_short += 1
        if now < self._proves_from:
            return
        self.seconds = min(LONGEST_S, self.base * 10, self.seconds * LENGTHEN)
        self._proves_from = now + self.seconds


class Renewals:
    """Which leases to renew when, by number of the message held.

    Two lanes, each kept in the order of time: no heap and no timer per message, and nothing is kept of a message that
    is done. A lease counts from when its call began, and calls answer out of order: it goes before those that are due
    later, which are few and at the end of its lane.
    """

    __slots__ = ("_accept", "_renew")

    def __init__(self) -> None:
        self._accept: OrderedDict[int, float] = OrderedDict()
        self._renew: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accept) + len(self._renew)

    def carried(self, number: int, now: float) -> None:
        """Note a message that came with a wake at ``now``."""
        self._accept[number] = now + ACCEPT_AFTER_S

    def leased(self, number: int, at: float, lease_s: float) -> None:
        """Note a lease of ``lease_s`` that began at ``at``: renew it at half of its time."""
        self._accept.pop(number, None)
        self._renew.pop(number, None)
        due = at + lease_s / 2
        later = []
        for other in reversed(self._renew):
            if self._renew[other] <= due:
                break
            later.append(other)
        self._renew[number] = due
        for other in reversed(later):
            self._renew.move_to_end(other)

    def forget(self, number: int) -> None:
        """Forget a message that is done, or whose lease is lost."""
        if self._accept.pop(number, None) is None:
            self._renew.pop(number, None)

    def deadline(self) -> float | None:
        """Return when the first renewal is due."""
        firsts = [next(iter(lane.values())) for lane in (self._accept, self._renew) if lane]
        return min(firsts) if firsts else None

    def due(self, now: float) -> list[int]:
        """Take those whose time has come; they stand again after `leased`."""
        out: list[int] = []
        for lane in (self._accept, self._renew):
            while lane:
                number, at = next(iter(lane.items()))
                if at > now:
                    break
                del lane[number]
                out.append(number)
        return out


def visible_again(now: float, after: float, resolution_ms: int) -> float:
    """Return when to look for what becomes visible ``after`` seconds from now, in a store of this resolution.

    Rounded up, by the resolution and 1e-4 of the delay: a look one tick early finds nothing and is a loss (B2).
    """
    return now + after * 1.0001 + resolution_ms / 1000


def lease_report(ends: list[float], now: float, most: int = BUCKETS_MAX) -> list[int]:
    """Return lease ends as milliseconds from ``now`` for a heartbeat: rounded up to whole seconds, ``most`` of them.

    Where there are more, the longest is kept and the others thin out upwards: a lease reported late delays a wake, one
    not reported loses it.
    """
    whole = sorted({max(0, math.ceil(end - now)) * 1000 for end in ends})
    while len(whole) > most:
        whole = whole[::-2][::-1]
    return whole
