"""Outcomes of handled messages: counters that a listener reports and a bridge sums up; pure.

A listener reports totals since it connected to this boot of the bridge. `minus` returns the increase, and `plus` adds
increases. The bounds of buckets are part of the protocol and never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, zip_longest
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import BadInput

OUTCOMES: Final = ("done", "retried", "failed", "buried", "replayed", "given_back", "lost")
"""The outcomes of attempts, exactly one each: deleted; retried by the handler; failed and retried; dead-lettered;
replayed from the poison queue; released without an outcome, as the worker stops or has no slot; or not settled, as the
lease was lost or left to its end."""
BOUNDS_S: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip
"""The upper bounds of the buckets, in seconds; one more bucket counts longer durations."""
HANDLERS_MAX: Final = 20
"""Limit of handlers of one queue in one heartbeat."""
CLASSES_MAX: Final = 20
"""Limit of failure classes of one handler counted by name; the rest is `OTHER`."""
HANDLER_CHARS_MAX: Final = 128
CLASS_CHARS_MAX: Final = 64
OTHER: Final = "other"
COUNT_MAX: Final = 2**53 - 1
"""The largest integer that is exact in every JSON implementation."""


class Spread(msgspec.Struct, frozen=True, omit_defaults=True):
    """A histogram of durations by `BOUNDS_S`; trailing zeros may be left out. ``total_ms`` is their sum."""

    counts: list[int] = []
    total_ms: int = 0


NOTHING: Final = Spread()


class Jobs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The attempts of one handler on the messages of one queue.

    ``outcomes`` counts ended attempts by `OUTCOMES`, ``failures`` failed ones by class, whatever followed.
    ``handling`` is the handler's time, for each message of a batch that of the whole batch; ``waiting`` is the time
    from put to first attempt, by the clocks of store and worker. ``in_flight`` is the current number, not a counter.
    """

    outcomes: dict[str, int] = {}
    failures: dict[str, int] = {}
    in_flight: int = 0
    leases_lost: int = 0
    handling: Spread = NOTHING
    waiting: Spread = NOTHING
    resumed: bool = False
    """Of a heartbeat: this boot has acknowledged earlier totals; a bridge without any has forgotten them."""


NO_JOBS: Final = Jobs()


def plus(one: Jobs, other: Jobs) -> Jobs:
    """Return the sums, including the current numbers."""
    return Jobs(
        _added(one.outcomes, other.outcomes),
        _added(one.failures, other.failures),
        one.in_flight + other.in_flight,
        one.leases_lost + other.leases_lost,
        _together(one.handling, other.handling),
        _together(one.waiting, other.waiting),
    )


def minus(level: Jobs, known: Jobs) -> Jobs:
    """Return the increase of the counters; a counter that went back has none."""
    return Jobs(
        _beyond(level.outcomes, known.outcomes),
        _beyond(level.failures, known.failures),
        0,
        max(0, level.leases_lost - known.leases_lost),
        _new_in(level.handling, known.handling),
        _new_in(level.waiting, known.waiting),
    )


def add(sums: dict[str, Jobs], handler: str, more: Jobs) -> None:
    """Add to the sums of one queue: 20 handlers and 20 failure classes of each are kept by name, the rest as other."""
    if handler not in sums and len(sums) >= HANDLERS_MAX:
        handler = OTHER
    known = sums.get(handler, NO_JOBS)
    failures: dict[str, int] = {}
    for name, count in more.failures.items():
        room = name in known.failures or len({*known.failures, *failures}) < CLASSES_MAX
        named = name if room else OTHER
        failures[named] = failures.get(named, 0) + count
    sums[handler] = plus(known, msgspec.structs.replace(more, failures=failures))


def quantile(spread: Spread, part: float) -> float | None:
    """Return the bound in seconds that ``part`` (0 to 1) of the durations do not exceed; None without durations.

    It is infinite if it lies in the last bucket.
    """
    wanted = part * sum(spread.counts)
    for bound, count in zip((*BOUNDS_S, float("inf")), accumulate(spread.counts), strict=False):
        if count and count >= wanted:
            return bound
    return None


def label(text: str, most: int) -> str:
    """Return a name as a label: printable, and at most ``most`` bytes of UTF-8."""
    short = text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
    return "".join(char if char.isprintable() else "?" for char in short) or "?"


def check_jobs(told: Mapping[str, Jobs]) -> None:
    """Check reported jobs; raises `BadInput` (``bad_parameter``)."""
    if len(told) > HANDLERS_MAX:
        raise BadInput("bad_parameter", f"jobs: at most {HANDLERS_MAX} handlers per queue")
    for handler, jobs in told.items():
        _check_label(handler, HANDLER_CHARS_MAX, "handler")
        if len(jobs.failures) > CLASSES_MAX + 1 or len(jobs.outcomes) > CLASSES_MAX:
            raise BadInput("bad_parameter", f"jobs: at most {CLASSES_MAX} classes of failure and {OTHER}")
        for name in jobs.failures:
            _check_label(name, CLASS_CHARS_MAX, "class of failure")
        numbers = [*jobs.outcomes.values(), *jobs.failures.values(), jobs.in_flight, jobs.leases_lost]
        for spread in (jobs.handling, jobs.waiting):
            if len(spread.counts) > len(BOUNDS_S) + 1:
                raise BadInput("bad_parameter", f"jobs: a duration may have at most {len(BOUNDS_S) + 1} buckets")
            numbers += [*spread.counts, spread.total_ms]
        if not 0 <= min(numbers) <= max(numbers) <= COUNT_MAX:
            raise BadInput("bad_parameter", f"jobs: a number must be from 0 to {COUNT_MAX}")


def _check_label(text: str, most: int, what: str) -> None:
    if not 1 <= len(text) <= most or not text.isprintable():
        raise BadInput("bad_parameter", f"jobs: a {what} must be printable text of 1 to {most} characters")


def _added(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return one | {name: one.get(name, 0) + count for name, count in other.items()}


def _beyond(level: dict[str, int], known: dict[str, int]) -> dict[str, int]:
    return {name: more for name, count in level.items() if (more := count - known.get(name, 0)) > 0}


def _together(one: Spread, other: Spread) -> Spread:
    counts = [a + b for a, b in zip_longest(one.counts, other.counts, fillvalue=0)]
    return Spread(counts, one.total_ms + other.total_ms) if counts else NOTHING


def _new_in(level: Spread, known: Spread) -> Spread:
    counts = [max(0, a - b) for a, b in zip_longest(level.counts, known.counts, fillvalue=0)]
    while counts and not counts[-1]:
        counts.pop()
    return Spread(counts, max(0, level.total_ms - known.total_ms)) if counts else NOTHING
