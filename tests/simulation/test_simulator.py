"""The simulator itself: its clock, its processes, its count of messages, its story and its command."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.exploration.cluster.mutants import ForgivesByArrival
from tests.simulation import command, jobs
from tests.simulation.jobs import Job, Played
from tests.simulation.kernel import Kernel
from tests.simulation.network import Network
from tests.simulation.outcome import Figures
from tests.simulation.plan import PRESETS
from tests.simulation.process import Host, Process
from tests.simulation.run import run
from tests.simulation.test_cluster import with_turns
from tests.support.total_queue import Numbers, TotalQueue


def test_callbacks_due_together_run_in_the_order_in_which_they_were_asked_for() -> None:
    kernel, seen = Kernel(0), []
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        kernel.at(when, lambda name=name: seen.append((kernel.now, name)))
    assert not kernel.run(5.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert kernel.now == 5.0


def test_one_more_draw_of_chance_moves_no_other() -> None:
    kernel = Kernel(7)
    first = [kernel.chance("a").random() for _ in range(2)]
    assert first[0] == first[1] == Kernel(7).chance("a").random()
    assert kernel.chance("b").random() != first[0] != Kernel(8).chance("a").random()


def test_a_pause_delays_timers_a_suspend_stops_the_clock_and_a_kill_runs_no_cleanup() -> None:
    kernel = Kernel(1)
    network = Network(kernel)
    said: list[tuple[float, str]] = []

    def begin(name: str, main: Coroutine[Any, Any, None]) -> Process:
        process = Process(kernel, network.hosts.setdefault(name, Host(name, "worker", 0.0)))
        process.begin(main, lambda error: said.append((kernel.now, repr(error))))
        return process

    async def main(name: str) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        over = loop.create_future()
        loop.call_later(10.0, over.set_result, None)
        try:
            await over
            said.append((round(kernel.now, 3), f"{name} {loop.time() - began:.1f}"))
            await loop.create_future()
        finally:
            if not kernel.over:
                said.append((kernel.now, f"{name} cleaned up"))

    processes = {name: begin(name, main(name)) for name in ("paused", "suspended", "killed")}
    kernel.at(5.0, lambda: processes["paused"].pause(suspended=False))
    kernel.at(5.0, lambda: processes["suspended"].pause(suspended=True))
    kernel.at(5.0, processes["killed"].die)
    for name in ("paused", "suspended"):
        kernel.at(25.0, processes[name].resume)
    kernel.run(60.0)
    assert said == [(25.0, "paused 25.0"), (30.0, "suspended 10.0")]
    kernel.over = True
    for process in processes.values():
        process.up = False
        process.bury()


def test_lost_duplicated_recovered_and_unexpected_messages_are_counted() -> None:
    queue = TotalQueue()
    queue.attempt(0, 0, 10)
    queue.acknowledge(0, 0, 8)
    queue.unknown(0, 8, 2)
    for number in (0, 1, 2, 3, 4, 5, 5, 5, 8):
        queue.handle(0, number)
    for stranger in ((0, 10**9), (3, 0), (0, -1), (3, 0)):
        queue.handle(*stranger)
    assert queue.numbers() == Numbers(attempted=10, acknowledged=8, lost=2, duplicated=1, recovered=1, unexpected=3)
    assert queue.first_lost() == [(0, 6), (0, 7)]


def test_the_trace_is_the_hash_of_the_story() -> None:
    outcome = run(PRESETS["own-wire"], 3, keep_story=True)
    assert outcome.trace_sha256 == hashlib.sha256("".join(f"{line}\n" for line in outcome.story).encode()).hexdigest()
    assert outcome.trace_sha256 == run(PRESETS["own-wire"], 3).trace_sha256


def test_the_command_plays_seeds_and_one_seed_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "4", "--jobs", "2"]) == 0
    said = capsys.readouterr().out
    assert "4 runs" in said and "receives an hour of an empty queue (own)" in said and "checked: I1" in said
    assert "All of it held." in said
    assert command.main(["--seed", "17", "--store", "elsewhere", "--channel", "broker"]) == 0
    said = capsys.readouterr().out
    args = ("--seed", "17", "--store", "elsewhere", "--channel", "broker")
    assert command.main([*args]) == 0
    assert capsys.readouterr().out == said and "PutAttempted" in said and "trace " in said


def test_the_command_names_what_failed_and_the_faults_that_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong turn (W1) and an exception of the simulator itself."""

    def play(given: Any, processes: int) -> list[Played]:
        found = list(given)
        return [*map(jobs.play_one, found[:-1]), Played(found[-1], None, "Traceback\nValueError: a defect")]

    wrong = with_turns(ForgivesByArrival)
    monkeypatch.setattr(command, "play", play)
    monkeypatch.setattr(jobs, "run", lambda plan, seed, faults: run(plan, seed, faults, scheduler=wrong))
    words = ["--bridges", "2", "--seeds", "2", "--hours", "0.02", "--workers", "1", "--faults", "slow_link"]
    assert command.main(words) == 1
    said = capsys.readouterr().out
    assert "FAILED: 2 of 2 runs" in said and "C4" in said and "ValueError: a defect" in said
    assert "The faults without which seed 0 keeps C" in said


def test_what_a_run_never_checked_is_no_proof(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """I6 is checked only in runs that restart their bridge."""
    one = jobs.play_one(Job(PRESETS["own-wire"], 1, []))
    assert one.outcome is not None and isinstance(one.outcome.figures, Figures)
    monkeypatch.setattr(command, "play", lambda given, _: [one for _ in given])
    assert command.main(["--seeds", "16"]) == 0
    assert "Never checked: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--seeds", "0"],
        ["--hours", "0"],
        ["--faults", "rain"],
        ["--faults", "stall"],
        ["--faults", "start_dies"],
        ["--faults", "key_revoked"],
        ["--workers", "0"],
        ["--bridges", "3", "--auth"],
    ],
    ids=" ".join,
)
def test_options_that_cannot_be_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert words[0].removeprefix("--")[:5] in capsys.readouterr().err or "bridges" in words[0]
