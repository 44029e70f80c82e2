"""Manage the sessions of a bridge: receive their frames, send their wakes and end each of them once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.wire import DownFrame, Drain, UpFrame
from queuebell.bridge.core.cluster.handover import ANSWER_S, departures
from queuebell.bridge.observe import tracing
from queuebell.bridge.observe.swallowed import swallow, swallowing
from queuebell.bridge.service.channels.base import Outlet, Session
from queuebell.bridge.service.runner import Runner

SERVICE_RESTART: Final = 1012
INTERNAL: Final = 1011


class BridgeSession:
    """A session as its channel uses it: it takes frames, and it ends."""

    __slots__ = ("_sessions", "number", "outlet")

    def __init__(self, sessions: LiveSessions, number: int, outlet: Outlet) -> None:
        self._sessions = sessions
        self.number = number
        self.outlet = outlet

    def feed(self, frame: UpFrame) -> None:
        """Handle a decoded and checked frame; never blocks."""
        self._sessions.feed(self, frame)

    def ended(self, reason: str) -> None:
        """Handle the loss of the transport; may be called twice."""
        self._sessions.ended(self, reason)


class LiveSessions:
    """Holds the sessions that have not ended, by number."""

    def __init__(self, bridge: Runner, heard: Callable[[Iterable[str]], None]) -> None:
        self._bridge = bridge
        self._heard = heard
        self.live: dict[int, BridgeSession] = {}
        self._all_ended: asyncio.Event | None = None
        """Set once a leaving bridge has no session left."""

    def open(self, outlet: Outlet) -> BridgeSession:
        """Begin a session on ``outlet``."""
        number = self._bridge.scheduler.open(self._bridge.now(), outlet.kind)
        session = self.live[number] = BridgeSession(self, number, outlet)
        self._bridge.drive()
        return session

    def feed(self, session: BridgeSession, frame: UpFrame) -> None:
        """Pass a session's frame to the scheduler."""
        self._bridge.notice_suspend()
        if session.number in self.live:
            try:
                self._bridge.scheduler.frame(self._bridge.now(), session.number, frame)
            except Exception:
                # A partial hello is invalid, and no broker connection ends with it: remove everything it left.
                with swallowing(CHANNEL):
                    session.outlet.close(INTERNAL, "internal")
                session.ended("internal")
                raise
            self._bridge.drive()
            sender = self._bridge.scheduler.sessions.get(session.number)
            self._heard(() if sender is None else sender.queues)

    def ended(self, session: BridgeSession, reason: str) -> None:
        """Report a lost session to the scheduler, unless it has ended before."""
        if self._remove(session.number) is not None:
            self._bridge.scheduler.lost(self._bridge.now(), session.number, reason)
            self._bridge.drive()

    def close(self, number: int, code: int, reason: str) -> None:
        """Close the outlet of a session that the scheduler has ended."""
        session = self._remove(number)
        if session is not None:
            session.outlet.close(code, reason)

    def drain(self) -> None:
        """Send `drain` to every session."""
        for session in self.live.values():
            send(session.outlet, Drain())

    def drain_worker(self, instance: str) -> bool | None:
        """Ask a listener for its end; False if it does not know how, None if no session is of this instance."""
        for session in self.live.values():
            known = self._bridge.scheduler.sessions.get(session.number)
            if known is not None and known.instance == instance:
                if not known.drains:
                    return False
                send(session.outlet, Drain(worker=True))
                return True
        return None

    def end_all(self) -> None:
        """End every session with 1012 (service restart)."""
        for session in list(self.live.values()):
            self._end(session)

    async def depart(self, started_at: float, others: int, draw: Draw) -> None:
        """Move the sessions to the ``others`` one by one; return when the last has ended (C7)."""
        leaving = list(self.live.values())
        self._all_ended = asyncio.Event()
        for session, after in zip(leaving, departures(len(leaving), others, draw), strict=True):
            await asyncio.sleep(max(0.0, started_at + after - self._bridge.now()))
            if session.number in self.live:
                send(session.outlet, Drain())
                asyncio.get_running_loop().call_later(ANSWER_S if others else 0.0, self._end, session)
        if self.live:
            await self._all_ended.wait()

    def _end(self, session: BridgeSession) -> None:
        if session.number in self.live:
            with swallowing(CHANNEL):
                session.outlet.close(SERVICE_RESTART, "the bridge is stopping")
            session.ended("stopping")

    def _remove(self, number: int) -> BridgeSession | None:
        session = self.live.pop(number, None)
        if self._all_ended is not None and not self.live:
            self._all_ended.set()
        return session


STALLED_RETRY_S: Final = 0.05
CHANNEL: Final = "the channel of a session"


def send(outlet: Outlet, frame: DownFrame) -> None:
    """Send a frame; it is lost if the channel fails, which the protocol allows (S2, B4)."""
    try:
        outlet.send(frame)
    except Exception as error:  # noqa: BLE001 - affects this frame only
        swallow(CHANNEL, error)


class Flushes:
    """Sends sessions their wakes. A failure makes one session retry and affects no other."""

    def __init__(self, bridge: Runner, sessions: Mapping[int, Session]) -> None:
        self._bridge = bridge
        self._sessions = sessions
        self._later: dict[int, None] = {}
        self.stalled: set[int] = set()
        """Sessions whose outlet is not writable now."""
        self._timer: asyncio.TimerHandle | None = None

    def now(self, number: int) -> None:
        """Send a session its wakes if its outlet is writable; otherwise they wait and merge (I5)."""
        session = self._sessions.get(number)
        if session is None:
            return
        outlet = session.outlet
        try:
            wakes = self._bridge.scheduler.take(self._bridge.now(), number) if outlet.writable() else None
        except Exception as error:  # noqa: BLE001 - retried
            swallow(CHANNEL, error)
            wakes = None
        if wakes is None:
            self.stalled.add(number)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(STALLED_RETRY_S, self._retry)
            return
        for wake in wakes:
            send(outlet, wake)
        if tracing.on is not None:
            # After sending: tracing must not delay a wake.
            for wake in wakes:
                tracing.on.route(wake)

    def later(self, number: int) -> None:
        """Send the wakes at the end of this loop turn, so that wakes of one turn merge."""
        if not self._later:
            asyncio.get_running_loop().call_soon(self._all)
        self._later[number] = None

    def stop(self) -> None:
        """Stop retrying."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _all(self) -> None:
        later, self._later = self._later, {}
        for number in later:
            self.now(number)
        self._bridge.drive()

    def _retry(self) -> None:
        self._timer = None
        stalled, self.stalled = self.stalled, set()
        for number in sorted(stalled):
            self.now(number)
        self._bridge.drive()
