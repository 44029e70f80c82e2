"""What is promised, as numbers: the one place where the bounds of I1, I2 and I6 are reckoned from a plan."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from queuebell.bridge.contract.bounds import EARLY, PATH_LATENCY_S, STORE_CALL_S, SWEEP_S, bound
from queuebell.bridge.core.cluster.subscribers import PLACE_S
from queuebell.bridge.core.settings import Periods
from tests.simulation.plan import Plan

PATH_S: Final = 1.0
"""What frames, turns and a store call take together while nothing is wrong, amply."""
SLOW_LATENCY_S: Final = 6.0
"""Path latency where links may be made slow: 3 s each way, as the faults draw it."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one plan; seconds, and whole numbers of receives."""

    wake_s: float
    """B of I1: T_dead + w + R. Infinite where the plan switches the dead-man timer off."""
    calm_s: float
    """T + R: how long a queue must have been empty before I2 says anything."""
    churn_s: float
    """The same after a process came, went or stood still: its leases may be asked about until V has passed (B8)."""
    sweep_least_s: float
    """The shortest time between two sweeps; infinite where none are needed."""
    receives_a_look: int
    """2 where an empty receive needs another to be believed (L8), else 1."""
    receives_a_restart: int
    """I6: what a queue costs when the bridge starts again."""
    prompt_s: float = math.inf
    """I1 of an own queue while nothing is wrong: A, within which a wake is passed on, and the path; of several bridges
    also their places in the order. Else infinite."""

    def receives(self, length_s: float) -> int:
        """Return the most receives that ``length_s`` seconds of an empty queue may see (I2)."""
        if math.isinf(self.sweep_least_s):
            return 0
        # One more than the whole periods: a window may begin just before a sweep.
        return (int(length_s / self.sweep_least_s) + 1) * self.receives_a_look

    @property
    def receives_an_hour(self) -> int:
        """Return the most receives an hour of an empty queue, in the long run: 67 elsewhere, 0 for own queues."""
        return 0 if math.isinf(self.sweep_least_s) else math.ceil(3600 / self.sweep_least_s) * self.receives_a_look


def _prompt(plan: Plan) -> float:
    if plan.bridges > 1:
        # Who was thought to come first may just have run out of room (C3).
        return Periods().start_ack_s + PLACE_S * (plan.bridges - 1) + PATH_S
    return Periods().start_ack_s + PATH_S if plan.store == "own" else math.inf


def promise(plan: Plan) -> Promise:
    """Reckon the bounds of a plan, with the protocol's default periods and `queuebell.bridge.contract.bounds.bound`.

    B is 116 s at the defaults, and longer only where a fleet is large or its links are slow. A store that does not
    answer is no part of it: time counts while it answers.
    """
    latency = SLOW_LATENCY_S if "slow_link" in plan.faults else PATH_LATENCY_S
    found = bound(listeners=plan.listeners, latency_s=latency)
    own = plan.store == "own"
    calm_s = SWEEP_S + STORE_CALL_S
    look = 1 if own or plan.complete_receive else 2
    return Promise(
        wake_s=found.bound_s if plan.deadman else math.inf,
        calm_s=calm_s,
        churn_s=calm_s + plan.visibility_s,
        sweep_least_s=math.inf if own or not plan.sweep else EARLY * SWEEP_S,
        receives_a_look=look,
        # Over a broker nobody can tell a store that started again from one elsewhere before its first answer.
        # Of several, a listener that comes may be the first to tell its next bridge of the queue (B10), and V after one
        # is gone each of the others may look for what it alone knew: within a word's latency nothing is proven (C5).
        receives_a_restart=0
        if own and plan.channel == "wire"
        else look
        if plan.bridges == 1
        else look * (1 + plan.bridges),
        prompt_s=_prompt(plan),
    )
