"""From a story that fails to the shortest that still fails with the same rule: fewer faults, then less of everything.

Pure but for what it calls. Taking out a fault changes what chance does afterwards, so that every shorter story is
played, never reckoned; the number of tries is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from tests.simulation.fault import Fault
from tests.simulation.plan import Plan

T = TypeVar("T")
TRIES: Final = 200


class Budget:
    """So many tries and no more; ``left`` may be asked at any time."""

    __slots__ = ("left", "used")

    def __init__(self, tries: int = TRIES) -> None:
        self.left = tries
        self.used = 0

    def take(self) -> bool:
        """Take one try; False if there is none left."""
        if self.left <= 0:
            return False
        self.left -= 1
        self.used += 1
        return True


class Shrunk(msgspec.Struct, frozen=True):
    """The shortest failing story found, and how many were tried; ``done`` unless the tries ran out before the end."""

    plan: Plan
    faults: list[Fault]
    tries: int
    done: bool


def ddmin(items: Sequence[T], fails: Callable[[list[T]], bool], budget: Budget) -> list[T]:
    """Return a part of ``items``, in order, that still fails and of which no single item can be left out.

    ``items`` as a whole must fail. Zeller's minimising delta debugging; when the tries run out, the best so far.
    """
    best = list(items)
    if best and budget.take() and fails([]):
        return []
    pieces = 2
    while len(best) >= 2:
        size = -(-len(best) // pieces)
        chunks = [best[start : start + size] for start in range(0, len(best), size)]
        smaller = None
        # Halves by themselves first: where one of them fails the other was never needed.
        for chunk in chunks if pieces == 2 else ():
            if not budget.take():
                return best
            if fails(chunk):
                smaller, pieces = chunk, 2
                break
        if smaller is None:
            for number in range(len(chunks)):
                rest = [item for other, chunk in enumerate(chunks) if other != number for item in chunk]
                if not budget.take():
                    return best
                if fails(rest):
                    smaller, pieces = rest, max(2, pieces - 1)
                    break
        if smaller is not None:
            best = smaller
        elif pieces >= len(best):
            return best
        else:
            pieces = min(len(best), 2 * pieces)
    return best


def smaller_plans(plan: Plan) -> Iterator[Plan]:
    """Yield plans with less in them than this one, the boldest first."""
    for field, least in (("messages", 1), ("workers", 1), ("producers", 1), ("queues", 1), ("burst", 1), ("batch", 1)):
        value: int = getattr(plan, field)
        for less in dict.fromkeys((least, value // 4, value // 2, value - 1)):
            if least <= less < value:
                yield msgspec.structs.replace(plan, **{field: less})
    if plan.handler_failure_share:
        yield msgspec.structs.replace(plan, handler_failure_share=0.0)
    if plan.delayed_share:
        yield msgspec.structs.replace(plan, delayed_share=0.0)
    if plan.quiet_s:
        yield msgspec.structs.replace(plan, quiet_s=0.0)


def shrink(
    plan: Plan,
    faults: Sequence[Fault],
    fails: Callable[[Plan, list[Fault]], bool],
    *,
    tries: int = TRIES,
    progress: Callable[[int, int, Plan], None] = lambda tried, faults, plan: None,
) -> Shrunk:
    """Return the shortest story found; ``fails`` plays one and says whether the same rule is broken.

    The story given must fail. ``progress`` hears, after each try, how many were tried, and the faults and the plan of
    the shortest so far.
    """
    budget = Budget(tries)
    best_plan, best = plan, list(faults)

    def shorter(part: list[Fault]) -> bool:
        nonlocal best
        failed = fails(best_plan, part)
        if failed:
            best = part
        progress(budget.used, len(best), best_plan)
        return failed

    ddmin(best, shorter, budget)
    again = True
    while again and budget.left:
        again = False
        for candidate in smaller_plans(best_plan):
            if not budget.take():
                break
            # A target that a smaller plan does not have is no fault of it.
            kept = [fault for fault in best if _has(candidate, fault)]
            failed = fails(candidate, kept)
            if failed:
                best_plan, best, again = candidate, kept, True
            progress(budget.used, len(best), best_plan)
            if failed:
                break
    if budget.left and best:
        ddmin(best, shorter, budget)
    return Shrunk(best_plan, best, budget.used, budget.left > 0)


def _has(plan: Plan, fault: Fault) -> bool:
    """Say whether every process that the fault names exists in the plan."""
    for name in fault.target.split(">"):
        role, _, number = name.rpartition("-")
        if (role == "worker" and int(number) >= len(plan.worker_names)) or (
            role == "producer" and int(number) >= plan.producers
        ):
            return False
    return True
