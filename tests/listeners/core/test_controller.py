"""The wake machine: every order of events in a small world, mutants that must be caught, and each rule by example."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.contract.backoff import CappedExponential, RandomExponential
from listeners.core.commands import (
    Command,
    SendCover,
    SendMore,
    SendRoom,
    SendStarted,
    StartReceive,
    TellEmpty,
    TellWork,
)
from listeners.core.controller import Controller
from listeners.core.deadman import DeadMan
from listeners.core.evidence import Receive
from listeners.core.periods import Periods
from listeners.core.scaling import DepthScaling, StepScaling
from listeners.core.table import Mode, State
from tests.listeners.core.world import BOOT, Broken, Limits, explore

OTHER = "c" * 32

WORLDS = {
    "two slots, a failure, no pauses": Limits(puts=1),
    "a failure": Limits(failures=1, batch=1, puts=2, capacity=1),
    "two slots, two puts": Limits(failures=0),
    "one slot, two failures": Limits(puts=1, failures=2, capacity=1, batch=1),
    "pauses": Limits(failures=1, pause=1.0, capacity=1, batch=1),
    "no depth told": Limits(failures=0, depth=False),
    "an incomplete store": Limits(failures=0, complete=False, depth=False),
    "an incomplete store that tells its depth, and fails": Limits(puts=1, complete=False),
    "three tasks": Limits(failures=0, capacity=3, batch=1, tasks=3),
    "a bridge that goes and comes": Limits(puts=2, failures=0, capacity=1, batch=1, outages=1),
    "a limit on what may be leased": Limits(failures=0, leased=1),
    "a limit, no depth told, and pauses": Limits(failures=0, leased=1, depth=False, pause=1.0),
    "a limit, two tasks and a failure": Limits(puts=1, failures=1, leased=1, capacity=2, batch=1, pause=1.0),
    "a limit on an incomplete store": Limits(puts=2, failures=0, leased=1, complete=False, depth=False, pause=1.0),
    "bridge and store both fail": Limits(puts=1, failures=1, capacity=1, batch=1, outages=1),
}


LARGE = {"a failure", "a bridge that goes and comes", "bridge and store both fail", "a limit on an incomplete store"}
"""Seconds each: `make prove`."""


@pytest.mark.parametrize(
    "limits",
    [pytest.param(world, id=name, marks=pytest.mark.prove if name in LARGE else ()) for name, world in WORLDS.items()],
)
def test_no_order_of_events_loses_a_wake(limits: Limits) -> None:
    """In every order of puts, wakes, answers, failures, room and timers, what is put is taken and the debt settled."""
    assert explore(limits) > 100


# Mutants ------------------------------------------------------------------------------------------------------------


class SnapshotAfterwards(Controller):
    """V2: the snapshot is taken when the answer comes, not before the receive begins."""

    def _answered(self, now: float, rid: int, *answer: Any) -> None:
        old = self.receives[rid]
        self.receives[rid] = Receive(self.epoch, self.boot, self.gen, old.began_at, old.limit, old.source, old.confirms)
        super()._answered(now, rid, *answer)


class FlagCleared(Controller):
    """V2, the other half: an empty answer clears whatever is owed."""

    def _answered(self, now: float, rid: int, n: int, *answer: Any) -> None:
        super()._answered(now, rid, n, *answer)
        if n == 0:
            self.covered = self.epoch


class StartedOnReceipt(Controller):
    """V8: `started` is said when the wake arrives."""

    def _woken(self, now: float, boot: str | None, gen: int, *rest: Any) -> None:
        if boot is not None:
            self._out.append(SendStarted(boot, gen))
        super()._woken(now, boot, gen, *rest)
        self._started_owed = False


class HandlersInTheDrain(Controller):
    """V10: a drain lasts until the handlers of what it took have ended."""

    @property
    def looking(self) -> bool:
        return super().looking or self.free < self.capacity


class SharedReceive(Controller):
    """V18: a wake joins the receive that is in flight already."""

    def _look(self, reason: str) -> None:
        super()._look(reason)
        for rid, r in self.receives.items():
            self.receives[rid] = Receive(self.epoch, self.boot, self.gen, r.began_at, r.limit, r.source, r.confirms)


class DeafWhileBusy(Controller):
    """V6, listener's side: a wake is dropped while receives are in flight."""

    def _woken(self, now: float, *wake: Any) -> None:
        if not self.receives:
            super()._woken(now, *wake)


class CoverWithoutSnapshot(Controller):
    """V9, listener's side: a cover names the newest generation instead of the one its receive knew of."""

    def _cover(self, now: float, receive: Receive, next_visible: float | None) -> None:
        self.covered = max(self.covered, receive.epoch)
        if self.boot is not None:
            self._out.append(SendCover(self.boot, self.gen, 0.0, None))


class ForgetsAfterErrors(Controller):
    """L11 undone: a failed receive is not tried again."""

    def _broke(self, now: float, rid: int, back_at: float | None) -> None:
        super()._broke(now, rid, back_at)
        if not self.receives:
            self.covered = self.epoch
            self.waits.look()


class ForgetsUnknownReceives(Controller):
    """V13, listener's side: a receive of unknown outcome leaves no lease behind."""

    def _broke(self, now: float, rid: int, back_at: float | None) -> None:
        super()._broke(now, rid, None)


class ForgetsToSayMore(Controller):
    """L5 undone: woken without room, it says nothing."""

    def _say_more(self, again: bool = False) -> None:
        pass


class ForgetsToSayRoom(Controller):
    """L5 undone: room is not said again (V11 from the other side)."""

    def _advance(self, now: float, woken: bool = False) -> None:
        super()._advance(now, woken)
        self._out = [command for command in self._out if not isinstance(command, SendRoom)]


class OneEmptyIsEnough(Controller):
    """L8 undone: an incomplete store is taken at its first word."""

    def _answered(self, now: float, rid: int, n: int, visible: Any, then: Any, complete: bool, *rest: Any) -> None:
        super()._answered(now, rid, n, visible, then, True, *rest)


class BlockedIsEmpty(Controller):
    """L8 undone: an answer that a limit kept short is taken for one that shows everything."""

    def _answered(self, now: float, rid: int, *answer: Any) -> None:
        super()._answered(now, rid, *answer[:-1], False)


MUTANTS: list[tuple[type[Controller], Limits]] = [
    (SnapshotAfterwards, Limits(failures=0)),
    (FlagCleared, Limits(failures=0)),
    (StartedOnReceipt, Limits(failures=0)),
    (HandlersInTheDrain, Limits(failures=0, batch=1)),
    (SharedReceive, Limits(failures=0)),
    (DeafWhileBusy, Limits(failures=0)),
    (CoverWithoutSnapshot, Limits(failures=0, capacity=2, batch=1)),
    (ForgetsAfterErrors, Limits()),
    (ForgetsUnknownReceives, Limits()),
    (ForgetsToSayMore, Limits(failures=0, capacity=1, batch=1)),
    (ForgetsToSayRoom, Limits(failures=0, capacity=1, batch=1)),
    (OneEmptyIsEnough, Limits(failures=0, complete=False, depth=False)),
    (BlockedIsEmpty, Limits(failures=0, leased=1, depth=False)),
]


@pytest.mark.parametrize(("mutant", "limits"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_the_exploration_catches_a_mutant(mutant: type[Controller], limits: Limits) -> None:
    """Each known wrong turn, planted in the real machine, is found, with a story that shows it."""
    with pytest.raises(Broken, match="story: "):
        explore(limits, mutant)


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
        TellWork("trigger"),
        SendStarted(BOOT, 5),
        StartReceive(1, 4, "trigger"),
    ]
    assert controller.state is State.DRAINING


def test_an_empty_receive_covers_what_it_knew_of() -> None:
    """L1: empty and nothing happened since: a cover of the snapshot's generation, its age, and idle."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert controller.received(1.5, 1, 0, next_visible=9.0) == [SendCover(BOOT, 5, 0.5, 9.0), TellEmpty()]
    assert controller.state is State.IDLE
    assert controller.beat(2.0)[:2] == (5, 5)


def test_what_is_given_back_at_once_is_a_look_of_its_own() -> None:
    """L7: without a bridge's own store, what was released is looked for; `more` says it to whoever has a slot."""
    controller = machine()
    controller.welcomed(1.0, BOOT, 5)
    assert controller.came_back(2.0) == [StartReceive(1, 4, "more")]
    assert controller.beat(2.5)[2] == 0.5
    full = machine()
    full.welcomed(1.0, BOOT, 5)
    full.room(1.5, 0)
    assert full.came_back(2.0) == [SendMore(1, unannounced=True)]


def test_what_is_given_back_for_later_is_looked_for_then() -> None:
    """L7: nothing is said before it is due; then it is looked for, but where the bridge's own store tells it."""
    controller = machine()
    assert controller.came_back(2.0, 7.0) == []
    assert controller.deadline() == 7.0
    assert controller.tick(7.0) == [StartReceive(1, 4, "due")]
    controller = machine(own=True)
    assert controller.came_back(2.0, 7.0) == []
    assert controller.tick(7.0) == []
    controller.lost(7.5)
    assert controller.wake(8.0, None, 0, "poll") == [StartReceive(1, 4, "poll")]


def test_the_bridges_own_store_tells_of_what_is_given_back() -> None:
    """O5: no look of the listener's own while the bridge is there; without it, as anywhere."""
    controller = machine(own=True)
    controller.welcomed(1.0, BOOT, 5)
    assert controller.came_back(2.0) == []
    controller.lost(3.0)
    assert controller.came_back(3.5) == [StartReceive(1, 4, "more")]


def test_who_stops_tells_others_of_what_it_gives_back() -> None:
    """L12: it takes nothing any more; the bridge hears the depth that was last known, and that nobody was woken."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger", 3)
    controller.stop(1.5)
    assert controller.came_back(2.0) == [SendMore(3, unannounced=True)]


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
    assert controller.received(1.3, 2, 0)[0] == SendCover(BOOT, 6, pytest.approx(0.2), None)


def test_a_stale_empty_rearms_when_nothing_fresh_is_in_flight() -> None:
    """L2: no slot for a second receive: `more` at once, and the stale answer starts the next look."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.wake(1.1, BOOT, 6, "trigger"), SendMore, StartReceive) == [SendMore(1)]
    assert controller.received(1.2, 1, 0)[:2] == [SendStarted(BOOT, 6), StartReceive(2, 4, "trigger")]
    commands = controller.received(1.3, 2, 0)
    assert only(commands, SendCover, SendRoom) == [
        SendCover(BOOT, 6, pytest.approx(0.1), None, pytest.approx(0.1)),
        SendRoom(4, 6),
    ]


def test_a_full_batch_receives_again_while_slots_are_left() -> None:
    """L5: a full batch with slots left asks again; without, it says `more` and waits for room."""
    controller = machine(capacity=6)
    controller.wake(1.0, BOOT, 5, "trigger", 9)
    assert controller.received(1.1, 1, 4, visible=5) == [StartReceive(2, 2, "trigger")]
    assert controller.received(1.2, 2, 2, visible=3) == [SendMore(3)]
    assert controller.state is State.FULL
    assert controller.deadline() is None
    assert controller.room(2.0, 1) == [StartReceive(3, 1, "trigger")]


def test_a_short_batch_is_a_cover() -> None:
    """L8: on a complete store, fewer messages than asked for prove that none are left."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.received(1.1, 1, 2), SendCover) == [SendCover(BOOT, 5, pytest.approx(0.1), None)]


def test_a_full_batch_that_leaves_nothing_is_a_cover_and_then_more() -> None:
    """L8, L5: depth 0 covers; with no slot left the bridge is told so, cover first."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert controller.received(1.1, 1, 4, visible=0) == [
        SendCover(BOOT, 5, pytest.approx(0.1), None),
        TellEmpty(),
        SendMore(0),
    ]
    assert controller.state is State.IDLE
    assert controller.room(2.0, 3) == [SendRoom(3, 5)]


def test_an_incomplete_store_needs_two_empty_answers() -> None:
    """L8: the first empty answer of a store that may be mistaken starts a second receive; the second covers."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert controller.received(1.1, 1, 0, complete=False) == [StartReceive(2, 4, "trigger")]
    assert only(controller.received(1.2, 2, 0, complete=False), SendCover)
    assert controller.state is State.IDLE


def test_a_store_that_says_there_is_more_is_asked_again_but_not_in_a_hot_loop() -> None:
    """L8: empty with visible messages covers nothing and waits a back-off."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert controller.received(1.1, 1, 0, visible=3) == [SendMore(3)]
    assert controller.state is State.COOLING
    assert controller.deadline() == pytest.approx(2.1)
    assert controller.tick(2.1) == [
        StartReceive(2, 4, "trigger"),
    ]


def test_a_blocked_answer_is_no_cover_and_pauses() -> None:
    """L8: kept short by a limit, it proves nothing: `more` at once, and the next look after a back-off."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert controller.received(1.1, 1, 2, blocked=True) == [SendMore(0)]
    assert controller.state is State.COOLING
    assert controller.covered_gen == 0
    assert controller.deadline() == pytest.approx(2.1)
    assert only(controller.tick(2.1), StartReceive)


def test_an_own_settlement_looks_again_where_an_answer_was_blocked() -> None:
    """L8: what this listener gave back or deleted may have lifted the limit; nobody waits for the back-off."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.received(1.1, 1, 0, blocked=True)
    assert only(controller.settled(1.2), StartReceive) == [StartReceive(2, 4, "trigger")]
    cover = SendCover(BOOT, 5, pytest.approx(0.1), None, pytest.approx(0.2))
    assert only(controller.received(1.3, 2, 0), SendCover) == [cover]
    assert controller.settled(1.4) == []


def test_a_settlement_does_not_end_the_pause_after_an_error() -> None:
    """L11: a store that fails is asked after its back-off, however many settlements it takes meanwhile."""
    controller = machine(capacity=8, batch=1, tasks=2)
    controller.wake(1.0, BOOT, 5, "trigger", size=4)
    controller.received(1.1, 1, 0, blocked=True)
    controller.failed(1.3, 2)
    assert only(controller.settled(1.4), StartReceive) == []
    assert controller.state is State.COOLING


def test_two_blocked_receives_do_not_start_each_other() -> None:
    """Each answer pauses, also while the other is in flight: else there would be no pause at all."""
    controller = machine(capacity=8, batch=1, tasks=2)
    assert len(only(controller.wake(1.0, BOOT, 5, "trigger", size=4), StartReceive)) == 2
    for rid in (1, 2):
        assert only(controller.received(1.1, rid, 0, blocked=True), StartReceive) == []
    assert controller.state is State.COOLING


def test_a_rough_count_beside_an_empty_answer_asks_for_another_look() -> None:
    """L8: the cover is sent all the same, and tells the bridge when to have one listener look again."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.received(1.1, 1, 0, count=3), SendCover) == [SendCover(BOOT, 5, pytest.approx(0.1), 15.0)]
    controller.wake(16.2, BOOT, 6, "due")
    assert only(controller.received(16.3, 2, 0, count=3), SendCover) == [SendCover(BOOT, 6, pytest.approx(0.1), 30.0)]
    controller.wake(46.5, BOOT, 7, "due")
    assert only(controller.received(46.6, 3, 0, count=3), SendCover) == [SendCover(BOOT, 7, pytest.approx(0.1), None)]
    controller.wake(50.0, BOOT, 8, "trigger")
    assert only(controller.received(50.1, 4, 0, count=0), SendCover)[0].next_visible_s is None  # type: ignore[union-attr]
    controller.wake(51.0, BOOT, 9, "trigger")
    exact = only(controller.received(51.1, 5, 0, count=3, next_visible=2.0), SendCover)
    assert exact == [SendCover(BOOT, 9, pytest.approx(0.1), 2.0)]


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
    assert only(controller.received(4.3, 3, 0), SendCover, SendRoom) == [
        SendCover(BOOT, 5, pytest.approx(0.1), None, pytest.approx(3.2)),
        SendRoom(4, 5),
    ]


def test_a_wake_does_not_wait_for_the_error_timer() -> None:
    """L2: the store may be back; a wake looks at once."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.failed(1.1, 1)
    assert only(controller.wake(1.2, BOOT, 6, "trigger"), StartReceive) == [StartReceive(2, 4, "trigger")]


def test_a_failure_after_a_cover_still_rearms() -> None:
    """L11: always, even if another receive covered meanwhile."""
    controller = machine(capacity=8, tasks=2)
    controller.wake(1.0, BOOT, 5, "trigger", 8)
    controller.received(1.1, 1, 0)
    controller.failed(1.2, 2)
    assert controller.owed
    assert controller.deadline() == pytest.approx(2.2)


def test_a_receive_of_unknown_outcome_is_a_lease() -> None:
    """L6: what it may have taken is reported as a lease, and looked for when that has ended."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.failed(11.0, 1, back_at=41.0)
    assert controller.waits.returns() == [41.0]
    controller.tick(12.0)
    controller.received(12.1, 2, 0)
    assert controller.state is State.IDLE
    assert controller.deadline() == 41.0
    assert only(controller.tick(41.0), StartReceive) == [StartReceive(3, 4, "lease")]
    assert controller.waits.returns() == []


def test_an_own_store_keeps_its_timers_itself_while_its_bridge_is_there() -> None:
    """O3, O5: what comes back to an own queue costs no receive; without the bridge we look ourselves."""
    controller = machine(own=True)
    controller.waits.comes_back(5.0, "due")
    assert controller.tick(5.0) == []
    assert controller.state is State.IDLE
    controller.lost(6.0)
    controller.waits.comes_back(7.0, "due")
    assert only(controller.tick(7.0), StartReceive) == [StartReceive(1, 4, "due")]


def test_carried_messages_need_no_receive() -> None:
    """O7: a wake that brought all there was is answered by `started` alone, and `room` follows the handlers."""
    controller = machine(own=True)
    assert controller.wake(1.0, BOOT, 5, "trigger", 2, carried=2, free=2) == [TellWork("trigger"), SendStarted(BOOT, 5)]
    assert controller.state is State.IDLE
    assert controller.room(1.1, 4) == [SendRoom(4, 5)]
    assert controller.room(1.2, 4) == []


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


def test_more_tasks_for_more_depth_within_the_slots() -> None:
    """The scaling rule says how many receives are in flight; the slots bound it."""
    controller = machine(capacity=10, tasks=8)
    commands = controller.wake(1.0, BOOT, 5, "trigger", 100)
    assert only(commands, StartReceive) == [
        StartReceive(1, 4, "trigger"),
        StartReceive(2, 4, "trigger"),
        StartReceive(3, 2, "trigger"),
    ]


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


def test_polls_are_capped_whatever_the_policy_says() -> None:
    """L9: in DEGRADED a policy with a longer ceiling still polls every 30 s; pull-only is the user's choice."""
    for mode, pause in ((Mode.DEGRADED, 30.0), (Mode.PULL, 60.0)):
        slow = CappedExponential(60.0, 60.0)
        controller = bare(polls=slow, retries=slow, draw=lambda: 0.0)
        if mode is Mode.PULL:
            assert controller.pull_only(0.0) == [StartReceive(1, 1, "poll")]
        else:
            controller.lost(0.0)
            controller.tick(0.0)
        controller.received(0.0, 1, 0)
        assert controller.deadline() == pause


def test_a_poll_comes_as_soon_as_the_store_says_that_more_becomes_visible() -> None:
    """Without a bridge the store's own word on the next visible message is the best timer there is."""
    controller = machine()
    controller.lost(0.0)
    controller.tick(15.0)
    controller.received(15.0, 1, 0, next_visible=0.25)
    assert controller.deadline() == 15.25


def test_a_bridge_that_comes_back_ends_polling() -> None:
    """L9, B10: after the welcome nothing is polled; what is owed stays owed."""
    controller = machine()
    controller.lost(0.0)
    assert controller.welcomed(1.0, OTHER, 3) == []
    assert controller.state is State.IDLE
    assert controller.deadline() is None
    assert controller.beat(1.0)[:2] == (3, 0)


def test_generations_of_two_boots_are_never_compared() -> None:
    """I3: a new boot begins with its own, lower generation, and a cover of the old boot's receive stays with it."""
    controller = machine()
    controller.wake(1.0, BOOT, 500, "trigger")
    controller.welcomed(1.1, OTHER, 2)
    assert controller.gen == 2
    assert controller.received(1.2, 1, 0)[0] == SendCover(BOOT, 500, pytest.approx(0.2), None)
    assert controller.covered_gen == 0


def test_a_new_session_hears_that_there_is_no_room() -> None:
    """L5: what was said in the old session does not stand in the new one."""
    controller = machine(capacity=1, batch=1)
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.received(1.1, 1, 1, visible=1), SendMore) == [SendMore(1)]
    assert controller.welcomed(2.0, OTHER, 0) == [SendMore(1)]


def test_the_dead_man_looks_and_only_moves_forward() -> None:
    """L10: with no cover heard of for T_dead + U(0, w) it looks by itself; stale news change nothing."""
    controller = machine(deadman=True)
    assert controller.deadline() == 101.0
    controller.covered_elsewhere(50.0)
    controller.covered_elsewhere(20.0)
    assert controller.deadline() == 151.0
    assert only(controller.tick(151.0), StartReceive) == [StartReceive(1, 4, "deadman")]
    assert controller.deadline() == 252.0
    controller.received(151.5, 1, 0)
    assert controller.deadline() == 252.0


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
    assert controller.waits.returns() == [41.0]


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


def test_heartbeats_name_the_newest_receive_while_it_is_news() -> None:
    """B5: a receive is named while in flight and once after; idle heartbeats name none (B8)."""
    controller = machine()
    assert controller.beat(1.0)[2] is None
    controller.wake(2.0, BOOT, 5, "trigger")
    assert controller.beat(6.0)[2] == 4.0
    controller.received(6.5, 1, 0)
    controller.wake(7.0, BOOT, 6, "trigger")
    controller.received(7.5, 2, 0)
    assert controller.beat(11.0)[2] == 4.0
    assert controller.beat(16.0) == (6, 6, None, 4)


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


# Limits ---------------------------------------------------------------------------------------------------------------


def test_a_machine_begins_with_nothing() -> None:
    """No look owed, all slots free, no bridge; nothing is told of an empty queue that was never told to have work."""
    one = bare(3, 2)
    assert (one.state, one.mode, one.boot, one.gen, one.covered_gen) == (State.IDLE, Mode.CONNECTING, None, 0, 0)
    assert (one.capacity, one.batch, one.free, one.available, one.reserved) == (3, 2, 3, 3, 0)
    assert (one.epoch, one.covered, one.owed, one.looking, one.full) == (0, 0, False, False, False)
    assert (one.blocked, one.own, one.waits_in_turn, one.depth, one.receives) == (False, False, False, None, {})
    assert (one.deadman, one.place, one.deadline()) == (None, None, None)
    assert one.advertised_room.free == 3
    assert one.beat(0.0) == (0, 0, None, 3)
    assert one.tick(1.0) == []
    # Not yet welcomed, it looks for itself all the same, and tells nobody.
    assert one.wake(2.0, None, 0, "poll") == [StartReceive(1, 2, "poll")]
    assert one.received(2.1, 1, 0) == []


def test_free_slots_are_those_told_with_an_answer() -> None:
    """Handlers may have ended, or begun for what was carried, while the receive was under way; else it is n fewer."""
    for free, left in ((None, 1), (0, 0), (3, 3), (4, 4)):
        controller = machine()
        controller.wake(1.0, BOOT, 5, "trigger")
        controller.received(1.1, 1, 3, visible=0, free=free)
        assert controller.free == left


def test_what_follows_a_failure_answers_the_same_wake() -> None:
    """Also where another receive has covered meanwhile: the source is that of the receive that failed."""
    controller = machine(capacity=8, tasks=2)
    controller.wake(1.0, BOOT, 5, "lease", 8)
    controller.received(1.1, 1, 0)
    controller.wake(1.15, BOOT, 6, "due")
    controller.received(1.18, 3, 0)
    assert not controller.owed
    controller.failed(1.2, 2)
    assert controller.tick(2.2) == [StartReceive(4, 4, "lease"), SendRoom(4, 6)]


def test_a_settlement_lifts_a_limit_once() -> None:
    """L8: what was blocked is asked again at once; the settlements after it say nothing new."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.received(1.1, 1, 0, blocked=True)
    assert controller.blocked is True
    controller.settled(1.2)
    assert controller.blocked is False
    controller.failed(1.3, 2)
    assert controller.blocked is False


@pytest.mark.parametrize(("reason", "looks"), [("due", True), ("more", True), ("lease", False)])
def test_what_comes_back_during_a_pause(reason: str, looks: bool) -> None:
    """L6, L7: a release is news and looks at once; what lost answers may have leased waits for the store (L11)."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.failed(1.1, 1)
    controller.waits.comes_back(1.5, reason)
    assert only(controller.tick(1.5), StartReceive) == ([StartReceive(2, 4, reason)] if looks else [])
    assert only(controller.tick(2.1), StartReceive) == ([] if looks else [StartReceive(2, 4, reason)])


@pytest.mark.parametrize(("depth", "told"), [(0, 1), (3, 3)])
def test_what_comes_back_without_a_slot_is_told_as_a_message_at_least(depth: int, told: int) -> None:
    """L6: although `more` stands, for the bridge takes the queue to be covered; no wake of its told of this."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.received(1.1, 1, 4, visible=depth)
    controller.waits.comes_back(5.0, "due")
    assert controller.tick(5.0) == [SendMore(told, unannounced=True)]
    assert controller.state is State.FULL
    assert controller.room(6.0, 2) == [StartReceive(2, 2, "due")]


def test_pull_only_looks_when_it_polls_and_at_no_other_time() -> None:
    """L9: the dead-man begins no receive there, however late it is."""
    controller = bare(polls=RandomExponential(1000.0, 1000.0, 0.0), deadman=DeadMan(0.0, lambda: 0.5))
    assert controller.pull_only(0.0) == [StartReceive(1, 1, "poll")]
    assert controller.deadline() is None
    assert controller.received(1.0, 1, 0) == []
    assert (controller.deadline(), controller.tick(1000.9)) == (1001.0, [])
    assert controller.tick(1001.0) == [StartReceive(2, 1, "poll")]


def test_a_bridge_lost_in_a_pause_does_not_shorten_it() -> None:
    """L9, L11: what is owed is tried by its own timer; the first poll is for those that owe nothing."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    for rid, now in enumerate((1.1, 10.0, 20.0, 30.0, 60.0, 100.0), start=1):
        controller.failed(now, rid)
        controller.tick(controller.deadline() or 0.0)
    controller.failed(200.0, 7)
    assert controller.deadline() == 230.0
    controller.lost(200.1)
    assert (controller.waits.poll, controller.deadline()) == (None, 230.0)
    # With a receive in flight, and nothing owed: its answer arms the poll.
    other = machine(capacity=8, tasks=2)
    other.wake(1.0, BOOT, 5, "trigger", 8)
    other.received(1.1, 1, 0)
    other.lost(1.2)
    assert other.deadline() is None
    other.received(1.3, 2, 0)
    assert other.deadline() == pytest.approx(2.3)


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


def test_without_a_bridge_nothing_is_said_to_it() -> None:
    """L9: no cover, no `started`, no `more` and no `room`, although the receive answers one of its wakes."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.lost(1.1)
    assert controller.received(1.2, 1, 0) == [TellEmpty()]
    assert only(controller.wake(1.3, BOOT, 6, "trigger"), SendStarted, StartReceive) == [StartReceive(2, 4, "trigger")]
    assert controller.received(1.4, 2, 4, visible=2) == []
    assert controller.state is State.FULL
    assert controller.room(1.5, 4) == [StartReceive(3, 4, "trigger")]
    assert controller.failed(1.6, 3) == []


def test_a_host_hears_of_work_and_of_emptiness_by_turns() -> None:
    """An empty queue is told once, until a wake or a receive tells of work."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.received(1.1, 1, 0), TellEmpty, TellWork) == [TellEmpty()]
    controller.wake(2.0, None, 0, "more")
    assert only(controller.received(2.1, 2, 0), TellEmpty, TellWork) == []
    controller.wake(3.0, None, 0, "lease")
    assert only(controller.received(3.1, 3, 1), TellEmpty, TellWork) == [TellWork("lease"), TellEmpty()]
    controller.wake(4.0, None, 0, "due")
    assert only(controller.received(4.1, 4, 4), TellEmpty, TellWork) == [TellWork("due")]
    controller.room(4.15, 4)
    assert only(controller.received(4.2, 5, 0), TellEmpty, TellWork) == [TellEmpty()]


def test_more_is_said_again_with_every_stop_and_try() -> None:
    """S2: although it stands, for a broker may have lost the one before."""
    stopping = machine()
    stopping.wake(1.0, BOOT, 5, "trigger")
    assert stopping.received(1.1, 1, 4, visible=7) == [SendMore(7)]
    assert stopping.stop(1.2) == [SendMore(7)]
    assert stopping.wake(1.3, None, 0, "more") == [], "what is our own needs no answer"
    assert stopping.wake(1.4, BOOT, 6, "trigger") == [SendMore(7)]
    blocked = machine()
    blocked.wake(1.0, BOOT, 5, "trigger")
    assert blocked.received(1.1, 1, 0, blocked=True) == [SendMore(0)]
    assert only(blocked.tick(2.1), StartReceive)
    assert blocked.received(2.2, 2, 0, blocked=True) == [SendMore(0)]
    assert blocked.deadline() == pytest.approx(4.2), "and the back-off grows"


def test_a_full_batch_after_a_cover_is_a_look_of_our_own() -> None:
    """L5: whatever an older answer said, there may be more; a limit pauses that look too, and the bridge is told."""
    for blocked in (False, True):
        controller = machine(capacity=8, tasks=2)
        controller.wake(1.0, BOOT, 5, "lease", 8)
        controller.received(1.1, 1, 0, free=8)
        commands = controller.received(1.2, 2, 4, visible=3, free=4, blocked=blocked)
        assert only(commands, StartReceive) == ([] if blocked else [StartReceive(3, 4, "lease")])
        assert only(commands, SendMore) == ([SendMore(3, unannounced=True)] if blocked else [])
        assert controller.state is (State.COOLING if blocked else State.DRAINING)


def test_a_blocked_answer_of_an_older_look_pauses_nothing() -> None:
    """A newer receive is under way, and its answer decides."""
    controller = machine(capacity=8)
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.wake(1.1, BOOT, 6, "trigger")
    assert controller.received(1.2, 1, 0, blocked=True) == []
    assert controller.deadline() is None
    assert only(controller.received(1.3, 2, 0), SendCover) == [SendCover(BOOT, 6, pytest.approx(0.2), None)]


def test_the_first_of_two_empty_answers_does_not_pause() -> None:
    """L8: nor does an older one of a store that says that something is there."""
    controller = machine(capacity=8)
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.wake(1.1, BOOT, 6, "trigger")
    assert controller.received(1.2, 1, 0, visible=3) == []
    assert controller.received(1.3, 2, 0, visible=3) == [SendMore(3)]
    assert controller.deadline() == pytest.approx(2.3)


def test_the_depth_told_is_the_newest_known() -> None:
    """Of a wake at least its size, of an answer what it left, of one that was short nothing."""
    controller = machine()
    for size, depth in ((3, 3), (2, 3), (9, 9)):
        controller.wake(1.0, BOOT, size, "trigger", size)
        assert controller.depth == depth
    controller.received(1.1, 1, 4, visible=None)
    assert controller.depth == 9, "a full batch says nothing of what is left"
    controller.room(1.2, 4)
    controller.received(1.3, 2, 3, visible=None)
    assert controller.depth == 0
    controller.wake(1.4, None, 0, "more", 2)
    controller.received(1.5, 3, 1, visible=6)
    assert controller.depth == 6


def test_carried_messages_change_the_depth_only_while_a_look_is_owed() -> None:
    """O7: the wake that brought all of its messages says nothing of others."""
    controller = machine(capacity=8, own=True)
    assert controller.wake(1.0, BOOT, 5, "trigger", 2, carried=2, free=6)[-1] == SendStarted(BOOT, 5)
    assert (controller.depth, controller.free, controller.advertised_room.free) == (0, 6, 6)
    controller.wake(1.1, BOOT, 6, "trigger", 5)
    assert controller.wake(1.2, BOOT, 7, "trigger", 1, carried=1, free=5) == [TellWork("trigger"), SendStarted(BOOT, 7)]
    assert controller.depth == 5
    assert controller.beat(2.2)[2] == pytest.approx(1.0), "a receive that was answered by push began when it came"
    controller.wake(2.3, BOOT, 8, "trigger", 3, carried=2, free=3)
    assert controller.depth == 5


def test_the_last_slot_is_told_and_then_nothing_is_repeated() -> None:
    """L5: one `more` when it is taken, for whatever else happens while none is free."""
    controller = machine(capacity=1, batch=1)
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.received(1.1, 1, 1, visible=0), SendMore) == [SendMore(0)]
    assert controller.wake(1.2, None, 0, "more") == [SendMore(1, unannounced=True)]
    for event in (controller.tick(1.3), controller.room(1.4, 0), controller.settled(1.5)):
        assert event == []


def test_slots_that_come_with_a_carried_wake_pay_the_look_that_is_owed() -> None:
    """O7: it may tell of handlers that ended, and the receive that begins then is as old as the wake."""
    controller = machine(own=True)
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.received(1.1, 1, 4, visible=3)
    assert controller.state is State.FULL
    commands = controller.wake(2.0, BOOT, 6, "trigger", 1, carried=1, free=2)
    assert only(commands, StartReceive) == [StartReceive(2, 2, "trigger")]
    assert only(controller.received(2.5, 2, 0), SendCover) == [SendCover(BOOT, 6, 0.5, None)]


def test_a_depth_of_nothing_is_worth_the_least_of_receives() -> None:
    """The scaling rule is asked with 0 where nothing is known to wait."""
    controller = bare(9, scaling=StepScaling(((1, 1),), 3))
    assert len(controller.wake(1.0, None, 0, "poll")) == 3
    for rid in (1, 2):
        controller.received(1.1, rid, 0, visible=0)
    controller.failed(1.2, 3)
    assert len(only(controller.tick(5.0), StartReceive)) == 1


def test_no_newer_receive_than_the_rule_allows() -> None:
    """L2: beside a fresh one only as many as the depth is worth."""
    controller = machine(capacity=20, batch=4, tasks=3)
    assert len(only(controller.wake(1.0, BOOT, 5, "trigger", 8), StartReceive)) == 2
    assert only(controller.room(1.1, 20), StartReceive) == []
    controller.wake(1.2, None, 0, "more", 12)
    assert len(controller.receives) == 3


def test_a_receive_that_began_with_the_last_heartbeat_is_news() -> None:
    """B5: it may have begun after that heartbeat was made up; named once too often costs nothing."""
    controller = machine()
    controller.beat(2.0)
    controller.wake(2.0, BOOT, 5, "trigger")
    controller.received(2.5, 1, 0)
    assert controller.beat(7.0)[2] == 5.0
    assert controller.beat(12.0)[2] is None


def test_room_is_what_a_heartbeat_says_it_is() -> None:
    """S2: slots that are neither busy nor reserved, none while the store fails or after a stop."""
    controller = machine(capacity=6)
    controller.wake(1.0, BOOT, 5, "trigger")
    assert controller.beat(1.1) == (5, 0, pytest.approx(0.1), 2)
    controller.received(1.2, 1, 3)
    assert controller.beat(1.3) == (5, 5, None, 3)
    controller.stop(1.4)
    assert controller.beat(1.5)[3] == 0


def test_the_bridges_numbers_reach_every_timer() -> None:
    """T, S and w, the fleet's size and its latency."""
    numbers = Periods(sweep_s=10.0, slack_s=4.0, spread_s=2.0)
    machine().tune(0.0, numbers, 1000, 0.05)
    controller = machine(deadman=True)
    controller.tune(20.0, numbers, 1000, 0.05)
    assert controller.deadman.deadline() == 20.0 + 15.0 + 25.0, "1.1 T + S + half of 1000 x 50 ms"
    controller.tune(20.0, numbers, 10, 0.05)
    assert controller.deadman.deadline() == 20.0 + 15.0 + 1.0, "w = 2 s at least"
    controller.wake(21.0, BOOT, 5, "trigger")
    cover = only(controller.received(21.1, 1, 0, count=3), SendCover)
    assert cover == [SendCover(BOOT, 5, pytest.approx(0.1), None)], "T = 10 s comes before any other look"


def test_a_new_session_begins_anew() -> None:
    """The hello told the whole capacity; a `started` owed to the old session is not said in the new one."""
    controller = machine()
    controller.wake(1.0, BOOT, 5, "trigger")
    assert only(controller.wake(1.1, BOOT, 6, "trigger"), SendMore) == [SendMore(1)]
    assert controller.welcomed(1.2, BOOT, 4) == [SendMore(1)], "what was said in the old session does not stand"
    assert controller.gen == 6
    assert controller.received(1.3, 1, 0) == [StartReceive(2, 4, "trigger")]
    controller.failed(1.4, 2)
    assert controller.welcomed(1.5, BOOT, 7) == [SendMore(0)], "a store that fails has no room for the new bridge"
    assert controller.gen == 7
    assert controller.deadline() == pytest.approx(2.4)


def test_an_answer_and_its_cover_tell_the_dead_man() -> None:
    """L10: our own cover counts from the moment at which its receive began."""
    controller = machine(deadman=True)
    controller.wake(50.0, BOOT, 5, "trigger")
    controller.received(59.0, 1, 0)
    assert controller.deadline() == 50.0 + 101.0


def test_an_older_cover_is_kept_and_not_said() -> None:
    """B7: it would make the bridge ask again; but what it proves is remembered."""
    controller = machine(capacity=8)
    controller.wake(1.0, BOOT, 5, "trigger")
    controller.wake(1.1, BOOT, 6, "trigger")
    assert controller.received(1.2, 1, 0) == []
    assert (controller.covered_gen, controller.owed) == (5, True)
    assert only(controller.received(1.3, 2, 0), SendCover) == [SendCover(BOOT, 6, pytest.approx(0.2), None)]
    # The newest first: the older one comes to nothing.
    controller.wake(2.0, BOOT, 7, "trigger")
    controller.wake(2.1, BOOT, 8, "trigger")
    assert only(controller.received(2.2, 4, 0), SendCover) == [SendCover(BOOT, 8, pytest.approx(0.1), None)]
    assert controller.received(2.3, 3, 0) == []
    assert (controller.covered_gen, controller.state) == (8, State.IDLE)
