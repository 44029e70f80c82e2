"""The bridge as a running service: it brings what happens to the rules and does what they say.

It decides nothing. It owns one timer, the sessions' outlets, the own store, and the order of stopping:

1. no new triggers and no new sessions (`draining`);
2. every session is told `drain`, and then ended with 1012 (service restart);
3. the store finishes what was handed to it, and is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import random
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from bridge.channel import Outlet
from bridge.contract.errors import BadInput, Closed
from bridge.contract.event import CloudQueueWorkDetected, check_event
from bridge.contract.times import rfc3339
from bridge.contract.wire import CarriedMessage, Drain, UpFrame
from bridge.core.bell import Bell
from bridge.core.commands import Announce, End, Flush, Reclaim, Reread, Send
from bridge.core.own import CARRY_BYTES_MAX
from bridge.core.settings import Periods
from bridge.observe.facts import Fact, Observer
from bridge.observe.metrics import Metrics
from bridge.queue import Claim, StoredMessage
from bridge.queues.own import Grant, Handed, Level, OwnStore

if TYPE_CHECKING:
    from bridge.channels.local import LocalChannel

log = logging.getLogger("queuebell.bridge")

SERVICE_RESTART = 1012
STALLED_RETRY_S = 0.05


class BridgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a bridge works; the numbers of the protocol are in `Periods`."""

    periods: Periods = Periods()
    synchronous: str = "FULL"
    """SQLite's synchronous mode: FULL survives power loss, NORMAL may lose the last commits. Defaults to FULL."""


class BridgeSession:
    """One session as its channel sees it: frames in, and the end."""

    __slots__ = ("_bridge", "number", "outlet")

    def __init__(self, bridge: Bridge, number: int, outlet: Outlet) -> None:
        self._bridge = bridge
        self.number = number
        self.outlet = outlet

    def feed(self, frame: UpFrame) -> None:
        """Take a frame that was decoded and checked; never blocks."""
        self._bridge._feed(self, frame)

    def ended(self, reason: str) -> None:
        """The transport is gone; may be called twice."""
        self._bridge._ended(self, reason)


class Bridge:
    """A bridge with its own queue service, in this process.

    ``data`` is a directory for the queue service's file, or None to keep everything in memory. Use it as
    ``async with Bridge(...) as b`` and hand it to `Publisher`, `Listener` and `WebServer`. All methods belong to the
    event loop it was started on.

    Starting raises `StoreOwned` if another process has the file, `StoreDamaged` if the file is not one of ours.
    """

    def __init__(
        self, data: str | os.PathLike[str] | None = None, *, settings: BridgeSettings | None = None
    ) -> None:
        self.settings = settings = settings or BridgeSettings()
        self.boot = uuid.uuid4().hex
        self.metrics = Metrics()
        self.draining = False
        self.store: OwnStore = _open_own_store(data, self.boot, settings)
        self._observers: list[Observer] = [self.metrics]
        self._subscribers: list[Callable[[Announce], None]] = []
        self._bell = Bell(self.boot, settings.periods, random.random)
        self._sessions: dict[int, BridgeSession] = {}
        self._stalled: set[int] = set()
        self._flushes: dict[int, None] = {}
        self._grants: dict[tuple[int, str], list[int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._driving = False
        self._stopped = False

    # -- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Bridge:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store and learn what waits there."""
        if self._stopped:
            raise Closed("this bridge was stopped; make a new one")
        self._loop = asyncio.get_running_loop()
        await self.store.open()
        self.store.observe(self)
        self.committed(self.store.levels(), [])

    async def stop(self) -> None:
        """Stop in the written order; what was acknowledged is safe. May be called twice."""
        if self._stopped:
            return
        self.drain()
        self._stopped = True
        for session in list(self._sessions.values()):
            session.outlet.close(SERVICE_RESTART, "the bridge is stopping")
            session.ended("stopping")
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._stall_timer = None
        await self.store.close()

    def drain(self) -> None:
        """Take no more triggers and sessions, and tell the sessions there are; may be called twice."""
        if self.draining:
            return
        self.draining = True
        for session in self._sessions.values():
            session.outlet.send(Drain())

    def observe(self, observer: Observer) -> None:
        """Have every fact told to ``observer`` from now on."""
        self._observers.append(observer)

    def local_channel(self) -> LocalChannel:
        """Return a channel for listeners in this process."""
        from bridge.channels.local import LocalChannel

        return LocalChannel(self)

    # -- triggers ----------------------------------------------------------------------------------------------------

    def trigger(self, events: Sequence[CloudQueueWorkDetected], *, bus: str, redelivered: bool = False) -> int:
        """Mark the queues of these events, all or none, and return how many were accepted.

        When it returns, the marks are made (B1); the wakes leave in the same turn of the loop. Raises `BadInput` with
        the code ``draining``, ``too_many_queues``, ``bad_trigger`` or ``bad_queue_reference``.
        """
        self._must_take()
        now = self._now()
        for event in events:
            check_event(event)
            # Opened before any is marked: a refusal half-way would have marked the first half.
            self._bell.ledger.open(event.queue, now)
        for event in events:
            self._bell.trigger(now, event, bus, redelivered=redelivered)
        self._drive(later=True)
        return len(events)

    def _must_take(self) -> None:
        if self.draining:
            raise BadInput("draining", "the bridge is stopping; try again in a moment")
        if self._loop is None:
            raise Closed("the bridge was not started")

    def gap(self, bus: str) -> int:
        """Triggers may have been missed on ``bus``: look once at each queue it may feed; return how many."""
        marked = self._bell.gap(self._now(), bus)
        self._drive()
        return marked

    # -- plain subscribers -------------------------------------------------------------------------------------------

    def subscribe(self, hear: Callable[[Announce], None]) -> Callable[[], None]:
        """Have every wake for plain subscribers told to ``hear`` (B12); return what ends that.

        ``hear`` is called in the tick of the mark, must not block and must not call back.
        """
        self._subscribers.append(hear)
        self._bell.dispatch.announcing = True

        def end() -> None:
            if hear in self._subscribers:
                self._subscribers.remove(hear)
            self._bell.dispatch.announcing = bool(self._subscribers)

        return end

    def newest(self, queue: str) -> tuple[int, bool]:
        """Return a queue's newest generation, 0 if it was never heard of, and whether it is dirty."""
        debt = self._bell.ledger.find(queue)
        return (0, False) if debt is None else (debt.gen, debt.dirty)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def connect(self, outlet: Outlet) -> BridgeSession:
        """Begin a session on ``outlet``; it has 5 s to say hello. Raises `BadInput` (``draining``)."""
        self._must_take()
        number = self._bell.open(self._now(), outlet.kind)
        session = self._sessions[number] = BridgeSession(self, number, outlet)
        self._drive()
        return session

    def _feed(self, session: BridgeSession, frame: UpFrame) -> None:
        if session.number in self._sessions:
            self._bell.frame(self._now(), session.number, frame)
            self._drive()

    def _ended(self, session: BridgeSession, reason: str) -> None:
        if self._sessions.pop(session.number, None) is not None:
            self._bell.lost(self._now(), session.number, reason)
            self._drive()

    # -- the own store's ear (StoreObserver) -------------------------------------------------------------------------

    def grant(self, queue: str, count: int) -> Grant | None:
        """Say whether messages of a put on its way may be handed to a session at once (O7)."""
        if self.draining:
            return None
        granted = self._bell.own.grant(self._now(), queue, count)
        if granted is None:
            return None
        session, limit, lease_s = granted
        self._grants.setdefault((session, queue), []).append(limit)
        return Grant(session=str(session), limit=limit, lease_s=lease_s)

    def committed(self, levels: list[Level], handed: list[Handed]) -> None:
        """Bring a commit to the rules: first what was handed out in it, then how the queues stand."""
        now = self._now()
        for hand in handed:
            self._handed(now, hand)
        for level in levels:
            self._bell.own.level(
                now,
                level.queue,
                exists=level.exists,
                visible=level.visible,
                invisible=level.invisible,
                rose=level.rose,
                put=level.put,
                receives=level.receives,
                empty=level.empty,
                # Rounded up by the store's resolution: a tick early is a look that finds nothing (B2).
                next_visible_s=None if level.next_visible_in_ms is None else (level.next_visible_in_ms + 1) / 1000,
            )
        self._drive()

    def _handed(self, now: float, hand: Handed) -> None:
        session = int(hand.session)
        limits = self._grants.get((session, hand.queue))
        granted = limits.pop(0) if limits else len(hand.messages)
        if not limits:
            self._grants.pop((session, hand.queue), None)
        carried: list[CarriedMessage] = []
        too_big: list[Claim] = []
        room = CARRY_BYTES_MAX
        for message in hand.messages:
            # Base64 is the longer form, and JSON escapes may double text: what might not fit a frame stays behind.
            room -= 2 * len(message.body) + 256
            if room < 0:
                too_big.append(Claim(message.id, message.pop_receipt))
            else:
                carried.append(_carried(message, self.settings.periods.start_ack_s))
        self._bell.own.handed(now, hand.queue, session, granted, carried, hand.visible)
        if too_big:
            self.store.reclaim(hand.queue, too_big, uncount=True)

    # -- doing what the rules say ------------------------------------------------------------------------------------

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _drive(self, *, later: bool = False) -> None:
        """Perform commands until there are none; ``later`` lets wakes of this turn of the loop merge first."""
        if self._driving:
            # Called from within a command: the loop below takes what was added.
            return
        self._driving = True
        try:
            while commands := self._bell.commands():
                for command in commands:
                    if isinstance(command, Flush):
                        if later:
                            self._flush_later(command.session)
                        else:
                            self._flush(command.session)
                    elif isinstance(command, Send):
                        session = self._sessions.get(command.session)
                        if session is not None:
                            session.outlet.send(command.frame)
                    elif isinstance(command, End):
                        session = self._sessions.pop(command.session, None)
                        if session is not None:
                            session.outlet.close(command.code, command.reason)
                    elif isinstance(command, Reread):
                        self.store.reread(command.queue)
                    elif isinstance(command, Announce):
                        for hear in self._subscribers:
                            hear(command)
                    elif isinstance(command, Reclaim):
                        self.store.reclaim(
                            command.queue, [Claim(*claim) for claim in command.claims], uncount=command.uncount
                        )
        finally:
            self._driving = False
        for fact in self._bell.facts():
            self._tell(fact)
        self._arm()

    def _tell(self, fact: Fact) -> None:
        for observer in self._observers:
            observer(fact)

    def _flush(self, number: int) -> None:
        session = self._sessions.get(number)
        if session is None:
            return
        if not session.outlet.writable():
            # What is not taken yet still merges: a slow reader costs one slot per queue, and nobody waits for it (I5).
            self._stalled.add(number)
            if self._stall_timer is None and self._loop is not None:
                self._stall_timer = self._loop.call_later(STALLED_RETRY_S, self._retry_stalled)
            return
        for wake in self._bell.take(self._now(), number):
            session.outlet.send(wake)

    def _flush_later(self, number: int) -> None:
        if not self._flushes:
            assert self._loop is not None
            self._loop.call_soon(self._flush_all)
        self._flushes[number] = None

    def _flush_all(self) -> None:
        flushes, self._flushes = self._flushes, {}
        for number in flushes:
            self._flush(number)
        self._drive()

    def _retry_stalled(self) -> None:
        self._stall_timer = None
        stalled, self._stalled = self._stalled, set()
        for number in sorted(stalled):
            self._flush(number)
        self._drive()

    def _arm(self) -> None:
        deadline = self._bell.deadline()
        if deadline == self._timer_at or self._stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline is not None:
            assert self._loop is not None
            self._timer = self._loop.call_at(deadline, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        # Frames that were read in this turn of the loop go before timers (B4): they are fed in the next turn, ahead of
        # a callback that is queued now.
        assert self._loop is not None
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._timer_at = None
        if self._stopped:
            return
        self._bell.tick(self._now())
        self._drive()

    # -- state -------------------------------------------------------------------------------------------------------

    def describe(self, queue: str) -> dict[str, object] | None:
        """Return how one queue stands, or None for one that was never put to, triggered or subscribed."""
        debt = self._bell.ledger.find(queue)
        if debt is None:
            return None
        return {
            "queue": queue,
            "exists": debt.exists,
            "depth": {"visible": debt.visible, "invisible": debt.invisible} if debt.exists else None,
            "gen": debt.gen,
            "dirty": debt.dirty,
            "sessions": len(debt.seats),
            "wakes": dict(debt.wakes),
            "receives": {"total": debt.receives, "empty": debt.empty},
            "triggers": debt.triggers,
        }

    def listeners(self) -> list[dict[str, object]]:
        """Return the sessions that said hello, oldest first."""
        now = self._now()
        return [
            {
                "listener": session.listener,
                "instance": session.instance,
                "channel": session.kind,
                "connected_s": round(now - session.opened_at, 3),
                "silent_s": round(now - session.last_heard, 3),
                "queues": [
                    {
                        "queue": seat.queue,
                        "capacity": seat.capacity,
                        "free": seat.free,
                        "has_room": seat.has_room,
                        "owns": self._bell.ledger.debts[seat.queue].owner == session.id,
                    }
                    for seat in session.seats.values()
                ],
            }
            for session in self._bell.sessions.named()
        ]

    def readiness(self) -> tuple[bool, dict[str, dict[str, object]]]:
        """Return whether everything configured works, and each check by name."""
        failure = self.store.failure()
        checks: dict[str, dict[str, object]] = {
            "store": {"ok": failure is None, "detail": failure or "the queue service's file takes writes"},
            "intake": {
                "ok": not self.draining,
                "detail": "the bridge is stopping" if self.draining else "triggers are taken",
            },
        }
        return all(check["ok"] for check in checks.values()), checks


def _carried(message: StoredMessage, lease_s: float) -> CarriedMessage:
    text: str | None
    encoded: str | None = None
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        import base64

        text, encoded = None, base64.b64encode(message.body).decode()
    return CarriedMessage(
        id=message.id,
        pop_receipt=message.pop_receipt,
        dequeue_count=message.dequeue_count,
        inserted_at=rfc3339(message.inserted_at),
        expires_at=None if message.expires_at is None else rfc3339(message.expires_at),
        body=text,
        body_base64=encoded,
        visible_in_ms=round(lease_s * 1000),
    )


def _open_own_store(data: str | os.PathLike[str] | None, boot: str, settings: BridgeSettings) -> OwnStore:
    if data is None:
        from bridge.queues.memory import MemoryStore

        return MemoryStore(f"bridge-{boot}", boot=boot)
    from bridge.queues.sqlite import SqliteStore

    return SqliteStore(pathlib.Path(data) / "queue.db", boot=boot, synchronous=settings.synchronous)
