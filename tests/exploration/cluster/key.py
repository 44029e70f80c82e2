"""When two moments of two bridges are the same.

Moments of words and marks are only compared with each other (C4): of a word counts when it was sent, not its number,
and what is older than the oldest mark there is proves nothing any more.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

from queuebell.bridge.contract.cluster import Covered
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import EmptyReceive
from queuebell.bridge.core.cluster import coordinator
from queuebell.bridge.core.cluster.capacity import FULL_FOR_S, REPORT_EVERY_S, CapacityReports
from queuebell.bridge.core.cluster.coordinator import EARLY_S, Coordinator, EmptyReceiveReport, _Queue
from queuebell.bridge.core.cluster.members import SILENT_S, SINCE_MAX_MS, Members, Peer
from queuebell.bridge.core.cluster.wake_requests import WakeRequests, proven_until
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.sessions import Session, SessionQueue
from tests.exploration.cluster.world import ANYWHERE, QUEUE, SILENT, World
from tests.exploration.key import Keys

# Private: `_duplicates`, `_seen`: two states are equal only if all fields of the rules are.

START_ACK_S = SILENT.start_ack_s
OLD_S = -12.0
"""What is older than any wait of a world is as old as can be."""


class _BridgeKeys(Keys):
    """Makes the part of one bridge, with the listeners that are with it: its generations are nobody else's."""

    _fields: ClassVar[dict[type, list[tuple[str, str | None]]]] = {}

    def __init__(self, world: World, entry: int, floor: float) -> None:
        self._world = world
        self._place = entry
        self._floor = floor
        self._bell = world.bells[entry]
        self._shown = self._marks(world)
        super().__init__(world.now, self._bell)
        for worker in world.workers:
            if worker.home == entry:
                self._worker(worker)

    def _marks(self, world: World) -> WakeRequests | None:
        kept = world.turns(self._place).queues.get(QUEUE)
        return None if kept is None else kept.requests

    def _time(self, at: float | None) -> None:
        super()._time(None if at is None else max(self._world.real(self._place, at), self._now + OLD_S))

    def _moment(self, at: float | None) -> None:
        self._out.append(None if at is None else round(max(at, self._floor) - self._now, 3))

    def _since(self, at: float, least: float) -> None:
        self._out.append(round(max(at - self._world.clock(self._place), least), 3))

    @classmethod
    def _learn(cls, kind: type, thing: Any) -> list[tuple[str, str | None]]:
        fields = [field for field in super()._learn(kind, thing) if (kind, field[0]) not in SKIPPED]
        cls._fields[kind] = fields
        return fields

    def _learned(self, gen: int) -> float | None:
        return None if self._shown is None else self._shown.known_since(gen)

    def _worker(self, worker: Any) -> None:
        out = self._out
        here = worker.boot == self._bell.boot
        out.append(here)
        if here:
            self._gen(worker.gen)
            learned = self._learned(worker.gen)
            # A look that begins later begins by so much after the generation was shown.
            out.append(None if learned is None else round(worker.learned - learned, 3))
            self._moment(learned)
        receive = worker.receive
        if receive is not None and receive.boot == self._bell.boot:
            self._gen(receive.gen)
            learned = self._learned(receive.gen)
            self._moment(None if learned is None else learned + receive.after_s)
        self._walk(worker.inbox)
        self._walk(worker.outbox)

    def _object(self, thing: Any) -> None:
        super()._object(thing)
        now = self._world.now
        if isinstance(thing, EmptyReceive):
            learned = self._learned(thing.gen)
            self._moment(None if learned is None else learned + thing.after_ms / 1000)
        elif isinstance(thing, EmptyReceiveReport):
            self._moment(thing.begun_at)
        elif isinstance(thing, _Queue):
            self._since(thing.full_at, -coordinator.FULL_AGAIN * START_ACK_S)
            self._since(thing.reported_at, -REPORT_EVERY_S)
        elif isinstance(thing, WakeRequests):
            for name, at in sorted(thing.named.items()):
                self._out.append(name)
                self._moment(max(at, now + OLD_S))
            self._out.append(None)
            for at in thing.unnamed or ():
                self._moment(max(at, now + OLD_S))
            for name, gen in thing.names:
                self._out.append(name)
                self._gen(gen)
        elif isinstance(thing, Members):
            heard = thing.newest_returned
            self._out.append(heard is None or heard[0] < thing.min_returned_seq)
            self._out.append(None if heard is None else round(max(heard[1] - now, -SILENT_S - 0.5), 3))
        elif isinstance(thing, Peer):
            origin = next((b for b in range(2) if self._world.bells[b].boot == thing.boot), None)
            sent = None if origin is None else self._world.turns(origin).members.sent_at(thing.member.seq)
            self._out += [thing.member.leaving, None if sent is None else round(max(sent - now, -SILENT_S), 3)]
            for queue, (until, v) in sorted(thing.possible_leases.items()):
                if until > now:
                    self._out += [queue, round(until - now, 3), v]
        elif isinstance(thing, CapacityReports):
            for at in thing.reported_at.values():
                self._since(at, -REPORT_EVERY_S)
            for at in thing.full_since.values():
                self._since(at, -FULL_FOR_S)
        elif isinstance(thing, Coordinator):
            self._since(thing.sent_at, -REPORT_EVERY_S)
            self._out.append(None if thing.due_at is None else round(thing.due_at - self._world.clock(self._place), 3))
            for name in self._names():
                known = thing.settled_early.get(name)
                self._out.append(known is not None and now - self._world.real(self._place, known[1]) <= EARLY_S)
                self._out.append(name in self._bell._duplicates._seen)

    def _names(self) -> list[tuple[str, str]]:
        coming = [
            event for event in self._world.links[ANYWHERE, self._place] if isinstance(event, CloudQueueWorkDetected)
        ]
        names = {(event.source, event.id) for event in coming if event.source and event.id}
        source = "producer" if self._world.plan.named else "bridge"
        names |= {(source, f"{m.number}") for m in self._world.messages if m.state == "unborn"}
        names |= {(source, f"{m.number - 1}") for m in self._world.messages if m.state == "unborn" and m.delay_s}
        return sorted(names)


def key(world: World) -> Hashable:
    now = world.now
    marks = [
        moment
        for entry in {0, 1} - world.down
        for kept in world.turns(entry).queues.values()
        if (moment := kept.requests.oldest()) is not None
    ]
    floor = max(min([*marks, now]) - 0.1, now + OLD_S)
    parts: list[Hashable] = [
        None if entry in world.down else _BridgeKeys(world, entry, floor).key() for entry in range(2)
    ]
    parts.append(
        tuple(
            (m.state, round(m.visible_at - now, 3) if m.state in ("leased", "delayed") and not world.held(m) else None)
            for m in world.messages
        )
    )
    parts.append(
        tuple(
            (w.alive, w.home, w.session, w.owed, w.holds, w.room, w.receive and (w.receive.found,))
            for w in world.workers
        )
    )
    parts.append(tuple(sorted(world.left.items())))
    parts.append(
        (tuple(sorted(world.down)), tuple(sorted(world.leaving)), tuple(sorted(world.deaf)), len(world.dropped))
    )
    for (source, target), link in sorted(world.links.items()):
        parts.append((source, target, *(_word(world, target, what, floor) for what in link)))
    parts.append(
        tuple((source, target, _word(world, target, what, floor)) for source, target, what in world.late_words)
    )
    return tuple(parts)


def _word(world: World, target: int, what: Any, floor: float) -> Hashable:
    if isinstance(what, CloudQueueWorkDetected):
        return (what.id, what.source, what.not_before_ms)
    if isinstance(what, Covered):
        proven = None
        heard = what.heard.get(world.bells[target].boot)
        if heard is not None and what.begun_age_ms is not None and heard[1] <= SINCE_MAX_MS:
            sent = world.turns(target).members.sent_at(heard[0])
            proven = None if sent is None else proven_until(sent, heard[1], what.begun_age_ms)
        moment = None if proven is None else round(max(proven, floor) - world.now, 3)
        return (what.boot, what.store, moment, what.ids, what.next_visible_in_ms)
    if hasattr(what, "queues"):
        return (
            what.boot,
            what.whole,
            *sorted((q, a and (a.room, a.visibility_ms, a.store)) for q, a in what.queues.items()),
        )
    return (what.boot, what.leaving, what.full)


SKIPPED = {(Session, "last_heard"), (SessionQueue, "woken_at"), (SessionQueue, "stuck_at"), (PendingWork, "started_at")}
"""Only read when a heartbeat comes, and there is none."""
