"""One process for each policy, as many at once as there are processors, and what they tell meanwhile."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
from collections.abc import Callable, Sequence
from multiprocessing.context import SpawnProcess
from typing import Final

from bench.cost.bridged import BridgedFleet
from bench.cost.day import Day
from bench.cost.fleet import Fleet
from bench.cost.outcome import Outcome
from bench.cost.policy import POLICIES, Policy
from bench.cost.scaled import ScaledFleet
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import QueuebellError

Told = Callable[[str, float], None]
"""ProcessEvents the name of a policy and the share of its day that is over, 0 to 1."""

HEAVIEST_FIRST: Final = (
    "polling", "push", "own", "random", "capped",
    "rough-32", "zero-32", "own-zero-32", "polling-32", "push-32", "own-32",
)  # fmt: skip
"""So that the longest does not begin when all others have ended."""


class PolicyLost(QueuebellError):
    """A policy's process ended without a result."""


def play(name: str, day: Day, threads: int, seed: int, told: Callable[[float], None] | None = None) -> Outcome:
    """Play one policy's day here; the same arguments give the same outcome."""
    policy = POLICIES[name]
    draw = random.Random(f"{seed}:{name}").random
    return fleet_of(policy)(policy, day, threads, draw).run(told)


def fleet_of(policy: Policy) -> Callable[[Policy, Day, int, Draw], Fleet]:
    """Return what plays a policy."""
    if policy.from_zero:
        return ScaledFleet
    return Fleet if policy.scheduler == "none" else BridgedFleet


def play_all(names: Sequence[str], day: Day, threads: int, seed: int, told: Told) -> list[Outcome]:
    """Play every policy's day, each in a process of its own; outcomes come in the order of ``names``.

    Raises `PolicyLost` if a process is killed or breaks. Whatever ends this, no process is left behind.
    """
    spawn = multiprocessing.get_context("spawn")
    waiting = sorted(names, key=HEAVIEST_FIRST.index)
    running: dict[multiprocessing.connection.Connection, tuple[str, SpawnProcess]] = {}
    outcomes: dict[str, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                name = waiting.pop(0)
                reading, writing = spawn.Pipe(duplex=False)
                process = spawn.Process(
                    target=_child, args=(writing, name, day, threads, seed), name=f"cost-{name}", daemon=True
                )
                process.start()
                writing.close()
                running[reading] = (name, process)
            for ready in multiprocessing.connection.wait(list(running)):
                assert isinstance(ready, multiprocessing.connection.Connection)
                name, process = running[ready]
                try:
                    said: Outcome | float = ready.recv()
                except EOFError:
                    process.join()
                    raise PolicyLost(
                        f"the process of the policy '{name}' ended with code {process.exitcode} and without a result; "
                        "nothing was changed anywhere, run the command again"
                    ) from None
                if isinstance(said, Outcome):
                    outcomes[name] = said
                    told(name, 1.0)
                    process.join()
                    ready.close()
                    del running[ready]
                else:
                    told(name, said)
    finally:
        for reading, (_, process) in running.items():
            process.kill()
            process.join()
            reading.close()
    return [outcomes[name] for name in names]


def _child(writing: multiprocessing.connection.Connection, name: str, day: Day, threads: int, seed: int) -> None:
    # Ctrl-C reaches the whole group of processes; the parent sees to this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What is allocated here by the million holds no cycles.
    gc.disable()
    # Whoever asked may be gone: then nobody waits for an answer.
    with contextlib.suppress(BrokenPipeError):
        writing.send(play(name, day, threads, seed, writing.send))
