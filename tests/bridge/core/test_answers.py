"""What is answered, ended and told, word for word: each frame, each end and each fact with all that stands in it."""

from __future__ import annotations

import pytest

from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.trace_context import Traces
from bridge.contract.wire import (
    BridgeHeartbeat,
    Bye,
    Cover,
    CoverAge,
    ErrorFrame,
    Hello,
    ListenerHeartbeat,
    More,
    QueueBeat,
    StoreDepth,
    Subscription,
    Wake,
    Welcome,
    WelcomedQueue,
)
from bridge.core.commands import Announce, Flush, Send
from bridge.core.ledger import Counted
from bridge.core.settings import QueueRule
from bridge.observe.facts import (
    Covered,
    DuplicateDropped,
    Fact,
    OwnerStuck,
    ReceivesTold,
    SessionClosed,
    SessionOpened,
    SessionRefused,
    StartMissed,
    Suspended,
    Triggered,
    Woken,
)
from tests.support.bells import BOOT, QUEUE, Rig

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def news(rig: Rig) -> list[Fact]:
    """Return and forget what was told."""
    told, rig.facts = rig.facts, []
    return told


def heard(rig: Rig, number: int) -> list[object]:
    """Return and forget every frame that a session was sent."""
    frames, rig.frames[number] = rig.frames[number], []
    return list(frames)


def test_the_life_of_a_session_frame_by_frame() -> None:
    """From its hello to its bye: what it is sent, and what is told of it."""
    rig = Rig(sweep_s=60.0)
    number = rig.join()
    assert heard(rig, number) == [
        Welcome(BOOT, 5000, 60_000, 1, [WelcomedQueue(QUEUE, 1, clean=False, covered_age_ms=None)]),
        Wake(QUEUE, BOOT, 1, "resync", 1, 0),
    ]
    assert news(rig) == [SessionOpened(1, "listener 1", "test", 1), Woken(QUEUE, 1, "resync", 0.0, 0)]
    rig.wait(1.0)
    rig.started(number, 1)
    rig.say(number, Cover(QUEUE, BOOT, 1, 500))
    assert news(rig) == [Covered(QUEUE, settled=True)]
    rig.wait(2.0)
    rig.say(number, ListenerHeartbeat(99))
    assert heard(rig, number) == [BridgeHeartbeat(BOOT, 99, 0, 1, {QUEUE: CoverAge(1, 2500)})]
    rig.cover(number, 1)
    assert news(rig) == [Covered(QUEUE, settled=False)], "nothing was owed"
    rig.bye(number)
    assert heard(rig, number) == [Bye()]
    assert rig.ended == {number: (1000, "bye")}
    assert news(rig) == [SessionClosed(1, "listener 1", "bye")]
    assert rig.bell.deadline() == rig.bell.dispatch.agenda.when(("audit", 0)), "no timer of the session is left"


def test_what_is_unsent_is_merged_into_one_wake_with_all_that_it_stands_for() -> None:
    """The newest generation, the sum of the sizes, the age of the oldest mark, and the last trace that was given."""
    rig = Rig()
    number = rig.join()
    rig.settle_hello(number)
    heard(rig, number), news(rig)
    rig.deaf = {number}
    rig.trigger(size=3, traceparent=TRACE)
    rig.wait(0.5)
    rig.trigger(size=2, bus="nats")
    rig.wait(0.25)
    assert rig.bell.take(rig.now, number) == [Wake(QUEUE, BOOT, 3, "trigger", 5, 750, TRACE)]
    assert rig.bell.take(rig.now, number) == [], "what was taken is on its way, and not taken twice"
    assert rig.bell.take(rig.now, 99) == [], "a session that is gone takes nothing"
    assert rig.debt().wakes == {"resync": 1, "trigger": 1}
    rig.drive()
    assert news(rig) == [
        Triggered(QUEUE, "http", 3, 1),
        Triggered(QUEUE, "nats", 2, 1),
        Woken(QUEUE, number, "trigger", 0.75, 0),
    ]
    # What is sent no longer merges: the next mark is a wake of its own, and says how long its debt stands.
    rig.deaf = set()
    rig.trigger(size=4)
    assert rig.wakes(number) == [Wake(QUEUE, BOOT, 4, "trigger", 9, 750, TRACE)]


def test_a_wake_tells_the_trace_of_each_trigger_that_it_stands_for_once() -> None:
    """Merged ones go together, to all who are woken by the mark; what was told is not told again, but for the newest.

    A trigger may stand for several itself. When all is done nothing is left of them.
    """
    rig = Rig()
    number = rig.join()
    rig.settle_hello(number)
    heard(rig, number)
    rig.deaf = {number}
    first, second, third = (f"00-{n:032x}-{n:016x}-01" for n in (1, 2, 3))
    for trace in (first, second):
        rig.trigger(traceparent=trace)
    assert rig.bell.take(rig.now, number)[0].traces == Traces((first, second))
    rig.trigger(traceparent=second)
    assert rig.bell.take(rig.now, number)[0].traces is None, "one is told by traceparent alone"
    rig.trigger()
    (wake,) = rig.bell.take(rig.now, number)
    assert (wake.traceparent, wake.traces) == (second, None)
    rig.trigger(traceparent=second, traces=Traces((first, second), 7))
    rig.trigger(traceparent=third)
    (wake,) = rig.bell.take(rig.now, number)
    assert (wake.traceparent, wake.traces) == (third, Traces((first, second, third), 7))
    rig.trigger(traceparent=first)
    rig.deaf = set()
    rig.cover(number, rig.debt().gen)
    assert (rig.debt().dirty, rig.debt().traces) == (False, None)


def test_two_who_are_woken_by_one_mark_are_told_the_same_traces() -> None:
    """Each of them may take a message of either trigger."""
    rig = Rig()
    numbers = [rig.join(), rig.join()]
    for number in numbers:
        rig.settle_hello(number)
        heard(rig, number)
    rig.deaf = set(numbers)
    first, second = (f"00-{n:032x}-{n:016x}-01" for n in (1, 2))
    rig.trigger(size=99, traceparent=first, traces=Traces((second, first)))
    assert [rig.bell.take(rig.now, number)[0].traces for number in numbers] == [Traces((second, first))] * 2


def test_a_session_is_flushed_once_for_all_that_is_unsent() -> None:
    """One command however many queues and marks; the next one only after it was taken."""
    rig = Rig()
    number = rig.join("a/x", "a/y")
    rig.cover(number, 1, "a/x"), rig.cover(number, 2, "a/y")
    for queue in ("x", "y", "x"):
        rig.bell.trigger(rig.now, CloudQueueWorkDetected("a", queue), "http")
    assert rig.bell.commands() == [Flush(number)]
    assert rig.bell.commands() == [], "taken once"
    assert [wake.queue for wake in rig.bell.take(rig.now, number)] == ["a/x", "a/y"]
    rig.bell.trigger(rig.now, CloudQueueWorkDetected("a", "y"), "http")
    assert rig.bell.commands() == [Flush(number)]
    rig.bell.facts()
    assert rig.bell.facts() == [], "told once"


def test_a_first_frame_that_is_no_hello_ends_the_session() -> None:
    """It is said which fault it was, in the frame, in the end and in the log; nobody was there, so nobody left."""
    rig = Rig()
    number = rig.bell.open(rig.now, "test")
    rig.frames[number] = []
    rig.say(number, More(QUEUE))
    (error,) = heard(rig, number)
    assert isinstance(error, ErrorFrame)
    assert (error.code, rig.ended[number]) == ("bad_parameter", (1008, "bad_parameter"))
    assert news(rig) == [SessionRefused("", "bad_parameter", error.message)]
    assert "hello" in error.message
    assert rig.bell.sessions.get(number) is None
    rig.say(number, Hello("1" * 32, "late", [Subscription(QUEUE, 4)]))
    assert (heard(rig, number), rig.bell.ledger.find(QUEUE)) == ([], None), "it is not heard any more"


@pytest.mark.parametrize("late", [False, True])
def test_a_hello_of_another_store_is_refused_by_its_name(late: bool) -> None:
    """B11: also a later one of a session that was let in; nothing of it is taken."""
    rig = Rig()
    rig.join(store="aa11")
    stranger = rig.bell.open(rig.now, "test")
    rig.frames[stranger] = []
    if late:
        rig.say(stranger, Hello("e" * 32, "stranger", [Subscription("a/other", 4)]))
        rig.cover(stranger, 2, "a/other")
    news(rig), heard(rig, stranger)
    rig.say(stranger, Hello("e" * 32, "stranger", [Subscription(QUEUE, 4, store="bb22"), Subscription("a/new", 4)]))
    (error,) = heard(rig, stranger)
    assert isinstance(error, ErrorFrame)
    assert (error.code, rig.ended[stranger]) == ("store_mismatch", (1008, "store_mismatch"))
    told = news(rig)
    assert told[0] == SessionRefused("stranger", "store_mismatch", error.message)
    assert told[1:] == ([SessionClosed(stranger, "stranger", "store_mismatch")] if late else [])
    assert (len(rig.debt().seats), rig.bell.ledger.find("a/new")) == (1, None)


def test_a_cover_of_another_store_is_refused_and_proves_nothing() -> None:
    """A listener that did not say its store in its hello says it with its first cover (B11)."""
    rig = Rig()
    first, second, third = rig.join(store="aa11"), rig.join(), rig.join()
    gen = rig.debt().gen
    news(rig)
    rig.say(third, Cover(QUEUE, BOOT, gen, 0, store="bb22"))
    assert rig.ended == {third: (1008, "store_mismatch")}
    assert rig.debt().dirty
    (error,) = [frame for frame in heard(rig, third) if isinstance(frame, ErrorFrame)]
    assert error.code == "store_mismatch"
    assert news(rig) == [
        SessionRefused("listener 3", "store_mismatch", error.message),
        SessionClosed(third, "listener 3", "store_mismatch"),
    ]
    rig.say(second, Cover(QUEUE, BOOT, gen, 0, store="aa11"))
    assert not rig.debt().dirty
    rig.say(first, Cover(QUEUE, BOOT, gen, 0, store="bb22"))
    assert set(rig.ended) == {third}, "nobody else said a store, so there is nothing to contradict"


def test_ends_of_sessions_that_do_not_say_bye() -> None:
    """Replaced, silent, lost and without a hello: each with its code and its reason, and told if it had a name."""
    rig = Rig()
    nameless = rig.bell.open(rig.now, "test")
    old = rig.join("a/x", instance="1" * 32)
    silent = rig.join("a/x")
    lost = rig.join("a/x")
    new = rig.join("a/x", instance="1" * 32)
    news(rig)
    assert rig.ended == {old: (1001, "replaced")}
    rig.lose(lost)
    assert news(rig) == [SessionClosed(lost, "listener 3", "lost")]
    rig.lose(lost)
    assert news(rig) == [], "once"
    rig.wait(4.875)
    assert nameless not in rig.ended
    rig.beat(new, "a/x")
    rig.wait(0.125)
    assert rig.ended[nameless] == (4408, "no hello within 5 s")
    assert rig.bell.sessions.get(nameless) is None
    for _ in range(2):
        rig.wait(4.875)
        rig.beat(new, "a/x")
    rig.wait(0.25)
    assert rig.ended[silent] == (1001, "silent")
    assert [fact for fact in news(rig) if isinstance(fact, SessionClosed)] == [
        SessionClosed(silent, "listener 2", "silent")
    ]
    assert new not in rig.ended


def test_whoever_says_hello_again_is_no_new_session() -> None:
    """Told once that it is there, however often it changes what it listens to; under its newest name when it goes."""
    rig = Rig()
    number = rig.join("a/x", instance="1" * 32)
    rig.say(number, Hello("2" * 32, "renamed", [Subscription("a/y", 4)]))
    assert [fact for fact in news(rig) if isinstance(fact, SessionOpened)] == [
        SessionOpened(number, "listener 1", "test", 1)
    ]
    assert len(rig.bell.sessions) == 1
    assert rig.bell.sessions.holder("1" * 32) is None
    assert rig.bell.sessions.holder("2" * 32) is rig.bell.sessions.get(number)
    rig.wait(5.5)
    assert not rig.ended, "it said hello in time"
    rig.lose(number)
    assert SessionClosed(number, "renamed", "lost") in news(rig)
    assert len(rig.bell.sessions) == 0


def test_b4_each_round_is_told_with_how_many_are_asked() -> None:
    """Rounds count from one; a round that finds nobody further is told as well."""
    rig = Rig()
    numbers = [rig.join() for _ in range(4)]
    rig.wakes(numbers[0])
    news(rig)
    rig.wait(2.0)
    assert [fact for fact in news(rig) if isinstance(fact, StartMissed)] == [StartMissed(QUEUE, 1, 2)]
    rig.wait(1.875)
    assert not any(isinstance(fact, StartMissed) for fact in news(rig))
    rig.wait(0.125)
    assert [fact for fact in news(rig) if isinstance(fact, StartMissed)] == [StartMissed(QUEUE, 2, 1)]
    rig.wait(2.0)
    assert [fact for fact in news(rig) if isinstance(fact, StartMissed)] == [StartMissed(QUEUE, 3, 0)]
    rig.started(numbers[1], rig.debt().gen)
    assert (rig.debt().rounds, rig.debt().owner, rig.debt().asked) == (0, numbers[1], {numbers[1]})


@pytest.mark.parametrize(("begun_after_s", "renews"), [(0.875, False), (1.0, False), (1.125, True)])
def test_b5_how_much_newer_a_receive_must_seem(begun_after_s: float, renews: bool) -> None:
    """By more than a second; what seems newer by less may be the same one, whose reports travel at different speeds."""
    rig = Rig()
    first, second = rig.join(), rig.join()
    gen = rig.debt().gen
    rig.started(first, gen)
    began = rig.now
    rig.wait(4.0)
    rig.beat(second)
    rig.beat(first, receiving_ms=round((rig.now - began - begun_after_s) * 1000))
    news(rig)
    for _ in range(3):
        rig.wait(3.6875)
        rig.beat(first), rig.beat(second)
    stuck = [fact for fact in news(rig) if isinstance(fact, OwnerStuck)]
    assert stuck == ([] if renews else [OwnerStuck(QUEUE, first)])
    rig.wait(1.125)
    assert any(isinstance(fact, OwnerStuck) for fact in news(rig)) is renews
    assert rig.debt().owner == second


@pytest.mark.parametrize(("after_s", "over"), [(1.0, False), (1.125, True)])
def test_b5_a_bar_ends_with_a_receive_that_is_newer_than_the_bar(after_s: float, over: bool) -> None:
    """The one that hangs, named once more, does not end it; nor one that seems newer by what reports may differ."""
    rig = Rig()
    number = rig.join()
    rig.started(number, rig.debt().gen)
    while not rig.debt().seats.get(number).stuck:
        rig.wait(2.5)
        rig.beat(number)
    barred_at = rig.debt().seats.get(number).stuck_at
    rig.wakes(number)
    rig.wait(4.0)
    rig.beat(number, receiving_ms=round((rig.now - barred_at - after_s) * 1000))
    assert rig.debt().seats.get(number).stuck is not over
    assert bool(rig.wakes(number)) is over, "what is owed is its to take at once"


def test_triggers_are_told_and_copies_as_well() -> None:
    """With the bus, the size and how many they stand for."""
    rig = Rig()
    event = CloudQueueWorkDetected("billing", "orders", 4, id="1", source="p")
    rig.bell.trigger(rig.now, event, "http", count=3)
    rig.bell.trigger(rig.now, event, "nats", count=3)
    rig.bell.trigger(rig.now, event, "http", redelivered=True)
    rig.bell.trigger(rig.now, event, "http")
    rig.drive()
    assert news(rig) == [
        Triggered(QUEUE, "http", 4, 3),
        DuplicateDropped(QUEUE, "nats"),
        DuplicateDropped(QUEUE, "http"),
        Triggered(QUEUE, "http", 4, 1),
    ]
    assert (rig.debt().triggers, rig.debt().size) == (4, 8)


def test_a_suspend_is_told_with_its_length_and_what_is_looked_at() -> None:
    """Its queues are counted, own ones are not among them."""
    rig = Rig()
    rig.trigger("a/x"), rig.trigger("a/y")
    rig.level(0)
    news(rig)
    assert rig.bell.suspended(rig.now, 7.5) == 2
    assert rig.bell.facts() == [Suspended(7.5, 2)]


def test_plain_subscribers_are_told_all_of_a_mark() -> None:
    """Which queue, at which generation, why, how much, since when, and by which trace."""
    rig = Rig()
    rig.bell.reminders.announcing(rig.now, True)
    rig.trigger(size=3, traceparent=TRACE)
    rig.wait(1.0)
    rig.trigger(size=2)
    assert rig.rung == [
        Announce(QUEUE, 1, "trigger", 3, 100.0, TRACE),
        Announce(QUEUE, 2, "trigger", 2, 100.0, None),
    ]
    assert (rig.debt().rung, rig.debt().rung_at) == (2, 101.0)


def test_a_beat_that_tells_of_receives_and_depth_is_counted() -> None:
    """Into the queue, as facts, and with the time at which the store was asked; a queue it does not have is passed."""
    rig = Rig()
    number = rig.join()
    news(rig)
    beats = {
        "a/other": QueueBeat(1, receives={"sweep": (9, 9)}),
        QUEUE: QueueBeat(receives={"sweep": (1, 2)}, depth=StoreDepth(5, 1, 500, at_least=True), failing_ms=2500),
    }
    rig.say(number, ListenerHeartbeat(1, beats))
    assert news(rig) == [ReceivesTold(QUEUE, "sweep", 1, 2)]
    assert rig.debt().counted == Counted(5, 1, 99.5, at_least=True)
    assert rig.debt().seats.get(number).failing_since == 97.5
    assert rig.bell.ledger.find("a/other") is None
    rig.beat(number)
    assert rig.debt().seats.get(number).failing_since is None


@pytest.mark.parametrize(
    ("name", "told"),
    [("slack_s", "slack_ms"), ("spread_s", "spread_ms"), ("store_call_s", "store_call_ms"),
     ("sweep_s", "sweep_ms")],
)  # fmt: skip
def test_each_number_of_a_queue_is_told_by_itself(name: str, told: str) -> None:
    """In milliseconds, and only where it is not what the listener takes it to be anyway."""
    rig = Rig(rules=(QueueRule(match=QUEUE, **{name: 1.5}),))  # type: ignore[arg-type]
    (state,) = rig.welcome(rig.join()).queues
    assert state == WelcomedQueue(QUEUE, 1, False, None, **{told: 1500})  # type: ignore[arg-type]


def test_an_own_queue_is_covered_as_long_as_nothing_is_visible() -> None:
    """O5: 0 only then; a millisecond at least with anything visible, and then as long as it is."""
    rig = Rig()
    number = rig.join(own=True)
    assert rig.welcome(number).queues == [WelcomedQueue(QUEUE, 0, clean=True, covered_age_ms=0)]
    rig.level(2, rose=True, put=2)
    ages = []
    for seconds in (0.0, 0.5, 1.0):
        rig.wait(seconds)
        rig.beat(number)
        frame = rig.frames[number].pop()
        assert isinstance(frame, BridgeHeartbeat)
        ages.append(frame.queues[QUEUE])
    assert ages == [CoverAge(1, 1), CoverAge(1, 500), CoverAge(1, 1500)]


def test_every_hello_is_answered_before_anything_else() -> None:
    """The welcome comes first, then the wakes; a frame of the same turn does not pass it."""
    rig = Rig()
    number = rig.bell.open(rig.now, "test")
    rig.bell.frame(rig.now, number, Hello("1" * 32, "one", [Subscription(QUEUE, 4)]))
    first, second = rig.bell.commands()
    assert isinstance(first, Send)
    assert isinstance(first.frame, Welcome)
    assert (first.session, second) == (number, Flush(number))
