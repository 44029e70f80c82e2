"""The rule by which queues share slots: its bound, who comes first, and that nobody waits for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from queuebell.bridge.contract.backoff import RandomExponential
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.wire import Starved
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.pool import Place, Share, Sharing
from queuebell.listeners.wake.receive_scaling import DepthScaling, Scaling
from queuebell.listeners.wake.table import Command, SendMore, SendRoom, SendStarted, StartReceive, State
from queuebell.listeners.wake.timers import DeadMan

BOOT = "b" * 32


def silent_looks(sharing: Sharing, places: list[Place], now: float, took: float = 5.0) -> float:
    """Have each of these queues look once at a store that does not answer, as they come; return when all have."""
    for place in places:
        stand(sharing, place, 0, 0, 1)
    while (place := sharing.next()) in places and place is not None:
        stand(sharing, place, 0, 1, 0)
        now += took
        place.advance(now)
        place.unanswered(now, took)
        stand(sharing, place, 0, 0, 0)
    return now


def said(commands: list[Command]) -> list[Command]:
    """Return what of these the bridge or the store hears."""
    return [command for command in commands if isinstance(command, SendMore | SendRoom | SendStarted | StartReceive)]


def stand(sharing: Sharing, place: Place, running: int, receiving: int, wants: int) -> None:
    """Tell all of one place."""
    place.runs(running)
    sharing.update(place, receiving, wants)


def test_who_has_slots_reserved_gets_no_more_than_these_before_those_who_come_first() -> None:
    sharing = Sharing(10)
    first, reserved = sharing.join("a/first", Share()), sharing.join("a/reserved", Share(reserved=4, priority=1))
    stand(sharing, first, 0, 0, 8)
    stand(sharing, reserved, 0, 0, 10)
    assert (reserved.grant(0), first.grant(0)) == (4, 6)


@pytest.mark.parametrize(
    ("shares", "hung", "stuck", "slots"),
    [
        ((Share(), Share(), Share()), (3, 0, 0), (0, 0, 0), None),
        ((Share(), Share(), Share()), (4, 0, 0), (1, 1, 1), 4),
        ((Share(), Share(), Share()), (3, 1, 0), (1, 1, 1), 4),
        ((Share(limit=2), Share(), Share()), (2, 0, 0), (1, 0, 0), None),
        ((Share(), Share(reserved=1), Share()), (3, 0, 0), (1, 0, 1), 3),
        ((Share(), Share(reserved=1), Share()), (3, 1, 0), (1, 1, 1), 4),
        ((Share(), Share(reserved=4), Share()), (0, 0, 0), (0, 0, 0), None),
    ],
)
def test_who_gets_no_slot_for_handlers_that_hang(
    shares: tuple[Share, ...], hung: tuple[int, ...], stuck: tuple[int, ...], slots: int | None
) -> None:
    """Where these hold all but what is kept for others, or all of a limit; until one ends or leaves."""
    sharing = Sharing(4 if slots is not None or any(hung) else 5)
    places = [sharing.join(f"a/q{number}", share) for number, share in enumerate(shares)]
    for place, each in zip(places, hung, strict=True):
        place.runs(each)
        sharing.set_hung(place, each)
    late = sharing.join("a/late", Share())
    holders = sorted((place for place in places if place.hung), key=lambda place: -place.hung)
    told = None if slots is None else Starved(slots, [place.queue for place in holders])
    assert [place.stuck for place in places] == [bool(each) for each in stuck]
    assert late.starved == told
    assert [place.starved for place in places] == [
        told if place.stuck and slots is not None and place.hung < slots else None for place in places
    ]
    for place in places:
        sharing.leave(place)
    assert (late.stuck, late.starved) == (False, None)


def test_who_left_is_not_silent() -> None:
    """What a queue that is gone was told of its store is nobody's any more, but the store's."""
    sharing = Sharing(2)
    one, two = sharing.join("a/one", Share(), "silent"), sharing.join("a/two", Share(), "silent")
    one.unanswered(0.0, 5.0)
    sharing.leave(one)
    one.unanswered(0.0, 50.0)
    assert two.rank == 1
    assert sharing.join("a/three", Share(), "silent").rank == 1
    two.advance(20.0)
    assert [place.rank for place in sharing.places] == [0, 0]


def test_who_leaves_uses_nothing() -> None:
    """Its slots are free, nothing is granted to it, and what it says later does not count."""
    sharing = Sharing(2)
    one, two = sharing.join("a/one", Share()), sharing.join("a/two", Share())
    stand(sharing, one, 2, 0, 5)
    assert two.grant(0) == 0
    sharing.leave(one)
    sharing.leave(one)
    stand(sharing, one, 2, 2, 2)
    assert (two.grant(0), one.grant(0), sharing.used, sharing.places) == (2, 0, 0, (two,))


def test_many_slots_between_heavy_queues() -> None:
    """Weights by which all open slots together are less than one level: nobody is dealt more than there is."""
    sharing = Sharing(100)
    one, two = sharing.join("a/one", Share(weight=1000)), sharing.join("a/two", Share(weight=1000))
    for place in (one, two):
        stand(sharing, place, 0, 0, 100)
    assert (one.grant(0), two.grant(0)) == (50, 50)


def test_reserved_slots_leave_one_for_everybody() -> None:
    """Who joins where all slots are kept for others would wait for ever, and is refused."""
    sharing = Sharing(3)
    sharing.join("a/one", Share(reserved=2))
    with pytest.raises(BadInput, match="a/two") as refused:
        sharing.join("a/two", Share(reserved=2))
    assert refused.value.code == "bad_parameter"
    sharing.join("a/three", Share(reserved=1))
    with pytest.raises(BadInput, match="a/four"):
        sharing.join("a/four", Share())
    assert [place.queue for place in sharing.places] == ["a/one", "a/three"]


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
        self.sharing.update(self.rival, receiving, wants)

    def told(self) -> None:
        """Tell the pool how the machine stands, as its shell does after each event."""
        machine = self.machine
        self.sharing.update(self.place, machine.reserved, machine.wants(), waits=machine.waits_in_turn)

    def handlers(self, running: int, now: float) -> list[Command]:
        self.place.runs(running)
        return self.machine.room(now, self.place.capacity - running)


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


def test_rivals_share_what_is_open() -> None:
    """Where two want slots at once, each is granted its part of them, and what one does not want the other has."""
    sharing = Sharing(10)
    one, two = sharing.join("a/one", Share(weight=4)), sharing.join("a/two", Share())
    stand(sharing, two, 0, 0, 32)
    assert one.grant(0) == 8
    stand(sharing, two, 0, 0, 1)
    assert one.grant(0) == 9
    stand(sharing, one, 0, 0, 3)
    assert two.grant(0) == 7


def test_a_look_that_nobody_asked_for_says_at_once_that_it_has_no_slot() -> None:
    """L10: no wake told the bridge of the dead-man's reason, so that it marks for it and asks another."""
    pooled = Pooled(4)
    pooled.machine.deadman = DeadMan(0.0, lambda: 0.5)
    pooled.rival_has(0, receiving=4)
    assert said(pooled.machine.tick(100.9)) == []
    assert said(pooled.machine.tick(101.0)) == [SendMore(None, unannounced=True)]
    assert (pooled.machine.state, pooled.machine.waits_in_turn) == (State.FULL, False)


def test_a_large_pool_is_not_counted_slot_by_slot() -> None:
    """Whatever the level is that the slots reach: many slots between many queues are dealt in a moment."""
    sharing = Sharing(400_000)
    places = [sharing.join(f"a/q{number}", Share()) for number in range(10)]
    for place in places:
        stand(sharing, place, 0, 0, 400_000)
    began = time.process_time()
    assert places[0].grant(0) == 40_000
    assert time.process_time() - began < 0.25, "about a millisecond, or most of a second if they are counted"


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


@pytest.mark.parametrize("queues", [1, 2, 30])
def test_whoever_has_work_waits_for_one_silent_look(queues: int) -> None:
    """However many queues a silent store has, the queue of another has the next slot, and they have it after that."""
    sharing = Sharing(1)
    silent = [sharing.join(f"a/q{number}", Share(), "silent") for number in range(queues)]
    sound = sharing.join("b/q", Share(), "sound")
    stand(sharing, sound, 0, 0, 1)
    now = silent_looks(sharing, silent, 0.0)
    assert now <= 5.0
    assert sharing.next() is sound
    assert [place.grant(0) for place in silent] == [0] * queues
    stand(sharing, sound, 0, 0, 0)
    assert silent_looks(sharing, silent, now) == now + 5.0 * queues, "nobody else wants the slot"


def test_a_silent_store_is_in_its_turn_again() -> None:
    """Once it answers at once, else after four times as long as its look took, however short that was."""
    sharing = Sharing(1)
    one, two = sharing.join("a/one", Share(), "silent"), sharing.join("a/two", Share(), "silent")
    sound = sharing.join("b/q", Share(weight=2), "sound")
    for place in (one, two, sound):
        stand(sharing, place, 0, 0, 1)

    def first() -> str:
        place = sharing.next()
        return place.store

    def weigh(store: str) -> None:
        for place in (one, two, sound):
            place.share = Share(weight=9 if place.store == store else 1)

    weigh("silent")
    one.unanswered(0.0, 0.5)
    assert first() == "sound"
    sound.advance(2.0)
    assert first() == "silent"
    one.unanswered(10.0, 5.0)
    assert first() == "sound"
    sound.advance(29.9)
    assert first() == "sound"
    sound.advance(30.0)
    assert first() == "silent"
    one.unanswered(40.0, 5.0)
    sound.answered()
    assert first() == "sound"
    two.answered()
    assert (one.rank, two.rank, first()) == (1, 0, "silent"), "the one that had no answer is behind as yet"
    stand(sharing, two, 0, 0, 0)
    assert first() == "sound"
    one.answered()
    assert first() == "silent"


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
