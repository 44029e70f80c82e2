"""Rules with one fault each, to see whether a simulated run finds it."""

from __future__ import annotations

from typing import Any

from queuebell.bridge.contract.wire import ListenerHeartbeat
from queuebell.bridge.core.dispatch import Dispatch
from queuebell.bridge.core.embedded_queues import EmbeddedQueues
from queuebell.bridge.core.sessions import Session, SessionQueue
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.service.bridge import Bridge
from tests.exploration.mutants import _Swaps


class WakesNobody(WakeScheduler):
    """V3: the debt is noted, and its wake never written."""

    def take(self, now: float, number: int) -> list[Any]:
        super().take(now, number)
        return []


class _Silent:
    """Dispatch that marks nothing."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatch, name)

    def request_wake(self, *_: object, **__: object) -> None:
        """Forget it."""


class _MarksNoPut(EmbeddedQueues):
    def grant(self, now: float, queue: str, count: int) -> None:
        return None

    def on_commit(self, now: float, queue: str, **how: Any) -> None:
        dispatch, silent = self._d, _Silent(self._d)
        self._d = silent if how["put"] else dispatch  # type: ignore[assignment]
        try:
            super().on_commit(now, queue, **how)
        finally:
            self._d = dispatch


class ForgetsPuts(_Swaps):
    """O1: a put is neither carried nor marked; only what becomes visible by itself is."""

    part = ("embedded", _MarksNoPut)


class SleepsOverPuts(ForgetsPuts):
    """The same, and nobody audits."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.embedded.audit = lambda now: None  # type: ignore[method-assign]


class _CountsNoSlots(EmbeddedQueues):
    def grant(self, now: float, queue: str, count: int) -> tuple[int, int, float] | None:
        granted = super().grant(now, queue, count)
        return None if granted is None else (granted[0], count, granted[2])


class CarriesBeyondCapacity(_Swaps):
    """O7: as much travels with a wake as was put, whatever its listener has room for."""

    part = ("embedded", _CountsNoSlots)


class MergesNothing(WakeScheduler):
    """B3: every wake that was ever written is kept for a session, and taken by it."""

    def take(self, now: float, number: int) -> list[Any]:
        wakes = super().take(now, number)
        kept = self.__dict__.setdefault("kept", {}).setdefault(number, [])
        kept += wakes
        return [*kept]


class FlushesWhereNothingWaits(Dispatch):
    """A flush is asked for only where a session's first wake is written."""

    def queue_wake(self, seat: SessionQueue) -> None:
        session = self.sessions.get(seat.session)
        if session is not None:
            session.flushing = bool(session.unsent)
        super().queue_wake(seat)


class TrustsEachFlush(_Swaps):
    """A session whose flush was lost is not flushed at its next heartbeat."""

    part = ("dispatch", FlushesWhereNothingWaits)

    def _heartbeat(self, now: float, session: Session, frame: ListenerHeartbeat) -> None:
        unsent, session.unsent = session.unsent, {}
        try:
            super()._heartbeat(now, session, frame)
        finally:
            session.unsent = {**unsent, **session.unsent}


def raises(what: str, error: BaseException) -> None:
    """Take the place of `swallow`."""
    raise error


class DropsBatches(Bridge):
    """Whatever raises while commands are carried out takes the rest of them along; it needs `raises`."""

    def drive(self, *, later: bool = False) -> None:
        try:
            super().drive(later=later)
        except Exception:
            self._commands.clear()
            raise
