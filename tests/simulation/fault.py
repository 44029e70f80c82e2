"""What can go wrong in a run, when, to whom and for how long."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from tests.simulation.plan import Plan

T = TypeVar("T")
PROCESS_KINDS: Final = ("crash", "pause", "suspend", "restart")
"""Process: killed and started again after the length; stopped for a while; with its machine, so that its clock stands
still; stopped gracefully and started again after the length."""
CALL_KINDS: Final = ("exception",)
"""Process: a share ``value`` of its calls to something else raises: stores, channels, observers, hooks, actuators."""
LINK_KINDS: Final = ("partition", "half_open", "reset", "slow_link")
"""``a>b``: nothing passes either way; nothing passes from a to b; connections break; each message takes ``value``
seconds more."""
BROKER_KINDS: Final = ("broker_kill", "broker_deaf", "frame_loss", "frame_repeat", "frame_reorder", "frame_delay")
"""The broker is gone; takes everything and delivers nothing; a share ``value`` of its messages is lost, repeated,
overtaken; each takes up to ``value`` seconds more."""
STORE_KINDS: Final = (
    "store_down",
    "store_slow",
    "store_errors",
    "false_empty",
    "receive_unknown",
    "put_unknown",
    "settle_unknown",
)
"""The store refuses; takes ``value`` seconds for each call; a share ``value`` of its calls fails; of its receives find
nothing though there is something; of its receives, puts and settlements are carried out and the answer is lost."""
TRIGGER_KINDS: Final = ("trigger_dropped", "killed_before_publish")
"""A share ``value`` of the triggers vanish though they were acknowledged; the producer dies after its next put, before
it publishes."""
ACCESS_KINDS: Final = ("key_revoked", "key_expires", "grants_shrunk", "access_broken")
"""With authentication. A key is revoked, and replaced after the length (``value`` 1: replaced first, and revoked then);
the next one, or with 1 a token, ends by itself half-way to it; what a process may is taken from it; the bridge's access
file is damaged (1: gone), while what it said last holds."""
CLUSTER_KINDS: Final = ("stall", "others_killed", "word_loss", "word_repeat", "word_delay")
"""Several bridges. The loop of one stands still; all but one are killed, and started again after the length; a share
``value`` of the words between them is lost, said twice; each comes up to ``value`` seconds late."""
SCALE_KINDS: Final = ("start_fails", "start_dies", "start_hangs", "start_slow")
"""With scalers. A share ``value`` of the starts fail at once; of those started end, or hang, before their listener has
a session; each takes ``value`` seconds more."""
KINDS: Final = (
    *(*PROCESS_KINDS, *LINK_KINDS, *BROKER_KINDS, *STORE_KINDS, *TRIGGER_KINDS, *ACCESS_KINDS, *CLUSTER_KINDS),
    *SCALE_KINDS,
    *CALL_KINDS,
)
STALLS_S: Final = (0.9, 3.4, 10.0)
"""How long a loop stands still: less than a member notices, less than its peers do, and longer."""


def check_kinds(kinds: Iterable[str]) -> None:
    """Raise `ValueError` that names the kinds there are not, and those there are."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"no such kind of fault: {', '.join(unknown)}; there are {', '.join(KINDS)}")


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong.

    ``at_s`` is virtual seconds since the run's beginning; ``target`` a process (``worker-1``, ``bridge``), two of them
    (``worker-1>bridge``), ``broker``, ``store``, or a producer; ``length_s`` until it is mended; ``value`` is what the
    kind says (a share or seconds), 0 where it says nothing.
    """

    at_s: float
    kind: str
    target: str
    length_s: float
    value: float = 0.0


def draw_faults(plan: Plan, chance: random.Random) -> list[Fault]:
    """Draw the faults of one run, in the order of their beginnings; all begin in the phase with faults.

    Exceptions are drawn after all others, which are what they would be without.
    """
    kinds = [kind for kind in plan.faults if _applies(kind, plan)]
    others = [kind for kind in kinds if kind not in CALL_KINDS]
    calls = [kind for kind in kinds if kind in CALL_KINDS]
    drawn = [*_drawn(others, plan.fault_gap_s, plan, chance), *_drawn(calls, 2 * plan.fault_gap_s, plan, chance)]
    return sorted(drawn, key=lambda fault: fault.at_s)


def _drawn(kinds: list[str], gap_s: float, plan: Plan, chance: random.Random) -> list[Fault]:
    drawn: list[Fault] = []
    at = 0.0
    while kinds:
        at += chance.expovariate(1.0 / gap_s)
        if at >= plan.faulty_s:
            break
        kind = kinds[int(chance.random() * len(kinds))]
        length = min(chance.expovariate(1.0 / plan.fault_length_s), plan.fault_length_s * 5)
        if kind == "stall":
            length = _pick(STALLS_S, chance)
        drawn.append(
            Fault(round(at, 3), kind, _target(kind, plan, chance), round(length, 3), round(_value(kind, chance), 3))
        )
    return drawn


def _applies(kind: str, plan: Plan) -> bool:
    if kind in ACCESS_KINDS:
        return plan.auth
    if kind in SCALE_KINDS:
        return plan.scalers > 0
    if kind in CLUSTER_KINDS:
        return plan.bridges > 1
    if kind in ("broker_kill", "broker_deaf"):
        return plan.channel == "broker" or plan.bridges > 1
    if kind in BROKER_KINDS:
        return plan.channel == "broker"
    if kind in TRIGGER_KINDS:
        return plan.store == "elsewhere"
    if kind in ("store_down", "false_empty"):
        return plan.store == "elsewhere"  # the own store is down with its bridge, and never wrong about what it holds
    return True


def _target(kind: str, plan: Plan, chance: random.Random) -> str:
    # Of scalers' listeners those that run most of the time.
    workers = plan.scaler_names * 2 + plan.worker_names[: 2 * plan.scalers] if plan.scalers else plan.worker_names
    producers = [f"producer-{number}" for number in range(plan.producers)]
    bridges = plan.bridge_names
    servers = [*bridges, "store"] if plan.store == "elsewhere" else bridges
    if kind in CALL_KINDS:
        return _one([*bridges, *workers] if chance.random() < 0.5 else bridges, chance)
    if kind in ("stall", "others_killed"):
        return _one(bridges, chance)
    if kind in CLUSTER_KINDS:
        return "broker"
    if kind in SCALE_KINDS:
        return _one(plan.scaler_names, chance)
    if kind in STORE_KINDS:
        return "store"
    if kind in BROKER_KINDS:
        return "broker"
    if kind == "killed_before_publish":
        return _one(producers, chance)
    if kind in ("trigger_dropped", "access_broken"):
        return bridges[0]
    if kind in ACCESS_KINDS:
        # A producer that puts elsewhere and publishes over a broker shows the bridge no key.
        asked = plan.store == "own" or plan.channel == "wire"
        return _one(workers + producers if asked else workers, chance)
    if kind in LINK_KINDS:
        if plan.bridges > 1 and chance.random() < 0.5:
            # One bridge is cut off from the others alone, or from the store that it serves.
            near, far = _one(bridges, chance), "store" if plan.doors and chance.random() < 0.5 else "broker"
            return f"{near}>{far}" if chance.random() < 0.5 else f"{far}>{near}"
        if plan.channel == "broker":
            servers = [*servers, "broker"]
            if chance.random() < 0.25:
                return f"{bridges[0]}>broker" if chance.random() < 0.5 else f"broker>{bridges[0]}"
        near, far = _one(workers + producers, chance), _one(servers, chance)
        return f"{near}>{far}" if chance.random() < 0.5 else f"{far}>{near}"
    # The workers matter most: their crashes reach the most races.
    return _one(workers, chance) if chance.random() < 0.6 else _one([*bridges, *producers], chance)


def _value(kind: str, chance: random.Random) -> float:
    if kind in ("store_slow",):
        return chance.choice((0.5, 3.0, 9.0, 15.0))
    if kind in ("key_revoked", "key_expires", "access_broken"):
        return chance.choice((0.0, 1.0))
    if kind in ("slow_link", "frame_delay"):
        return chance.choice((0.05, 0.5, 3.0))
    if kind in CALL_KINDS:
        return chance.choice((0.02, 0.2, 1.0))
    if kind == "start_slow":
        return chance.choice((1.0, 5.0, 15.0))
    if kind in ("start_fails", "start_dies", "start_hangs"):
        return chance.choice((0.2, 0.5, 1.0))
    if kind == "word_delay":
        return chance.choice((0.5, 3.0, 10.0))
    if kind in ("frame_loss", "frame_repeat", "frame_reorder", "trigger_dropped", "word_loss", "word_repeat"):
        return chance.choice((0.1, 0.5, 1.0))
    if kind in ("store_errors", "false_empty", "receive_unknown", "put_unknown", "settle_unknown"):
        return chance.choice((0.2, 0.5, 1.0))
    return 0.0


def _pick(among: Sequence[T], chance: random.Random) -> T:
    return among[int(chance.random() * len(among))]


def _one(names: list[str], chance: random.Random) -> str:
    return _pick(names, chance)
