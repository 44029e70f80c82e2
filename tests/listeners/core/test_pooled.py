"""The wake machine of a queue that shares its slots: what it wants, and when it keeps quiet."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bridge.contract.backoff import RandomExponential
from listeners.core.commands import Command, SendMore, SendRoom, SendStarted, StartReceive
from listeners.core.controller import Controller
from listeners.core.deadman import DeadMan
from listeners.core.pool import Place, Share, Sharing
from listeners.core.scaling import DepthScaling, Scaling, StepScaling
from listeners.core.table import State
from tests.listeners.core.world import BOOT


class Pooled:
    """A machine with batches of 4, welcomed at 0 s, beside the place of a rival that a test speaks for."""

    def __init__(self, size: int, *, scaling: Scaling | None = None, share: Share | None = None) -> None:
        self.sharing = Sharing(size)
        self.place = self.sharing.join("a/one", share or Share(), "sound")
        self.rival = self.sharing.join("a/two", Share(), "sound")
        backoff = RandomExponential(1.0, 30.0, 1.0)
        self.machine = Controller(
            self.place.capacity,
            4,
            scaling=scaling or DepthScaling(4, 1, 8),
            polls=backoff,
            retries=RandomExponential(1.0, 30.0, 1.0),
            draw=lambda: 0.5,
            place=self.place,
        )
        self.machine.welcomed(0.0, BOOT, 0)

    def rival_has(self, running: int, receiving: int = 0, wants: int = 0) -> None:
        self.rival.runs(running)
        self.sharing.stands(self.rival, receiving, wants)

    def told(self) -> None:
        """Tell the pool how the machine stands, as its shell does after each event."""
        machine = self.machine
        self.sharing.stands(self.place, machine.reserved, machine.wants(), waits=machine.waits_in_turn)

    def handlers(self, running: int, now: float) -> list[Command]:
        self.place.runs(running)
        return self.machine.room(now, self.place.capacity - running)


def said(commands: list[Command]) -> list[Command]:
    """Return what of these the bridge or the store hears."""
    return [command for command in commands if isinstance(command, SendMore | SendRoom | SendStarted | StartReceive)]


def test_it_wants_what_its_depth_is_worth_in_whole_batches() -> None:
    """A look owed without a slot: as many receives as the rule says, less those in flight, within its own slots."""
    pooled = Pooled(100)
    machine = pooled.machine
    assert machine.wants() == 0, "nothing is owed"
    pooled.rival_has(100)
    machine.wake(1.0, BOOT, 1, "trigger", size=20)
    assert machine.state is State.FULL
    assert machine.wants() == 20, "five receives of four"
    machine.wake(1.1, BOOT, 2, "trigger", size=1000)
    assert machine.wants() == 32, "the rule's eight at most"
    pooled.handlers(70, 1.2)
    assert machine.wants() == 30
    pooled.handlers(99, 1.3)
    assert machine.wants() == 1
    pooled.handlers(100, 1.4)
    assert machine.wants() == 0


def test_receives_in_flight_are_taken_off_what_it_wants() -> None:
    """Also those of an older epoch; one more is wanted at the least, or the newest wake would have none."""
    pooled = Pooled(40)
    machine = pooled.machine
    pooled.rival_has(36)
    assert StartReceive(1, 4, "trigger") in machine.wake(1.0, BOOT, 1, "trigger", size=20)
    pooled.told()
    assert machine.wants() == 16, "four more receives"
    machine.wake(1.1, BOOT, 2, "trigger", size=1)
    assert machine.wants() == 16
    one = Pooled(40, scaling=DepthScaling(4, 1, 1))
    one.rival_has(36)
    one.machine.wake(1.0, BOOT, 1, "trigger")
    one.told()
    assert one.machine.wants() == 0, "the one receive that the rule allows is in flight"
    one.machine.wake(1.1, BOOT, 2, "trigger")
    assert one.machine.wants() == 4, "and a wake that came after it needs another"
    one.handlers(35, 1.2)
    assert one.machine.wants() == 1, "within the slots that its receive and its handlers leave"
    one.handlers(36, 1.3)
    assert one.machine.wants() == 0


def test_a_depth_of_nothing_is_worth_the_least() -> None:
    """After an answer that left nothing, a look that is owed all the same wants one receive, not those of a message."""
    pooled = Pooled(12, scaling=StepScaling(((1, 1),), 3))
    machine = pooled.machine
    machine.wake(1.0, None, 0, "poll")
    assert set(machine.receives) == {1, 2, 3}
    machine.received(1.1, 1, 0, visible=0, free=12)
    machine.received(1.1, 2, 0, visible=0, free=12)
    machine.failed(1.2, 3)
    pooled.rival_has(12)
    assert machine.wants() == 0, "it waits for its back-off"
    machine.tick(3.0)
    assert (machine.state, machine.depth) == (State.FULL, 0)
    assert machine.wants() == 4
    machine.stop(3.1)
    assert machine.wants() == 0, "it wants nothing any more"


def test_it_wants_one_slot_to_say_that_there_is_room() -> None:
    """L5: nothing is owed, but the bridge was told that there is none, and may hold a debt for it."""
    pooled = Pooled(4)
    machine = pooled.machine
    machine.wake(1.0, BOOT, 1, "trigger")
    pooled.place.runs(4)
    assert SendMore(0) in machine.received(1.1, 1, 4, visible=0, free=0)
    pooled.told()
    assert (machine.state, machine.wants()) == (State.IDLE, 0), "its own handlers have them all"
    pooled.rival_has(3)
    assert said(pooled.handlers(1, 1.2)) == []
    assert machine.wants() == 1
    machine.lost(1.3)
    assert machine.wants() == 0, "there is no bridge to tell"
    machine.welcomed(1.4, BOOT, 1)
    assert said(pooled.handlers(1, 1.5)) == []
    pooled.rival_has(0)
    assert said(machine.tick(1.6)) == [SendRoom(3, 1)]
    assert machine.wants() == 0


def test_a_wake_waits_in_silence_for_the_looks_of_other_queues() -> None:
    """L5: their slots come back in a moment; once handlers have them, the bridge hears that there is no room."""
    pooled = Pooled(4)
    machine = pooled.machine
    pooled.rival_has(0, receiving=4)
    assert said(machine.wake(1.0, BOOT, 1, "trigger")) == []
    assert (machine.state, machine.waits_in_turn, machine.wants()) == (State.FULL, True, 4)
    assert machine.beat(1.1)[3] == 1, "no room would read as `more`"
    pooled.told()
    assert said(machine.wake(1.2, BOOT, 2, "trigger", size=3)) == []
    pooled.rival_has(4)
    assert said(machine.room(1.3, 4)) == [SendMore(3)]
    assert not machine.waits_in_turn
    assert machine.beat(1.4)[3] == 0
    pooled.rival_has(0)
    assert said(machine.room(1.5, 4)) == [SendStarted(BOOT, 2), StartReceive(1, 4, "trigger")]


def test_only_a_wake_of_the_bridge_waits_in_silence() -> None:
    """Of a look of our own it knows nothing, so nobody would ask others (B4): `more` at once."""
    own = Pooled(4)
    own.rival_has(0, receiving=4)
    assert said(own.machine.wake(1.0, None, 0, "more")) == [SendMore(1, unannounced=True)]
    again = Pooled(4)
    again.machine.wake(1.0, BOOT, 1, "trigger")
    assert said(again.machine.failed(1.1, 1)) == [SendMore(1)]
    again.told()
    again.rival_has(0, receiving=4)
    again.machine.tick(2.0)
    assert said(again.machine.tick(2.1)) == []
    assert (again.machine.state, again.machine.waits_in_turn) == (State.FULL, False), "it said `started` already"
    both = Pooled(4)
    both.rival_has(0, receiving=4)
    assert said(both.machine.wake(1.0, BOOT, 1, "trigger")) == []
    assert said(both.machine.wake(1.1, None, 0, "more")) == [SendMore(1, unannounced=True)]
    assert said(both.machine.wake(1.2, BOOT, 2, "trigger")) == [], "told of it, the bridge asks others by itself"
    away = Pooled(4)
    away.rival_has(0, receiving=4)
    away.machine.lost(1.0)
    assert said(away.machine.wake(1.1, BOOT, 1, "trigger")) == []
    assert not away.machine.waits_in_turn, "a bridge that is lost asks nobody"


def test_a_look_that_nobody_asked_for_says_at_once_that_it_has_no_slot() -> None:
    """L10: no wake told the bridge of the dead-man's reason, so that it marks for it and asks another."""
    pooled = Pooled(4)
    pooled.machine.deadman = DeadMan(0.0, lambda: 0.5)
    pooled.rival_has(0, receiving=4)
    assert said(pooled.machine.tick(100.9)) == []
    assert said(pooled.machine.tick(101.0)) == [SendMore(None, unannounced=True)]
    assert (pooled.machine.state, pooled.machine.waits_in_turn) == (State.FULL, False)


EVENTS: dict[str, Callable[[Controller, float], object]] = {
    "wake": lambda machine, now: machine.wake(now, BOOT, 9, "trigger"),
    "received": lambda machine, now: machine.received(now, 1, 0),
    "failed": lambda machine, now: machine.failed(now, 1),
    "room": lambda machine, now: machine.room(now, 4),
    "settled": lambda machine, now: machine.settled(now),
    "tick": lambda machine, now: machine.tick(now),
    "welcomed": lambda machine, now: machine.welcomed(now, BOOT, 9),
    "lost": lambda machine, now: machine.lost(now),
    "stop": lambda machine, now: machine.stop(now),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())
def test_time_passes_for_a_pool_with_every_event(event: Callable[[Controller, float], object]) -> None:
    """A store that was silent is in its turn again when its time is over, whichever queue has an event next."""
    for now, rank in ((19.9, 1), (20.0, 0)):
        pooled = Pooled(4)
        silent = pooled.sharing.join("b/three", Share(), "silent")
        pooled.machine.wake(0.0, BOOT, 1, "trigger")
        silent.unanswered(0.0, 5.0)
        event(pooled.machine, now)
        assert silent.rank == rank


def test_a_failed_look_is_silent_for_as_long_as_it_took() -> None:
    """Counted from its own beginning, whatever the clock said then."""
    pooled = Pooled(4)
    pooled.machine.wake(100.0, BOOT, 1, "trigger")
    pooled.machine.failed(105.0, 1)
    ranks: list[tuple[float, int]] = []
    for now in (105.0, 124.9, 125.0):
        pooled.rival.passes(now)
        ranks.append((now, pooled.rival.rank))
    assert ranks == [(105.0, 1), (124.9, 1), (125.0, 0)]


def test_who_waits_for_receives_counts_its_own_slots_too() -> None:
    """Slots that the others' receives leave, less what its own handlers and receives have."""

    def turn(size: int, running: int, receiving: int, others: int) -> bool:
        sharing = Sharing(size)
        place, other = sharing.join("a/one", Share()), sharing.join("a/two", Share())
        place.runs(running)
        other.runs(others)
        sharing.stands(other, size - running - receiving - others, 0)
        return place.in_turn(receiving)

    assert turn(3, 1, 0, 1)
    assert turn(3, 0, 1, 1)
    assert not turn(3, 1, 0, 2)
    assert not turn(3, 0, 1, 2)
    assert turn(5, 1, 1, 2)
    assert not turn(5, 1, 1, 3)


def test_who_left_stands_for_nothing() -> None:
    """It uses nothing, wants nothing and waits for no turn."""
    pooled = Pooled(4)
    place: Place = pooled.place
    place.runs(2)
    pooled.sharing.stands(place, 1, 3, waits=True)
    pooled.sharing.leave(place)
    assert (place.used, place.wants, place.waits) == (0, 0, False)


def test_many_open_slots_go_to_who_has_fewest() -> None:
    """Dealt at one stroke as one by one: who is far ahead of its part gets none of them."""
    sharing = Sharing(1000)
    ahead, behind = sharing.join("a/ahead", Share()), sharing.join("a/behind", Share())
    for place, running in ((ahead, 600), (behind, 0)):
        place.runs(running)
        sharing.stands(place, 0, 1000)
    assert (ahead.grant(0), behind.grant(0)) == (0, 400)
    sharing.leave(behind)
    even = sharing.join("a/even", Share(weight=2))
    even.runs(100)
    sharing.stands(even, 0, 1000)
    assert (ahead.grant(0), even.grant(0)) == (0, 300)
    ahead.runs(40)
    sharing.stands(ahead, 0, 1000)
    assert (ahead.grant(0), even.grant(0)) == (294, 566), "one of them for what the other took while it wanted some"


def test_who_is_next_is_furthest_below_its_part() -> None:
    """By ``(used + 1) / weight``, not by who joined first or uses fewest."""
    sharing = Sharing(10)
    small, big = sharing.join("a/small", Share()), sharing.join("a/big", Share(weight=4))
    big.runs(2)
    sharing.stands(small, 0, 5)
    sharing.stands(big, 0, 5)
    small.credit = 0.0
    assert sharing.next() is big
    small.credit = 0.5
    assert sharing.next() is small, "a credit counts as a part of a slot"


def test_a_machine_that_stops_lets_time_pass_for_the_pool() -> None:
    """A wake and an answer that it only takes note of end the time of a rival that is behind, as any event does."""
    pooled = Pooled(8)
    machine = pooled.machine
    assert StartReceive(1, 4, "trigger") in machine.wake(1.0, BOOT, 5, "trigger")
    pooled.rival.unanswered(1.0, 1.0)
    machine.stop(1.5)
    assert said(machine.wake(2.0, BOOT, 6, "trigger")) == [SendMore(machine.depth)]
    pooled.rival.unanswered(2.5, 1.0)
    assert said(machine.received(900.0, 1, 0)) == []
    assert machine.state is State.STOPPED
