"""The rules of supervision: exhaustively, in a time that the test makes."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from bridge.core.supervision import PROBE_EVERY_S, RETRY_CAP_S, State, Supervision
from bridge.observe.facts import BusDown, BusUp


def most() -> float:
    """The longest draw there is."""
    return 0.999999


def supervision(now: float = 100.0) -> Supervision:
    return Supervision("nats", "nats://here:4222", now)


def up(rules: Supervision, now: float) -> Supervision:
    rules.connecting()
    rules.connected(now)
    return rules


def test_it_tries_at_once_and_then_for_ever_with_full_jitter_up_to_five_seconds() -> None:
    """Never silent for longer than the cap, never in step, and never at an end."""
    for chance in (0.0, 0.5, 0.999999):
        rules, now = supervision(), 100.0
        assert rules.due() == now
        pauses = []
        for _ in range(200):
            rules.connecting()
            rules.failed(now, "refused", partial(float, chance))
            pauses.append(rules.due() - now)
            now = rules.due()
        bounds = [min(RETRY_CAP_S, 0.1 * 2**n) for n in range(200)]
        assert pauses == pytest.approx([bound * chance for bound in bounds])


def test_every_connection_is_a_gap_and_the_first_one_too() -> None:
    """What was published before anybody was subscribed was missed."""
    rules = supervision()
    assert not rules.take_gap()
    up(rules, 101)
    assert rules.take_gap()
    assert not rules.take_gap()
    rules.broken(150, "reset", most)
    assert not rules.take_gap(), "while it is down nothing can be done about it"
    up(rules, 151)
    assert rules.take_gap()


def test_messages_dropped_by_the_client_are_a_gap_once_for_each_increase() -> None:
    """The count is of the connection: a new one starts at 0."""
    rules = up(supervision(), 100)
    rules.take_gap()
    gaps = []
    for number, dropped in enumerate((0, 3, 3, 4)):
        rules.probed(105 + 5 * number, 0.001, dropped)
        gaps.append(rules.take_gap())
    assert gaps == [False, True, False, True]
    rules.broken(130, "reset", most)
    up(rules, 131)
    rules.take_gap()
    rules.probed(136, 0.001, 1)
    assert rules.take_gap()


def test_one_lost_probe_is_followed_at_once_and_two_end_the_connection() -> None:
    """A library that believes all is well is not asked."""
    rules = up(supervision(), 100)
    assert rules.due() == 100 + PROBE_EVERY_S
    assert not rules.probe_lost(107, "silence", most)
    assert rules.state is State.UP
    assert rules.due() == 107
    assert rules.probe_lost(109, "silence", most)
    assert rules.state is State.DOWN


def test_a_probe_that_comes_back_forgives_the_one_before() -> None:
    """Two in a row are meant."""
    rules = up(supervision(), 100)
    now = 107.0
    for _ in range(10):
        assert not rules.probe_lost(now, "silence", most)
        rules.probed(now + 0.1, 0.1, 0)
        now += 7
    assert rules.state is State.UP
    assert rules.ready(now)


def test_a_library_that_says_it_is_broken_is_believed_at_once() -> None:
    """Its doubt is worth more than its confidence."""
    rules = up(supervision(), 100)
    rules.broken(101, "EOF", most)
    assert rules.state is State.DOWN
    assert rules.due() - 101 <= 0.1


@pytest.mark.parametrize("steady", [True, False])
def test_pauses_start_small_again_only_after_a_connection_that_held(steady: bool) -> None:
    """One that dies as soon as it is made is no success: without this it would be tried ten times a second."""
    rules, now = supervision(), 100.0
    for _ in range(8):
        up(rules, now)
        if steady:
            rules.probed(now + 5, 0.001, 0)
            now += 6
        rules.broken(now, "reset", most)
        pause = rules.due() - now
        now = rules.due()
    assert (pause < 0.1) is steady
    assert pause <= RETRY_CAP_S


def test_one_fact_for_each_change_of_state() -> None:
    """However many tries fail in between, whatever is told twice."""
    rules, now = supervision(), 100.0
    facts = []
    for _ in range(20):
        rules.connecting()
        rules.failed(now, "refused", most)
        now = rules.due()
        facts += rules.facts()
    up(rules, now)
    facts += rules.facts()
    rules.probe_lost(now + 7, "silence", most)
    rules.probe_lost(now + 9, "silence", most)
    rules.broken(now + 9, "closed", most)
    rules.connecting()
    rules.failed(now + 10, "refused", most)
    facts += rules.facts()
    assert [type(fact) for fact in facts] == [BusDown, BusUp, BusDown]
    assert facts[2] == BusDown("nats", "nats://here:4222", "silence")


def test_it_is_never_ready_before_it_has_worked_once() -> None:
    """A bus that was never up is no bus, however young."""
    rules = supervision()
    assert not rules.ready(100)
    rules.connecting()
    rules.failed(100, "refused", most)
    assert not rules.ready(100.1)
    assert "refused" in rules.detail(103)
    up(rules, 104)
    assert rules.ready(104)
    assert rules.detail(104) == "nats://here:4222: connected"


@pytest.mark.parametrize("moment", [0.0, 0.1, 2.5, 4.999])
def test_a_hanging_broker_makes_it_unready_within_ten_seconds(moment: float) -> None:
    """Wherever between two probes it stopped."""
    rules = up(supervision(), 100)
    rules.probed(105, 0.001, 0)
    stopped = 105 + moment
    now = rules.due() + 2
    rules.probe_lost(now, "silence", most)
    rules.probe_lost(now + 2, "silence", most)
    assert not rules.ready(stopped + 10 - 1e-9)


def test_a_killed_broker_that_is_back_within_two_seconds_is_not_told_to_the_probe() -> None:
    """A restart is no outage; what stays away for longer is."""
    rules = up(supervision(), 100)
    rules.broken(110, "reset", most)
    assert rules.ready(111.9)
    assert not rules.ready(112)
    up(rules, 113)
    assert rules.ready(113)


def test_a_hopeless_refusal_is_tried_again_slowly() -> None:
    """A wrong password may be set right at the broker, and no restart is needed then."""
    rules = supervision()
    rules.connecting()
    rules.failed(100, "not authorized", most, hopeless=True)
    assert rules.due() == 105


def test_no_order_of_events_breaks_it() -> None:
    """Every sequence of five things that can happen: the state is one of three and the next act has a time."""
    for events in itertools.product("cfbplx", repeat=5):
        rules, now = supervision(), 100.0
        downs = ups = 0
        for event in events:
            now += 1
            if event in "cf" and rules.state is State.DOWN:
                rules.connecting()
                if event == "c":
                    rules.connected(now)
                else:
                    rules.failed(now, "refused", most)
            elif event == "b":
                rules.broken(now, "reset", most)
            elif event == "p":
                rules.probed(now, 0.001, 0)
            elif event == "l":
                rules.probe_lost(now, "silence", most)
            elif event == "x":
                rules.ready(now)
                rules.detail(now)
            for fact in rules.facts():
                ups += isinstance(fact, BusUp)
                downs += isinstance(fact, BusDown)
            assert rules.state in (State.DOWN, State.UP)
            assert now <= rules.due() <= now + 5 or rules.due() <= now
            assert downs - ups in (0, 1) or ups - downs in (0, 1), "they alternate"
            assert rules.take_gap() is (event == "c" and rules.state is State.UP and rules.due() == now + 5)


# -- what is told, exactly ---------------------------------------------------------------------------------------------


def test_what_is_told_of_a_bus_that_never_worked() -> None:
    """Its address, why, and for how long; no round trip is known."""
    rules = supervision(100.0)
    assert rules.round_trip_s is None
    assert rules.detail(100.0) == "nats://here:4222: not connected yet, for 0 s"
    rules.connecting()
    rules.failed(103.0, "refused", most)
    assert rules.detail(107.0) == "nats://here:4222: refused, for 7 s"
    assert rules.connects == 0


def test_each_connection_is_counted_and_told_with_the_time_without() -> None:
    """The fact names the bus, its address and the seconds; the count goes up by one."""
    rules = up(supervision(100.0), 104.0)
    assert rules.connects == 1 and rules.facts() == [BusUp("nats", "nats://here:4222", 4.0)]
    rules.broken(150.0, "reset", most)
    assert rules.facts() == [BusDown("nats", "nats://here:4222", "reset")]
    up(rules, 151.5)
    assert rules.connects == 2 and rules.facts() == [BusUp("nats", "nats://here:4222", 1.5)]


def test_a_doubtful_connection_says_why_while_it_is_up() -> None:
    """One lost probe is no end, but it is told; the next answer forgives it, with its round trip."""
    rules = up(supervision(100.0), 100.0)
    assert not rules.probe_lost(110.0, "no answer", most)
    assert rules.detail(113.0) == "nats://here:4222: no answer, for 3 s"
    rules.probed(113.5, 0.25, 0)
    assert rules.round_trip_s == 0.25 and rules.due() == 113.5 + PROBE_EVERY_S
    assert rules.detail(114.0) == "nats://here:4222: connected"
    rules.broken(120.0, "reset", most)
    assert rules.round_trip_s is None and rules.detail(125.0) == "nats://here:4222: reset, for 5 s"


def test_two_lost_probes_end_it_and_the_time_counts_from_the_first() -> None:
    """A fresh connection has lost none; an ended one says nothing to a late loss."""
    rules = up(supervision(100.0), 100.0)
    assert not rules.probe_lost(110.0, "no answer", most)
    assert rules.probe_lost(112.0, "no answer", most)
    assert not rules.probe_lost(112.0, "late", most)
    assert rules.detail(113.0) == "nats://here:4222: no answer, for 3 s"


@pytest.mark.parametrize(("held", "small"), [(5.0, True), (4.999, False)])
@pytest.mark.parametrize("probed", [True, False])
def test_a_connection_is_steady_from_five_seconds_on(held: float, small: bool, probed: bool) -> None:
    """Then the pauses start small again, and not before, whether it was probed by then or not."""
    rules, now = supervision(100.0), 100.0
    for _ in range(10):
        rules.connecting()
        rules.failed(now, "refused", most)
    up(rules, now)
    if probed:
        rules.probed(now + held, 0.1, 0)
    rules.broken(now + held, "reset", most)
    assert (rules.due() - now - held < 0.2) is small
