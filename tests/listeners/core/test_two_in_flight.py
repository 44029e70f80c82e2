"""Two receives in flight at a store that answers one and not the other: the pauses between tries grow (L11).

| the newest look | the other receive | what would start the next one at once |
|---|---|---|
| fails, or is limited | of an older look, empty | its answer ends the pause; the bridge hears of room |
| fails | of the same look, empty | its cover begins the back-off anew, and the failure looks again |
| brings messages, or settles | anything | nothing has to wait |
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import pytest

from bridge.contract.backoff import FullJitter
from listeners.core.commands import Command, SendRoom, StartReceive
from listeners.core.controller import Controller
from listeners.core.evidence import Receive
from listeners.core.scaling import DepthScaling, Scaling, StepScaling

BOOT = "b" * 32
Answer = Callable[[Controller, Receive], str]


def newest(code: str) -> Answer:
    """Answer a receive of the newest look so, and any other that it found nothing."""
    return lambda machine, receive: code if receive.epoch == machine.epoch else "empty"


def last(code: str) -> Answer:
    """Answer so whichever receive is alone in flight: of each pair the second."""
    return lambda machine, receive: code if len(machine.receives) == 1 else "empty"


def receives(answer: Answer, scaling: Scaling, *, complete: bool, seconds: float = 300.0) -> int:
    """Return how many receives a wake costs, with a bridge that hands what it is owed to whoever says `room`."""
    machine = Controller(
        8, 2, scaling=scaling, polls=FullJitter(0.1, 30), retries=FullJitter(0.1, 30), draw=lambda: 0.5
    )
    coming: list[tuple[float, int, Callable[[float], list[Command]]]] = []
    serial, count, now = itertools.count(), 0, 0.0

    def expect(at: float, event: Callable[[float], list[Command]]) -> None:
        heapq.heappush(coming, (at, next(serial), event))

    def answers(rid: int) -> Callable[[float], list[Command]]:
        def come(at: float) -> list[Command]:
            said = answer(machine, machine.receives[rid])
            if said == "fails":
                return machine.failed(at, rid)
            return machine.received(at, rid, 0, complete=complete, blocked=said == "blocked")

        return come

    expect(0.0, lambda at: machine.welcomed(at, BOOT, 0))
    expect(0.1, lambda at: machine.wake(at, BOOT, 1, "trigger", 9))
    while True:
        deadline = machine.deadline()
        if deadline is not None and (not coming or deadline < coming[0][0]):
            expect(deadline, machine.tick)
        if not coming or coming[0][0] > seconds or count > 10_000:
            return count
        at, _, event = heapq.heappop(coming)
        now = max(now, at)
        for command in event(now):
            if isinstance(command, StartReceive):
                count += 1
                # Not the same for all, so that one is overtaken now and then.
                expect(now + 0.02 + 0.013 * (count % 3), answers(command.rid))
            elif isinstance(command, SendRoom):
                expect(now + 0.001, lambda at: machine.wake(at, BOOT, 1, "more", 1))


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("scaling", [DepthScaling(2), DepthScaling(2, minimum=2), StepScaling(((100, 10),))])
@pytest.mark.parametrize("answer", [newest("fails"), newest("blocked"), last("fails"), last("blocked")])
def test_a_store_that_answers_every_other_receive_is_not_asked_in_a_hot_loop(
    answer: Answer, scaling: Scaling, complete: bool
) -> None:
    """Five minutes: as many as a store that never answers costs, or some more where receives go in numbers."""
    never = receives(lambda machine, receive: "fails", scaling, complete=complete)
    assert receives(answer, scaling, complete=complete) <= 5 * never
    assert never <= 100
