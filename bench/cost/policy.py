"""The ways of waiting that are compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from bench.cost.clockwork import CALL_S
from queuebell.bridge.contract.backoff import Backoff, CappedExponential, RandomExponential
from queuebell.listeners.scaling.scaled_queue import Proof


class Policy(msgspec.Struct, frozen=True):
    """One way of waiting: ``slots`` handler slots to a listener, which receives up to as many messages at once.

    ``bell`` is where wakes come from: nowhere (pull-only), a bridge for a queue ``elsewhere``, or the bridge that
    keeps the queue itself (``own``). ``polls`` makes the back-off between polls. Where ``proof`` is set, each listener
    is a process that a scaler starts when there is work, and ``proof`` is what the store's count is worth to it (Z7).
    """

    name: str
    title: str
    scheduler: Literal["none", "elsewhere", "own"]
    slots: int
    polls: Callable[[], Backoff]
    proof: Proof | None = None

    @property
    def from_zero(self) -> bool:
        """Whether no listener runs until there is work."""
        return self.proof is not None

    def capacities(self, threads: int) -> list[int]:
        """Return the slots of each listener, ``threads`` in all."""
        whole, rest = divmod(threads, self.slots)
        return [self.slots] * whole + ([rest] if rest else [])


def every_second() -> Backoff:
    """Return a back-off that begins a receive each second: the call's own time counts, as in the white paper's sum."""
    return CappedExponential(floor=1.0 - CALL_S, ceiling=1.0 - CALL_S)


POLICIES: Final[dict[str, Policy]] = {
    policy.name: policy
    for policy in (
        Policy("polling", "polling each second", "none", 1, every_second),
        Policy("random", "random exponential, 0.1 to 30 s", "none", 1, RandomExponential),
        Policy("capped", "capped exponential, 1 to 60 s", "none", 1, CappedExponential),
        Policy("push", "push, queue in another store", "elsewhere", 1, RandomExponential),
        Policy("own", "push, own queue", "own", 1, RandomExponential),
        Policy("polling-32", "polling each second, batches of 32", "none", 32, every_second),
        Policy("push-32", "push, another store, batches of 32", "elsewhere", 32, RandomExponential),
        Policy("own-32", "push, own queue, batches of 32", "own", 32, RandomExponential),
        Policy("zero-32", "from zero, another store", "elsewhere", 32, RandomExponential, Proof.VISIBLE),
        Policy("rough-32", "from zero, a store's rough count", "elsewhere", 32, RandomExponential, Proof.NONE),
        Policy("own-zero-32", "from zero, own queue", "own", 32, RandomExponential, Proof.VISIBLE),
    )
}
"""In the order in which they are shown."""
