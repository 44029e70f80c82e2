"""A bridge whose queue service works on an engine believes no listener that says `own` (O0)."""

from __future__ import annotations

import functools

from bridge.contract.wire import BridgeHeartbeat, Cover, ErrorFrame, ListenerHeartbeat, QueueBeat
from bridge.core.bell import Bell
from tests.support.bells import BOOT, QUEUE, Rig

T = 60.0


def engine(queue: str) -> str:
    return f"e{len(queue)}"


class EngineRig(Rig):
    def __init__(self) -> None:
        super().__init__(sweep_s=T, bell=functools.partial(Bell, engine=engine))  # type: ignore[arg-type]


def test_a_queue_of_whom_says_own_is_swept_and_its_dead_man_told_the_truth() -> None:
    """Covered once, the queue is as old as that cover for every heartbeat, and a sweep looks again."""
    rig = EngineRig()
    session = rig.join(own=True, accept=True, store="aa")
    (wake,) = rig.wakes(session)
    rig.say(session, Cover(QUEUE, BOOT, wake.gen, 0, own=True, store="aa"))
    assert not rig.debt().dirty
    (seat,) = rig.debt().seats
    assert (seat.own, seat.accepts, seat.store) == (False, False, engine(QUEUE))
    rig.now += 40
    rig.frames[session].clear()
    rig.say(session, ListenerHeartbeat(7, {QUEUE: QueueBeat()}))
    (beat,) = [frame for frame in rig.frames[session] if isinstance(frame, BridgeHeartbeat)]
    assert beat.queues[QUEUE].covered_age_ms == 40_000
    assert rig.bell._agenda.when(("sweep", QUEUE)) is not None


def test_a_trigger_for_whom_says_own_is_a_wake() -> None:
    """On an own queue the store's level would tell; here only the trigger does."""
    rig = EngineRig()
    session = rig.join(own=True)
    (wake,) = rig.wakes(session)
    rig.cover(session, wake.gen)
    rig.trigger()
    assert [each.reason for each in rig.wakes(session)][-1:] == ["trigger"]


def test_whoever_comes_by_any_address_and_by_the_engines_own_listen_together() -> None:
    """Two addresses of bridges and the engine's name the same queue; another store is refused as ever (B11)."""
    rig = EngineRig()
    rig.join(own=True, store="aa")
    rig.join(own=True, store="bb")
    third = rig.join(store=engine(QUEUE))
    assert third not in rig.ended
    other = rig.join(store="cc")
    (refused,) = [frame for frame in rig.frames[other] if isinstance(frame, ErrorFrame)]
    assert refused.code == "store_mismatch"
