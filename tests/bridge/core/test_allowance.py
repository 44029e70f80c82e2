"""What one principal may use: counted for all its keys together, by whatever time is given."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import ConfigurationError
from bridge.core.keys import Access, with_terms
from bridge.core.limits import NO_LIMITS, Allowance, Limits, Refusals, limited
from bridge.core.rate import RATE_MAX
from tests.support.access import listed

MIB = 1024 * 1024
LISTED, _ = listed({"worker": {"take": ["a/*"]}})


def allowance(**limits: float) -> Allowance:
    """What somebody uses of these limits."""
    made = Allowance()
    made.limit(Limits(**limits))
    return made


def test_no_limit_is_none() -> None:
    """Whatever is not said is not counted against anybody."""
    used = Allowance()
    assert not any(used.request(0.0) or used.put(0.0) for _ in range(100_000))
    used.put_more(0.0, 10**6)
    assert all(used.connect() and used.hold(10**9) for _ in range(100))


def test_a_rate_lets_one_seconds_worth_in_at_once() -> None:
    """Past it the sender is told when, and is let in then and not before."""
    used = allowance(requests_per_second=10, puts_per_second=2)
    assert [used.request(5.0) for _ in range(11)] == [0] * 10 + [1]
    assert [used.put(5.0) for _ in range(3)] == [0, 0, 1]
    assert used.put(5.49)
    assert (used.put(5.5), used.request(5.2)) == (0, 0)


def test_whether_a_put_would_be_let_in_is_told_and_counts_nothing() -> None:
    """It is what `request` and `put` say then, to the moment at which they say otherwise."""
    assert Allowance().wait(0.0, put=True) == 0
    for used in (allowance(requests_per_second=2, puts_per_second=9), allowance(puts_per_second=2)):
        for now, may in ((5.0, True), (5.0, True), (5.0, False), (5.49, False), (5.5, True)):
            assert [used.wait(now, put=True) == 0 for _ in range(10)] == [may] * 10
            assert (used.request(now) == 0 and used.put(now) == 0) == may


def test_a_request_is_within_its_rate_where_only_puts_are_past_theirs() -> None:
    """The longer of both waits is told of a put."""
    used = allowance(requests_per_second=1, puts_per_second=0.1)
    assert (used.request(0.0), used.put(0.0)) == (0, 0)
    assert (used.wait(1.0, put=False), used.wait(1.0, put=True), used.wait(0.5, put=True)) == (0, 9, 10)


def test_what_cannot_be_refused_is_counted_and_waited_for() -> None:
    """However many come at once, what follows is later by as much; without a limit nothing waits."""
    used = allowance(requests_per_second=2)
    assert [used.request_more(5.0) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]
    assert used.request(6.0) == 1
    assert used.request(6.5) == 0
    assert Allowance().request_more(0.0) == 0.0


def test_refusals_past_a_few_wait_in_one_line() -> None:
    """Of one sender, however many connections it has; nobody else waits, and after a while nothing is left of it."""
    line = Refusals(per_second=10, at_once=3, held_s_max=0.5)
    held = [line.hold_s("a", 0.0) for _ in range(10)]
    assert held == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5])
    assert line.hold_s("b", 0.0) == 0
    assert line.hold_s("a", 0.5) == pytest.approx(0.1)
    assert [line.hold_s("a", 10.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3)), max_size=80), st.floats(0.5, 100))
def test_no_more_refusals_are_answered_than_the_rate(asked: list[tuple[str, float]], rate: float) -> None:
    """At once and held together, where none waits as long as it may at most; and each sender's is its own."""
    line, alone = Refusals(per_second=rate, at_once=5, held_s_max=1e9), Refusals(rate, 5, 1e9)
    now, answered = 0.0, []
    for who, pause in asked:
        now += pause
        held = line.hold_s(who, now)
        if who == "a":
            assert held == pytest.approx(alone.hold_s("a", now))
            answered.append(now + held)
    assert answered == sorted(answered)
    for number, at in enumerate(answered):
        assert sum(each <= at + 1 for each in answered[number:]) <= rate + 5 + 2


def test_the_refused_one_longest_unheard_of_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for one more: whoever goes on asking stays known."""
    monkeypatch.setattr("bridge.core.limits.ADDRESSES_MAX", 3)
    line = Refusals(per_second=1, at_once=1, held_s_max=100)
    assert [line.hold_s(who, 0.0) for who in "abcb"] == [0, 0, 0, 1]
    assert [line.hold_s(who, 0.0) for who in "ad"] == [1, 0]
    assert [line.hold_s(who, 0.0) for who in "badc"] == [2, 2, 1, 0]


def test_a_put_of_several_makes_the_next_wait_for_it() -> None:
    """It is let in whole, and in the long run there are no more messages than the rate."""
    used = allowance(puts_per_second=2)
    assert used.put(0.0) == 0
    used.put_more(0.0, 31)
    assert used.put(1.0) == 15
    assert used.put(15.4)
    assert used.put(15.5) == 0


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 32)), max_size=60), st.floats(0.1, 50))
def test_in_any_order_there_are_no_more_messages_than_the_rate(puts: list[tuple[float, int]], rate: float) -> None:
    """A burst, and one put that was let in before its size was known, are all that comes on top."""
    used = allowance(puts_per_second=rate)
    now, taken = 0.0, 0
    for pause, messages in puts:
        now += pause
        if not used.put(now):
            used.put_more(now, messages - 1)
            taken += messages
        assert taken <= rate * now + rate + 1 + 32


def test_connections_and_bytes_are_given_back() -> None:
    """And what is given back is there for the next."""
    used = allowance(connections=2, waiting_bytes=8 * MIB)
    assert [used.connect() for _ in range(3)] == [True, True, False]
    used.disconnect()
    assert used.connect()
    assert [used.hold(5 * MIB), used.hold(4 * MIB), used.hold(3 * MIB)] == [True, False, True]
    used.give_back(5 * MIB)
    assert used.hold(5 * MIB)


def test_other_limits_keep_what_is_used() -> None:
    """What was open without a limit counts when there is one, and a rate that stays is not filled again."""
    used = Allowance()
    assert used.connect()
    assert used.connect()
    used.limit(Limits(connections=2, puts_per_second=1))
    assert not used.connect()
    assert used.put(0.0) == 0
    used.limit(Limits(connections=3, puts_per_second=1))
    assert used.connect()
    assert used.put(0.0)
    used.limit(NO_LIMITS)
    assert used.put(0.0) == 0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"requests": "1"}, "none called 'requests': requests_per_second"),
        ({"requests_per_second": "nan"}, "it is a number"),
        ({"requests_per_second": "inf"}, "it is a number"),
        ({"requests_per_second": "0"}, ">= 0.001"),
        ({"requests_per_second": str(RATE_MAX * 2)}, "<= 1000000"),
        ({"connections": "0"}, ">= 1"),
        ({"connections": "many"}, "it is a number"),
        ({"queues": "-1"}, ">= 0"),
        ({"waiting_bytes": "8388607"}, ">= 8388608"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused(given: dict[str, str], why: str) -> None:
    """By its name, with what would be right, and the list stays as it is."""
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


def test_limits_of_nobody_are_refused() -> None:
    """A name that is misspelt would leave the right one without limits."""
    with pytest.raises(ConfigurationError, match="'wroker', and no principal"):
        Access(msgspec.structs.replace(LISTED, limits={"wroker": Limits(queues=1)}))


def test_what_is_given_back_is_what_was_taken() -> None:
    """To the byte and to the connection, and nothing of what another one holds."""
    used = allowance(connections=3, waiting_bytes=8 * MIB)
    assert [used.connect() for _ in range(4)] == [True, True, True, False]
    used.disconnect()
    assert [used.connect() for _ in range(2)] == [True, False]
    assert used.connections == 3
    assert used.hold(5 * MIB)
    assert used.hold(3 * MIB)
    assert not used.hold(1)
    assert used.waiting_bytes == 8 * MIB
    assert used.making == {}


@pytest.mark.parametrize(("more", "wait"), [(0, 1), (1, 2), (3, 4)])
def test_each_message_more_is_waited_for(more: int, wait: int) -> None:
    """Also where the put that it came with took the last token, and also where it is only one."""
    used = allowance(puts_per_second=1)
    assert used.put(0.0) == 0
    used.put_more(0.0, more)
    assert used.put(0.0) == wait


def test_what_is_wrong_with_a_limit_is_said_as_people_write_it() -> None:
    """With quotes instead of backquotes, without the place in our own structure; whichever of several it is."""
    with pytest.raises(ConfigurationError) as refused:
        limited(NO_LIMITS, {"queues": "none", "connections": "1", "requests_per_second": "0"})
    assert str(refused.value) == "limit: requests_per_second: Expected `float` >= 0.001".replace("`", "'")
    with pytest.raises(ConfigurationError, match="requests_per_second, puts_per_second, "):
        limited(NO_LIMITS, {"": "1"})
