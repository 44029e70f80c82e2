"""The bridge's rules with somebody watching: what comes in and what they owe is told, and nothing of it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import Cover, ListenerHeartbeat, UpFrame, Wake
from bridge.core.bell import Bell
from bridge.core.commands import Command
from bridge.observe.facts import DuplicateDropped
from queuebell.simulation.events import CoverHeard, Marked, Triggered

if TYPE_CHECKING:
    from queuebell.simulation.world import World

_BORN = (0, False)
"""How a queue stands that was only heard of."""


def watched(world: World) -> type[Bell]:
    """Return the world's rules, watched."""
    kernel = world.kernel

    class Watched(world.bell):  # type: ignore[name-defined,misc]
        """Tells triggers, covers and marks."""

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
            """Tell whether a trigger raised the generation."""
            queue, facts = event.queue, len(self.dispatch.facts)
            debt = self.ledger.find(queue)
            before = 0 if debt is None else debt.gen
            super().trigger(now, event, bus, redelivered=redelivered, count=count, shared=shared)
            debt = self.ledger.find(queue)
            assert debt is not None
            # Own queues are marked by their store, and what is due later by its time: both are merged all the same.
            merged = (
                bool(event.not_before_ms)
                or debt.own
                or any(isinstance(fact, DuplicateDropped) for fact in self.dispatch.facts[facts:])
            )
            world.emit(Triggered(kernel.now, queue, before, debt.gen, merged))

        def frame(self, now: float, number: int, frame: UpFrame) -> None:
            """Tell covers, also those that a heartbeat repeats."""
            if isinstance(frame, Cover):
                world.emit(CoverHeard(kernel.now, frame.queue, frame.boot, frame.gen))
            elif isinstance(frame, ListenerHeartbeat):
                for queue, beat in frame.queues.items():
                    if beat.covered:
                        world.emit(CoverHeard(kernel.now, queue, self.boot, beat.covered))
            if world.desk is not None:
                world.desk.used(number)
            super().frame(now, number, frame)

        def take(self, now: float, number: int) -> list[Wake]:
            """Count what is held for a session."""
            session = self.sessions.get(number)
            places = [] if session is None else list(session.seats.values())
            for place in places:
                if place.slot is not None and place.slot.messages is not None:
                    world.holds("carried", len(place.slot.messages), place.capacity)
            wakes: list[Wake] = super().take(now, number)
            world.holds("wakes", len(wakes), len(places))
            if wakes and world.desk is not None:
                world.desk.used(number)
            return wakes

        def commands(self) -> list[Command]:
            """Tell what is owed now."""
            told: dict[str, tuple[int, bool]] = self.__dict__.setdefault("_told", {})
            for queue, debt in self.ledger.debts.items():
                stands = (debt.gen, debt.dirty)
                if told.get(queue, _BORN) != stands:
                    told[queue] = stands
                    world.emit(Marked(kernel.now, queue, debt.gen, debt.dirty))
            commands: list[Command] = super().commands()
            return commands

    return Watched
