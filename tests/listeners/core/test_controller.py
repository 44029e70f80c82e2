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
from listeners.core.hard_look import HardLook
from listeners.core.scaling import DepthScaling
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


@pytest.mark.parametrize("limits", WORLDS.values(), ids=WORLDS.keys())
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
    (BlockedIsEmpty, Limits(failures=0, leased=1, depth=False)),
]


@pytest.mark.parametrize(("mutant", "limits"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_the_exploration_catches_a_mutant(mutant: type[Controller], limits: Limits) -> None:
    """Each known wrong turn, planted in the real machine, is found, with a story that shows it."""
    with pytest.raises(Broken, match="story: "):
        explore(limits, mutant)


# Rules by example -----------------------------------------------------------------------------------------------------


def machine(
    capacity: int = 4, batch: int = 4, *, own: bool = False, deadman: bool = False, tasks: int = 1
) -> Controller:
    """Return a machine that a bridge of boot `BOOT` has welcomed at 0 s."""
    controller = Controller(
        capacity,
        batch,
        scaling=DepthScaling(batch, 1, tasks),
        polls=RandomExponential(1.0, 30.0, 1.0),
        retries=RandomExponential(1.0, 30.0, 1.0),
        draw=lambda: 0.5,
        deadman=DeadMan(0.0, lambda: 0.5) if deadman else None,
        own=own,
    )
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
    assert only(commands, SendCover, SendRoom) == [SendCover(BOOT, 6, pytest.approx(0.1), None), SendRoom(4, 6)]


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
    assert only(controller.received(1.3, 2, 0), SendCover) == [SendCover(BOOT, 5, pytest.approx(0.1), None)]
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


def test_the_hard_look_comes_however_much_cover_is_heard() -> None:
    """T_hard: a bridge that claims coverage that did not happen silences the dead-man, never this."""
    controller = machine(deadman=True)
    controller.hard_look = HardLook(0.0, lambda: 0.5, 300.0)
    for second in range(5, 150, 5):
        controller.covered_elsewhere(second)
        assert only(controller.tick(second), StartReceive) == []
    controller.covered_elsewhere(149.0)
    assert controller.deadline() == 150.0
    assert only(controller.tick(150.0), StartReceive) == [StartReceive(1, 4, "deadman")]
    controller.received(150.2, 1, 0)
    assert controller.hard_look.deadline() == 450.0
    controller.wake(200.0, BOOT, 5, "trigger")
    assert controller.hard_look.deadline() == 500.0, "a receive that a wake began is a look too"


def test_both_timers_at_once_make_one_look() -> None:
    """A dead-man and a hard look that are due in the same tick cost one receive."""
    controller = machine(deadman=True)
    controller.hard_look = HardLook(0.0, lambda: 0.5, 200.0)
    assert len(only(controller.tick(101.0), StartReceive)) == 1
    controller.received(101.1, 1, 0)
    deadline = controller.deadline()
    assert deadline is not None and deadline > 190.0


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
        SendCover(BOOT, 5, pytest.approx(0.1), None),
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
        controller = Controller(1, 1, scaling=DepthScaling(1), polls=slow, retries=slow, draw=lambda: 0.0)
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


def test_the_dead_man_and_the_hard_look_are_off_in_pull_only() -> None:
    """L9: who polls anyway needs neither."""
    controller = Controller(
        1,
        1,
        scaling=DepthScaling(1),
        polls=RandomExponential(),
        retries=RandomExponential(),
        draw=lambda: 0.5,
        deadman=DeadMan(0.0, lambda: 0.5),
        hard_look=HardLook(0.0, lambda: 0.5, 300.0),
    )
    controller.pull_only(0.0)
    assert controller.deadline() is None


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
