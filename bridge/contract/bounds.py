"""The bound B and the cost Y (receives) that follow from the periods of the wake protocol; pure.

One formula for documents, `queuebell check`, `queuebell serve` and tests: ``T_dead = 1.1 T + S``,
``w = max(spread, N x path latency)``, ``B = T_dead + w + R``, ``Y = 3600 / (0.9 T)`` at most and ``3600 / T`` on
average. It applies to queues in external stores; an embedded queue costs no receive. The cost assumes that S is at
least two heartbeats, which the configuration requires, so that listeners learn of each other's empty receives.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

HEARTBEAT_S: Final = 5.0
"""Minimum heartbeat period H."""
SWEEP_S: Final = 60.0
"""Default period T of the sweep."""
SLACK_S: Final = 30.0
"""S: delay of a dead-man timer after the latest possible sweep."""
SPREAD_S: Final = 10.0
"""Minimum time over which the dead-man timers of one queue are spread."""
STORE_CALL_S: Final = 10.0
"""R: maximum duration of one store call."""
PATH_LATENCY_S: Final = 0.05
"""Latency from one listener through the bridge to another, assumed for the published figures."""
POLL_CAP_S: Final = 30.0
"""Longest back-off of a listener that polls without a bridge (L9)."""

LATE: Final = 1.1
EARLY: Final = 0.9
HOUR_S: Final = 3600.0


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The bound of one queue in seconds, and its cost while empty in receives an hour."""

    bound_s: float
    """B: a receive starts within this time after a message becomes visible and stays so, whatever fails."""
    dead_man_s: float
    """T_dead, without its spread."""
    spread_s: float
    """w: the time over which the listeners' dead-man timers are spread."""
    listeners_max: int
    """The maximum of listeners for which ``bound_s`` holds; more of them extend ``spread_s``."""
    receives_mean: float
    """Mean receives of an empty queue, of all its listeners together, with the bridge up; without sweeps an upper
    estimate."""
    receives_most: int
    """The maximum of them; without sweeps the maximum of **each listener**."""
    away: float
    """Receives of **each listener** without a bridge."""


def bound(
    *,
    sweep_s: float = SWEEP_S,
    slack_s: float = SLACK_S,
    spread_s: float = SPREAD_S,
    store_call_s: float = STORE_CALL_S,
    heartbeat_s: float = HEARTBEAT_S,
    listeners: int = 1,
    latency_s: float = PATH_LATENCY_S,
) -> Bound:
    """Return bound and cost for ``listeners`` of one queue with ``latency_s`` between them.

    Without sweeps (``sweep_s`` 0) only the dead-man timers receive: they fire S after the last empty receive, and the
    first receive is reported to each other listener with its next heartbeat. Listeners whose timer fires earlier also
    receive.
    """
    dead_man = LATE * sweep_s + slack_s
    spread = max(spread_s, listeners * latency_s)
    if sweep_s > 0:
        mean, most = HOUR_S / sweep_s, HOUR_S / (EARLY * sweep_s)
    else:
        # The first of N that are spread evenly over w comes after w / (N + 1).
        rounds, most = HOUR_S / (dead_man + spread / (max(1, listeners) + 1)), HOUR_S / dead_man
        mean = rounds * _looks_a_round(max(1, listeners), heartbeat_s, spread)
    return Bound(
        bound_s=dead_man + spread + store_call_s,
        dead_man_s=dead_man,
        spread_s=spread,
        listeners_max=max(listeners, math.floor(spread_s / latency_s + 1e-9) if latency_s > 0 else listeners),
        receives_mean=mean,
        receives_most=math.ceil(most - 1e-9),
        away=HOUR_S / POLL_CAP_S,
    )


def _looks_a_round(listeners: int, heartbeat_s: float, spread_s: float) -> float:
    """Return how many of N timers, spread evenly over w, fire before the first one is reported, U(0, H) later."""
    if spread_s <= 0:
        return listeners
    share = heartbeat_s / spread_s
    if share <= 1:
        return 1 + listeners * share / 2 - share**listeners / (listeners + 1)
    return (1 + listeners / 2 - 1 / (listeners + 1)) / share + listeners * (1 - 1 / share)


class RoughCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The hourly cost, at most, of an empty queue for a scaler whose store has rough counts (Z7)."""

    queue: str
    listener: str
    trusted: bool
    """A count of 0 is trusted: nothing is received for it."""
    counts: float
    """Counts for the checks that the bridge requests."""

    def in_words(self) -> str:
        """Return a sentence with the cost of both choices."""
        counts = _number(self.counts)
        return (
            "the store's counts are rough, so 0 does not prove the queue empty: while it is, "
            f"{counts} counts and as many receives an hour, and no worker is started; with trust_count {counts} "
            "counts alone, but messages missing from a count wait for the next trigger; "
            f"{'trust_count is set' if self.trusted else 'trust_count is not set'}"
        )


OWN_IN_WORDS: Final = "milliseconds, and no receive while they are empty"
"""The sentence for embedded queues, whose state the bridge always knows."""


def rounds_in_words(sweep_s: float) -> str:
    """Return the sentence for the queues of stores that the bridge itself can ask, which have rounds (B17)."""
    questions = _number(math.ceil(HOUR_S / (EARLY * sweep_s)))
    return f"{questions} questions an hour for all of them together, and no receive while they are empty"


def in_words(found: Bound, *, sweeps: bool) -> str:
    """Return a sentence with a bound and its cost."""
    text = (
        f"a message waits {_number(found.bound_s)} s at most, with up to {found.listeners_max} workers of its queue; "
    )
    if sweeps:
        text += (
            f"an empty queue in an external store costs its workers {_number(found.receives_mean)} "
            f"receives an hour in total, {found.receives_most} at most"
        )
    else:
        text += (
            f"an empty queue in an external store costs each of its workers up to {found.receives_most} "
            "receives an hour: sweeps are off, only the dead-man timers receive, and heartbeats report "
            "each other's receives"
        )
    return f"{text}; without a bridge {_number(found.away)} per worker"


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
