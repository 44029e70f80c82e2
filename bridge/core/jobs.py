"""What listeners tell of their handlers: levels that are repeated, summed up over all that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from bridge.contract.jobs import CLASSES_MAX, HANDLERS_MAX, NO_JOBS, NOTHING, OUTCOMES, Jobs, Spread, add, minus, plus
from bridge.core.ledger import Debt
from bridge.core.levels import Levels
from bridge.observe.facts import Fact, JobsTold

TELLERS_MAX: Final = 100_000
STEP_MAX: Final = 1_000_000_000
"""The most that one heartbeat adds to a count: a worker that was without a bridge for hours has that much to tell, and
whoever claims more is broken, and must not spoil the sums. Of milliseconds it is a thousand times as much."""


class JobCounts:
    """Counts into debts what is new in the levels of each instance, queue and handler, and returns it as facts.

    Late and repeated heartbeats add nothing. Beyond 100,000 such triples, and beyond 4 MiB of lost instances, the one
    that was silent longest is forgotten. Should it come back it says that it was heard before, and then its first
    levels only say where its counts begin.
    """

    def __init__(self) -> None:
        self.levels: Levels[tuple[str, str], Jobs] = Levels(dict[tuple[str, str], Jobs], TELLERS_MAX)

    def told(self, instance: str, debt: Debt, levels: Mapping[str, Jobs]) -> list[Fact]:
        """Take the levels of one heartbeat, by handler; outcomes that this version does not know are ignored."""
        news: list[Fact] = []
        for handler, level in levels.items():
            key = (debt.queue, handler)
            known = self.levels.get(instance, key)
            more = minus(_read(level, known or NO_JOBS), known or NO_JOBS)
            if more == NO_JOBS:
                continue
            self.levels.keep(instance, key, plus(known or NO_JOBS, more))
            if known is None and level.resumed:
                continue
            more = _believed(more)
            debt.jobs = {} if debt.jobs is None else debt.jobs
            add(debt.jobs, handler, more)
            news.append(JobsTold(debt.queue, handler, more))
        return news


def seen(running: dict[str, int] | None, told: Mapping[str, Jobs]) -> dict[str, int]:
    """Return by handler how many calls of a session run, after a heartbeat that told of some: 20 handlers at most."""
    now = {**(running or {}), **{handler: jobs.in_flight for handler, jobs in told.items()}}
    return dict([(handler, count) for handler, count in now.items() if count][-HANDLERS_MAX:])


def _read(level: Jobs, known: Jobs) -> Jobs:
    """Return a level without what no listener tells: a name too many, for one, of those that it has told before."""
    failures = {
        name: count
        for name, count in level.failures.items()
        if name in known.failures or len(known.failures) <= CLASSES_MAX
    }
    outcomes = {name: level.outcomes[name] for name in OUTCOMES if name in level.outcomes}
    return msgspec.structs.replace(level, outcomes=outcomes, failures=failures)


def _believed(more: Jobs) -> Jobs:
    return Jobs(
        {name: min(count, STEP_MAX) for name, count in more.outcomes.items()},
        {name: min(count, STEP_MAX) for name, count in more.failures.items()},
        0,
        min(more.leases_lost, STEP_MAX),
        _believable(more.handling),
        _believable(more.waiting),
    )


def _believable(spread: Spread) -> Spread:
    if spread is NOTHING:
        return spread
    return Spread([min(count, STEP_MAX) for count in spread.counts], min(spread.total_ms, 1000 * STEP_MAX))
