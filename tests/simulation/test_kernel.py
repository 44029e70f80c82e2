"""Virtual time, processes that stand still or die, and a network that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.simulation.kernel import Kernel
from tests.simulation.network import BUFFER, LINGER_S, End, Lost, Network
from tests.simulation.process import Host, Process


class Rig:
    """Two hosts and a network; what processes say goes into ``said`` with its time."""

    def __init__(self, seed: int = 1) -> None:
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel)
        self.said: list[tuple[float, str]] = []
        self.processes: list[Process] = []

    def process(self, name: str) -> Process:
        host = self.network.hosts.setdefault(name, Host(name, "worker", 0.0))
        process = Process(self.kernel, host)
        self.processes.append(process)
        return process

    def say(self, what: str) -> None:
        self.said.append((round(self.kernel.now, 3), what))

    def begin(self, process: Process, main: Coroutine[Any, Any, None]) -> None:
        process.begin(main, lambda error: self.say(f"ended {error!r}"))

    def end(self) -> None:
        self.kernel.over = True
        for process in self.processes:
            process.up = False
            process.bury()


@pytest.fixture
def rig() -> Any:
    rig = Rig()
    yield rig
    rig.end()


async def timer(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    await over


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def test_what_is_due_together_keeps_its_order() -> None:
    """Callbacks come at their times, and at one time in the order in which they were asked for."""
    kernel, seen = Kernel(0), []
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        kernel.at(when, lambda name=name: seen.append((kernel.now, name)))
    assert not kernel.run(5.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert kernel.now == 5.0


def test_a_run_ends_when_it_is_done() -> None:
    """The question whether all is done is asked before time moves on, and what is due later stays."""
    kernel, seen = Kernel(0), []
    kernel.at(1.0, seen.append, 1)
    kernel.at(3.0, seen.append, 3)
    assert kernel.run(9.0, lambda: bool(seen))
    assert (kernel.now, seen) == (1.0, [1])
    kernel.run(9.0)
    assert seen == [1, 3]


def test_chance_is_split_by_name() -> None:
    """The same name draws the same numbers, whatever others drew; another name draws others."""
    kernel = Kernel(7)
    first = [kernel.chance("a").random() for _ in range(2)]
    assert first[0] == first[1] == Kernel(7).chance("a").random()
    assert kernel.chance("b").random() != first[0] != Kernel(8).chance("a").random()


def test_a_pause_holds_timers_and_a_suspend_the_clock(rig: Rig) -> None:
    """A paused process finds its timer overdue; a suspended one has it still before it."""

    async def main(name: str) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await timer(10.0)
        rig.say(f"{name} {loop.time() - began:.1f}")
        await forever()

    for name, suspended in (("paused", False), ("suspended", True)):
        process = rig.process(name)
        rig.begin(process, main(name))
        rig.kernel.at(5.0, lambda process=process, suspended=suspended: process.pause(suspended=suspended))
        rig.kernel.at(25.0, process.resume)
    rig.kernel.run(60.0)
    assert rig.said == [(25.0, "paused 25.0"), (30.0, "suspended 10.0")]


def test_a_killed_process_has_no_last_words(rig: Rig) -> None:
    """After a kill nothing of it runs: no timer, no ``finally``, not even when it is buried."""

    async def main() -> None:
        try:
            await timer(10.0)
            rig.say("timer")
        finally:
            if not rig.kernel.over:
                rig.say("finally")

    process = rig.process("a")
    rig.begin(process, main())
    rig.kernel.run(5.0)
    process.die()
    process.post(rig.say, "posted")
    rig.kernel.run(60.0)
    assert rig.said == []
    assert process.host.process is None


def test_a_kill_comes_between_two_turns(rig: Rig) -> None:
    """A process dies so many turns after a moment, in the middle of what it does."""
    turns: list[int] = []

    async def main() -> None:
        for number in range(10):
            turns.append(number)
            await asyncio.sleep(0)

    process = rig.process("a")
    process.die_at(lambda: len(turns) >= 3, 2, process.die)
    rig.begin(process, main())
    rig.kernel.run(1.0)
    assert turns == [0, 1, 2, 3, 4]


def test_a_timer_that_is_asked_for_again_lets_time_pass(rig: Rig) -> None:
    """A timer never comes a rounding error early, or whoever asks for the rest would ask for ever."""
    fired: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + 0.1 + 0.2

        def tick() -> None:
            fired.append(loop.time() - due)
            if loop.time() < due:
                loop.call_at(due, tick)

        loop.call_at(due, tick)
        await forever()

    rig.begin(rig.process("a"), main())
    rig.kernel.run(1.0)
    assert len(fired) == 1
    assert fired[0] >= 0


def test_failures_that_nobody_answers_for_are_noted(rig: Rig) -> None:
    """An exception in a callback is a defect of the run."""
    process = rig.process("a")
    rig.begin(process, forever())

    def broken() -> None:
        raise ValueError("on purpose")

    process.post(broken)
    rig.kernel.run(1.0)
    assert len(rig.kernel.defects) == 1
    assert "on purpose" in rig.kernel.defects[0]


def connected(rig: Rig, heard: list[object]) -> tuple[Process, Process, End]:
    """Two processes with a connection, of which the server's end hears into ``heard``."""
    near, far = rig.process("near"), rig.process("far")

    def accept(end: End) -> None:
        end.hear = heard.append
        end.on_lost = lambda lost: heard.append(str(lost))

    far.ports["port"] = accept
    rig.begin(near, forever())
    rig.begin(far, forever())
    return near, far, rig.network.open(near, "far", "port")


def test_messages_arrive_in_order(rig: Rig) -> None:
    """A connection keeps its order though latencies differ, and its end comes last."""
    heard: list[object] = []
    _, _, end = connected(rig, heard)
    for number in range(20):
        end.send(number)
    end.close()
    rig.kernel.run(1.0)
    assert heard == [*range(20), "closed by the peer"]


def test_a_partition_holds_back_and_lets_go(rig: Rig) -> None:
    """What a partition holds back comes after it, in order; a full connection says so meanwhile."""
    heard: list[object] = []
    _, _, end = connected(rig, heard)
    end.send("before")
    rig.kernel.run(1.0)
    rig.network.block("near", "far")
    for number in range(BUFFER):
        assert end.writable()
        end.send(number)
    assert not end.writable()
    rig.kernel.run(2.0)
    assert heard == ["before"]
    rig.network.unblock("near", "far")
    rig.kernel.run(3.0)
    assert heard == ["before", *range(BUFFER)]


def test_half_open_is_one_way(rig: Rig) -> None:
    """A blocked way leaves the other way open."""
    heard: list[object] = []
    _, _, end = connected(rig, heard)
    rig.kernel.run(1.0)
    rig.network.block("far", "near")
    came: list[object] = []
    end.hear = came.append
    end.send("up")
    end.peer.send("down")
    rig.kernel.run(9.0)
    assert heard == ["up"]
    assert not came
    rig.network.unblock("far", "near")
    rig.kernel.run(10.0)
    assert came == ["down"]


def test_a_request_left_behind_is_dropped_in_time(rig: Rig) -> None:
    """What was sent before a close may arrive late, but not later than the linger says."""
    heard: list[object] = []
    _, _, end = connected(rig, heard)
    rig.kernel.run(1.0)
    rig.network.block("near", "far")
    end.send("late")
    end.close()
    rig.kernel.run(1.0 + LINGER_S + 1.0)
    rig.network.unblock("near", "far")
    rig.kernel.run(60.0)
    assert "late" not in heard


def test_nobody_there_is_a_refusal(rig: Rig) -> None:
    """A host without a process, or without that port, refuses."""
    near = rig.process("near")
    rig.network.hosts["empty"] = Host("empty", "worker", 0.0)
    rig.begin(near, forever())
    end = rig.network.open(near, "empty", "port")
    rig.kernel.run(1.0)
    assert isinstance(end.lost, Lost)
    assert end.lost.refused


@pytest.mark.parametrize("silent", [False, True])
def test_a_peer_that_dies(rig: Rig, silent: bool) -> None:
    """A killed process resets its connections; a dead machine says nothing before it is back and is spoken to."""
    heard: list[object] = []
    near, far, end = connected(rig, heard)
    rig.kernel.run(1.0)
    far.die()
    rig.network.died(far, silent=silent)
    end.send("anybody?")
    rig.kernel.run(2.0)
    assert (end.lost is None) == silent
    rig.begin(rig.process("far"), forever())
    end.send("and now?")
    rig.kernel.run(3.0)
    assert end.lost is not None
    assert not heard


def test_a_reset_breaks_both_ends(rig: Rig) -> None:
    """After a reset neither end has a connection."""
    heard: list[object] = []
    _, _, end = connected(rig, heard)
    rig.kernel.run(1.0)
    rig.network.reset("near", "far")
    rig.kernel.run(2.0)
    assert end.lost is not None
    assert heard == ["connection reset"]
