"""The periods that the rows run at, and what is promised at them: the published formulae, with other numbers in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

PATH_S: Final = 0.25
"""The path of one frame or request between two processes of a machine that has other things to do."""
RECONNECT_CAP_S: Final = 5.0
WELCOME_S: Final = 5.0
ALLOWANCE_S: Final = 5.0
"""What the scheduler of a machine that runs a whole test suite may add to any bound; no part of a promise."""


class Pace(NamedTuple):
    """The periods of the protocol in seconds; the letters are those of its rules."""

    heartbeat_s: float = 0.5
    """H."""
    start_ack_s: float = 0.3
    """A."""
    store_call_s: float = 1.0
    """R."""
    sweep_s: float = 1.0
    """T."""
    visibility_s: float = 2.0
    """V, whole seconds: the queue service rounds up."""
    luck: float = 0.1
    """Listeners draw from [0, luck) instead of [0, 1): what is U(0, 30 s) comes to 3 s at most."""

    def settings(self) -> dict[str, str]:
        """Return what a bridge is told in its environment."""
        return {
            "heartbeat_s": str(self.heartbeat_s),
            "start_ack_s": str(self.start_ack_s),
            "store_call_s": str(self.store_call_s),
            "sweep_s": str(self.sweep_s),
        }

    @property
    def poll_cap_s(self) -> float:
        """Return within what a listener without a bridge polls first, and its back-off's cap."""
        return 30.0 * self.luck

    @property
    def death_s(self) -> float:
        """D: when the silent are dead."""
        return 3 * self.heartbeat_s


class Bound(NamedTuple):
    """A promise: its formula in words, and what that comes to, in seconds."""

    words: str
    seconds: float


Promise = Callable[[Pace], Bound]


def healthy(pace: Pace) -> Bound:
    """Nothing stands in the way: a few paths."""
    return Bound("milliseconds", 4 * PATH_S)


def redispatch(pace: Pace, sessions: int = 2) -> Bound:
    """The chosen one does not begin: others are asked, doubling."""
    rounds = math.ceil(math.log2(sessions)) + 1
    return Bound("A (ceil(log2 N) + 1) + R", rounds * pace.start_ack_s + pace.store_call_s + PATH_S)


def death(pace: Pace) -> Bound:
    """The chosen one is cut off unseen: dead after D, and others are asked."""
    return Bound("D + A (ceil(log2 N) + 1) + R", pace.death_s + redispatch(pace).seconds)


def lease(pace: Pace) -> Bound:
    """Whoever held it is gone: the lease ends by itself, or D where that is later."""
    end = max(pace.visibility_s + 1.0, pace.death_s)
    return Bound("max(V + 1, D) + A rounds + R", end + redispatch(pace).seconds)


def sweep(pace: Pace) -> Bound:
    """Nobody said anything: the fleet's one sweep."""
    return Bound("1.1 T + A rounds + R", 1.1 * pace.sweep_s + redispatch(pace).seconds)


def sweeps(count: int) -> Promise:
    """So many sweeps in a row, for all but the last find nothing."""
    return lambda pace: Bound(f"{count} x (1.1 T + A rounds + R)", count * sweep(pace).seconds)


def lease_and_sweep(pace: Pace) -> Bound:
    """The holder is gone, and so is everybody who knew of it."""
    seconds = lease(pace).seconds + sweep(pace).seconds
    return Bound("V + 1 + 1.1 T + A rounds + R", seconds)


def reconnect(pace: Pace) -> Bound:
    """The bridge or a bus is back, and those who lost it return, with full jitter."""
    return Bound("reconnect (<= 5 s) + A rounds + R", RECONNECT_CAP_S + redispatch(pace).seconds)


def without_bridge(pace: Pace) -> Bound:
    """Nobody rings: a listener finds out within D, or within 5 s without a welcome, and polls with its back-off."""
    found = max(pace.death_s, WELCOME_S) + pace.poll_cap_s + pace.store_call_s
    return Bound("max(D, 5 s) + poll cap + R", found + PATH_S)


def store_back(pace: Pace) -> Bound:
    """A store that failed answers again: what is left of the retry's back-off."""
    return Bound("back-off (<= 30 s) + R", 30.0 + pace.store_call_s)


def probe(pace: Pace) -> Bound:
    """A broker that lives and is deaf: two probes of 5 s lost, then a new connection and a look at every queue."""
    return Bound("2 x 5 s + 2 x 2.5 s + reconnect (<= 5 s)", 15.0 + RECONNECT_CAP_S + redispatch(pace).seconds)


def later(promise: Promise, seconds: float, words: str) -> Promise:
    """Add a time of the row's own to a promise."""

    def total(pace: Pace) -> Bound:
        base = promise(pace)
        return Bound(f"{words} + {base.words}", base.seconds + seconds)

    return total
