"""The rule by which queues share slots: its bound, who comes first, and that nobody waits for ever."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable

import pytest

from bridge.contract.backoff import RandomExponential
from bridge.contract.errors import BadInput
from bridge.contract.wire import Starved
from listeners.core.commands import Command, SendMore, SendRoom, SendStarted, StartReceive
from listeners.core.controller import Controller
from listeners.core.deadman import DeadMan
from listeners.core.pool import Place, Share, Sharing
from listeners.core.scaling import DepthScaling, Scaling, StepScaling
from listeners.core.table import State
from tests.listeners.core.world import BOOT


def first_after_one_slot(*, content_meanwhile: bool) -> str:
    """Have one of two alike take its very first slot while the other wants one; return who has the next."""
    sharing = Sharing(1)
    one, two = sharing.join("a/one", Share()), sharing.join("a/two", Share())
    sharing.stands(two, 0, 1)
    sharing.stands(one, 1, 1)
    if content_meanwhile:
        sharing.stands(two, 0, 0)
        sharing.stands(two, 0, 1)
    sharing.stands(one, 0, 1)
    place = sharing.next()
    return place.queue


def said(commands: list[Command]) -> list[Command]:
    """Return what of these the bridge or the store hears."""
    return [command for command in commands if isinstance(command, SendMore | SendRoom | SendStarted | StartReceive)]


DEALS = 10_000


def stand(sharing: Sharing, place: Place, running: int, receiving: int, wants: int) -> None:
    """Tell all of one place."""
    place.runs(running)
    sharing.stands(place, receiving, wants)


class Crowd:
    """Queues with work, as their shells would stand for them: each takes what it is granted, one slot each time."""

    def __init__(self, size: int, *shares: Share) -> None:
        self.sharing = Sharing(size)
        self.places = [self.sharing.join(f"a/q{number}", share) for number, share in enumerate(shares)]
        self.work: dict[Place, int] = dict.fromkeys(self.places, 0)
        self.served: Counter[int] = Counter()

    def stands(self, place: Place, running: int) -> None:
        stand(self.sharing, place, running, 0, self.work[place])

    def arrive(self, number: int, count: int) -> None:
        place = self.places[number]
        self.work[place] += count
        self.stands(place, place.running)
        self.deal()

    def end(self, number: int) -> None:
        """End one handler; its queue asks first, as it does in a listener."""
        place = self.places[number]
        place.runs(place.running - 1)
        if self.work[place] and place.grant(0) > 0:
            self.take(place)
        else:
            self.stands(place, place.running)
        self.deal()

    def take(self, place: Place) -> None:
        self.work[place] -= 1
        self.served[self.places.index(place)] += 1
        self.stands(place, place.running + 1)

    def deal(self) -> None:
        for _ in range(DEALS):
            place = self.sharing.next()
            if place is None:
                return
            self.take(place)
        raise AssertionError("the slots are dealt without an end")

    def holds(self) -> None:
        """Check what is promised to hold after every event, said in other words than the rule's own."""
        size, places = self.sharing.size, self.places
        assert sum(place.running for place in places) <= size, "more slots are in use than there are"
        for place in places:
            assert place.running <= (place.share.limit or size), "a queue is beyond its limit"
        kept = sum(max(0, place.share.reserved - place.running) for place in places)
        still_open = size - kept - sum(place.running for place in places)
        for place in places:
            if self.work[place] and place.running < (place.share.limit or size):
                assert place.running >= place.share.reserved, "a reserved slot is idle although its queue has work"
                assert still_open <= 0, "a slot is idle although a queue has work"


SHARES = (
    Share(),
    Share(weight=3),
    Share(priority=1),
    Share(reserved=1),
    Share(limit=1),
    Share(priority=1, reserved=1, limit=2),
)


@pytest.mark.parametrize(
    ("size", "length"), [(1, 5), (2, 5), *(pytest.param(size, 6, marks=pytest.mark.rest) for size in (1, 2, 3))]
)
def test_every_small_story_holds(size: int, length: int) -> None:
    """Two queues of every two kinds, and every story of six arrivals and ends: the bound, and no idle slot."""
    stories = 0
    for first, second in itertools.combinations_with_replacement(SHARES, 2):
        if first.reserved + second.reserved > size or (size == first.reserved + second.reserved and size < 2):
            continue
        for story in itertools.product(range(4), repeat=length):
            crowd = Crowd(size, first, second)
            for step in story:
                number = step % 2
                if step < 2:
                    crowd.arrive(number, 1)
                elif crowd.places[number].running:
                    crowd.end(number)
                else:
                    break  # the same story without this step is another one of them
                crowd.holds()
            else:
                stories += 1
    assert stories > 500


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
        sharing.hangs(place, each)
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


def test_who_is_next_in_turn_waits_for_receives_and_not_for_handlers() -> None:
    """Slots that receives have reserved may come back in a moment; those of handlers, and kept ones, do not."""
    sharing = Sharing(3)
    one, two = sharing.join("a/one", Share()), sharing.join("a/two", Share(limit=1))
    assert not two.in_turn(0), "it can have a slot now"
    stand(sharing, one, 0, 3, 0)
    two.runs(0)
    sharing.stands(two, 0, 1, waits=True)
    assert two.in_turn(0)
    assert sharing.passed_over() == []
    stand(sharing, one, 2, 1, 0)
    assert sharing.passed_over() == []
    stand(sharing, one, 3, 0, 0)
    assert sharing.passed_over() == [two]
    assert not one.in_turn(0), "its own handlers have them"
    stand(sharing, one, 0, 0, 0)
    sharing.stands(two, 1, 0)
    assert not two.in_turn(1), "it is at its limit"
    three = sharing.join("a/three", Share(reserved=2))
    stand(sharing, two, 0, 1, 0)
    assert one.in_turn(0), "one slot is nobody's own"
    stand(sharing, two, 1, 0, 0)
    assert not one.in_turn(0), "what is left is kept for another queue"
    sharing.leave(three)
    sharing.leave(one)
    assert not one.in_turn(0)


def test_who_left_is_not_silent() -> None:
    """What a queue that is gone was told of its store is nobody's any more, but the store's."""
    sharing = Sharing(2)
    one, two = sharing.join("a/one", Share(), "silent"), sharing.join("a/two", Share(), "silent")
    one.unanswered(0.0, 5.0)
    sharing.leave(one)
    one.unanswered(0.0, 50.0)
    assert two.rank == 1
    assert sharing.join("a/three", Share(), "silent").rank == 1
    two.passes(20.0)
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


def test_a_large_pool_is_dealt_at_one_stroke() -> None:
    """A million slots between three queues are dealt exactly, without counting them one by one."""
    sharing = Sharing(1_000_000)
    places = [sharing.join(f"a/q{weight}", Share(weight=weight)) for weight in (1, 2, 997)]
    for place in places:
        stand(sharing, place, 0, 0, 1_000_000)
    assert [place.grant(0) for place in places] == [1000, 2000, 997_000]


def test_many_slots_between_heavy_queues() -> None:
    """Weights by which all open slots together are less than one level: nobody is dealt more than there is."""
    sharing = Sharing(100)
    one, two = sharing.join("a/one", Share(weight=1000)), sharing.join("a/two", Share(weight=1000))
    for place in (one, two):
        stand(sharing, place, 0, 0, 100)
    assert (one.grant(0), two.grant(0)) == (50, 50)


@pytest.mark.parametrize(
    "wrong",
    [{"weight": 0}, {"weight": 1001}, {"priority": -1}, {"reserved": -1}, {"limit": 0}, {"reserved": 3, "limit": 2}],
)
def test_shares_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    """Each with what would be right."""
    with pytest.raises(BadInput, match="pool:") as refused:
        Share(**wrong)
    assert refused.value.code == "bad_parameter"


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
        self.sharing.stands(self.rival, receiving, wants)

    def told(self) -> None:
        """Tell the pool how the machine stands, as its shell does after each event."""
        machine = self.machine
        self.sharing.stands(self.place, machine.reserved, machine.wants(), waits=machine.waits_in_turn)

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


def test_who_has_just_joined_waits_for_nothing_and_has_no_credit() -> None:
    """A newcomer is no further ahead than its weight puts it, and keeps quiet for no turn."""
    sharing = Sharing(10)
    big, small = sharing.join("a/big", Share(weight=4)), sharing.join("a/small", Share())
    assert sharing.passed_over() == []
    stand(sharing, big, 2, 0, 5)
    stand(sharing, small, 0, 0, 5)
    assert sharing.next() is big


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


def test_the_first_slot_of_all_counts_as_any_other() -> None:
    """Who joined first is not before the one that it passed by; a credit is forgotten once nothing is wanted."""
    assert first_after_one_slot(content_meanwhile=False) == "a/two"
    assert first_after_one_slot(content_meanwhile=True) == "a/one"


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
