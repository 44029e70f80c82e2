"""Many runs, one after another on every core, with the first failure shrunk to its shortest story."""

from __future__ import annotations

import time
from collections.abc import Iterator

from queuebell.command.progress import Progress
from tests.simulation.checks import rule_of
from tests.simulation.crew import Crew, Job
from tests.simulation.fault import Fault, draw_faults
from tests.simulation.kernel import Kernel
from tests.simulation.plan import Plan
from tests.simulation.report import tell_failure, tell_fault, tell_progress
from tests.simulation.selection import Selection, exact_command, plan_of, replay_command
from tests.simulation.shrink import TRIES, shrink
from tests.simulation.summary import Failure, Report, Shortest, Summary


class Stopped(KeyboardInterrupt):
    """Ctrl-C; ``report`` is what was reached by then."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


class Campaign:
    """Plays seeds from ``first`` on, each with the next of the plans.

    ``seeds`` None goes on until the messages asked for were acknowledged; with both, whichever is reached first.
    """

    def __init__(
        self, selection: Selection, crew: Crew, progress: Progress, *, first: int = 0, seeds: int | None = None
    ) -> None:
        self.summary = Summary()
        self._selection = selection
        self._crew = crew
        self._progress = progress
        self._first = first
        self._seeds = seeds
        self._began = time.monotonic()

    def play(self) -> Report:
        """Play all; raises `Stopped` on Ctrl-C."""
        shortest = None
        try:
            for played in self._crew.play(self._jobs()):
                if played is not None:
                    failure = self.summary.add(
                        played, replay_command(self._selection, played.job.plan, played.job.seed)
                    )
                    if failure is not None and self.summary.failed <= 3:
                        for line in tell_failure(failure):
                            self._progress.line(line)
                self._show()
            seconds = self._elapsed()
            first = next((failure for failure in self.summary.failures if not failure.broken), None)
            if first is not None:
                shortest = self._shrink(first)
        except KeyboardInterrupt:
            raise Stopped(self.summary.report(self._elapsed())) from None
        return self.summary.report(seconds, shortest, whole=self._enough(self.summary.runs))

    def _jobs(self) -> Iterator[Job]:
        seed = self._first
        while not self._enough(seed - self._first):
            yield Job(plan_of(self._selection, seed), seed)
            seed += 1

    def _enough(self, given: int) -> bool:
        if self._seeds is not None and given >= self._seeds:
            return True
        wanted = self._selection.messages
        # With a number of seeds as well, both are limits: whichever is reached first.
        return wanted is not None and self.summary.numbers.acknowledged >= wanted

    def _share(self) -> float:
        """Return how far it is, from 0 to 1."""
        shares = []
        if self._seeds is not None:
            shares.append(self.summary.runs / self._seeds)
        if self._selection.messages is not None:
            shares.append(self.summary.numbers.acknowledged / self._selection.messages)
        return min(1.0, max(shares))

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _show(self) -> None:
        share = self._share()
        # Beside a bar the time left stands already.
        text = tell_progress(self.summary, self._elapsed(), 0.0 if self._progress.live else share)
        self._progress.now("simulate", text, share=share)

    def _shrink(self, failure: Failure) -> Shortest:
        """Play shorter and shorter stories, until none breaks the same rule."""

        def fails(plan: Plan, faults: list[Fault]) -> bool:
            outcome = self._crew.play_one(Job(plan, failure.seed, faults)).outcome
            return outcome is not None and any(rule_of(line) == failure.rule for line in outcome.violations)

        def told(tried: int, faults: int, plan: Plan) -> None:
            self._progress.now(
                "shrink", f"{failure.rule}: {tried} of {TRIES} tries, {faults} faults, {plan.messages} messages"
            )

        faults = draw_faults(failure.plan, Kernel(failure.seed).chance("faults"))
        found = shrink(failure.plan, faults, fails, progress=told)
        played = self._crew.play_one(Job(found.plan, failure.seed, found.faults, keep_story=True))
        outcome = played.outcome
        return Shortest(
            rule=failure.rule,
            faults=[tell_fault(fault) for fault in found.faults],
            differs={field: str(value) for field, value in found.plan.differences().items()},
            violations=[] if outcome is None else outcome.violations,
            story=[] if outcome is None else outcome.story,
            tries=found.tries,
            command=exact_command(found.plan, failure.seed, found.faults),
        )
