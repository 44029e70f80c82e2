"""The bridge's rules with somebody watching: what comes in and what they owe is told, and nothing of it changed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from queuebell.bridge.contract.cluster import ClusterMessage, Covered, Name
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import EmptyReceive, ListenerHeartbeat, UpFrame, Wake
from queuebell.bridge.core.cluster.coordinator import Coordinator
from queuebell.bridge.core.commands import Command
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.facts import DuplicateDropped, SettledByPeer

if TYPE_CHECKING:
    from tests.simulation.process import Host
    from tests.simulation.world import World

# Private: `_queues`: the true state, for the checks.

_BORN = (0, False)
"""How a queue stands that was only heard of."""


def watched(world: World, host: Host) -> type[WakeScheduler]:
    class Watched(world.scheduler):  # type: ignore[name-defined,misc]
        _told: dict[str, tuple[int, bool]]

        def trigger(
            self,
            now: float,
            event: CloudQueueWorkDetected,
            bus: str,
            *,
            redelivered: bool = False,
            count: int = 1,
            shared: bool = False,
        ) -> None:
            queue, facts = event.queue, len(self.dispatch.facts)
            work = self.pending.find(queue)
            before = 0 if work is None else work.gen
            super().trigger(now, event, bus, redelivered=redelivered, count=count, shared=shared)
            work = self.pending.find(queue)
            assert work is not None
            # Own queues are marked by their store, and what is due later by its time: both are merged all the same.
            merged = (
                bool(event.not_before_ms)
                or work.own
                or event.id in self.__dict__.pop("_born_forgiven", ())
                or any(isinstance(fact, DuplicateDropped) for fact in self.dispatch.facts[facts:])
            )
            world.emit("triggered", queue, before, work.gen, merged)

        def frame(self, now: float, number: int, frame: UpFrame) -> None:
            if isinstance(frame, EmptyReceive):
                if self.coordinator is None or frame.boot == self.boot:
                    world.emit("cover_heard", frame.queue, frame.boot, frame.gen)
            elif isinstance(frame, ListenerHeartbeat):
                for queue, beat in frame.queues.items():
                    if beat.covered:
                        world.emit("cover_heard", queue, self.boot, beat.covered)
            if world.desk is not None:
                world.desk.used(number)
            super().frame(now, number, frame)

        def take(self, now: float, number: int) -> list[Wake]:
            session = self.sessions.get(number)
            places = [] if session is None else list(session.queues.values())
            for place in places:
                if place.slot is not None and place.slot.messages is not None:
                    world.holds("carried", len(place.slot.messages), place.capacity)
            wakes: list[Wake] = super().take(now, number)
            world.holds("wakes", len(wakes), len(places))
            if wakes and world.desk is not None:
                world.desk.used(number)
            return wakes

        def commands(self) -> list[Command]:
            told: dict[str, tuple[int, bool]] = self.__dict__.setdefault("_told", {})
            for queue, work in self.pending.by_queue.items():
                stands = (work.gen, work.dirty)
                if told.get(queue, _BORN) != stands:
                    told[queue] = stands
                    paid = any(isinstance(fact, SettledByPeer) and fact.queue == queue for fact in self.dispatch.facts)
                    world.emit("marked", queue, self.boot, work.gen, work.dirty, paid)
            commands: list[Command] = super().commands()
            return commands

        def join(self, **about: str | None) -> Coordinator:
            turns: Coordinator = super().join(**about)
            _watch_turns(world, host, self.boot, turns, self)
            return turns

    return Watched


def _watch_turns(world: World, host: Host, boot: str, turns: Coordinator, scheduler: Any) -> None:
    """Hold what a peer's word forgives against the truth: when marks were made, and when receives began."""
    kernel = world.kernel
    hear, marked, early = turns.on_message, turns.on_wake_request, turns.already_settled
    made: dict[str, dict[Name | None, float]] = {}
    """By queue and name, None for marks that none can be told by: when the newest was made."""

    def told(queue: str, by: Literal["name", "time", "cover"], at: float) -> None:
        world.emit("forgiven", queue, boot, by, at, world.emptied.get(queue, -math.inf))

    def noted(work: PendingWork, now: float, name: Name | None, *, shared: bool, fresh: bool) -> None:
        of_queue = made.setdefault(work.queue, {})
        if name is not None:
            world.named_at.setdefault((boot, work.queue, name), kernel.now)
        marked(work, now, name, shared=shared, fresh=fresh)
        of_queue[name if name in _owed(turns, work.queue)[0] else None] = kernel.now

    def judged(now: float, word: ClusterMessage) -> None:
        if not isinstance(word, Covered) or word.boot == boot:
            hear(now, word)
            return
        queue = word.queue
        work = scheduler.pending.find(queue)
        before, bare = _owed(turns, queue)
        covered = None if work is None else work.found_empty_at
        hear(now, word)
        after, still = _owed(turns, queue)
        of_queue = made.setdefault(queue, {})
        for name in sorted(before - after):
            own = of_queue.pop(name, kernel.now)
            if name in word.ids:
                told(queue, "name", world.named_at.get((word.boot, queue, name), math.inf))
            else:
                told(queue, "time", own)
        if bare and not still:
            told(queue, "time", of_queue.pop(None, kernel.now))
        if work is not None and work.found_empty_at is not None and work.found_empty_at != covered:
            told(queue, "cover", host.true(work.found_empty_at))

    def born(now: float, name: Name, queue: str) -> bool:
        paid = early(now, name, queue)
        if paid:
            scheduler.__dict__["_born_forgiven"] = (name[1],)
            told(queue, "name", min(at for (_, *known), at in world.named_at.items() if known == [queue, name]))
        return paid

    # Put in the instance's place, for whoever plants a wrong turn brings a class of its own.
    turns.on_message, turns.on_wake_request, turns.already_settled = judged, noted, born  # type: ignore[method-assign]


def _owed(turns: Coordinator, queue: str) -> tuple[set[Name], bool]:
    """Return the names of the marks that stand, and whether there is one without."""
    kept = turns._queues.get(queue)
    return (set(), False) if kept is None else (set(kept.requests.named), kept.requests.unnamed is not None)
