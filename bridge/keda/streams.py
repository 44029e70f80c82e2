"""Stream to KEDA whether a queue is active; streams of one target share a check, and one timer serves all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from queuebell.bridge.core.agenda import Agenda
from queuebell.bridge.keda.counts import KedaCounts
from queuebell.bridge.keda.demand import changes_in, count_key, demand, known_state
from queuebell.bridge.keda.scaled_object import Target
from queuebell.bridge.observe.facts import Fact, MemberCame, MemberGone, SessionClosed, Suspended

if TYPE_CHECKING:
    from queuebell.bridge.service.bridge import Bridge


_OF_MANY: Final = (MemberCame, MemberGone, SessionClosed, Suspended)
"""Facts that may be about any queue."""


class Stream:
    """A stream to KEDA; a newer value replaces one that was not read yet, so that it holds at most one."""

    __slots__ = ("_news", "_watching", "active", "ended", "label", "target")

    def __init__(self, watching: KedaStreams, target: Target, label: str) -> None:
        self._watching = watching
        self._news = asyncio.Event()
        self.target = target
        self.label = label
        """The name of the ScaledObject, for display."""
        self.active: bool | None = None
        self.ended: str | None = None
        """The error code of its end; "" for a normal end, None while it is open."""

    def set(self, active: bool) -> None:
        """Set the value to send."""
        self.active = active
        self._news.set()

    async def next(self) -> bool | None:
        """Wait for the next value; return None at the end."""
        await self._news.wait()
        self._news.clear()
        return self.active if self.ended is None else None

    def end(self, why: str = "") -> None:
        """End the stream; may be called twice."""
        if self.ended is None:
            self.ended = why
            self._watching.forget(self)
        self._news.set()


class _Watched:
    """A target and its streams."""

    __slots__ = ("schedule", "streams", "target")

    def __init__(self, target: Target, now: float) -> None:
        self.target = target
        self.schedule = SendSchedule(now)
        self.streams: dict[Stream, None] = {}


class KedaStreams:
    """Holds the streams of a bridge; belongs to the event loop that started the bridge.

    It observes the bridge's facts and its sessions' frames; for a queue without streams each costs a table lookup.
    """

    def __init__(self, bridge: Bridge, counts: KedaCounts) -> None:
        self._bridge = bridge
        self._counts = counts
        self._targets: dict[Target, _Watched] = {}
        self._of_queue: dict[str, list[_Watched]] = {}
        self._agenda: Agenda[Target] = Agenda()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._closed = False
        bridge.observe(self._fact)
        bridge.callbacks.session_watchers.append(self.queues_changed)

    def streams(self) -> list[Stream]:
        """Return the open streams."""
        return [stream for watched in self._targets.values() for stream in watched.streams]

    def open(self, target: Target, label: str = "") -> Stream:
        """Open a stream; it immediately gets the current value, if known."""
        stream = Stream(self, target, label)
        if self._closed:
            stream.end()
            return stream
        watched = self._targets.get(target)
        if watched is None:
            watched = self._targets[target] = _Watched(target, self._bridge.now())
            self._of_queue.setdefault(target.queue, []).append(watched)
        watched.streams[stream] = None
        self._check(watched)
        if watched.schedule.last_sent is not None:
            stream.set(watched.schedule.last_sent)
        return stream

    def forget(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        watched = self._targets.get(stream.target)
        if watched is None or watched.streams.pop(stream, watched) is watched or watched.streams:
            return
        del self._targets[stream.target]
        self._agenda.clear(stream.target)
        group = self._of_queue[stream.target.queue]
        group.remove(watched)
        if not group:
            del self._of_queue[stream.target.queue]
        self._arm()

    def close(self) -> None:
        """End all streams, and reject new ones; may be called twice."""
        self._closed = True
        for stream in self.streams():
            stream.end()

    def queues_changed(self, queues: Iterable[str]) -> None:
        """Schedule a check of these queues, if they have streams."""
        if not self._of_queue:
            return
        now = self._bridge.now()
        for queue in queues:
            for watched in self._of_queue.get(queue, ()):
                watched.schedule.queues_changed(now)
                self._agenda.set_earlier(watched.target, watched.schedule.deadline())
        self._arm()

    def _fact(self, fact: Fact) -> None:
        if self._of_queue:
            queue = getattr(fact, "queue", None)
            if queue in self._of_queue:
                self.queues_changed((queue,))
            elif isinstance(fact, _OF_MANY):
                self.queues_changed(self._of_queue)

    def _arm(self) -> None:
        at = self._agenda.next()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        for target in self._agenda.pop_due(self._bridge.now()):
            self._check(self._targets[target])
        self._arm()

    def _check(self, watched: _Watched) -> None:
        now, target, schedule = self._bridge.now(), watched.target, watched.schedule
        key = count_key(self._bridge, target)
        count = None if key is None else self._counts.newest(key)
        if key is not None and schedule.repeats(now):
            # The queue is checked again once the count is there.
            self._counts.renew(key)
        known = known_state(self._bridge, target, count)
        found = demand(known, target.per_process, target.start_s)
        if schedule.record(now, None if found is None else found > 0, changes_in(known, target.start_s)):
            assert schedule.last_sent is not None
            for stream in watched.streams:
                stream.set(schedule.last_sent)
        self._agenda.set(target, schedule.deadline())
        self._arm()


REPEAT_S: Final = 30.0
"""Interval at which an unchanged value is sent again."""
GAP_S: Final = 0.05
"""Minimum time between checks of a queue; a change is sent within twice this."""


class SendSchedule:
    """Decides when to check a target and when to send its value; ``now`` is from any monotonic clock.

    Check the target at each `deadline`, and pass the result to `record`.
    """

    __slots__ = ("_check_at", "_checked_at", "_sent_at", "last_sent")

    def __init__(self, now: float) -> None:
        self.last_sent: bool | None = None
        """The last value sent, or None."""
        self._sent_at = -math.inf
        self._checked_at = self._check_at = now

    def queues_changed(self, now: float) -> None:
        """Note an event that may change the value."""
        self._check_at = min(self._check_at, max(now, self._checked_at + GAP_S))

    def deadline(self) -> float:
        """Return the time of the next check."""
        return self._check_at

    def repeats(self, now: float) -> bool:
        """Return whether the value is due to be sent again, for which it should be counted again."""
        return now >= self._sent_at + REPEAT_S

    def record(self, now: float, active: bool | None, changes_in_s: float | None = None) -> bool:
        """Record the result of a check, None if unknown; return whether to send it now.

        ``changes_in_s`` is the time after which it is known to change.
        """
        self._checked_at = now
        send = active is not None and (active is not self.last_sent or self.repeats(now))
        if send:
            self.last_sent, self._sent_at = active, now
        next_s = REPEAT_S if active is None else self._sent_at + REPEAT_S - now
        self._check_at = now + max(GAP_S, min(next_s, math.inf if changes_in_s is None else changes_in_s))
        return send
