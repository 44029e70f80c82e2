"""Load is shed by a rule that bounds memory, refuses nobody without need, and cannot lock itself out."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bridge.core.admission import (
    BYTES_MIN,
    PUT_BYTES,
    RETRY_AFTER_S_MAX,
    SLOW_AFTER_S,
    SLOW_BYTES_S,
    SMALL_BYTES,
    Admission,
    Reason,
    Refused,
    Ticket,
)

BYTES_MAX = 6 * PUT_BYTES
WAIT_S = 0.5
SIZES = st.integers(0, 3 * PUT_BYTES)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), SIZES),
        st.tuples(st.just("arriving"), SIZES),
        st.tuples(st.just("came"), st.integers(0, 30)),
        st.tuples(st.just("answered"), st.integers(0, 30)),
        st.tuples(st.just("broke"), st.integers(0, 30)),
        st.tuples(st.just("got"), st.integers(0, 30)),
        st.tuples(st.just("make room"), SIZES),
        st.tuples(st.just("pass"), st.integers(0, 1000)),
    ),
    max_size=120,
)


class World:
    """Plays a list of actions and keeps the books by itself."""

    def __init__(self, group: int = 4) -> None:
        self.rule = Admission(BYTES_MAX, WAIT_S, group=group)
        self.now = 10.0
        self.coming: list[Ticket] = []
        self.waiting: list[Ticket] = []

    def play(self, action: str, number: int) -> None:
        """Do one thing."""
        if action == "pass":
            self.now += number / 1000
        elif action in ("put", "arriving"):
            self.put(number, arriving=action == "arriving")
        elif action == "came" and self.coming:
            ticket = self.coming.pop(number % len(self.coming))
            self.rule.begin(ticket, self.now, number)
            self.waiting.append(ticket)
        elif action == "answered" and self.waiting:
            self.rule.end(self.waiting.pop(0), self.now)
        elif action == "broke" and self.coming:
            self.rule.drop(self.coming.pop(number % len(self.coming)))
        elif action == "got" and self.coming:
            self.coming[number % len(self.coming)].got += 100 * number
        elif action == "make room":
            for ticket in self.rule.give_way(self.now, number):
                self.coming.remove(ticket)
                self.rule.drop(ticket)

    def put(self, size: int, *, arriving: bool = False) -> Ticket | Refused:
        """Ask, and go on as it is told."""
        asked = self.rule.ask(self.now, size, arriving=arriving)
        if isinstance(asked, Ticket):
            if arriving:
                self.coming.append(asked)
            else:
                self.rule.begin(asked, self.now, size)
                self.waiting.append(asked)
        return asked

    def drain(self) -> None:
        """Answer all that waits, and break off all that is on its way."""
        for ticket in (*self.coming, *self.waiting):
            self.rule.end(ticket, self.now)
        self.coming.clear()
        self.waiting.clear()


@given(ACTIONS)
def test_bytes_never_pass_the_bound(actions: list[tuple[str, int]]) -> None:
    """Whatever comes, what is let in and not answered stays below the bound, and is counted exactly."""
    world = World()
    for action in actions:
        world.play(*action)
        assert world.rule.bytes == sum(ticket.size for ticket in (*world.coming, *world.waiting))
        assert world.rule.bytes <= BYTES_MAX
        assert sum(ticket.size for ticket in world.coming) <= BYTES_MAX // 2
        assert world.rule.waiting == len(world.waiting)
    world.drain()
    assert world.rule.bytes == 0


@given(ACTIONS, SIZES)
def test_nobody_is_refused_without_need(actions: list[tuple[str, int]], size: int) -> None:
    """A refusal means that the bytes would pass their bound, that the oldest waits too long or that enough wait."""
    world = World()
    for action in actions:
        world.play(*action)
    room = world.rule.bytes + size + PUT_BYTES <= BYTES_MAX
    late = any(world.now - ticket.began > WAIT_S for ticket in world.waiting)
    full = bool(world.waiting) and len(world.waiting) >= world.rule.limit
    asked = world.put(size)
    if room and not late and not full:
        assert isinstance(asked, Ticket)
    else:
        assert isinstance(asked, Refused)
        assert asked.reason is (Reason.WAIT if late or full else Reason.BYTES)
        assert 1 <= asked.retry_after_s <= RETRY_AFTER_S_MAX


@given(ACTIONS, SIZES)
def test_what_is_drained_takes_again_at_once(actions: list[tuple[str, int]], size: int) -> None:
    """However slow it was and however much was refused: where nobody waits, the next put is let in."""
    world = World()
    for action in actions:
        world.play(*action)
    world.drain()
    assert world.rule.expected_s(world.now) == 0.0
    assert isinstance(world.put(size), Ticket)


@given(
    st.integers(1, 200).map(lambda ms: ms / 1000),
    st.integers(1, 6),
    st.lists(st.integers(0, 12), min_size=40, max_size=120),
)
def test_overload_is_neither_endless_waiting_nor_a_closed_door(
    commit_s: float, group: int, arrivals: list[int]
) -> None:
    """Against a store that commits a group at a time, whatever the load: the waits are bounded, and work goes on."""
    rule = Admission(1 << 30, WAIT_S, group=group)
    queue: list[Ticket] = []
    waits: list[float] = []
    now, refused_in_a_row = 0.0, 0
    for number in arrivals:
        # What came during this commit is asked one after the other, spread over it.
        batch, queue = queue[:group], queue[group:]
        for step in range(number):
            at = now + commit_s * (step + 1) / (number + 1)
            asked = rule.ask(at, 100)
            if isinstance(asked, Ticket):
                rule.begin(asked, at)
                queue.append(asked)
        now += commit_s
        for ticket in batch:
            waits.append(now - ticket.began)
            rule.end(ticket, now)
        refused_in_a_row = refused_in_a_row + 1 if not batch and number else 0
        # A turn may find nothing that had come before it began; two in a row would be a door that stays closed.
        assert refused_in_a_row <= 1
    # The expected wait, the commit under way and the own one, and what may come in the two commits before the first
    # answer tells anything.
    assert max(waits, default=0.0) <= WAIT_S + (2 + 2 * 12 / group) * commit_s


def test_a_store_that_stands_still_is_noticed_by_its_oldest() -> None:
    """Nothing is answered: puts go in until the oldest has waited too long, and ``retry_after`` grows with it."""
    world = World(group=1024)
    assert isinstance(world.put(0), Ticket)
    world.now += WAIT_S
    assert isinstance(world.put(0), Ticket)
    world.now += 0.001
    refused = world.put(0)
    assert refused == Refused(Reason.WAIT, 1, refused.expected_s if isinstance(refused, Refused) else 0.0)
    world.now += 4.0
    later = world.put(0)
    assert isinstance(later, Refused)
    assert later.retry_after_s == 5  # 4.501 s, in whole ones
    assert world.rule.refused_at == world.now
    world.now += 1e6
    latest = world.put(0)
    assert isinstance(latest, Refused)
    assert latest.retry_after_s == RETRY_AFTER_S_MAX


@given(ACTIONS)
def test_limit_stays_within_its_bounds(actions: list[tuple[str, int]]) -> None:
    """It never falls below its floor, rises by one an answer at most, and never passes twice what ever waited."""
    world, most = World(), 0
    for action in actions:
        before = world.rule.limit
        world.play(*action)
        most = max(most, world.rule.waiting)
        assert 1.0 <= world.rule.limit <= before + 1.0
        assert world.rule.limit <= max(4.0, 2 * most + 1.0)


def fill(rule: Admission, count: int, now: float, came: float | None = None) -> list[Ticket]:
    """Let so many in at once."""
    tickets = []
    for _ in range(count):
        asked = rule.ask(now, 0)
        assert isinstance(asked, Ticket)
        rule.begin(asked, now, came=came)
        tickets.append(asked)
    return tickets


def test_limit_is_what_is_answered_in_half_of_the_longest_wait() -> None:
    """By Little's law, from one answer that took too long; from then on so many are let in, and not one more."""
    rule = Admission(1 << 30, WAIT_S, group=1024)
    tickets = fill(rule, 1000, 0.0)
    for number, ticket in enumerate(tickets):
        rule.end(ticket, 0.001 * (number + 1))
    # 1,000 a second, and 0.25 s.
    assert 249.0 <= rule.limit <= 252.0
    assert rule.expected_s(1.0) == 0.0
    most = math.ceil(rule.limit)
    fill(rule, most, 1.0)
    refused = rule.ask(1.0, 0)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.WAIT
    assert 0.25 <= refused.expected_s <= 0.26


def test_stall_with_few_waiting_is_not_held_against_those_that_came_meanwhile() -> None:
    """Three wait while the disk stands still, and 200 come to them: those are what was carried in that time."""
    rule = Admission(1 << 30, WAIT_S, group=1024)
    first = fill(rule, 3, 0.0)
    fill(rule, 197, 0.25)
    for ticket in first:
        rule.end(ticket, 0.5)
    assert 95.0 <= rule.limit <= 105.0


def test_limit_rises_by_one_an_answer_where_it_is_used() -> None:
    """As fast as doubling with each round, and not at all from answers that had few beside them."""
    rule = Admission(1 << 30, WAIT_S, group=64)
    for ticket in fill(rule, 64, 0.0):
        rule.end(ticket, 0.001)
    assert rule.limit == 64.0 + 33.0
    for ticket in fill(rule, 20, 1.0):
        rule.end(ticket, 1.001)
    assert rule.limit == 97.0


def test_wait_before_it_was_read_counts() -> None:
    """What lay with the kernel first has waited longer than since it was let in; that lowers the limit too."""
    rule = Admission(1 << 30, WAIT_S, group=64)
    for ticket in fill(rule, 64, 10.0, came=9.5):
        rule.end(ticket, 10.0)
    assert rule.limit == 16.5
    # But the oldest is judged by what the store has made it wait.
    fill(rule, 1, 20.0, came=10.0)
    assert rule.expected_s(20.0) <= WAIT_S
    rule.limit = 4.0
    assert isinstance(rule.ask(20.0, 0), Ticket)


def test_few_that_waited_long_do_not_lower_the_limit() -> None:
    """One put behind one slow commit says nothing of how many can be taken; an eighth of them does."""
    rule = Admission(1 << 30, WAIT_S, group=1024)
    for count in (1, 127):
        for ticket in fill(rule, count, 0.0):
            rule.end(ticket, 10.0)
        assert rule.limit == 1024.0
    rule.end(fill(rule, 128, 0.0)[0], 0.5)
    assert rule.limit == 64.0


def test_what_came_to_nothing_teaches_nothing() -> None:
    """Neither that much can be taken, however fast it was refused, nor that it cannot."""
    rule = Admission(1 << 30, WAIT_S, group=4)
    for ticket in fill(rule, 4, 0.0):
        rule.drop(ticket)
    assert (rule.limit, rule.waiting, rule.bytes) == (4.0, 0, 0)
    fill(rule, 1, 50.0)
    assert rule.expected_s(50.0) < WAIT_S, "none of them counts as the oldest"


def arriving(rule: Admission, now: float, size: int) -> Ticket:
    """Let in one that is on its way."""
    ticket = rule.ask(now, size, arriving=True)
    assert isinstance(ticket, Ticket)
    return ticket


def test_slow_bodies_give_way_where_there_is_no_room() -> None:
    """The one that was looked at longest ago goes first, if it was too slow since then, and no more than is needed."""
    rule = Admission(BYTES_MIN, WAIT_S)
    size = BYTES_MIN // 2 // 4 - PUT_BYTES
    assert size > SMALL_BYTES
    fast, slow, slower = (arriving(rule, now, size) for now in (1.0, 1.25, 1.5))
    assert rule.give_way(100.0, SMALL_BYTES) == [], "there is room, and they may be slow"
    pace = int(SLOW_AFTER_S * SLOW_BYTES_S)
    fast.got, slow.got = 2 * pace, pace - 1
    assert rule.give_way(1.75, size) == [], "it is too early to tell"
    assert rule.give_way(1.0 + SLOW_AFTER_S, size) == [], "the first keeps its pace, for the others it is too early"
    before = rule.bytes
    assert rule.give_way(1.25 + SLOW_AFTER_S, size) == [slow]
    assert (slow.gave_way, slow.size, before - rule.bytes) == (True, 0, size + PUT_BYTES)
    newest = arriving(rule, 2.75, size)
    rule.drop(slow)
    assert rule.bytes == 3 * (size + PUT_BYTES)
    # What one did before it was looked at does not count for what it does afterwards.
    assert rule.give_way(3.25, size) == [slower]
    arriving(rule, 3.25, size)
    assert rule.give_way(3.5, size) == [fast]
    assert not (fast.arriving or slower.arriving)
    assert newest.arriving


def test_answers_out_of_order_are_forgotten() -> None:
    """The oldest is always one that still waits, and nothing is kept of those answered once it is gone."""
    rule = Admission(1 << 30, WAIT_S, group=64)
    first, second, third = (*fill(rule, 1, 1.0), *fill(rule, 1, 1.25), *fill(rule, 1, 1.375))
    rule.end(second, 1.5)
    rule.limit = 64.0
    assert rule.expected_s(1.5) == 0.5
    rule.end(first, 1.5)
    rule.limit = 64.0
    assert rule.expected_s(1.5) == 0.125
    rule.end(third, 1.5)
    fill(rule, 1, 50.0)
    assert rule.expected_s(50.0) < WAIT_S


def test_slow_senders_keep_nobody_out() -> None:
    """Bodies that are still coming take half of the bytes at most; one that is there goes in beside them."""
    world = World()
    while isinstance(world.put(0, arriving=True), Ticket):
        pass
    assert world.rule.bytes == BYTES_MAX // 2
    world.now += 1000.0
    assert isinstance(world.put(PUT_BYTES), Ticket)


def test_large_bodies_that_do_not_come_leave_room_for_small_ones() -> None:
    """A few senders of large bodies cannot fill what those on their way may take; each kind is let in when alone."""
    largest = 3 * 1024 * 1024
    for bytes_max in (BYTES_MIN, 8 * BYTES_MIN):
        rule = Admission(bytes_max, WAIT_S)
        large = 0
        for size in (largest, SMALL_BYTES + 1):
            while isinstance(rule.ask(1.0, size, arriving=True), Ticket):
                large += 1
        assert large >= 1, "the largest put is let in where nothing else is on its way"
        left = bytes_max // 2 - rule.bytes
        assert bytes_max // 16 <= left < bytes_max // 16 + SMALL_BYTES + PUT_BYTES
        assert isinstance(rule.ask(1.0, SMALL_BYTES, arriving=True), Ticket)
        assert isinstance(rule.ask(1.0, largest), Ticket), "one that is there is no matter of shares"


def test_the_bound_itself_is_let_in() -> None:
    """What fills the bytes to the last is not too much; one more byte is."""
    rule = Admission(BYTES_MAX, WAIT_S)
    assert isinstance(rule.ask(1.0, 2 * PUT_BYTES), Ticket)
    assert isinstance(rule.ask(1.0, 2 * PUT_BYTES + 1), Refused)
    assert isinstance(rule.ask(1.0, 2 * PUT_BYTES), Ticket)
    assert rule.bytes == BYTES_MAX


def test_a_put_that_was_let_in_has_sent_nothing_and_gives_way_to_nobody_yet() -> None:
    """Every byte that its pace is judged by must have come, and nobody reads it before somebody says so."""
    rule = Admission(BYTES_MIN, WAIT_S)
    ticket = arriving(rule, 1.0, SMALL_BYTES)
    assert (ticket.got, ticket.had, ticket.gave_way, ticket.yields) == (0, 0, False, None)


def test_a_clock_may_begin_at_zero() -> None:
    """What began to wait at the very first moment waits like any other, also while later ones are answered."""
    rule = Admission(1 << 30, WAIT_S, group=64)
    _, second = fill(rule, 2, 0.0)
    rule.drop(second)
    assert rule.waiting == 1
    assert rule.expected_s(5.0) == 5.0


def test_before_anything_is_known_as_many_may_wait_as_one_commit_takes() -> None:
    """Those are 1,024 where nobody says otherwise."""
    assert Admission(BYTES_MIN, WAIT_S).limit == 1024.0
    assert Admission(BYTES_MIN, WAIT_S, group=7).limit == 7.0
