"""The sessions of a bridge: frames come in by them, and each ends once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from bridge.contract.backoff import Draw
from bridge.contract.wire import DownFrame, Drain, UpFrame
from bridge.core.cluster.handover import ANSWER_S, departures
from bridge.observe import tracing
from bridge.observe.swallowed import swallow, swallowing
from bridge.service.callbacks import Callbacks
from bridge.service.channels.base import Outlet, Session
from bridge.service.runner import Runner

SERVICE_RESTART: Final = 1012
INTERNAL: Final = 1011


class BridgeSession:
    """One session as its channel sees it: frames in, and the end."""

    __slots__ = ("_sessions", "number", "outlet")

    def __init__(self, sessions: LiveSessions, number: int, outlet: Outlet) -> None:
        self._sessions = sessions
        self.number = number
        self.outlet = outlet

    def feed(self, frame: UpFrame) -> None:
        """Take a frame that was decoded and checked; never blocks."""
        self._sessions.feed(self, frame)

    def ended(self, reason: str) -> None:
        """The transport is gone; may be called twice."""
        self._sessions.ended(self, reason)


class LiveSessions:
    """The sessions that have not ended, by number."""

    def __init__(self, bridge: Runner, hub: Callbacks) -> None:
        self._bridge = bridge
        self._hub = hub
        self.live: dict[int, BridgeSession] = {}
        self._last_went: asyncio.Event | None = None
        """Set when a bridge that leaves has no session any more."""

    def open(self, outlet: Outlet) -> BridgeSession:
        """Begin a session on ``outlet``."""
        number = self._bridge.scheduler.open(self._bridge.now(), outlet.kind)
        session = self.live[number] = BridgeSession(self, number, outlet)
        self._bridge.drive()
        return session

    def feed(self, session: BridgeSession, frame: UpFrame) -> None:
        """Bring a frame of a session to the rules."""
        self._bridge.notice_suspend()
        if session.number in self.live:
            try:
                self._bridge.scheduler.frame(self._bridge.now(), session.number, frame)
            except Exception:
                # A partial hello is invalid, and over a broker no connection ends with it: nothing of it may stay.
                with swallowing(CHANNEL):
                    session.outlet.close(INTERNAL, "internal")
                session.ended("internal")
                raise
            self._bridge.drive()
            sender = self._bridge.scheduler.sessions.get(session.number)
            self._hub.session_heard(() if sender is None else sender.queues)

    def ended(self, session: BridgeSession, reason: str) -> None:
        """Tell the rules that a session is gone; nothing where it has ended before."""
        if self._remove(session.number) is not None:
            self._bridge.scheduler.lost(self._bridge.now(), session.number, reason)
            self._bridge.drive()

    def close(self, number: int, code: int, reason: str) -> None:
        """End a session that the rules have ended."""
        session = self._remove(number)
        if session is not None:
            session.outlet.close(code, reason)

    def drain(self) -> None:
        """Tell every session that the bridge is stopping."""
        for session in self.live.values():
            send(session.outlet, Drain())

    def send_all_away(self) -> None:
        """End every session with 1012 (service restart)."""
        for session in list(self.live.values()):
            self._send_away(session)

    async def depart(self, begun: float, others: int, draw: Draw) -> None:
        """Send the sessions to the ``others``, one after the other; return when the last has gone (C7)."""
        leaving = list(self.live.values())
        self._last_went = asyncio.Event()
        for session, after in zip(leaving, departures(len(leaving), others, draw), strict=True):
            await asyncio.sleep(max(0.0, begun + after - self._bridge.now()))
            if session.number in self.live:
                send(session.outlet, Drain())
                asyncio.get_running_loop().call_later(ANSWER_S if others else 0.0, self._send_away, session)
        if self.live:
            await self._last_went.wait()

    def _send_away(self, session: BridgeSession) -> None:
        if session.number in self.live:
            with swallowing(CHANNEL):
                session.outlet.close(SERVICE_RESTART, "the bridge is stopping")
            session.ended("stopping")

    def _remove(self, number: int) -> BridgeSession | None:
        session = self.live.pop(number, None)
        if self._last_went is not None and not self.live:
            self._last_went.set()
        return session


STALLED_RETRY_S: Final = 0.05
CHANNEL: Final = "the channel of a session"


def send(outlet: Outlet, frame: DownFrame) -> None:
    """Send a frame; one that the channel fails to send is lost, as frames may be (S2, B4)."""
    try:
        outlet.send(frame)
    except Exception as error:  # noqa: BLE001 - it costs this frame only
        swallow(CHANNEL, error)


class Flushes:
    """The sessions whose wakes are still to be sent. A failure costs one session a retry, and no other anything."""

    def __init__(self, bridge: Runner, sessions: Mapping[int, Session]) -> None:
        self._bridge = bridge
        self._sessions = sessions
        self._later: dict[int, None] = {}
        self.stalled: set[int] = set()
        """Sessions that cannot take more now."""
        self._timer: asyncio.TimerHandle | None = None

    def now(self, number: int) -> None:
        """Send a session its wakes, if it can take them; else they wait and merge (I5)."""
        session = self._sessions.get(number)
        if session is None:
            return
        outlet = session.outlet
        try:
            wakes = self._bridge.scheduler.take(self._bridge.now(), number) if outlet.writable() else None
        except Exception as error:  # noqa: BLE001 - tried again
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
            # After they left: a worker's wake is never delayed by tracing.
            for wake in wakes:
                tracing.on.route(wake)

    def later(self, number: int) -> None:
        """Do so at the end of this turn of the loop, so that wakes of one turn merge."""
        if not self._later:
            asyncio.get_running_loop().call_soon(self._all)
        self._later[number] = None

    def stop(self) -> None:
        """Retry no more."""
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
