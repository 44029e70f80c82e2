"""Load is shed by a rule that bounds memory, refuses nobody without need, and cannot lock itself out."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuebell.bridge.access.grants import Principal, Reach, Verb
from queuebell.bridge.access.keys import with_terms
from queuebell.bridge.access.limits import (
    BYTES_MIN,
    NO_LIMITS,
    RATE_MAX,
    Allowance,
    Limits,
    limited,
)
from queuebell.bridge.access.put_gate import (
    PUT_BYTES,
    SLOW_AFTER_S,
    SLOW_BYTES_S,
    SMALL_BYTES,
    Admission,
    Refused,
    Ticket,
)
from queuebell.bridge.contract.errors import ConfigurationError
from tests.support.access import listed

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
            self.coming[number % len(self.coming)].received += 100 * number
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


@given(ACTIONS, SIZES)
def test_what_is_drained_takes_again_at_once(actions: list[tuple[str, int]], size: int) -> None:
    """However slow it was and however much was refused: where nobody waits, the next put is let in."""
    world = World()
    for action in actions:
        world.play(*action)
    world.drain()
    assert world.rule.expected_s(world.now) == 0.0
    assert isinstance(world.put(size), Ticket)


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
    fast.received, slow.received = 2 * pace, pace - 1
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


MIB = 1024 * 1024
LISTED, _ = listed({"worker": {"take": ["a/*"]}})


def allowance(**limits: float) -> Allowance:
    """What somebody uses of these limits."""
    made = Allowance()
    made.limit(Limits(**limits))
    return made


def test_what_cannot_be_refused_is_counted_and_waited_for() -> None:
    """However many come at once, what follows is later by as much; without a limit nothing waits."""
    used = allowance(requests_per_second=2)
    assert [used.request_more(5.0) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]
    assert used.request(6.0) == 1
    assert used.request(6.5) == 0
    assert Allowance().request_more(0.0) == 0.0


def test_connections_and_bytes_are_given_back() -> None:
    used = allowance(connections=2, waiting_bytes=8 * MIB)
    assert [used.connect() for _ in range(3)] == [True, True, False]
    used.disconnect()
    assert used.connect()
    assert [used.hold(5 * MIB), used.hold(4 * MIB), used.hold(3 * MIB)] == [True, False, True]
    used.give_back(5 * MIB)
    assert used.hold(5 * MIB)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"requests": "1"}, "'requests' is unknown; the limits are requests_per_second"),
        ({"requests_per_second": "nan"}, "must be a number, or none"),
        ({"requests_per_second": "inf"}, "must be a number, or none"),
        ({"requests_per_second": "0"}, ">= 0.001"),
        ({"requests_per_second": str(RATE_MAX * 2)}, "<= 1000000"),
        ({"connections": "0"}, ">= 1"),
        ({"connections": "many"}, "must be a number, or none"),
        ({"queues": "-1"}, ">= 0"),
        ({"waiting_bytes": "8388607"}, ">= 8388608"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        limited(NO_LIMITS, given)
    with pytest.raises(ConfigurationError, match=why):
        with_terms(LISTED, "worker", {}, limits=given)


def test_limits_are_set_one_by_one() -> None:
    """Another stays, ``none`` takes one away, and a principal without any has none written."""
    made = with_terms(LISTED, "worker", {}, limits={"queues": "0", "puts_per_second": "2.5"})
    assert made.limits == {"worker": Limits(queues=0, puts_per_second=2.5)}
    assert made.principals == LISTED.principals
    made = with_terms(made, "worker", {"look": ["*"]}, limits={"queues": "none"})
    assert made.limits == {"worker": Limits(puts_per_second=2.5)}
    assert with_terms(made, "worker", {}, limits={"puts_per_second": "none"}).limits == {}
    assert b"limits" in msgspec.json.encode(made)


def test_what_is_wrong_with_a_limit_is_said_as_people_write_it() -> None:
    """With quotes instead of backquotes, without the place in our own structure; whichever of several it is."""
    with pytest.raises(ConfigurationError) as refused:
        limited(NO_LIMITS, {"queues": "none", "connections": "1", "requests_per_second": "0"})
    assert str(refused.value) == "limit: requests_per_second: Expected `float` >= 0.001".replace("`", "'")
    with pytest.raises(ConfigurationError, match="requests_per_second, puts_per_second, "):
        limited(NO_LIMITS, {"": "1"})


QUEUES = ["a/x", "a/x-poison", "a/y", "b/x", "a/x-p0", "a/x-p1", "a/x-p2", "a/x-p0-poison", "ab/x", "a/xy"]
PATTERNS = {
    "*": set(QUEUES),
    "a/*": {"a/x", "a/x-poison", "a/y", "a/x-p0", "a/x-p1", "a/x-p2", "a/x-p0-poison", "a/xy"},
    "a/x": {"a/x"},
    "b/x": {"b/x"},
}
BURIED = {
    "*": {"a/x-poison", "a/x-p0-poison"},
    "a/*": {"a/x-poison", "a/x-p0-poison"},
    "a/x": {"a/x-poison"},
    "b/x": set(),
}


def test_a_partitioned_queue_is_its_physical_ones() -> None:
    """Each partition and no more of them; what cannot be handled goes to the poison queue of the logical name."""
    reach = Reach(["abc/xyz:2"])
    ends = ("", "-p0", "-p1", "-p2", "-poison")
    assert [reach.covers(f"abc/xyz{end}") for end in ends] == [False, True, True, False, False]
    assert [reach.buries_in(f"abc/xyz{end}-poison") for end in ("", "-p0", "-p1", "-p2")] == [True, True, True, False]
    assert not reach.buries_in("abc/xyz-p0")


@pytest.mark.parametrize(("verb", "granted"), list(itertools.product(Verb, Verb)))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_nothing_is_allowed_that_is_not_granted(verb: Verb, granted: Verb, pattern: str) -> None:
    """Every verb asked of a principal that has one verb, on every queue."""
    if granted is Verb.OPERATE and pattern != "*":
        with pytest.raises(ConfigurationError, match="operate applies to the bridge"):
            Principal("p", {granted.value: [pattern]})
        return
    principal = Principal("p", {granted.value: [pattern]})
    for queue in QUEUES:
        allowed = verb is granted and queue in PATTERNS[pattern]
        buries = verb is Verb.PUT and granted is Verb.TAKE and queue in BURIED[pattern]
        assert principal.may(verb, queue) is (allowed or buries), (verb, granted, queue)
    assert principal.may(verb) is (verb is granted)
    assert principal.reach(granted).patterns == (pattern,)


names = st.sampled_from(
    [f"{account}/{queue}" for account in ("a", "a-", "ab", "b") for queue in ("xyz", "xyz-p0", "y")]
)


@given(
    st.lists(names | st.sampled_from(["a/*", "ab/*", "a-/*", "a/xyz:2", "*"]), max_size=5),
    st.sampled_from(["", "a", "a/", "a/x", "a/xyz-", "ab/y", "b/", "c"]),
    st.just("") | names | st.sampled_from(["a", "a/xx", "zz"]),
    st.sets(names),
)
def test_stretches_hold_what_is_covered(patterns: list[str], prefix: str, after: str, there: set[str]) -> None:
    """Each queue once, in order; and no queue in them that is not covered."""
    reach = Reach(patterns)
    met: list[str] = []
    for stretch, exact in reach.stretches(prefix, after):
        found = {each for each in there if (each == stretch if exact else each.startswith(stretch) and each > after)}
        met += sorted(found)
    assert met == sorted(each for each in there if reach.covers(each) and each.startswith(prefix) and each > after)
