"""The wake machine: each rule by example; every order of events is for tests/exploration."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from queuebell.bridge.contract.backoff import FullJitter, RandomExponential
from queuebell.listeners.wake.controller import AdvertisedRoom, Controller, Evidence, Receive
from queuebell.listeners.wake.receive_scaling import DepthScaling, Scaling, StepScaling
from queuebell.listeners.wake.table import (
    Command,
    Mode,
    NotifyWork,
    SendEmptyReceive,
    SendMore,
    SendRoom,
    SendStarted,
    StartReceive,
    State,
)
from queuebell.listeners.wake.timers import DeadMan, Periods, Recheck
from queuebell.listeners.work.retry_until import PAUSE_CAP_S, PAUSE_FIRST_S, Patience

BOOT, OTHER = "b" * 32, "c" * 32


# Rules by example -----------------------------------------------------------------------------------------------------
def bare(capacity: int = 1, batch: int = 1, **given: Any) -> Controller:
    """Return a machine that has not met a bridge."""
    polls, retries = (RandomExponential(1.0, 30.0, 1.0) for _ in range(2))
    usual = {"scaling": DepthScaling(batch), "polls": polls, "retries": retries, "draw": lambda: 0.5}
    return Controller(capacity, batch, **{**usual, **given})


def machine(
    capacity: int = 4, batch: int = 4, *, own: bool = False, deadman: bool = False, tasks: int = 1
) -> Controller:
    """Return a machine that a bridge of boot `BOOT` has welcomed at 0 s."""
    timer = DeadMan(0.0, lambda: 0.5) if deadman else None
    controller = bare(capacity, batch, scaling=DepthScaling(batch, 1, tasks), own=own, deadman=timer)
    assert controller.welcomed(0.0, BOOT, 0) == []
    return controller


def only(commands: list[Command], *kinds: type) -> list[Command]:
    """Return the commands of these kinds."""
    return [command for command in commands if isinstance(command, kinds)]


def test_a_welcome_starts_no_receive() -> None:
    """B10: after a welcome only a wake starts a receive."""
    controller = machine()
    assert controller.welcomed(1.0, BOOT, 17) == []
    assert controller.state is State.IDLE
    assert controller.deadline() is None


def test_a_wake_says_started_and_receives() -> None:
    """L2, L4: a wake begins a receive at once, and `started` goes with it."""
    controller = machine()
    assert controller.wake(1.0, BOOT, 5, "trigger") == [
        NotifyWork("trigger"),
        SendStarted(BOOT, 5),
        StartReceive(1, 4, "trigger"),
    ]
    assert controller.state is State.DRAINING


def test_a_wake_during_a_receive_starts_another_at_once() -> None:
    """L2: a receive begun before the wake does not stand in for one begun after it."""
    controller = machine(capacity=8)
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.wake(1.1, BOOT, 6, "trigger"), StartReceive, SendStarted) == [
        SendStarted(BOOT, 6),
        StartReceive(2, 4, "trigger"),
    ]
    # The stale empty answer neither covers nor re-arms: a fresh receive is in flight.
    assert controller.received(1.2, 1, 0) == []
    assert controller.received(1.3, 2, 0)[0] == SendEmptyReceive(BOOT, 6, pytest.approx(0.2), None)


def test_a_stale_empty_rearms_when_nothing_fresh_is_in_flight() -> None:
    """L2: no slot for a second receive: `more` at once, and the stale answer starts the next look."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.wake(1.1, BOOT, 6, "trigger"), SendMore, StartReceive) == [SendMore(1)]
    assert controller.received(1.2, 1, 0)[:2] == [SendStarted(BOOT, 6), StartReceive(2, 4, "trigger")]
    commands = controller.received(1.3, 2, 0)
    assert only(commands, SendEmptyReceive, SendRoom) == [
        SendEmptyReceive(BOOT, 6, pytest.approx(0.1), None, pytest.approx(0.1)),
        SendRoom(4, 6),
    ]


def test_a_release_that_the_store_acknowledged_is_received_again() -> None:
    """L7: like the put that it is."""
    assert only(machine().came_back(1.0), StartReceive) == [StartReceive(1, 4, "more")]


def test_after_an_error_a_timer_stands() -> None:
    """L11, L5: a failed receive says `more` and is tried again; its back-off grows; success says `room`."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert controller.failed(1.1, 1) == [SendMore(1)]
    assert controller.deadline() == pytest.approx(2.1)
    assert controller.tick(1.5) == []
    assert controller.tick(2.1) == [StartReceive(2, 4, "trigger")]
    assert controller.failed(2.2, 2) == [SendMore(1)], "a broker may have lost the one before"
    assert controller.deadline() == pytest.approx(4.2)
    assert controller.beat(3.0)[3] == 0, "while the store fails there is no room for wakes"
    controller.tick(4.2)
    assert only(controller.received(4.3, 3, 0), SendEmptyReceive, SendRoom) == [
        SendEmptyReceive(BOOT, 5, pytest.approx(0.1), None, pytest.approx(3.2)),
        SendRoom(4, 5),
    ]


def test_a_failure_after_a_cover_still_rearms() -> None:
    """L11: always, even if another receive covered meanwhile."""
    controller = machine(capacity=8, tasks=2)
    controller.wake(1.0, BOOT, 5, "trigger", 8)
    controller.received(1.1, 1, 0)
    controller.failed(1.2, 2)
    assert controller.pending
    assert controller.deadline() == pytest.approx(2.2)


def test_a_receive_of_unknown_outcome_is_a_lease() -> None:
    """L6: what it may have taken is reported as a lease, and looked for when that has ended."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.failed(11.0, 1, back_at=41.0)
    assert controller.timers.returns() == [41.0]
    controller.tick(12.0)
    controller.received(12.1, 2, 0)
    assert controller.state is State.IDLE
    assert controller.deadline() == 41.0
    assert only(controller.tick(41.0), StartReceive) == [StartReceive(3, 4, "lease")]
    assert controller.timers.returns() == []


def test_carried_messages_with_more_behind_them_look_too() -> None:
    """O7: size beyond what was carried is a wake as usual, with the slots that are left."""
    controller = machine(own=True)
    commands = controller.wake(1.0, BOOT, 5, "trigger", 9, carried=2, free=2)
    assert only(commands, SendStarted, StartReceive)[-1] == StartReceive(1, 2, "trigger")
    assert controller.wake(1.1, BOOT, 6, "trigger", 9, carried=1, free=1)[-1] == SendMore(9)


def test_taking_the_last_slot_by_push_needs_no_more() -> None:
    """O7: the bridge counted these slots itself."""
    controller = machine(capacity=1, batch=1, own=True)
    assert only(controller.wake(1.0, BOOT, 5, "trigger", 1, carried=1, free=0), SendMore) == []
    assert controller.room(1.1, 1) == [SendRoom(1, 5)]


def test_without_a_bridge_it_polls() -> None:
    """L9: DEGRADED polls first after U(0, cap), then with back-off to 30 s; a hit begins the back-off anew."""
    controller = machine()
    assert controller.lost(100.0) == []
    assert controller.mode is Mode.DEGRADED
    assert controller.deadline() == 115.0
    pauses = []
    now, rid = 115.0, 0
    for _ in range(8):
        rid += 1
        assert controller.tick(now) == [StartReceive(rid, 4, "poll")]
        controller.received(now, rid, 0)
        deadline = controller.deadline()
        assert deadline is not None
        pauses.append(deadline - now)
        now = deadline
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    controller.tick(now)
    controller.received(now, rid + 1, 1)
    assert controller.deadline() == now + 1.0


def test_a_bridge_that_comes_back_ends_polling() -> None:
    """L9, B10: after the welcome nothing is polled; what is owed stays owed."""
    controller = machine()
    controller.lost(0.0)
    assert controller.welcomed(1.0, OTHER, 3) == []
    assert controller.state is State.IDLE
    assert controller.deadline() is None
    assert controller.beat(1.0)[:2] == (3, 0)


def test_stopping_hands_the_debt_back_and_awaits_what_is_in_flight() -> None:
    """L12: `more`, no new receive, STOPPED once the last answer is in; a wake meanwhile is handed back."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert controller.stop(1.1) == [SendMore(1)]
    assert controller.state is State.STOPPING
    assert controller.wake(1.2, BOOT, 6, "trigger") == [SendMore(1)]
    assert controller.beat(1.2)[3] == 0
    assert controller.received(1.3, 1, 4) == []
    assert controller.state is State.STOPPED
    assert controller.room(1.4, 4) == []
    assert controller.deadline() is None


def test_an_unknown_receive_while_stopping_is_a_lease_for_the_bye() -> None:
    """L6, L12: what it may have leased outlives this process, so the bridge must be told when it ends."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.stop(1.1)
    controller.failed(1.2, 1, 41.0)
    assert controller.state is State.STOPPED
    assert controller.timers.returns() == [41.0]


def test_a_more_says_once_whether_no_wake_told_of_its_reason() -> None:
    """L7: a release is news to the bridge, once in each session and until our own look; a wake is none (I2)."""
    controller = machine(capacity=1)
    controller.wake(1.0, BOOT, 5, "trigger", 1)
    assert only(controller.wake(1.1, BOOT, 6, "trigger", 1), SendMore) == [SendMore(1)]
    assert only(controller.wake(1.2, None, 0, "more"), SendMore) == [SendMore(1, unannounced=True)]
    assert only(controller.wake(1.3, BOOT, 7, "more", 1), SendMore) == [SendMore(1)]
    controller.lost(1.4)
    assert only(controller.welcomed(1.5, BOOT, 7), SendMore) == [SendMore(1, unannounced=True)]
    controller.received(1.6, 1, 0)
    assert only(controller.wake(1.7, BOOT, 8, "trigger", 1), SendMore) == [SendMore(1)]
    controller.received(1.8, 2, 0)
    controller.lost(1.9)
    controller.welcomed(2.0, BOOT, 8)
    assert only(controller.wake(2.1, BOOT, 9, "trigger", 1), SendMore) == [SendMore(1)], "our own look has paid for it"


# Limits ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_bridge_that_comes_back_begins_the_tries_anew(in_flight: bool) -> None:
    """L11: what kept the bridge away mostly kept the store away too; a try is brought forward and never put off."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    for rid in range(1, 11):
        controller.failed(100.0 * rid, rid)
        controller.tick(100.0 * rid + 30.0)
    controller.lost(1031.0)
    if not in_flight:
        controller.failed(1032.0, 11)
        assert controller.deadline() == 1062.0
    assert only(controller.welcomed(1035.0, OTHER, 3), StartReceive) == []
    if in_flight:
        controller.failed(1035.0, 11)
    assert controller.deadline() == pytest.approx(1036.0)
    controller.welcomed(1035.05, OTHER, 3)
    assert controller.deadline() == pytest.approx(1036.0)
    assert only(controller.tick(1036.0), StartReceive) == [StartReceive(12, 4, "trigger")]


def test_the_bridges_numbers_reach_every_timer() -> None:
    """T, S and w, the fleet's size and its latency."""
    numbers = Periods(sweep_s=10.0, slack_s=4.0, spread_s=2.0)
    machine().tune(0.0, numbers, 1000, 0.05)
    controller = machine(deadman=True)
    controller.tune(20.0, numbers, 1000, 0.05)
    assert controller.deadman.deadline == 20.0 + 15.0 + 25.0, "1.1 T + S + half of 1000 x 50 ms"
    controller.tune(20.0, numbers, 10, 0.05)
    assert controller.deadman.deadline == 20.0 + 15.0 + 1.0, "w = 2 s at least"
    controller.wake(21.0, BOOT, 5, "trigger")
    cover = only(controller.received(21.1, 1, 0, count=3), SendEmptyReceive)
    assert cover == [SendEmptyReceive(BOOT, 5, pytest.approx(0.1), None)], "T = 10 s comes before any other look"


def receive(epoch: int = 1, limit: int = 4, *, confirms: bool = False) -> Receive:
    return Receive(epoch, None, 0, 0.0, limit, "trigger", confirms)


@pytest.mark.parametrize(
    ("n", "visible", "complete", "covers"),
    [
        (0, None, True, True),
        (0, 0, True, True),
        (0, 3, True, False),
        (3, None, True, True),
        (3, 0, True, True),
        (3, 1, True, False),
        (4, None, True, False),
        (4, 0, True, True),
        (4, 9, True, False),
        (0, None, False, False),
        (0, 3, False, False),
        (3, 0, False, False),
    ],
)
def test_what_one_answer_proves(n: int, visible: int | None, complete: bool, covers: bool) -> None:
    """Empty, short or depth 0 on a complete store; on another, never one answer alone."""
    assert Evidence().proves_empty(receive(), n, visible, complete, 1) is covers


def test_two_empty_answers_of_one_epoch_are_proof_enough() -> None:
    """The second must have begun after the first, and nothing have happened in between."""
    evidence = Evidence()
    assert not evidence.proves_empty(receive(), 0, None, False, 1)
    assert evidence.is_half_sure(1)
    assert not evidence.is_half_sure(2)
    assert evidence.proves_empty(receive(confirms=True), 0, None, False, 1)
    stale = Evidence()
    assert not stale.proves_empty(receive(1), 0, None, False, 2)
    assert not stale.is_half_sure(1)


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("n", [0, 3, 4])
@pytest.mark.parametrize("visible", [None, 0, 3])
@pytest.mark.parametrize("confirms", [True, False])
def test_a_blocked_answer_proves_nothing(complete: bool, n: int, visible: int | None, confirms: bool) -> None:
    evidence = Evidence()
    assert not evidence.proves_empty(receive(confirms=confirms), n, visible, complete, 1, blocked=True)
    assert not evidence.is_half_sure(1)


def recheck(covered_at: float | None = None, sweep_s: float = 600.0) -> Recheck:
    known = Recheck()
    known.sweep_s = sweep_s
    if covered_at is not None:
        known.on_empty_receive(covered_at)
    return known


@pytest.mark.parametrize(
    ("since", "step"),
    [(0.0, None), (14.9, None), (15.0, 30.0), (15.1, 30.0), (29.9, 30.0), (30.1, 60.0), (60.1, None), (900.0, None)],
)
def test_a_timers_look_goes_on_from_the_time_since_the_last_cover(since: float, step: float | None) -> None:
    """Every listener hears of covers, so that whichever is woken knows how far the series has come."""
    assert recheck(1000.0).next_check("due", 1000.0 + since) == step


def test_two_series_side_by_side_end() -> None:
    """Timers never settle each other (B2), so overlapping ones must not keep each other up for ever."""
    known = recheck()
    timers = [0.0, 4.0, 11.0]
    looks = 0
    while timers:
        now = timers.pop(0)
        step = known.next_check("trigger" if now < 12 else "due", now)
        known.on_empty_receive(now)
        looks += 1
        assert looks < 20
        if step is not None:
            timers = sorted([*timers, now + step + 0.01])


def test_more_is_said_once_and_again_only_when_asked() -> None:
    """It stands until `room` or `started` has been said."""
    advertised_room = AdvertisedRoom(4)
    assert advertised_room.more(again=False)
    assert not advertised_room.more(again=False)
    assert advertised_room.more(again=True)
    advertised_room.started()
    assert advertised_room.more(again=False)
    assert advertised_room.barred


BOOT_TWO_IN_FLIGHT = "b" * 32
Answer = Callable[[Controller, Receive], str]


def newest(code: str) -> Answer:
    """Answer a receive of the newest look so, and any other that it found nothing."""
    return lambda machine, receive: code if receive.epoch == machine.epoch else "empty"


def last(code: str) -> Answer:
    """Answer so whichever receive is alone in flight: of each pair the second."""
    return lambda machine, receive: code if len(machine.receives) == 1 else "empty"


def receives(answer: Answer, scaling: Scaling, *, complete: bool, seconds: float = 300.0) -> int:
    """Return how many receives a wake costs, with a bridge that hands what it is owed to whoever says `room`."""
    machine = Controller(
        8, 2, scaling=scaling, polls=FullJitter(0.1, 30), retries=FullJitter(0.1, 30), draw=lambda: 0.5
    )
    coming: list[tuple[float, int, Callable[[float], list[Command]]]] = []
    serial, count, now = itertools.count(), 0, 0.0

    def expect(at: float, event: Callable[[float], list[Command]]) -> None:
        heapq.heappush(coming, (at, next(serial), event))

    def answers(rid: int) -> Callable[[float], list[Command]]:
        def come(at: float) -> list[Command]:
            said = answer(machine, machine.receives[rid])
            if said == "fails":
                return machine.failed(at, rid)
            return machine.received(at, rid, 0, complete=complete, blocked=said == "blocked")

        return come

    expect(0.0, lambda at: machine.welcomed(at, BOOT_TWO_IN_FLIGHT, 0))
    expect(0.1, lambda at: machine.wake(at, BOOT_TWO_IN_FLIGHT, 1, "trigger", 9))
    while True:
        deadline = machine.deadline()
        if deadline is not None and (not coming or deadline < coming[0][0]):
            expect(deadline, machine.tick)
        if not coming or coming[0][0] > seconds or count > 10_000:
            return count
        at, _, event = heapq.heappop(coming)
        now = max(now, at)
        for command in event(now):
            if isinstance(command, StartReceive):
                count += 1
                # Not the same for all, so that one is overtaken now and then.
                expect(now + 0.02 + 0.013 * (count % 3), answers(command.rid))
            elif isinstance(command, SendRoom):
                expect(now + 0.001, lambda at: machine.wake(at, BOOT_TWO_IN_FLIGHT, 1, "more", 1))


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("scaling", [DepthScaling(2), DepthScaling(2, minimum=2), StepScaling(((100, 10),))])
@pytest.mark.parametrize("answer", [newest("fails"), newest("blocked"), last("fails"), last("blocked")])
def test_a_store_that_answers_every_other_receive_is_not_asked_in_a_hot_loop(
    answer: Answer, scaling: Scaling, complete: bool
) -> None:
    """Five minutes: as many as a store that never answers costs, or some more where receives go in numbers."""
    never = receives(lambda machine, receive: "fails", scaling, complete=complete)
    assert receives(answer, scaling, complete=complete) <= 5 * never
    assert never <= 100


def test_a_try_may_take_longer_after_each_time_out_and_four_fold_at_most() -> None:
    """A store that answers with an error was in time: only time-outs ask for more of it."""
    patience = Patience(10.0)
    allowed = [patience.seconds]
    for timed_out in (False, True, False, True, True, True):
        patience.miss(lambda: 0.5, timed_out=timed_out)
        allowed.append(patience.seconds)
    assert allowed == [10.0, 10.0, 20.0, 20.0, 40.0, 40.0, 40.0]


@pytest.mark.parametrize("timed_out", [True, False])
def test_pauses_double_from_a_fifth_of_a_second_to_half_a_minute(timed_out: bool) -> None:
    """With full jitter: many that lost the same server do not come back to it in step."""
    patience = Patience(1.0)
    middle = [patience.miss(lambda: 0.5, timed_out=timed_out) for _ in range(10)]
    assert middle == pytest.approx([min(PAUSE_CAP_S, PAUSE_FIRST_S * 2**miss) / 2 for miss in range(10)])
    assert (PAUSE_FIRST_S, PAUSE_CAP_S) == (0.2, 30.0)
    assert patience.miss(lambda: 0.0, timed_out=timed_out) == 0.0


def test_a_poll_comes_as_soon_as_the_store_says_that_more_becomes_visible() -> None:
    """Without a bridge the store's own word on the next visible message is the best timer there is."""
    controller = machine()
    controller.lost(0.0)
    controller.tick(15.0)
    controller.received(15.0, 1, 0, next_visible=0.25)
    assert controller.deadline() == 15.25


@pytest.mark.parametrize(("reason", "looks"), [("due", True), ("more", True), ("lease", False)])
def test_what_comes_back_during_a_pause(reason: str, looks: bool) -> None:
    """L6, L7: a release is news and looks at once; what lost answers may have leased waits for the store (L11)."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.failed(1.1, 1)
    controller.timers.add_return(1.5, reason)
    assert only(controller.tick(1.5), StartReceive) == ([StartReceive(2, 4, reason)] if looks else [])
    assert only(controller.tick(2.1), StartReceive) == ([] if looks else [StartReceive(2, 4, reason)])


def test_a_rough_count_beside_an_empty_answer_asks_for_another_look() -> None:
    """L8: the cover is sent all the same, and tells the bridge when to have one listener look again."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.received(1.1, 1, 0, count=3), SendEmptyReceive) == [
        SendEmptyReceive(BOOT, 5, pytest.approx(0.1), 15.0)
    ]
    controller.wake(16.2, BOOT, 6, "due")
    assert only(controller.received(16.3, 2, 0, count=3), SendEmptyReceive) == [
        SendEmptyReceive(BOOT, 6, pytest.approx(0.1), 30.0)
    ]
    controller.wake(46.5, BOOT, 7, "due")
    assert only(controller.received(46.6, 3, 0, count=3), SendEmptyReceive) == [
        SendEmptyReceive(BOOT, 7, pytest.approx(0.1), None)
    ]
    controller.wake(50.0, BOOT, 8, "trigger")
    assert only(controller.received(50.1, 4, 0, count=0), SendEmptyReceive)[0].next_visible_s is None  # type: ignore[union-attr]
    controller.wake(51.0, BOOT, 9, "trigger")
    exact = only(controller.received(51.1, 5, 0, count=3, next_visible=2.0), SendEmptyReceive)
    assert exact == [SendEmptyReceive(BOOT, 9, pytest.approx(0.1), 2.0)]


def test_an_incomplete_store_is_believed_at_its_second_empty_answer() -> None:
    """L8: each wake costs two receives there, and no third."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.received(1.1, 1, 0, complete=False), SendEmptyReceive, StartReceive) == [
        StartReceive(2, 4, "trigger")
    ]
    (told,) = only(controller.received(1.2, 2, 0, complete=False), SendEmptyReceive, StartReceive)
    assert isinstance(told, SendEmptyReceive) and controller.deadline() is None


def test_what_a_limit_keeps_back_is_looked_for_when_something_was_settled() -> None:
    """L8: an answer that the store's limit kept short settles nothing, and a delete may end the limit."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.received(1.1, 1, 0, blocked=True), SendEmptyReceive, StartReceive) == []
    assert only(controller.settled(1.2), StartReceive) == [StartReceive(2, 4, "trigger")]


def test_room_is_what_a_heartbeat_says_it_is() -> None:
    """S2: slots that are neither busy nor reserved, none while the store fails or after a stop."""
    controller = machine(capacity=6)
    controller.wake(1.0, BOOT, 5, "trigger")
    assert controller.beat(1.1) == (5, 0, pytest.approx(0.1), 2)
    controller.received(1.2, 1, 3)
    assert controller.beat(1.3) == (5, 5, None, 3)
    controller.stop(1.4)
    assert controller.beat(1.5)[3] == 0


def test_a_store_that_loses_answers_is_asked_at_the_pace_of_its_back_off() -> None:
    """L6, L11: what lost answers may have leased comes back meanwhile, and does not end the pause after a failure."""
    one = machine()
    now, receives = 0.0, 0
    commands = one.wake(now, BOOT, 1, "trigger")
    while now < 1800.0:
        started = only(commands, StartReceive)
        receives += len(started)
        commands = [more for each in started for more in one.failed(now, each.rid, now + 30.0)]
        if not only(commands, StartReceive):
            now = max(now, one.deadline() or now)
            commands = one.tick(now)
    assert receives < 1800 / 30 * 2 + 20


def test_carried_messages_need_no_receive() -> None:
    """O7: a wake that brought all there was is answered by `started` alone, and `room` follows the handlers."""
    controller = machine(own=True)
    assert controller.wake(1.0, BOOT, 5, "trigger", 2, carried=2, free=2) == [
        NotifyWork("trigger"),
        SendStarted(BOOT, 5),
    ]
    assert controller.state is State.IDLE
    assert controller.room(1.1, 4) == [SendRoom(4, 5)]
    assert controller.room(1.2, 4) == []


def test_pull_only_looks_when_it_polls_and_at_no_other_time() -> None:
    """L9: the dead-man begins no receive there, however late it is."""
    controller = bare(polls=RandomExponential(1000.0, 1000.0, 0.0), deadman=DeadMan(0.0, lambda: 0.5))
    assert controller.pull_only(0.0) == [StartReceive(1, 1, "poll")]
    assert controller.deadline() is None
    assert controller.received(1.0, 1, 0) == []
    assert (controller.deadline(), controller.tick(1000.9)) == (1001.0, [])
    assert controller.tick(1001.0) == [StartReceive(2, 1, "poll")]


def test_the_dead_man_looks_and_only_moves_forward() -> None:
    """L10: with no cover heard of for T_dead + U(0, w) it looks by itself; stale news change nothing."""
    controller = machine(deadman=True)
    assert controller.deadline() == 101.0
    controller.on_empty_receive(50.0)
    controller.on_empty_receive(20.0)
    assert controller.deadline() == 151.0
    assert only(controller.tick(151.0), StartReceive) == [StartReceive(1, 4, "deadman")]
    assert controller.deadline() == 252.0
    controller.received(151.5, 1, 0)
    assert controller.deadline() == 252.0
