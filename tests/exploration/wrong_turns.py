"""The register of wrong turns: each is planted in the real rules, and each has a world in which a property breaks.

The numbers are those of docs/explanation/verification.md.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from queuebell.bridge.contract.backoff import RandomExponential
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.pool import Place, Share, Sharing
from queuebell.listeners.wake.receive_scaling import DepthScaling
from queuebell.listeners.wake.table import Command, SendMore, SendRoom, StartReceive
from tests.exploration import mutants
from tests.exploration.explore import Failure, Trial, WrongTurn, explored, turn, walks
from tests.exploration.plan import Plan, planned, small
from tests.exploration.stories import (
    AT_LEAST,
    AT_MOST,
    FLEET,
    FULL_OWNER,
    GOES_ROUND,
    HUNG_OWNER,
    SWEEP_S,
    met_after,
    receives,
    rounds,
)  # fmt: skip
from tests.support.bells import QUEUE, Rig


def _walked(plan: Plan, planted: dict[str, Any]) -> Trial:
    """A world too deep for breadth first: the mutant breaks in some of the seeds, the unmodified rules in none."""
    return Trial(_walk, plan, replace(plan, **planted), ((400,), (100,)))


def _walk(plan: Plan, seeds: int) -> str | None:
    try:
        told = walks(plan, range(seeds), chaos=40)
    except Failure as failure:
        return failure.rule
    return None if told.steps >= seeds * 40 else f"cut off after {told.steps} steps"


def _hears_in_time(scheduler: type[WakeScheduler]) -> str | None:
    """B4: the first session hangs and a trigger comes every second; the second hears within A and a round."""
    rig = Rig(scheduler=scheduler)
    first, second = rig.join(capacity=1), rig.join(capacity=1)
    rig.settle_hello(first)
    rig.trigger()
    hanging = first if rig.work().owner == first else second
    other = second if hanging == first else first
    rig.wakes(first)
    rig.wakes(second)
    began = rig.now
    for _ in range(60):
        rig.wait(1.0)
        rig.beat(hanging)
        rig.beat(other)
        rig.trigger()
        if rig.wakes(other):
            return None if rig.now - began <= 3.0 else "late"
    return "LOST"


def _a_mark_while_owned_is_heard(scheduler: type[WakeScheduler]) -> str | None:
    """Trigger while the owner's receive is in flight, and lose its cover: it must hear of the newer generation."""
    rig = Rig(scheduler=scheduler)
    owner = rig.join()
    rig.settle_hello(owner)
    rig.trigger()
    (gen,) = rig.gens(owner)
    rig.started(owner, gen)
    rig.trigger()
    for _ in range(4):
        if any(newer > gen for newer in rig.gens(owner)):
            return None
        rig.wait(2.0)
        rig.beat(owner, gen=gen, covered=gen, free=32)
    return "LOST"


def _an_old_cover_settles_nothing(scheduler: type[WakeScheduler]) -> str | None:
    """Forget a queue, meet it anew, and let a cover arrive that was begun before."""
    rig = Rig(scheduler=scheduler)
    first = rig.join()
    rig.settle_hello(first)
    old = rig.work().gen
    for _ in range(5):  # idle for so long that its end leaves no timer (B8), or the queue could not be forgotten
        rig.wait(4.0)
        rig.beat(first, gen=old, covered=old, free=32)
    # A look of the listener's own (L6) begins here, knowing of `old`; then its connection breaks.
    rig.lose(first)
    rig.scheduler.pending.forget(QUEUE)
    assert rig.scheduler.pending.find(QUEUE) is None
    rig.trigger()
    again = rig.join()
    rig.deaf.add(again)
    rig.cover(again, old)
    return None if rig.work().dirty else "I3"


def _hears_of_a_rise(scheduler: type[WakeScheduler]) -> str | None:
    """Empty and filled again within one commit, whose empty answer one of two went idle on: it must be woken."""
    rig = Rig(scheduler=scheduler)
    full, idle = rig.join(own=True, capacity=1), rig.join(own=True, capacity=1)
    rig.more(full)
    rig.level(1, rose=True, put=1)
    (gen,) = rig.gens(idle)
    rig.started(idle, gen)
    rig.level(1, rose=True, put=1)
    rig.cover(idle, gen)
    rig.wait(4.0)
    return None if rig.wakes(idle) else "LOST"


def _sweeps_in_time(plan: Plan) -> str | None:
    """B9: an idle queue elsewhere is looked at at least once in 1.1 T, and hardly more often."""
    seen = rounds(plan, hours=1.0).seen
    gap = max(after - before for before, after in pairwise(seen))
    if gap > 1.1 * SWEEP_S:
        return f"{gap:.1f} s between two receives"
    return None if AT_LEAST <= len(seen) <= AT_MOST else "I2"


def _deadlines_move_forward(plan: Plan) -> str | None:
    """L10: news of coverage may come late, and then changes nothing."""
    seen = rounds(plan, hours=0.25)
    if not seen.forward:
        return "no deadline moved at all"
    return f"{seen.back} deadlines moved back" if seen.back else None


def _a_hung_owner_gives_way(plan: Plan) -> str | None:
    """L5, S2: the owner's receives all hang and its first `more` is lost: the second tells."""
    return None if met_after(plan) <= 2 * plan.periods.store_call_s + 1.0 else "late"


def _a_full_owner_gives_way(plan: Plan) -> str | None:
    """S2: the owner is full and its `more` is lost: a heartbeat tells, the second if the first names a receive."""
    return None if met_after(plan) <= 2 * plan.periods.heartbeat_s else "late"


def _a_crossing_proves_nothing(scheduler: type[WakeScheduler]) -> str | None:
    """B8: the wake repeats a known generation and crosses an idle heartbeat; when the worker dies, a timer runs."""
    rig = Rig(scheduler=scheduler)
    session = rig.join(capacity=1)
    rig.settle_hello(session)
    rig.trigger()
    gen = rig.work().gen
    rig.wait(2.0)
    rig.beat(session, free=1, gen=gen)
    rig.lose(session)
    return None if "lease" in rig.work().due else "LOST"


PROMPT = {"messages": 2, "capacity": 2, "patience_s": 0.0}
"""No timer may be needed at all."""


def _bell(planted: type[WakeScheduler], name: str, **fields: object) -> Trial:
    return explored(small(name, **fields), {"scheduler": planted})


def _controller(planted: type, name: str, **fields: object) -> Trial:
    return explored(small(name, **fields), {"controller": planted})


def _an_empty_queue_stays_cheap(scheduler: type[WakeScheduler]) -> str | None:
    """I2: at most 67 receives in an hour, also where a wake met no slot."""
    return None if AT_LEAST <= len(receives(replace(GOES_ROUND, scheduler=scheduler))) <= AT_MOST else "I2"


FEW_LEASES = planned(name="few leases", messages=3, capacity=2, leased=1, settled=True)
RELEASE = planned(
    name="a release without a slot", listeners=2, messages=3, retry=1, unknown=1, lapse=1, capacity=1, settled=True
)


class _Pooled:
    """A queue of a pool with one slot, and another queue of it that has the slot."""

    def __init__(self, controller: type[Controller]) -> None:
        self.sharing = Sharing(1)
        self.other, self.place = (self.sharing.join(f"a/{name}", Share()) for name in ("other", "one"))
        backoff = RandomExponential()
        self.controller = controller(
            1,
            1,
            scaling=DepthScaling(1, 1, 1),
            polls=backoff,
            retries=backoff,
            draw=lambda: 0.5,
            own=True,
            place=self.place,
        )
        self.controller.welcomed(0.0, "b", 1)
        self.others(1)

    def others(self, running: int) -> list[Command]:
        """Let the other queue run so many handlers, and whoever is granted a slot by that look."""
        controller = self.controller
        self.other.runs(running)
        self.sharing.update(self.other, 0, 0)
        self.sharing.update(self.place, controller.reserved, controller.wants(), waits=controller.waits_in_turn)
        return controller.room(2.0, 1) if self.sharing.next() is self.place else []


def _a_slot_is_looked_with(controller: type[Controller]) -> str | None:
    """A wake meets a full pool: the bridge hears of it at once, and a slot that comes free is looked with."""
    pooled = _Pooled(controller)
    if not any(isinstance(command, SendMore) for command in pooled.controller.wake(1.0, "b", 2, "trigger")):
        return "late"
    return None if any(isinstance(command, StartReceive) for command in pooled.others(0)) else "LOST"


def _room_is_told(controller: type[Controller]) -> str | None:
    """A heartbeat said that there is no room: the bridge hears when there is."""
    pooled = _Pooled(controller)
    pooled.controller.beat(1.0)
    return None if any(isinstance(command, SendRoom) for command in pooled.others(0)) else "LOST"


def _an_older_receive_covers_nothing(controller: type[Controller]) -> str | None:
    """Two receives are in flight, one from before the newest wake."""
    backoff = RandomExponential()
    machine = controller(8, 4, scaling=DepthScaling(4), polls=backoff, retries=backoff, draw=lambda: 0.5)
    machine.welcomed(0.0, "b", 0)
    for gen in (1, 2):
        machine.wake(float(gen), "b", gen, "trigger")
    return "I3" if machine.received(3.0, 1, 0) else None


def _a_slot_is_had_once(sharing: type[Sharing]) -> str | None:
    """Two queues take what they are granted of one pool."""
    slots = sharing(2)
    for name in ("one", "two"):
        place: Place = slots.join(f"a/{name}", Share())
        slots.update(place, place.grant(0), 0)
    return None if slots.used <= slots.size else "bound"


WRONG_TURNS: tuple[WrongTurn, ...] = (
    turn("V1", _bell(mutants.CheckThenSubscribe, "V1", settled=False, late_joiners=1)),
    # Without the lost frame the `more` of a listener whose one slot is taken makes another mark, which hides it.
    turn("V2", _controller(mutants.SnapshotAfter, "V2", messages=2, lose_up=1, patience_s=2.5)),
    turn("V3", _bell(mutants.WakeAndForget, "V3", lose=1)),
    turn("V4", _bell(mutants.BornClean, "V4", restart=1)),
    turn(
        "V5",
        explored(small("V5"), {"publish_first": True}),
        explored(small("V5, publisher", publication=mutants.Publication), {"publish_first": True}),
    ),
    turn(
        "V6",
        _bell(mutants.DropsWhileOwned, "V6, bridge", **PROMPT),
        _controller(mutants.DropsWhileBusy, "V6, listener", **PROMPT),
    ),
    turn("V7", _bell(mutants.NoTimerAtTheEnd, "V7", crash=1, revive=1)),
    turn("V8", _controller(mutants.StartedOnReceipt, "V8", listeners=2, messages=2, lose=1, patience_s=2.5)),
    turn("V9", _bell(mutants.AnyCover, "V9", **PROMPT)),
    turn("V10", _controller(mutants.HandlersInTheDrain, "V10", **PROMPT)),
    turn(
        "V11", _walked(planned(name="V11", listeners=1, messages=3, settled=True), {"scheduler": mutants.FullUntracked})
    ),
    turn("V12", Trial(_a_mark_while_owned_is_heard, WakeScheduler, mutants.SilentWhileOwned)),
    turn("V13", _controller(mutants.ForgetsUnknown, "V13", unknown=1)),
    turn(
        "V14",
        _bell(mutants.EarlyTimers, "V14, early", delayed=1),
        _bell(mutants.CoversSettleTimers, "V14, settled", messages=2, delayed=1),
    ),
    turn("V15", _bell(mutants.DedupesByBusinessId, "V15", messages=2, business_id="order-1")),
    turn(
        "V16",
        explored(
            small("V16", messages=2, publication=mutants.Publication, patience_s=0.0),
            {"publication": mutants.ClearsAfterAcknowledgement},
        ),
    ),
    turn("V17", _bell(mutants.Inherits, "V17", crash=1, revive=1, patience_s=1.0)),
    turn("V18", _controller(mutants.SharedReceive, "V18", **PROMPT)),
    turn("V19", Trial(_an_old_cover_settles_nothing, WakeScheduler, mutants.GenPerQueue)),
    turn("sweep", Trial(_sweeps_in_time, FLEET, replace(FLEET, scheduler=mutants.SweepsFromTheAttempt))),
    turn("dead-man", Trial(_deadlines_move_forward, FLEET, replace(FLEET, deadman=mutants.BelievesTheNewestNews))),
)

OTHERS: tuple[WrongTurn, ...] = (
    turn("B4", Trial(_hears_in_time, WakeScheduler, mutants.RestartsA)),
    turn("B5", _bell(mutants.StaysBarred, "B5", lose_up=1, messages=2, patience_s=2.5)),
    turn(
        "B8, restart",
        _bell(mutants.BornEmptyHanded, "B8", listeners=1, restart=1, crash=1, revive=1, patience_s=0.0),
    ),
    turn("B8, crossed", Trial(_a_crossing_proves_nothing, WakeScheduler, mutants.BelievesACrossedHeartbeat)),
    turn("L5", Trial(_a_hung_owner_gives_way, HUNG_OWNER, replace(HUNG_OWNER, controller=mutants.SaysMoreOnce))),
    turn("V2, flag", _controller(mutants.FlagCleared, "V2, flag", messages=2, lose_up=1, patience_s=2.5)),
    turn("V9, cover", Trial(_an_older_receive_covers_nothing, Controller, mutants.CoverWithoutSnapshot)),
    turn("L11", _controller(mutants.ForgetsAfterErrors, "L11", error=1)),
    turn("L5, more", _controller(mutants.ForgetsToSayMore, "L5, more", listeners=2, messages=2, patience_s=2.5)),
    turn("L5, room", _controller(mutants.ForgetsToSayRoom, "L5, room", messages=2, patience_s=2.5)),
    turn("L8", _controller(mutants.OneEmptyIsEnough, "L8", miss=1)),
    turn("L8, blocked", _walked(FEW_LEASES, {"controller": mutants.BlockedIsEmpty})),
    turn("S2", Trial(_a_full_owner_gives_way, FULL_OWNER, replace(FULL_OWNER, scheduler=mutants.KeepsTheFullOwner))),
    turn("I2", Trial(_an_empty_queue_stays_cheap, WakeScheduler, mutants.MarksForEvery)),
    turn("L7", _walked(RELEASE, {"scheduler": mutants.MarksForNone})),
    turn("O1, early", explored(small("O1", own=True), {"early_level": True})),
    turn("O1, rise", Trial(_hears_of_a_rise, WakeScheduler, mutants.RiseUnreported)),
    turn("O7", _bell(mutants.NeverReclaims, "O7", own=True, carry=True, cut=1)),
    turn("pool, quiet", Trial(_room_is_told, Controller, mutants.KeepsRoomToItself)),
    turn("pool, debt", Trial(_a_slot_is_looked_with, Controller, mutants.OwesAndDoesNotAsk)),
    turn("pool, turn", Trial(_a_slot_is_looked_with, Controller, mutants.WaitsForHandlers)),
    turn("pool, twice", Trial(_a_slot_is_had_once, Sharing, mutants.GrantsTwice)),
)
