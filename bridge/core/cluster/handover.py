"""Hand over pending work when a bridge leaves, and time its sessions' departures (C7)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.event import NOT_BEFORE_MS_MAX, PAYLOAD_SIZE_MAX, CloudQueueWorkDetected
from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.core.pending_work import PendingWork

SPREAD_S: Final = 5.0
"""The last session is sent away before this: a peer does not wait longer for the leave to end."""
EACH_S: Final = 0.01
"""A hello costs the receiving bridge about a tenth of this."""
ANSWER_S: Final = 0.5
"""A session without a `bye` this long after its `drain` is ended: it is an older listener, or it is receiving."""
ENDS_S: Final = 10.0
"""Maximum duration of a leave."""
HANDOVER_MAX: Final = 1000
"""Due times of one queue that a leaving bridge hands over."""


def at_once(ends: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Merge ends within `SPREAD_S`, ascending times with sizes, into the last of them: later, never early."""
    merged: list[tuple[float, int]] = []
    for at, size in reversed(ends):
        if merged and merged[-1][0] - at <= SPREAD_S:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((at, size))
    return merged[::-1]


def handover_triggers(by_queue: Iterable[PendingWork], now: float) -> list[CloudQueueWorkDetected]:
    """Return these queues' pending work and due times as triggers, at most `HANDOVER_MAX` due times per queue."""
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
        for at, size in ends[:HANDOVER_MAX]:
            # Rounded up: a tick early would be a loss (B2).
            later_ms = min(max(0, math.ceil((at - now) * 1000)), NOT_BEFORE_MS_MAX)
            triggers.append(CloudQueueWorkDetected(account, queue, max(1, size), not_before_ms=later_ms))
    return triggers


def departures(sessions: int, others: int, draw: Draw) -> list[float]:
    """Return in how many seconds each session is sent away: ascending, from 0 to less than `SPREAD_S`.

    They share the time evenly, each at a random moment of its share. Without ``others`` to go to, all go immediately.
    """
    span = min(SPREAD_S, EACH_S * sessions) if others else 0.0
    return [span * (index + draw()) / sessions for index in range(sessions)]
