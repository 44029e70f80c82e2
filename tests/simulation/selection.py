"""What the command is asked to play: from its options to plans, and from a plan back to the command that replays it.

Pure. A plan is a function of the options, so that a seed and the same options give the same run again.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from tests.simulation.fault import Fault, check_kinds
from tests.simulation.plan import PRESETS, Plan, check

RUN_MESSAGES: Final = 50_000
"""Messages of one run at most; more are played as more runs."""
QUIET_S: Final = 300.0
"""Quiet at the end of each run, in which receives of empty queues are counted."""
_ROUND: Final = 4
_FAULT_MOST: Final = 1e9
MANY: Final = 1000
"""From so many messages in a run on, producers put large bursts and listeners take large batches."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The options; None is what the presets say."""

    store: Literal["own", "elsewhere", "both"] = "both"
    channel: Literal["wire", "broker", "both"] = "both"
    faults: tuple[str, ...] | None = None
    hours: float | None = None
    workers: int | None = None
    messages: int | None = None
    auth: bool = False
    bridges: int = 1
    scalers: int = 0


class Exact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One story, given exactly: a preset, what differs from it, a seed, and the faults (None: those of the seed)."""

    preset: str
    seed: int
    differs: dict[str, Any] = {}
    faults: list[Fault] | None = None


def parse_faults(text: str) -> tuple[str, ...] | None:
    """Take ``all``, ``none``, or kinds separated by commas; raises `ValueError` that names the unknown ones."""
    if text == "all":
        return None
    if text == "none":
        return ()
    kinds = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    check_kinds(kinds)
    return kinds


def plans(selection: Selection) -> list[Plan]:
    """Return the plans, one for each store and channel asked for."""
    stores = ("own", "elsewhere") if selection.store == "both" else (selection.store,)
    channels = ("wire", "broker") if selection.channel == "both" else (selection.channel,)
    several = "cluster-" if selection.bridges > 1 else ""
    return [_plan(PRESETS[f"{several}{store}-{channel}"], selection) for store in stores for channel in channels]


def plan_of(selection: Selection, seed: int) -> Plan:
    """Return the plan that a campaign plays this seed with: one after the other, every second round with a restart."""
    among = plans(selection)
    plan = among[seed % len(among)]
    # By fours whatever was asked for: the command that replays names one store and channel of up to four plans.
    restart, outlive = bool(seed // _ROUND % 2), bool(seed // (2 * _ROUND) % 2)
    return msgspec.structs.replace(plan, quiet_restart=restart, outlive=outlive and plan.scalers > 0)


def _plan(preset: Plan, selection: Selection) -> Plan:
    differs: dict[str, Any] = {"quiet_s": QUIET_S, "auth": selection.auth, "bridges": selection.bridges}
    differs["scalers"] = selection.scalers
    if selection.faults is not None:
        differs["faults"] = selection.faults
    if selection.workers is not None:
        differs["workers"] = selection.workers
    a_run = None if selection.messages is None else min(selection.messages, RUN_MESSAGES)
    if a_run is not None and a_run >= MANY:
        producers = 4
        differs |= {
            "producers": producers,
            "messages": -(-a_run // producers),
            "burst": 32,
            "batch": 32,
            "concurrency": 64,
            "delayed_share": 0.01,
            "handler_s": (0.002, 0.002),
            "hours": 1.0,
        }
        differs.setdefault("workers", 8)
    elif a_run is not None:
        differs["messages"] = -(-a_run // preset.producers)
    if selection.hours is not None:
        differs["hours"] = selection.hours
        if a_run is None:
            # As dense a story as the preset's, only longer.
            dense = round(preset.messages * selection.hours / preset.hours)
            differs["messages"] = max(1, min(dense, RUN_MESSAGES // preset.producers))
    return msgspec.structs.replace(preset, **differs)


def replay_command(selection: Selection, plan: Plan, seed: int) -> str:
    """Return the command that plays this seed of this plan again."""
    store = "own" if plan.doors else plan.store
    words = ["python", "-m", "tests.simulation", "--seed", str(seed), "--store", store, "--channel", plan.channel]
    if selection.bridges > 1:
        words += ["--bridges", str(selection.bridges)]
    if selection.scalers:
        words += ["--scalers", str(selection.scalers)]
    if selection.auth:
        words.append("--auth")
    if selection.faults is not None:
        words += ["--faults", ",".join(selection.faults) or "none"]
    for option, value in (
        ("--hours", selection.hours),
        ("--workers", selection.workers),
        ("--messages", selection.messages),
    ):
        if value is not None:
            words += [option, f"{value:.15g}"]
    return shlex.join(words)


def exact_command(plan: Plan, seed: int, faults: Sequence[Fault]) -> str:
    """Return the command that plays exactly this plan with exactly these faults."""
    exact = Exact(plan.name, seed, plan.differences(), list(faults))
    return shlex.join(["python", "-m", "tests.simulation", "--exact", msgspec.json.encode(exact).decode()])


def parse_exact(text: str) -> tuple[Plan, int, list[Fault] | None]:
    """Take what `exact_command` made; raises `ValueError` that says what is wrong with it."""
    try:
        exact = msgspec.json.decode(text, type=Exact)
        preset = PRESETS[exact.preset]
        unknown = sorted(set(exact.differs) - set(preset.__struct_fields__))
        if unknown:
            raise ValueError(f"a plan has no {', '.join(unknown)}")
        plan = msgspec.convert(msgspec.structs.asdict(preset) | exact.differs, Plan)
        check(plan)
    except KeyError as error:
        raise ValueError(f"no such preset: {error}; there are {', '.join(PRESETS)}") from None
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a story: {error}") from None
    hosts = {*plan.bridge_names, "broker", "store", *plan.worker_names, *plan.scaler_names}
    hosts |= {f"producer-{number}" for number in range(plan.producers)}
    check_kinds([fault.kind for fault in exact.faults or ()])
    for fault in exact.faults or ():
        if not all(0 <= number <= _FAULT_MOST for number in (fault.at_s, fault.length_s, fault.value)):
            raise ValueError(f"{fault.kind}: at_s, length_s and value must be 0 to {_FAULT_MOST:,g}")
        if not hosts.issuperset(fault.target.split(">")):
            raise ValueError(f"{fault.kind}: there is no {fault.target} in this plan")
    return plan, exact.seed, exact.faults
