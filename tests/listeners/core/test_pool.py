"""The rule by which queues share slots: its bound, who comes first, and that nobody waits for ever."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable

import pytest

from bridge.contract.backoff import RandomExponential
from bridge.contract.errors import BadInput
from bridge.contract.wire import Starved
from listeners.core.commands import StartReceive
from listeners.core.controller import Controller
from listeners.core.pool import Place, Share, Sharing
from listeners.core.scaling import DepthScaling

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
    ("size", "length"), [(1, 5), (2, 5), *(pytest.param(size, 6, marks=pytest.mark.prove) for size in (1, 2, 3))]
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


def walk(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 40)
    left = size - 1
    shares = []
    for _ in range(chance.randint(1, 5)):
        reserved = chance.choice((0, 0, 1, 3)) if left >= 3 else 0
        left -= reserved
        limit = chance.choice((None, None, reserved + chance.randint(1, 8)))
        shares.append(
            Share(weight=chance.randint(1, 9), priority=chance.choice((0, 0, 1, 2)), reserved=reserved, limit=limit)
        )
    crowd = Crowd(size, *shares)
    for _ in range(120):
        before = {place: place.running for place in crowd.places}
        number = chance.randrange(len(shares))
        if chance.random() < 0.4:
            crowd.arrive(number, chance.randint(1, size))
        elif crowd.places[number].running:
            crowd.end(number)
        crowd.holds()
        urgent = [
            place.share.priority
            for place in crowd.places
            if crowd.work[place] and place.running < (place.share.limit or size)
        ]
        for place in crowd.places:
            if place.running > max(before[place], place.share.reserved):
                assert place.share.priority <= min(urgent, default=9), "a slot went past a queue that is more urgent"


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.prove) for first in (300, 600, 900))])
def test_random_stories_hold(first: int) -> None:
    """Up to five queues of any kind and 120 events: the bound, no idle slot, and priorities."""
    for seed in range(first, first + 300):
        walk(seed)


def saturate(crowd: Crowd, turns: int, ends: Callable[[list[int]], int]) -> list[float]:
    """Keep every queue busy for so many ends of handlers; return the slots each had on average."""
    for number in range(len(crowd.places)):
        crowd.arrive(number, 10 * turns)
    slots: Counter[int] = Counter()
    for _ in range(turns):
        running = [number for number, place in enumerate(crowd.places) for _ in range(place.running)]
        for number in running:
            slots[number] += 1
        crowd.end(ends(running))
        crowd.holds()
    return [slots[number] / turns for number in range(len(crowd.places))]


@pytest.mark.parametrize(
    ("size", "weights"), [(32, (4, 1)), (30, (3, 2, 1)), (8, (1, 1)), (100, (7, 2, 1)), (5, (4, 1)), (200, (9, 1))]
)
def test_slots_approach_the_weights(size: int, weights: tuple[int, ...]) -> None:
    """While all queues of a priority have work, each has its part of the slots, to one slot; the first came first."""
    chance = random.Random(size)
    crowd = Crowd(size, *(Share(weight=weight) for weight in weights))
    saturate(crowd, size * 6, chance.choice)
    had = saturate(crowd, 3000, chance.choice)
    for slots, weight in zip(had, weights, strict=True):
        assert slots == pytest.approx(size * weight / sum(weights), abs=1.0)


@pytest.mark.parametrize(("size", "weights"), [(1, (4, 1)), (1, (1, 1)), (2, (9, 1)), (3, (5, 1, 1)), (1, (1000, 1))])
def test_a_part_of_less_than_a_slot_is_served_in_turn(size: int, weights: tuple[int, ...]) -> None:
    """Nobody starves because its part is less than one slot: of all slots taken it gets about its part."""
    crowd = Crowd(size, *(Share(weight=weight) for weight in weights))
    saturate(crowd, 5000, random.Random(7).choice)
    served = [crowd.served[number] / crowd.served.total() for number in range(len(weights))]
    for part, weight in zip(served, weights, strict=True):
        assert part == pytest.approx(weight / sum(weights), rel=0.5, abs=0.002)
        assert part > 0


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 100), marks=pytest.mark.prove)], ids=str)
def test_nobody_of_one_priority_waits_for_ever(seeds: range) -> None:
    """A queue that has no slot gets one after total weight / weight slots went to others, however they end."""
    for seed in seeds:
        chance = random.Random(seed)
        weights = [chance.randint(1, 9) for _ in range(chance.randint(2, 5))]
        crowd = Crowd(chance.randint(1, 4), *(Share(weight=weight) for weight in weights))
        for number in range(len(weights)):
            crowd.arrive(number, 10_000)
        waited = [0] * len(weights)
        for _ in range(200):
            running = [number for number, place in enumerate(crowd.places) if place.running]
            before = crowd.served.copy()
            crowd.end(chance.choice(running))
            for number, place in enumerate(crowd.places):
                new = crowd.served[number] > before[number]
                waited[number] = 0 if new or place.running else waited[number] + 1
                # Others that are owed one as well may come before it.
                assert waited[number] <= sum(weights) / weights[number] + len(weights)


def test_a_lower_priority_has_what_is_left_and_what_is_reserved() -> None:
    """Urgent work takes every slot as handlers end, but those reserved; what it does not want goes to the rest."""
    crowd = Crowd(4, Share(), Share(priority=1, reserved=1))
    crowd.arrive(1, 100)
    assert [place.running for place in crowd.places] == [0, 4], "nobody else wants them"
    crowd.arrive(0, 100)
    for _ in range(3):
        crowd.end(1)
    assert [place.running for place in crowd.places] == [3, 1]
    crowd.end(1)
    assert [place.running for place in crowd.places] == [3, 1], "its reserved slot is its own"
    crowd.work[crowd.places[0]] = 0
    crowd.end(0)
    assert [place.running for place in crowd.places] == [2, 2]


def test_a_reserved_slot_waits_for_its_queue() -> None:
    """It stays free for a queue that needs none, so that its first message finds it."""
    crowd = Crowd(3, Share(reserved=2), Share())
    crowd.arrive(1, 9)
    assert [place.running for place in crowd.places] == [0, 1]
    crowd.arrive(0, 9)
    assert [place.running for place in crowd.places] == [2, 1]


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


def test_receives_in_flight_use_slots() -> None:
    """What receives may bring is in use, and is granted to nobody else."""
    sharing = Sharing(10)
    one, two = sharing.join("a/one", Share()), sharing.join("a/two", Share(limit=8))
    assert (one.grant(0), two.grant(0)) == (10, 8)
    stand(sharing, one, 1, 6, 0)
    assert (sharing.used, one.grant(6), two.grant(0)) == (7, 3, 3)
    assert one.grant(0) == 9, "its receive has come back, and it asks in that very moment"


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


def silent_looks(sharing: Sharing, places: list[Place], now: float, took: float = 5.0) -> float:
    """Have each of these queues look once at a store that does not answer, as they come; return when all have."""
    for place in places:
        stand(sharing, place, 0, 0, 1)
    while (place := sharing.next()) in places and place is not None:
        stand(sharing, place, 0, 1, 0)
        now += took
        place.passes(now)
        place.unanswered(now, took)
        stand(sharing, place, 0, 0, 0)
    return now


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
    sound.passes(2.0)
    assert first() == "silent"
    one.unanswered(10.0, 5.0)
    assert first() == "sound"
    sound.passes(29.9)
    assert first() == "sound"
    sound.passes(30.0)
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


def test_a_silent_store_keeps_its_priority_and_its_reserved_slots() -> None:
    """It is behind those of its own priority; who comes after them stays there."""
    sharing = Sharing(2)
    urgent = sharing.join("a/urgent", Share(reserved=1), "silent")
    even, bulk = sharing.join("b/even", Share(), "sound"), sharing.join("b/bulk", Share(priority=1), "sound")
    urgent.unanswered(0.0, 5.0)
    stand(sharing, urgent, 0, 0, 2)
    stand(sharing, bulk, 0, 0, 2)
    assert (urgent.grant(0), bulk.grant(0)) == (2, 0)
    stand(sharing, even, 0, 0, 2)
    assert (urgent.grant(0), even.grant(0), bulk.grant(0)) == (1, 1, 0)


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


def test_the_wake_machine_tells_of_silence() -> None:
    """A receive that fails late puts its store behind, time and an answer end that."""
    sharing = Sharing(1)
    place, other = sharing.join("a/one", Share(), "silent"), sharing.join("a/two", Share(), "silent")
    backoff = RandomExponential(60.0, 60.0, 60.0)
    machine = Controller(
        1, 1, scaling=DepthScaling(), polls=backoff, retries=backoff, draw=lambda: 0.5, own=False, place=place
    )

    def look(now: float) -> int:
        (rid,) = [command.rid for command in machine.wake(now, None, 0, "poll") if isinstance(command, StartReceive)]
        return rid

    machine.failed(5.0, look(0.0))
    assert (place.rank, other.rank) == (1, 1)
    machine.tick(24.9)
    assert (place.rank, other.rank) == (1, 1)
    machine.tick(25.0)
    assert (place.rank, other.rank) == (0, 0)
    machine.failed(105.0, look(100.0))
    assert (place.rank, other.rank) == (1, 1)
    machine.received(106.0, look(105.5), 0)
    assert (place.rank, other.rank) == (0, 0)


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


def test_a_limit_bounds_what_is_granted() -> None:
    """Slots in use and slots kept count towards it, however many more are open."""
    sharing = Sharing(10)
    one, two = sharing.join("a/one", Share(limit=2)), sharing.join("a/two", Share(limit=4, reserved=2))
    stand(sharing, one, 1, 0, 5)
    assert one.grant(0) == 1
    assert two.grant(0) == 4


def test_slots_kept_for_a_queue_are_part_of_what_it_has() -> None:
    """Open slots are dealt as if it used them already, whoever of the two asks."""
    sharing = Sharing(10)
    one, two = sharing.join("a/one", Share()), sharing.join("a/two", Share(reserved=4))
    for place in (one, two):
        stand(sharing, place, 0, 0, 10)
    assert (one.grant(0), two.grant(0)) == (5, 5)


def test_a_slot_taken_is_a_credit_to_who_wanted_one() -> None:
    """By weight, to those of its priority that lack a slot; not to the taker, nor to who wants none."""
    sharing = Sharing(4)
    taker, rival = sharing.join("a/taker", Share()), sharing.join("a/rival", Share(weight=2))
    content, later = sharing.join("a/content", Share()), sharing.join("a/later", Share(priority=1))
    for place in (rival, later):
        sharing.stands(place, 0, 1)
    sharing.stands(taker, 1, 0)
    assert (taker.credit, content.credit, later.credit) == (0.0, 0.0, 0.0)
    assert rival.credit == pytest.approx(2 / 3)


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


def test_the_first_slot_of_all_counts_as_any_other() -> None:
    """Who joined first is not before the one that it passed by; a credit is forgotten once nothing is wanted."""
    assert first_after_one_slot(content_meanwhile=False) == "a/two"
    assert first_after_one_slot(content_meanwhile=True) == "a/one"


def test_who_has_just_joined_waits_for_nothing_and_has_no_credit() -> None:
    """A newcomer is no further ahead than its weight puts it, and keeps quiet for no turn."""
    sharing = Sharing(10)
    big, small = sharing.join("a/big", Share(weight=4)), sharing.join("a/small", Share())
    assert sharing.passed_over() == []
    stand(sharing, big, 2, 0, 5)
    stand(sharing, small, 0, 0, 5)
    assert sharing.next() is big


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


def test_a_large_pool_is_not_counted_slot_by_slot() -> None:
    """Whatever the level is that the slots reach: many slots between many queues are dealt in a moment."""
    sharing = Sharing(400_000)
    places = [sharing.join(f"a/q{number}", Share()) for number in range(10)]
    for place in places:
        stand(sharing, place, 0, 0, 400_000)
    began = time.process_time()
    assert places[0].grant(0) == 40_000
    assert time.process_time() - began < 0.25, "about a millisecond, or most of a second if they are counted"


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


def test_shares_at_their_bounds_are_taken() -> None:
    """All slots that a pool can have may be reserved, and all that a limit allows."""
    assert Share(reserved=1_000_000).reserved == 1_000_000
    assert Share(reserved=2, limit=2).limit == 2


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
