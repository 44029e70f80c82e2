"""What one simulated run is made of: how many of what, how they behave, which faults may come."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from queuebell.listeners.wake.pool import Share
from tests.simulation.faults import KINDS

StoreKind = Literal["own", "elsewhere"]
ChannelKind = Literal["wire", "broker"]
LOAD_FROM_S: Final = 60.0
"""When every process has long begun, and what a beginning costs is over, also a look V after it for what was held."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The frame of a run; a run is a function of its plan, its seed and its faults.

    Times are virtual and in seconds unless a name says otherwise; shares are from 0 to 1.
    """

    name: str
    store: StoreKind = "own"
    """Whether the messages wait in the bridge's own queue service or in a store of their own."""
    channel: ChannelKind = "wire"
    """Whether sessions and triggers travel over one connection each, or over a broker that loses frames."""
    broker: Literal["nats", "mqtt"] = "nats"
    """Whose manners the simulated broker has."""
    bridges: int = 1
    """Bridges that take turns (C1 to C10) on a broker that all of them reach; several need a store elsewhere."""
    doors: bool = False
    """Whether several bridges serve the queues of the store, and workers and producers reach them only there (C8)."""
    rounds: bool = False
    """Whether the bridges ask the store elsewhere about all of its queues at once, in place of sweeps (B17)."""
    named: bool = True
    """Whether triggers name their publish; a producer of bare ones publishes one without a body after each put."""
    every_s: float = 0.0
    """Each producer puts one message so often, from `LOAD_FROM_S` on; 0 draws the times."""
    workers: int = 3
    """Listeners that run for good; with scalers, how many each of these starts at most."""
    scalers: int = 0
    """Machines whose scaler starts the listeners of one queue, from none on (Z1 to Z7); 0 has none."""
    idle_s: float = 15.0
    """For how long a listener is idle before its scaler ends it."""
    outlive: bool = False
    """Whether what a scaler has started goes on when it ends, and is found by the next one, as units and pods are."""
    start_rate: int = 4
    start_s: tuple[float, float] = (0.05, 2.0)
    """What a listener takes from its start to its hello: from, to."""
    start_timeout_s: float = 8.0
    producers: int = 2
    queues: int = 1
    messages: int = 24
    burst: int = 4
    """Messages of one put, at most 32; producers put 1 to this many at once."""
    concurrency: int = 3
    pool: int = 0
    """Handler slots that all queues of a worker share; 0 gives each queue ``concurrency`` of its own."""
    shares: tuple[Share, ...] = ()
    """What each queue gets of the pool, the first queue first; those beyond get an equal share."""
    batch: int = 4
    visibility_s: float = 30.0
    grace_s: float = 5.0
    """What handlers get when a worker stops."""
    delayed_share: float = 0.1
    """Share of puts that become visible later, by up to ``delay_s``."""
    delay_s: float = 20.0
    handler_s: tuple[float, float] = (0.01, 3.0)
    handler_failure_share: float = 0.05
    complete_receive: bool = True
    """Elsewhere: an empty receive proves that nothing is due."""
    exact_depth: bool = True
    """Elsewhere: counts tell visible from invisible."""
    next_visible: bool = True
    """Elsewhere: a receive tells when the next message becomes visible."""
    hours: float = 300.0 / 3600.0
    """Length of the phase with puts and faults."""
    faults: tuple[str, ...] = tuple(KINDS)
    fault_gap_s: float = 20.0
    fault_length_s: float = 20.0
    sweep: bool = True
    deadman: bool = True
    healed_s: float = 240.0
    """Length of the phase in which everything works again and all messages must come out."""
    quiet_s: float = 0.0
    """Length of the phase after it, in which receives on empty queues are counted."""
    auth: bool = False
    """Whether the bridge asks for keys, and gives up what somebody opened who may do it no more."""
    quiet_restart: bool = False
    """Whether the bridge starts again once before that, while every queue is calm (I6)."""

    @property
    def faulty_s(self) -> float:
        return self.hours * 3600.0

    @property
    def worker_names(self) -> list[str]:
        """Names of the listeners' hosts; of scalers each has places for what its predecessor left as well."""
        count = self.workers * self.scalers * 2 if self.scalers else self.workers
        return [f"worker-{number}" for number in range(count)]

    @property
    def scaler_names(self) -> list[str]:
        return [f"scaler-{number}" for number in range(self.scalers)]

    @property
    def producer_names(self) -> list[str]:
        return [f"producer-{number}" for number in range(self.producers)]

    @property
    def listeners(self) -> int:
        return self.workers * max(1, self.scalers) + self.scalers

    @property
    def bridge_names(self) -> list[str]:
        return ["bridge"] if self.bridges == 1 else [f"bridge-{number}" for number in range(self.bridges)]


PRESETS: Final[dict[str, Plan]] = {
    plan.name: plan
    for plan in (
        Plan(name="own-wire"),
        Plan(name="own-broker", channel="broker"),
        Plan(name="elsewhere-wire", store="elsewhere"),
        Plan(name="elsewhere-broker", store="elsewhere", channel="broker", broker="mqtt"),
        Plan(name="own-queues", queues=3, workers=4, messages=30, burst=8, fault_gap_s=12.0),
        Plan(
            name="elsewhere-vague",
            store="elsewhere",
            queues=2,
            complete_receive=False,
            exact_depth=False,
            next_visible=False,
        ),
        Plan(name="elsewhere-mostly-crashes", store="elsewhere", faults=("crash", "restart"), fault_gap_s=8.0),
        # Of several bridges' own queues each takes puts and receives for all, in the one store behind them.
        Plan(name="cluster-own-wire", store="elsewhere", bridges=3, doors=True),
        Plan(name="cluster-own-broker", store="elsewhere", channel="broker", bridges=3, doors=True),
        Plan(name="cluster-elsewhere-wire", store="elsewhere", bridges=3),
        Plan(name="cluster-elsewhere-broker", store="elsewhere", channel="broker", bridges=3),
    )
}
