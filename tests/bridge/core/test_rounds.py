"""B17: one question to a store stands for the sweeps of its queues, and for nothing else."""

from __future__ import annotations

import pytest

from queuebell.bridge.contract.wire import BridgeHeartbeat, EmptyReceive
from queuebell.bridge.core.round import HERE, Round
from queuebell.bridge.core.wake_scheduler import as_external
from tests.support.bells import BOOT, QUEUE, Rig

OTHER = "billing/others"
T, PLACE = 60.0, "p" * 32


def store(queue: str) -> str:
    """Return the fingerprint of a queue in the store that is asked."""
    return f"asked {queue}"


class Asked(Rig):
    """One listener of two queues of the store that is asked; both were found empty at the beginning."""

    def __init__(self, sweep_s: float = T, place: str | None = PLACE, here: bool = False, **hello: object) -> None:
        super().__init__(sweep_s=sweep_s)
        self.place = place
        self.round: Round = self.scheduler.add_round(store, scope="", here=here)
        self.number = self.join(QUEUE, **{"store": store(QUEUE), **hello})  # type: ignore[arg-type]
        self.settle_hello(self.number)

    def cover(self, number: int, gen: int, queue: str = QUEUE, **_: object) -> None:
        self.say(number, EmptyReceive(queue, BOOT, gen, 0, place=self.place))

    def answer(self, *found: str, began: float | None = None) -> None:
        began = self.now if began is None else began
        self.round.answered(began, found, PLACE)
        self.scheduler.round_found(self.now, self.round, found, began)
        self.drive()

    def pass_time(self, seconds: float) -> list[float]:
        """Return when, from now on, the listener was told to look; it finds nothing."""
        began, looks = self.now, []
        while self.now < began + seconds:
            self.wait(min(1.0, began + seconds - self.now))
            for wake in self.wakes(self.number):
                looks.append(self.now - began)
                self.cover(self.number, wake.gen)
            self.beat(self.number)
        return looks

    def covered_age_s(self) -> float:
        self.beat(self.number)
        frame = self.frames[self.number][-1]
        assert isinstance(frame, BridgeHeartbeat)
        age_ms = frame.queues[QUEUE].covered_age_ms
        assert age_ms is not None
        return age_ms / 1000


def test_a_queue_that_each_round_finds_empty_is_never_swept() -> None:
    """Its listeners hear how old the newest round is, which puts off their dead-man timers."""
    rig = Asked()
    for _ in range(70):
        assert rig.pass_time(rig.round.every_s) == []
        rig.answer(OTHER, began=rig.now - 0.5)
        assert rig.covered_age_s() == 0.5
    assert rig.round.every_s == 54.0
    # The rounds end: it is swept by itself, within the time that a sweep may take.
    (look,) = rig.pass_time(1.1 * T)
    assert T - 0.5 <= look <= 1.1 * T


def test_what_a_round_finds_is_checked_once() -> None:
    """Nobody announced it: one wake, as by a sweep; what is known to wait, or was found empty since, is left alone."""
    rig = Asked()
    rig.pass_time(30.0)
    rig.answer(QUEUE)
    (wake,) = rig.wakes(rig.number)
    assert wake.reason == "sweep" and rig.covered_age_s() == 30.0
    rig.answer(QUEUE)
    assert rig.wakes(rig.number) == []
    rig.cover(rig.number, wake.gen)
    rig.answer(QUEUE, began=rig.now - 1.0)
    assert rig.wakes(rig.number) == [] and rig.work().dirty is False
    # It did not find the queue empty: this is swept as if there had been no round.
    (look,) = rig.pass_time(1.1 * T)
    assert 0.9 * T <= look <= 1.1 * T


@pytest.mark.parametrize(
    "hello",
    [{"store": None}, {"store": "another"}, {"store": store(OTHER)}],
    ids=["untold", "another", "of another queue"],
)
def test_only_queues_of_the_store_that_was_asked(hello: dict[str, object]) -> None:
    rig = Asked(**hello)
    rig.pass_time(30.0)
    rig.answer()
    rig.answer(QUEUE)
    assert rig.covered_age_s() == 30.0 and rig.wakes(rig.number) == []
    (look,) = rig.pass_time(1.1 * T - 30.0)
    assert 0.9 * T <= look + 30.0 <= 1.1 * T


def test_receives_through_this_bridge_are_of_its_own_store() -> None:
    rig = Asked(place=HERE, here=True)
    rig.pass_time(30.0)
    rig.answer()
    assert rig.covered_age_s() == 0.0


def test_an_empty_receive_elsewhere_ends_it() -> None:
    """A listener whose address leads to other tables: from then on the queue is swept by itself."""
    rig = Asked()
    rig.pass_time(30.0)
    rig.answer()
    rig.trigger()
    rig.place = "q" * 32
    rig.pass_time(3.0)
    rig.answer()
    assert rig.covered_age_s() > 0.0
    rig.place = PLACE
    (look,) = rig.pass_time(1.1 * T)
    assert look >= 0.9 * T - 3.0
    rig.answer()
    assert rig.covered_age_s() == 0.0


def test_an_older_answer_says_nothing() -> None:
    rig = Asked()
    rig.pass_time(20.0)
    rig.answer()
    rig.answer(QUEUE, began=rig.now - 10.0)
    assert rig.covered_age_s() == 0.0
    rig.wakes(rig.number)
    rig.scheduler.suspended(rig.now, 1000.0)
    rig.drive()
    assert rig.covered_age_s() >= 1000.0 and [wake.reason for wake in rig.wakes(rig.number)] == ["resync"]
    # One that was under way over the suspend: nobody knows how long ago it began.
    rig.answer(began=rig.now - 1.0)
    assert rig.covered_age_s() >= 1000.0


def test_without_sweeps_there_are_no_rounds() -> None:
    rig = Asked(sweep_s=0.0)
    assert rig.round.every_s == 0
    rig.answer(QUEUE)
    assert rig.wakes(rig.number) == []


def test_a_round_settles_nothing_and_takes_no_wake_back() -> None:
    """A trigger that came meanwhile stays until a receive of its listener."""
    rig = Asked()
    rig.pass_time(20.0)
    rig.trigger()
    rig.answer()
    (wake,) = rig.wakes(rig.number)
    assert wake.reason == "trigger" and rig.work().dirty


def test_a_listener_elsewhere_cannot_say_that_it_read_here() -> None:
    """Only receives through this bridge are of its store, whatever a frame says."""
    frame = EmptyReceive(QUEUE, BOOT, 1, 0, place=HERE)
    told = as_external(frame, store)
    assert isinstance(told, EmptyReceive) and told.place is None
