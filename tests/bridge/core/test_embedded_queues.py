"""The rules of own queues, O0 to O7, asked one by one."""

from __future__ import annotations

import functools
import random

import pytest

from queuebell.bridge.contract.wire import (
    BridgeHeartbeat,
    CarriedMessage,
    EmptyReceive,
    Hello,
    ListenerHeartbeat,
    QueueBeat,
    Subscription,
)
from queuebell.bridge.core.commands import Reclaim
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.facts import AuditFound, HandedBack
from tests.support.bells import BOOT, QUEUE, Rig


def message(name: str) -> CarriedMessage:
    """Return a message as a wake carries it."""
    return CarriedMessage(name, f"receipt of {name}", 1, "2026-11-20T00:00:00.000Z", body="x")


def hand(rig: Rig, session: int, *names: str, granted: int | None = None, visible: int | None = None) -> None:
    """Have the store hand messages over in a commit."""
    rig.scheduler.embedded.handed(
        rig.now, QUEUE, session, len(names) if granted is None else granted, [message(name) for name in names],
        len(names) if visible is None else visible,
    )  # fmt: skip
    rig.drive()


def test_o0_workers_may_start_before_the_first_put() -> None:
    """A queue is own as soon as a session says so; nothing is there, so nothing is owed."""
    rig = Rig()
    number = rig.join(own=True)
    assert rig.welcome(number).queues[0].clean and not rig.wakes(number)


def test_o1_a_rise_from_nothing_is_a_newer_generation() -> None:
    """Empty and refilled within one commit: whoever went idle on the empty answer must hear again."""
    rig = Rig()
    number = rig.join(own=True)
    rig.level(5, rose=True, put=5)
    (first,) = rig.gens(number)
    rig.level(1, rose=True, put=1)
    (second,) = rig.gens(number)
    assert second > first


def test_o1_covers_settle_nothing_while_messages_are_visible() -> None:
    """A cover frame only tells that a session is idle: the next one is woken."""
    rig = Rig()
    first, second = rig.join(own=True), rig.join(own=True)
    rig.level(3, rose=True, put=3)
    gen = rig.work().gen
    rig.cover(first, gen)
    assert rig.work().dirty and rig.gens(second) == [gen]


def test_a_namesake_in_the_queue_service_does_not_swallow_triggers() -> None:
    """An empty own queue of the same name says nothing about the queue elsewhere."""
    rig = Rig()
    rig.level(0)
    rig.trigger()
    number = rig.join()
    assert rig.wakes(number)
    rig.cover(number, rig.work().gen)
    rig.trigger()
    assert rig.wakes(number)


def test_o3_a_due_timer_asks_the_store() -> None:
    """The end of a delay re-reads; only the level that comes back marks."""
    rig = Rig()
    number = rig.join(own=True)
    rig.level(0, next_s=3.0, invisible=1)
    rig.wait(2.9)
    assert rig.rereads == []
    rig.wait(0.2)
    assert rig.rereads == [QUEUE] and not rig.wakes(number)
    rig.level(1, rose=True)
    (wake,) = rig.wakes(number)
    assert wake.reason == "due"


def test_o4_the_audit_finds_work_nobody_is_on() -> None:
    """Visible, unowned, and somebody has room: woken, and counted as a bug."""
    rig = Rig()
    number = rig.join(own=True)
    rig.level(1, rose=True, put=1)
    rig.wakes(number)
    # The bug, planted: the debt vanishes although messages are visible.
    rig.scheduler.dispatch.settle(rig.work())
    rig.wait(6)
    assert rig.wakes(number) and any(isinstance(fact, AuditFound) for fact in rig.facts)


def test_o5_an_idle_own_queue_hears_nothing_for_a_day() -> None:
    """No sweep, no wake, no re-read: and every heartbeat says that coverage is fresh."""
    rig = Rig(sweep_s=60.0)
    numbers = [rig.join(own=True) for _ in range(2)]
    for _ in range(24 * 3600 // 10):
        rig.wait(10)
        for number in numbers:
            rig.beat(number, free=32, gen=0)
            beat = rig.frames[number].pop()
            assert isinstance(beat, BridgeHeartbeat) and beat.queues[QUEUE].covered_age_ms == 0
    assert not any(rig.wakes(number) for number in numbers) and not rig.rereads


def test_o5_covered_is_not_zero_while_messages_wait() -> None:
    rig = Rig()
    number = rig.join(own=True, capacity=1)
    rig.level(2, rose=True, put=2)
    rig.more(number)
    rig.wait(4)
    rig.beat(number)
    beat = rig.frames[number][-1]
    assert isinstance(beat, BridgeHeartbeat) and beat.queues[QUEUE].covered_age_ms == 4000


def test_o7_grants_go_round_and_never_exceed_the_free_slots() -> None:
    """Each put in flight takes its slots off at once; two puts never share one."""
    rig = Rig()
    first = rig.join(own=True, accept=True, capacity=1)
    second = rig.join(own=True, accept=True, capacity=2)
    granted = [rig.scheduler.embedded.grant(rig.now, QUEUE, 1) for _ in range(4)]
    assert [grant and grant[0] for grant in granted] == [first, second, second, None]


@pytest.mark.parametrize("says", ["room", "heartbeat", "hello"])
def test_o7_a_report_between_a_grant_and_its_commit_frees_no_slot_of_it(says: str) -> None:
    """What was granted is not in the listener's own count yet, however it tells it: nobody else is promised it."""
    rig = Rig()
    number = rig.join(own=True, accept=True, capacity=2, instance="1" * 32)
    assert rig.scheduler.embedded.grant(rig.now, QUEUE, 2) == (number, 2, 2.0)
    if says == "room":
        rig.room(number, 2, gen=rig.work().gen)
    elif says == "heartbeat":
        rig.beat(number, free=2, gen=rig.work().gen)
    else:
        rig.say(number, Hello("1" * 32, "again", [Subscription(QUEUE, 2, own=True)], ["messages"]))
    assert rig.scheduler.embedded.grant(rig.now, QUEUE, 1) is None
    hand(rig, number, "m1", granted=2)
    assert rig.scheduler.embedded.grant(rig.now, QUEUE, 2) == (number, 1, 2.0)
    hand(rig, number, granted=1)
    assert rig.work().sessions.get(number).spare == 1


class Slots:
    """A listener's own count: what it hears takes slots, handlers that end give them back, and it says so at any time.

    Frames of both ways wait in order until they are carried over.
    """

    def __init__(self, capacity: int) -> None:
        self.rig = Rig()
        self.capacity = self.free = capacity
        self.number = self.rig.join(own=True, accept=True, capacity=capacity)
        self.gen = 0
        self.up: list[tuple[int, int]] = []
        self.down: list[tuple[int, int]] = []
        self.granted: list[int] = []

    def act(self, draw: random.Random) -> None:
        """Let one thing happen."""
        match draw.choice(["grant", "commit", "fail", "end", "say", "up", "up", "down", "down"]):
            case "grant":
                granted = self.rig.scheduler.embedded.grant(self.rig.now, QUEUE, draw.randint(1, 3))
                if granted is not None:
                    self.granted.append(granted[1])
            case "commit" | "fail" as how if self.granted:
                limit = self.granted.pop(0)
                names = [f"m{number}" for number in range(draw.randint(1, limit) if how == "commit" else 0)]
                hand(self.rig, self.number, *names, granted=limit)
                for wake in self.rig.wakes(self.number):
                    self.down.append((wake.gen, len(wake.messages or ())))
            case "end" if self.free < self.capacity:
                self.free += 1
            case "say":
                self.up.append((self.free, self.gen))
            case "up" if self.up:
                free, gen = self.up.pop(0)
                self.rig.room(self.number, free, gen=gen)
            case "down" if self.down:
                self.gen, carried = self.down.pop(0)
                assert carried <= self.free, "more messages carried than slots free"
                self.free -= carried
                self.rig.started(self.number, self.gen)


@pytest.mark.parametrize("seed", range(20))
def test_o7_never_more_than_the_free_slots_whatever_crosses_what(seed: int) -> None:
    """Grants, commits, puts that fail, rooms and ends of handlers in any order."""
    slots, draw = Slots(1 + seed % 4), random.Random(seed)
    carried = 0
    for _ in range(2000):
        before = slots.free
        slots.act(draw)
        carried += max(0, before - slots.free)
    assert carried > 20, "too little was carried to prove anything"


def test_o7_not_taken_up_within_a_is_released_uncounted() -> None:
    """A deaf listener gives everything back after A, with the attempt not counted."""
    rig = Rig()
    number = rig.join(own=True, accept=True)
    hand(rig, number, "m1")
    rig.wait(1.9)
    assert rig.reclaims == []
    rig.wait(0.2)
    assert rig.reclaims == [Reclaim(QUEUE, (("m1", "receipt of m1"),), uncount=True)]
    assert any(isinstance(fact, HandedBack) for fact in rig.facts)


def test_o7_a_lost_session_gives_back_at_once() -> None:
    rig = Rig()
    number = rig.join(own=True, accept=True)
    hand(rig, number, "m1")
    rig.lose(number)
    assert rig.reclaims == [Reclaim(QUEUE, (("m1", "receipt of m1"),), uncount=True)]


def test_o7_a_session_that_did_not_take_up_is_not_handed_the_next() -> None:
    """A listener that is stopped but still connected costs A once, and hears again once it shows life."""
    rig = Rig()
    frozen = rig.join(own=True, accept=True)
    hand(rig, frozen, "m1")
    rig.wait(2.1)
    assert rig.scheduler.embedded.grant(rig.now, QUEUE, 1) is None
    other = rig.join(own=True, accept=True)
    granted = rig.scheduler.embedded.grant(rig.now, QUEUE, 1)
    assert granted is not None and granted[0] == other
    rig.beat(frozen, free=32, gen=0)
    assert rig.work().sessions.get(frozen).has_room


def test_a_queue_that_never_stood_here_takes_no_debt_of_a_namesake_along() -> None:
    """O0, B1: that a queue is not in the queue service says nothing of what was rung for elsewhere."""
    rig = Rig()
    rig.trigger(size=3)
    rig.level(0, exists=False)
    number = rig.join()
    assert [(wake.reason, wake.size) for wake in rig.wakes(number)] == [("trigger", 3)]


T = 60.0


def engine(queue: str) -> str:
    return f"e{len(queue)}"


class EngineRig(Rig):
    def __init__(self) -> None:
        super().__init__(sweep_s=T, scheduler=functools.partial(WakeScheduler, engine=engine))  # type: ignore[arg-type]


def test_a_queue_of_whom_says_own_is_swept_and_its_dead_man_told_the_truth() -> None:
    """Covered once, the queue is as old as that cover for every heartbeat, and a sweep looks again."""
    rig = EngineRig()
    session = rig.join(own=True, accept=True, store="aa")
    (wake,) = rig.wakes(session)
    rig.say(session, EmptyReceive(QUEUE, BOOT, wake.gen, 0, own=True, store="aa"))
    assert not rig.work().dirty
    (entry,) = rig.work().sessions
    assert (entry.own, entry.accepts, entry.store) == (False, False, engine(QUEUE))
    rig.now += 40
    rig.frames[session].clear()
    rig.say(session, ListenerHeartbeat(7, {QUEUE: QueueBeat()}))
    (beat,) = [frame for frame in rig.frames[session] if isinstance(frame, BridgeHeartbeat)]
    assert beat.queues[QUEUE].covered_age_ms == 40_000
    assert rig.scheduler.agenda.when(("sweep", QUEUE)) is not None
