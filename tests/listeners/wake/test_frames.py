"""What a wake machine says and hears, frame by frame."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuebell.bridge.contract.backoff import RandomExponential
from queuebell.bridge.contract.jobs import (
    BOUNDS_S,
    CLASSES_MAX,
    NO_JOBS,
    OUTCOMES,
    Jobs,
    add,
    minus,
    plus,
)
from queuebell.bridge.contract.wire import (
    BuriedCount,
    Counts,
    EmptyReceive,
    More,
    QueueBeat,
    Room,
    Seen,
    Started,
    StoreDepth,
    Subscription,
    UpFrame,
)
from queuebell.bridge.core import listener_counts
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.sessions import QueueSessions
from queuebell.bridge.core.settings import Periods, Tuning
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.frames import beat_of, frame_of, subscription_of
from queuebell.listeners.wake.receive_scaling import DepthScaling
from queuebell.listeners.wake.table import (
    Command,
    NotifyEmpty,
    NotifyWork,
    SendEmptyReceive,
    SendMore,
    SendRoom,
    SendStarted,
    StartReceive,
)
from queuebell.listeners.work.counts import COUNT_S, EXTRA_BYTES, CountSchedule, JobCounts

QUEUE = "billing/orders"
BOOT = "b" * 32


def machine(capacity: int = 4, *, own: bool = False) -> Controller:
    """Return a machine with batches of 4 that has met no bridge."""
    pauses = RandomExponential(1.0, 30.0, 1.0)
    return Controller(
        capacity, 4, scaling=DepthScaling(4, 1, 8), polls=pauses, retries=pauses, draw=lambda: 0.5, own=own
    )


@pytest.mark.parametrize(
    ("command", "frame"),
    [
        (SendStarted(BOOT, 7), Started(QUEUE, BOOT, 7)),
        (SendEmptyReceive(BOOT, 7, 0.0124, None), EmptyReceive(QUEUE, BOOT, 7, 12, None)),
        (SendEmptyReceive(BOOT, 7, 2.0, 9.0005), EmptyReceive(QUEUE, BOOT, 7, 2000, 9000)),
        (SendEmptyReceive(BOOT, 7, -0.5, -2.0), EmptyReceive(QUEUE, BOOT, 7, 0, -2000)),
        (SendMore(3), More(QUEUE, 3, unannounced=False)),
        (SendMore(None, unannounced=True), More(QUEUE, None, unannounced=True)),
        (SendRoom(2, 7), Room(QUEUE, 2, 7)),
        (StartReceive(1, 4, "trigger"), None),
        (NotifyEmpty(), None),
        (NotifyWork("trigger"), None),
    ],
)
def test_a_command_is_said_in_one_frame_or_not_at_all(command: Command, frame: UpFrame | None) -> None:
    """Each word has its frame, seconds become milliseconds, no age is negative; a cover says whose queue it is (O4)."""
    assert frame_of(command, QUEUE, own=False) == frame
    if isinstance(frame, EmptyReceive):
        assert frame_of(command, QUEUE, own=True) == msgspec.structs.replace(frame, own=True)


def test_a_heartbeat_tells_the_levels_and_since_when_receives_fail() -> None:
    """S2: generations learned and covered, the age of the receive under way, free slots, and the failure's age."""
    controller = machine()
    controller.welcomed(1.0, BOOT, 4)
    assert beat_of(controller, 1.5) == QueueBeat(4, 0, None, 4)
    controller.wake(2.0, BOOT, 5, "trigger")
    controller.received(2.1, 1, 1, visible=0)
    controller.wake(2.2, BOOT, 6, "trigger")
    assert beat_of(controller, 2.25) == QueueBeat(6, 5, 50, controller.available)
    assert beat_of(controller, 3.0, 2.5) == QueueBeat(6, 5, 800, controller.available, failing_ms=500)
    # A clock read a moment earlier than what it is compared with makes no negative age.
    assert beat_of(controller, 2.0, 2.5) == QueueBeat(6, 5, 0, controller.available, failing_ms=0)


def test_a_hello_tells_what_was_seen_and_room_only_of_the_busy() -> None:
    """A first hello names the queue; a later one also the newest generation, and the free slots where some are not."""
    controller = machine(own=True)
    assert subscription_of(controller, QUEUE, 4, 30.0) == Subscription(QUEUE, 4, 30_000, None, True, None, None)
    controller.welcomed(1.0, BOOT, 5)
    controller.room(1.0, 3)
    assert subscription_of(controller, QUEUE, 4, 0.0001, store="abc") == Subscription(
        QUEUE, 4, 1, "abc", True, Seen(BOOT, 5), None
    )
    assert subscription_of(machine(), QUEUE, 4, 1.2345, busy=True) == Subscription(QUEUE, 4, 1234, None, False, None, 4)
    controller.room(1.0, 0)
    assert subscription_of(controller, QUEUE, 4, 30.0, busy=True).free == 0
    controller.room(1.0, -2)
    assert subscription_of(controller, QUEUE, 4, 30.0, busy=True).free == 0


POISON = "billing/orders-poison"
BACKLOG = Counts(5000, 7, leased=7, delayed=0, oldest_ms=90_000)


def test_a_bounded_count_does_not_hide_a_better_one() -> None:
    """Beside each full batch a store counts a little; what was counted apart stays until it is old, or all is taken."""
    rules = CountSchedule(QUEUE, None)
    rules.answered(Counts(1056, 32, at_least=True), 0.0, whole=False)
    assert rules.report(1, 0.0)[0] == StoreDepth(1056, 32, 0, at_least=True)
    rules.counted(BACKLOG, 0.1)
    rules.answered(Counts(1056, 32, at_least=True), 0.2, whole=False)
    assert rules.report(2, 1.1)[0] == StoreDepth(5000, 7, 1000, leased=7, delayed=0, oldest_ms=90_000)
    rules.answered(Counts(0, 32), 0.3, whole=False)
    assert rules.report(3, 0.3)[0] == StoreDepth(0, 32, 0)
    rules.counted(BACKLOG, 0.4)
    rules.answered(Counts(1056, 32, at_least=True), 0.4 + COUNT_S, whole=False)
    assert rules.report(4, 0.4 + COUNT_S)[0] == StoreDepth(1056, 32, 0, at_least=True)


def test_a_count_that_was_overtaken_is_of_no_use() -> None:
    """It is of the moment at which it was asked for: a receive that was answered meanwhile knows better."""
    rules = CountSchedule(QUEUE, None)
    rules.answered(Counts(0, 0), 5.0, whole=True)
    rules.counted(BACKLOG, 4.0)
    assert rules.report(1, 5.0)[0] == StoreDepth(0, 0, 0)
    rules.counted(None, 6.0)
    assert rules.report(2, 6.0)[0] == StoreDepth(0, 0, 0), "a queue that is gone holds nothing"


def test_what_is_deleted_after_the_last_look_is_not_leased_any_more() -> None:
    """Nobody looks again for a while; of what was received since a count nothing is known of that count."""
    rules = CountSchedule(QUEUE, None)
    rules.deleted()
    rules.answered(Counts(0, 3, leased=2, delayed=1), 1.0, whole=True)
    rules.deleted()
    assert rules.report(1, 2.0)[0] == StoreDepth(0, 2, 1000, leased=1, delayed=1)
    rules.took()
    rules.deleted()
    assert rules.report(2, 2.0)[0] == StoreDepth(0, 2, 1000, leased=1, delayed=1)
    rules.counted(Counts(4, 1), 3.0)
    for _ in range(2):
        rules.deleted()
    assert rules.report(3, 3.0)[0] == StoreDepth(4, 0, 0, leased=0)


@pytest.mark.parametrize("sessions", [0, 1, 100])
def test_all_sessions_together_count_twice_a_minute(sessions: int) -> None:
    rules, counted = CountSchedule(QUEUE, None), 0
    every = COUNT_S * max(1, sessions)
    for step in range(1000):
        counted += rules.worth(step * every / 100, sessions)
    assert counted == 10


def test_the_poison_queue_is_counted_at_the_start_after_burials_and_while_something_lies_there() -> None:
    """A quiet queue without burials costs one count; what a person empties elsewhere is seen at the next sweep."""
    rules = CountSchedule(QUEUE, POISON)
    assert rules.poison_to_count("trigger", 0.0, own=False) == POISON
    rules.poison_counted(0, 0.1)
    assert [rules.poison_to_count(source, 100.0, own=False) for source in ("trigger", "sweep", "deadman")] == [None] * 3
    rules.poison_changed()
    assert rules.poison_to_count("", 0.2, own=False) == POISON, "soon after the start as well"
    rules.poison_counted(0, 0.3)
    rules.poison_changed()
    assert rules.poison_to_count("", 100.0, own=False) == POISON
    rules.poison_counted(1, 100.1)
    rules.poison_changed()
    assert rules.poison_to_count("", 101.0, own=False) is None, "not more often than every so many seconds"
    assert rules.poison_to_count("trigger", 100.0 + COUNT_S, own=False) == POISON, "and not forgotten"
    rules.poison_counted(2, 131.0)
    assert rules.poison_to_count("trigger", 300.0, own=False) is None
    assert rules.poison_to_count("sweep", 300.0, own=False) == POISON
    rules.poison_counted(0, 300.1)
    assert rules.poison_to_count("sweep", 400.0, own=False) is None


def test_levels_are_told_until_they_are_echoed_and_again_to_another_bridge() -> None:
    """A lost heartbeat heals, an idle session tells nothing, and a bridge that was started anew learns all."""
    rules = CountSchedule(QUEUE, POISON)
    rules.greeted()
    assert not rules.changed
    rules.poison_counted(3, 0.0)
    assert rules.changed
    assert rules.report(7, 1.0) == (None, BuriedCount(3, 1000))
    rules.counted(Counts(1, 0), 2.0)
    rules.echoed(6)
    rules.echoed(7)
    assert rules.changed, "what was counted after that heartbeat is still owed"
    rules.report(8, 3.0)
    rules.echoed(8)
    assert not rules.changed
    rules.greeted()
    assert rules.changed


HANDLER = "shop.orders:handle"


def happen(counts: JobCounts, number: int) -> None:
    """Have one attempt begin, fail or not, and end; few kinds, so that the same counters grow again and again."""
    counts.began(1, [number % 2])
    counts.ended(1, 0.0004 + number % 3)
    if number % 2:
        counts.failed("ValueError")
    if number % 5:
        counts.concluded("failed" if number % 2 else "done")
    else:
        counts.lost()


class OneBoot:
    """A boot of a bridge, and what it has counted."""

    def __init__(self, number: int) -> None:
        self.boot = f"{number:032x}"
        self.counts = listener_counts.JobCounts()
        self.work = PendingWork(queue="a/b", sessions=QueueSessions(), numbers=Tuning(Periods()).of("a/b"))

    @property
    def sum(self) -> Jobs:
        return (self.work.jobs or {}).get(HANDLER, NO_JOBS)

    def hear(self, told: dict[str, Jobs]) -> None:
        before = self.sum
        self.counts.record("1" * 32, self.work, told)
        assert minus(before, self.sum) == NO_JOBS, "a counter went back"


MOVES = st.sampled_from(["work", "beat", "lose", "delay", "late", "deaf", "greet", "other", "restart"])


def played(moves: list[str], *, bridges_: int, orderly: bool) -> tuple[Jobs, Jobs]:
    """Play moves, then tell in peace; return what happened, and the sums of all boots there were."""
    counts = JobCounts(HANDLER)
    boots = [OneBoot(number) for number in range(bridges_)]
    gone: list[OneBoot] = []
    at, stamp, delayed = 0, 0, []
    counts.greeted(boots[at].boot)

    def tell(*, heard: bool = True, echoed: bool = True) -> None:
        nonlocal stamp
        if counts.changed:
            stamp += 1
            told = counts.report(stamp)
            assert len(msgspec.json.encode(told)) + len(',"jobs":') <= counts.report_bytes()
            if heard:
                boots[at].hear(told)
            if heard and echoed:
                counts.echoed(stamp)

    for number, move in enumerate(moves):
        if move == "work":
            happen(counts, number)
        elif move == "beat":
            tell()
        elif move == "lose":
            tell(heard=False)
        elif move == "deaf":
            tell(echoed=orderly)
        elif move == "delay" and counts.changed:
            stamp += 1
            delayed.append((boots[at], counts.report(stamp)))
        elif move == "late" and delayed and not orderly:
            boot, told = delayed.pop()
            boot.hear(told)
        elif move == "greet":
            counts.greeted(boots[at].boot)
        elif move == "other" and bridges_ > 1:
            at = (at + 1 + number) % bridges_
            counts.greeted(boots[at].boot)
        elif move == "restart" and bridges_ > 1:
            gone.append(boots[at])
            boots[at] = OneBoot(100 + number)
            counts.greeted(boots[at].boot)
    counts.greeted(boots[at].boot)
    tell()
    assert not counts.changed
    total = NO_JOBS
    for boot in [*boots, *gone]:
        total = plus(total, boot.sum)
    return counts.level(), total


@settings(max_examples=300)
@given(st.lists(MOVES, min_size=10, max_size=60))
def test_several_bridges_and_restarts_count_all_and_nothing_twice(moves: list[str]) -> None:
    """Going to and fro between bridges, also those that were there before, each attempt is counted by one of them."""
    happened, counted = played(moves, bridges_=3, orderly=True)
    assert counted == happened


def test_the_largest_report_is_small() -> None:
    """With every name as long and every number as large as may be, a report takes a few thousand bytes."""
    counts = JobCounts("x" * 200)
    for number in range(CLASSES_MAX + 1):
        counts.failed(f"{number:0100}")
    for outcome in OUTCOMES:
        counts.concluded(outcome)
    for bound in (*BOUNDS_S, 1e9):
        counts.began(1, [bound])
        counts.ended(1, bound)
    assert counts.report_bytes() < 2500 and EXTRA_BYTES
    sums: dict[str, Jobs] = {}
    for handler, jobs in counts.report(1).items():
        add(sums, handler, jobs)
    assert sum(sums[counts.handler].failures.values()) == CLASSES_MAX + 1


def test_who_never_buries_counts_no_poison_queue() -> None:
    """And who takes from the bridge's own queue counts it only where the bridge cannot know its name."""
    assert CountSchedule(QUEUE, None).poison_to_count("sweep", 0.0, own=False) is None
    assert CountSchedule(QUEUE, POISON).poison_to_count("sweep", 0.0, own=True) is None
    named = CountSchedule(QUEUE, "billing/graves")
    assert named.poison_to_count("sweep", 0.0, own=True) == "billing/graves"
    named.poison_counted(3, 1.0)
    assert named.report(1, 3.0)[1] == BuriedCount(3, 2000, "billing/graves")


@settings(max_examples=300)
@given(st.lists(MOVES, min_size=10, max_size=60))
def test_one_bridge_counts_exactly_what_happened(moves: list[str]) -> None:
    """However heartbeats and echoes are lost, late and repeated, and sessions replaced."""
    happened, counted = played(moves, bridges_=1, orderly=False)
    assert counted == happened
