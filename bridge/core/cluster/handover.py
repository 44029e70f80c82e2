"""What a bridge that leaves hands over, and when each of its sessions is sent to the others (C7)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from bridge.contract.backoff import Draw
from bridge.contract.event import NOT_BEFORE_MS_MAX, PAYLOAD_SIZE_MAX, CloudQueueWorkDetected
from bridge.contract.names import split_reference
from bridge.core.pending_work import PendingWork

SPREAD_S: Final = 5.0
"""The last is sent away before this: who hears of a leave waits no longer for it to end."""
EACH_S: Final = 0.01
"""A hello costs the one that takes it over about a tenth of this."""
ANSWER_S: Final = 0.5
"""A session that has not said `bye` so long after its `drain` is ended: an older listener, or one that receives."""
ENDS_S: Final = 10.0
"""So long a leave may take in all."""
BEQUEST_MAX: Final = 1000
"""Due times of one queue that a bridge which leaves tells of."""


def at_once(ends: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Merge what ends within `SPREAD_S`, ascending times with sizes, into the last of it: later, and never early."""
    merged: list[tuple[float, int]] = []
    for at, size in reversed(ends):
        if merged and merged[-1][0] - at <= SPREAD_S:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((at, size))
    return merged[::-1]


def left_behind(by_queue: Iterable[PendingWork], now: float) -> list[CloudQueueWorkDetected]:
    """Return what is pending and due in these queues, as triggers; of each queue at most `BEQUEST_MAX` due times."""
    triggers: list[CloudQueueWorkDetected] = []
    for work in by_queue:
        account, queue = split_reference(work.queue)
        if work.dirty:
            triggers.append(CloudQueueWorkDetected(account, queue, min(max(1, work.size), PAYLOAD_SIZE_MAX)))
        ends = sorted(
            end
            for reason, times in work.due.items()
            for end in (at_once(times.all()) if reason == "lease" else times.all())
        )
        for at, size in ends[:BEQUEST_MAX]:
            # Rounded up: a tick early would be a loss (B2).
            later_ms = min(max(0, math.ceil((at - now) * 1000)), NOT_BEFORE_MS_MAX)
            triggers.append(CloudQueueWorkDetected(account, queue, max(1, size), not_before_ms=later_ms))
    return triggers


def departures(sessions: int, others: int, draw: Draw) -> list[float]:
    """Return in how many seconds each of so many sessions is sent away: ascending, from 0 to less than `SPREAD_S`.

    They share the time evenly, and each goes at a moment of its share that chance decides. Without ``others`` to go to
    there is nobody to spare, and all go at once.
    """
    span = min(SPREAD_S, EACH_S * sessions) if others else 0.0
    return [span * (place + draw()) / sessions for place in range(sessions)]
