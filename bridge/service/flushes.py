"""Sends each session the wakes that wait in its slots: now, at the end of the turn, or when it can take more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from bridge.contract.wire import DownFrame
from bridge.observe import tracing
from bridge.observe.swallowed import swallow
from bridge.service.channels.base import Outlet, Session
from bridge.service.runner import Runner

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
            wakes = self._bridge.bell.take(self._bridge.now(), number) if outlet.writable() else None
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
