"""One listener's session with the bridge, above any channel: hello, welcome, heartbeats, modes, reconnecting.

`Session` serves up to some 200 queues, each through its `Port`; `Sessions` holds several of them where one frame cannot
name all queues. `Liveness` decides when the bridge counts as gone. Frames are sent while a session is open and dropped
otherwise: heartbeats repeat every level, so nothing dropped is missed (S2).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from queuebell.bridge.contract.backoff import Draw, FullJitter
from queuebell.bridge.contract.errors import BadInput, ChannelLost, ChannelRefused, ConfigurationError
from queuebell.bridge.contract.wire import (
    FRAME_BYTES_MAX,
    RUNNING_MAX,
    RUNNING_MS,
    BridgeHeartbeat,
    Bye,
    Drain,
    ErrorFrame,
    Hello,
    LastEmptyReceive,
    ListenerHeartbeat,
    QueueBeat,
    Report,
    Running,
    Subscription,
    UpFrame,
    Wake,
    Welcome,
    WelcomedQueue,
    encode_frame,
)
from queuebell.bridge.observe.swallowed import swallow, swallowing, unless_cancelled
from queuebell.listeners.session.channel import Channel, Link
from queuebell.listeners.session.opening import name_of
from queuebell.listeners.wake.frames import last_empty_receives
from queuebell.listeners.wake.timers import Periods
from queuebell.listeners.work.failures import RepeatedFailure
from queuebell.listeners.work.lease import BUCKETS_MAX

log = logging.getLogger("queuebell.listener")

BYE_WITHIN_S = 1.0
ENDS_WITHIN_S: Final = 2.0
"""What a link gets to end once its bridge is held to be dead."""
REFUSED_FIRST_S: Final = 1.0
REFUSED_CAP_S: Final = 30.0
"""Longest pause before a rejected worker asks again: it polls meanwhile, and only people can fix the cause."""
LEASES_MAX = 1000
"""Lease ends in one frame, all queues together: a frame is 64 KiB at most, and the levels need most of it."""

FRAME_EXTRA_BYTES: Final = 128
"""What a channel adds to a frame: instance and number."""
RUNNING_BYTES: Final = 2048
"""The most bytes of one queue's longest handler: a name, a message's id, and its figures."""
TROUBLE_BYTES_MIN: Final = len('"hung":1')
"""What leaving out one queue's failures saves at least."""
_DEFAULT: Final = Periods()
QUEUE: Final = "a queue of a session"
STORE_MISMATCH: Final = "store_mismatch"
_MISMATCH: Final = (
    ". Here the store is {}, the others of this queue have another, and a bridge wakes for one store only. Start all "
    "listeners of the queue with the same store, or give this one a queue or a bridge of its own"
)


class Session:
    """Holds a session for ever: `run` until cancelled, `end` to take leave.

    ``welcomed`` is called with the boot of each welcome before the queues hear of it. ``store`` is what the log calls
    the store of these queues, ``kind`` what the bridge calls this session, ``store_kind`` what kind of store that is.
    ``drained`` is called when somebody asks the bridge for an end of this listener.
    """

    def __init__(
        self,
        channel: Channel,
        instance: str,
        label: str,
        ports: Mapping[str, Port],
        *,
        accepts: Callable[[], bool],
        welcomed: Callable[[str], None],
        draw: Draw,
        store: str = "its store",
        kind: str = "listener",
        store_kind: str = "",
        drained: Callable[[], None] | None = None,
    ) -> None:
        self._drained = drained
        self._kind = kind
        self._store_kind = store_kind
        self.boot: str | None = None
        self.sessions = 0
        self._channel = channel
        self._instance = instance
        self._label = label
        self._ports = ports
        self._accepts = accepts
        self._welcomed = welcomed
        self._draw = draw
        self._store = store
        self._why = "it has not answered yet"
        """Why there is no session."""
        self._refused = False
        # The bridge's ``retry_after_s`` of the last rejection.
        self._asked_s = 0.0
        self._refusing = False
        """Whether the bridge's last answer was a rejection: it lives."""
        self._refusals = RepeatedFailure()
        self._loop = asyncio.get_running_loop()
        self._liveness = Liveness(self._loop.time())
        self._link: Link | None = None
        self._patience: asyncio.Timeout | None = None
        """When the newest link ends, whatever it does."""
        self._at = self._was_at = ""
        """Where the newest link leads, and where the newest welcome came from."""
        self._hello_at = 0.0
        self._periods: dict[str, Periods] = {}
        self._report_from = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._left: asyncio.Future[None] | None = None

    @property
    def degraded(self) -> bool:
        """Whether the queues poll for want of a bridge (L9)."""
        return self._liveness.degraded

    @property
    def is_open(self) -> bool:
        """Whether a welcome came and the session has not ended since."""
        return self._liveness.welcomed

    @property
    def where(self) -> str:
        """What the log calls the way to the bridge, or to all that it may be."""
        return name_of(self._channel)

    @property
    def bridge(self) -> str | None:
        """The bridge that serves the session; None while none is open."""
        return self._was_at if self.is_open else None

    def send(self, frame: UpFrame) -> None:
        """Send a frame, or drop it while no session is open."""
        if self._link is not None and self._liveness.welcomed:
            try:
                self._link.send(frame)
            except Exception as error:  # noqa: BLE001 - a lost frame is made up for (S2)
                swallow("sending a frame to the bridge", error)

    def hello(self) -> None:
        """Send another hello: what is subscribed or accepted has changed."""
        if self._link is not None and self._liveness.welcomed:
            with swallowing("sending a frame to the bridge"):
                self._send_hello(self._link)

    async def run(self) -> None:
        """Connect, listen, reconnect with full jitter from 0.1 s to 5 s, for ever; from 1 s to 30 s where refused."""
        backoff, refused = FullJitter(0.1, 5.0), FullJitter(REFUSED_FIRST_S, REFUSED_CAP_S)
        self._arm()
        try:
            while True:
                try:
                    async with asyncio.timeout(WELCOME_WITHIN_S):
                        link = await unless_cancelled(self._channel.connect())
                except ChannelRefused as error:
                    self._why = str(error)
                    self._refuse(ErrorFrame(error.code, self._why))
                    await asyncio.sleep(refused.miss(self._draw))
                    continue
                except (ChannelLost, TimeoutError, OSError) as error:
                    self._refusing = False
                    self._why = str(error) or "time-out"
                    log.debug("%s: no way to the bridge: %s", self._label, self._why)
                except Exception as error:
                    if isinstance(error, ConfigurationError) and not self._was_at:
                        raise
                    self._refusing, self._why = False, f"connecting raised {type(error).__name__}"
                    swallow("connecting to the bridge", error)
                else:
                    if await self._serve(link):
                        backoff.hit()
                    if self._refused:
                        await asyncio.sleep(max(self._asked_s, refused.miss(self._draw)))
                        continue
                    refused.hit()
                await asyncio.sleep(backoff.miss(self._draw))
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def end(self) -> None:
        """Send `bye` with the leases left, and wait a second at most for the bridge to confirm it (L12)."""
        link = self._link
        if link is None or not self._liveness.welcomed:
            return
        now = self._loop.time()
        pending = sum(port.report_bytes() > 0 for port in self._ports.values())
        while pending > 0:  # once each: nothing else reports the counts of the last seconds
            pending -= max(1, self._beat(now, int(now * 1000)))
        self._left = self._loop.create_future()
        self.send(Bye(self._leases(now)))
        try:
            async with asyncio.timeout(BYE_WITHIN_S):
                await self._left
        except TimeoutError:
            log.debug("%s: the bridge did not confirm the leave", self._label)

    async def close(self) -> None:
        """Release links and channel."""
        if self._closing:
            await asyncio.wait(self._closing)
        await self._channel.close()

    # One link ----------------------------------------------------------------------------------------------------

    async def _serve(self, link: Link) -> bool:
        """Serve one link until it breaks; return whether it carried a session."""
        self._link, self._at = link, self.where if type(link).__str__ is object.__str__ else str(link)
        stood = self._refused = False
        try:
            self._send_hello(link)
            async with asyncio.timeout(WELCOME_WITHIN_S) as patience:
                self._patience = patience
                while True:
                    frame = await unless_cancelled(link.receive())
                    if isinstance(frame, Welcome):
                        patience.reschedule(None)
                        if not stood:
                            link.hand_over(self._wake)
                        stood = True
                        self._welcome(frame)
                    elif stood:
                        self._on_frame(frame)
                    elif isinstance(frame, ErrorFrame):
                        self._refuse(frame)
        except (ChannelLost, BadInput) as error:
            # A rejection was logged already, and a leave of its own needs no line.
            level = logging.INFO if self._left is None and not self._refused else logging.DEBUG
            self._why = str(error)
            log.log(level, "%s: the session with the bridge at %s ended: %s", self._label, self._at, error)
        except Exception as error:  # noqa: BLE001 - another session follows
            if not isinstance(error, TimeoutError):
                self._why = f"the session raised {type(error).__name__}"
                swallow("a session with the bridge", error)
            # Over a broker the link of a rejected session stays open, because another bridge may accept it.
            elif not (self._refused or stood):
                self._refusing = False
                self._why = "it did not answer the hello"
                log.info("%s: the bridge did not answer the hello", self._label)
        finally:
            self._link = self._patience = None
            self._liveness.lost(self._loop.time())
            if self._left is not None and not self._left.done():
                self._left.set_result(None)
            self._arm()
            await _closed(link)
        return stood

    def _refuse(self, frame: ErrorFrame) -> None:
        """Log a rejection, once a minute at most, with what would help."""
        self._refused = self._refusing = True
        self._asked_s = min(frame.retry_after_s or 0, REFUSED_CAP_S)
        count = self._refusals.failed(self._loop.time())
        if not count:
            return
        remedy = "" if frame.code != STORE_MISMATCH else _MISMATCH.format(self._store)
        log.error(
            "%s: the bridge rejects this worker: %s (%s)%s. It retries at least every %g s; messages stay in "
            "their queues%s",
            self._label,
            frame.message,
            frame.code,
            remedy,
            REFUSED_CAP_S,
            f" ({count} rejections since the last report)" if count > 1 else "",
        )

    def _send_hello(self, link: Link) -> None:
        self._hello_at = self._loop.time()
        accept = ["messages"] if self._accepts() else []
        queues = [port.subscription() for port in self._ports.values()]
        drains = self._drained is not None
        hello = Hello(
            self._instance, self._label, queues, accept, kind=self._kind, store=self._store_kind, drains=drains
        )
        link.send(hello)

    def _welcome(self, frame: Welcome) -> None:
        now = self._loop.time()
        was_degraded = self._liveness.degraded
        # Over a broker a successor answers on the same link, and has echoed nothing yet.
        if not self._liveness.welcomed or frame.boot != self.boot:
            self._liveness.welcome(now, frame.heartbeat_ms / 1000)
        self._refusing, self._why = False, "it is silent"
        self.boot, self.sessions = frame.boot, frame.sessions
        if self._refusals.works():
            log.warning("%s: the bridge accepts this worker again", self._label)
        elif was_degraded:
            log.warning("%s: the bridge is back", self._label)
        if self._was_at not in ("", self._at):
            log.warning("%s: moved to the bridge at %s from the one at %s", self._label, self._at, self._was_at)
        self._was_at = self._at
        self._welcomed(frame.boot)
        covered = last_empty_receives(frame, self._hello_at)
        for state in frame.queues:
            port = self._ports.get(state.queue)
            if port is None:
                continue
            periods = self._periods[state.queue] = periods_of(state, frame.sweep_ms)
            with swallowing(QUEUE):
                port.apply_periods(periods, frame.sessions, self._liveness.latency_s)
                if state.queue in covered:
                    port.on_empty_receive(covered[state.queue])
            with swallowing(QUEUE):
                port.welcomed(frame.boot, state.gen)
        self._arm()

    def _wake(self, frame: Wake) -> None:
        port = self._ports.get(frame.queue)
        if port is not None:
            try:
                port.wake(frame)
            except ValueError as error:  # a malformed body or date in what it carried
                log.error("%s: invalid wake from the bridge, which will send it again: %s", frame.queue, error)
            except Exception as error:  # noqa: BLE001 - the bridge repeats a wake that is not answered
                swallow(QUEUE, error)

    def _on_frame(self, frame: object) -> None:
        if isinstance(frame, Wake):
            self._wake(frame)
        elif isinstance(frame, BridgeHeartbeat):
            self._on_heartbeat(frame)
        elif isinstance(frame, Bye):
            if self._left is not None and not self._left.done():
                self._left.set_result(None)
        elif isinstance(frame, Drain) and frame.worker and self._drained is not None:
            log.warning(
                "%s: somebody asked the bridge for an end of this worker: it stops once its handlers end", self._label
            )
            self._drained()
        elif isinstance(frame, Drain):
            log.info("%s: the bridge is stopping", self._label)
            self._leave()
        elif isinstance(frame, ErrorFrame):
            if frame.code == "unknown_session" and self._link is not None:
                self._send_hello(self._link)  # S2
            else:
                log.error("%s: the bridge reports: %s (%s)", self._label, frame.message, frame.code)

    def _leave(self) -> None:
        """Leave a bridge that stops, and report the leases left (C7), so that it need not check for them (B8).

        A receive in flight has no known result: the bridge ends such a session. Raises `ChannelLost`, so that a wake
        on its way starts nothing after this.
        """
        if self._link is not None and not any(port.receiving() for port in self._ports.values()):
            self._link.send(Bye(self._leases(self._loop.time())))
            raise ChannelLost("the bridge is stopping")

    def _on_heartbeat(self, frame: BridgeHeartbeat) -> None:
        self.sessions = frame.sessions
        self._liveness.set_session_count(self._loop.time(), frame.sessions)
        if frame.echo is None:
            return
        sent = self._liveness.echoed(self._loop.time(), frame.echo, frame.since_ms)
        if sent is None:
            return
        covered = last_empty_receives(frame, sent)
        for queue, told in frame.queues.items():
            port = self._ports.get(queue)
            if port is None:
                continue
            with swallowing(QUEUE):
                port.apply_periods(self._periods.get(queue, _DEFAULT), frame.sessions, self._liveness.latency_s)
                port.echoed(frame.echo, told)
                if queue in covered:
                    port.on_empty_receive(covered[queue])

    # The clock ---------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        deadline = self._liveness.deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._liveness.dead(now):
            if self._refusing:
                log.warning(
                    "%s: the bridge runs but rejects this worker; every queue is polled until it accepts it",
                    self._label,
                )
            else:
                log.warning(
                    "%s: no bridge answers at %s: %s. Every queue is polled until one does; nothing is lost",
                    self._label,
                    self.where,
                    self._why,
                )
            if self._link is not None:
                self._close(self._link)
                if self._patience is not None and not self._patience.expired():
                    # A link that cannot be closed must not hold up the next one.
                    self._patience.reschedule(now + ENDS_WITHIN_S)
            for port in self._ports.values():
                with swallowing(QUEUE):
                    port.lost()
        stamp = self._liveness.beat(now)
        if stamp is not None:
            with swallowing("a heartbeat"):
                self._beat(now, stamp)
        self._arm()

    def _beat(self, now: float, stamp: int) -> int:
        """Send a heartbeat, and return how many queues it reports more of than the levels."""
        beats = {queue: port.beat(now) for queue, port in self._ports.items()}
        frame = ListenerHeartbeat(stamp, beats, self._leases(now))
        fit_failures(frame)
        reported = self._add_reports(frame)
        self.send(self._with_running(frame, now))
        return reported

    def _add_reports(self, frame: ListenerHeartbeat) -> int:
        """Add the reports of as many queues as fit, and return their number.

        The next heartbeat goes on from there. A report larger than all the room is skipped; a `Listener` has none.
        """
        turn = [*self._ports][self._report_from :] + [*self._ports][: self._report_from]
        pending = [(queue, size) for queue in turn if (size := self._ports[queue].report_bytes())]
        if not pending:
            return 0
        free = room = FRAME_BYTES_MAX - FRAME_EXTRA_BYTES - len(encode_frame(frame))
        reported = 0
        for queue, size in pending:
            if size > free:
                continue
            if size > room:
                self._report_from = [*self._ports].index(queue)
                break
            frame.queues[queue] = self._ports[queue].report(frame.stamp, frame.queues[queue])
            room -= size
            reported += 1
        return reported

    def _with_running(self, frame: ListenerHeartbeat, now: float) -> ListenerHeartbeat:
        """Add the handlers that have run longest, of as many queues as there is room for."""
        running = {queue: each for queue, port in self._ports.items() if (each := port.running(now)) is not None}
        longest = sorted(
            (queue for queue in running if running[queue].ms >= RUNNING_MS), key=lambda each: -running[each].ms
        )
        if not longest:
            return frame
        room = (FRAME_BYTES_MAX - FRAME_EXTRA_BYTES - len(encode_frame(frame))) // RUNNING_BYTES
        most = max(0, min(RUNNING_MAX, room))
        return msgspec.structs.replace(frame, running={queue: running[queue] for queue in longest[:most]})

    def _close(self, link: Link) -> None:
        task = self._loop.create_task(_closed(link), name="close-session")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _leases(self, now: float) -> dict[str, list[int]]:
        most = min(BUCKETS_MAX, max(1, LEASES_MAX // len(self._ports)))
        leases = {queue: port.leases(now, most) for queue, port in self._ports.items()}
        return {queue: ends for queue, ends in leases.items() if ends}


async def _closed(link: Link) -> None:
    with swallowing("closing a connection to the bridge"):
        await unless_cancelled(link.close())


def periods_of(state: WelcomedQueue, sweep_ms: int) -> Periods:
    """Return the numbers of one queue of a welcome, with those of the session or the protocol as defaults."""
    given = {
        "sweep_s": sweep_ms if state.sweep_ms is None else state.sweep_ms,
        "slack_s": state.slack_ms,
        "spread_s": state.spread_ms,
        "store_call_s": state.store_call_ms,
    }
    return Periods(**{name: ms / 1000 for name, ms in given.items() if ms is not None})


SUBSCRIPTION_BYTES: Final = 260
"""What one queue takes of a hello at most, besides its name; and of a heartbeat, which names it twice."""


def shares(queues: Iterable[str]) -> list[list[str]]:
    """Part queues, in their order, so that all of a share fit one frame."""
    parted: list[list[str]] = []
    room = 0
    for queue in queues:
        needed = 2 * len(queue) + SUBSCRIPTION_BYTES
        if not parted or needed > room:
            parted.append([])
            room = FRAME_BYTES_MAX
        parted[-1].append(queue)
        room -= needed
    return parted


class Sessions:
    """Holds a session for each share of the queues: `run` until cancelled, `end` to take leave.

    ``open_session`` is given an instance and a share. The first session has the instance given here.
    """

    def __init__(self, queues: Iterable[str], instance: str, open_session: Callable[[str, list[str]], Session]) -> None:
        self._of: dict[str, tuple[Session, list[str]]] = {}
        self._all: list[Session] = []
        for share in shares(queues):
            session = open_session(secrets.token_hex(16) if self._all else instance, share)
            self._all.append(session)
            self._of.update(dict.fromkeys(share, (session, share)))

    def of(self, queue: str) -> tuple[Session, list[str]]:
        """Return the session of a queue, and all queues that it serves."""
        return self._of[queue]

    @property
    def first(self) -> Session:
        """The session that logs and figures show."""
        return self._all[0]

    @property
    def is_open(self) -> bool:
        """Whether every session is open."""
        return all(session.is_open for session in self._all)

    def send(self, frame: Report) -> None:
        """Send a frame by its queue's session, or drop it while that one does not stand."""
        self._of[frame.queue][0].send(frame)

    def hello(self) -> None:
        """Send another hello in each."""
        for session in self._all:
            session.hello()

    async def run(self) -> None:
        """Hold all for ever; what breaks one ends all."""
        if len(self._all) == 1:
            await self.first.run()
            return
        running = [asyncio.create_task(session.run(), name="session") for session in self._all]
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def end(self) -> None:
        """Send `bye` in each, and wait a second at most for the bridge to confirm it (L12)."""
        await asyncio.gather(*(session.end() for session in self._all))

    async def close(self) -> None:
        """Release links and channels."""
        await asyncio.gather(*(session.close() for session in self._all))


class Port(Protocol):
    """One queue of a session."""

    def subscription(self) -> Subscription:
        """Return this queue's part of a hello."""
        ...

    def wake(self, frame: Wake) -> None:
        """Handle the bridge's wake. Raises `ValueError` for one that cannot be read."""
        ...

    def welcomed(self, boot: str, gen: int) -> None:
        """Handle a new session."""
        ...

    def lost(self) -> None:
        """Handle the loss of the bridge (L9)."""
        ...

    def on_empty_receive(self, at: float) -> None:
        """Record that the queue was covered at ``at`` (L10)."""
        ...

    def apply_periods(self, periods: Periods, sessions: int, latency_s: float) -> None:
        """Apply the bridge's numbers for this queue, and the number of its sessions."""
        ...

    def beat(self, now: float) -> QueueBeat:
        """Return levels for a heartbeat."""
        ...

    def report_bytes(self) -> int:
        """Return how many bytes its unacknowledged report takes at most, 0 without one."""
        ...

    def report(self, stamp: int, beat: QueueBeat) -> QueueBeat:
        """Return ``beat`` with the report."""
        ...

    def echoed(self, stamp: int, told: LastEmptyReceive) -> None:
        """Record that the bridge has the heartbeat of this stamp, and what it answers of this queue."""
        ...

    def running(self, now: float) -> Running | None:
        """Return the message whose handler has run longest, None where none runs."""
        ...

    def receiving(self) -> bool:
        """Return whether a receive is in flight."""
        ...

    def leases(self, now: float, most: int) -> list[int]:
        """Return lease ends in ms from now, so many at most."""
        ...


WELCOME_WITHIN_S: Final = 5.0
DEAD_AFTER_BEATS: Final = 3
SECONDS_PER_SESSION: Final = 0.0025


class Liveness:
    """The clocks of one session after another: when to beat, and when the bridge counts as gone.

    ``degraded`` is the level that modes follow: it rises when no welcome came within 5 s of looking for a bridge, or no
    echo of an own heartbeat within three of its intervals, and falls with the next welcome. Seconds throughout.
    """

    def __init__(self, now: float) -> None:
        self.beat_s = self._told_s = 5.0
        self.degraded = False
        self.latency_s = 0.0
        self.welcomed = False
        """Whether a session is open."""
        self._looking_since: float | None = now
        self._welcomed_at = now
        self._alive_at = now
        self._beat_at = now

    def welcome(self, now: float, heartbeat_s: float) -> None:
        """Record a welcome: the first heartbeat is due immediately."""
        self.beat_s = self._told_s = heartbeat_s
        self.degraded = False
        self._looking_since = None
        self.welcomed = True
        self._welcomed_at = self._alive_at = self._beat_at = now

    def set_session_count(self, now: float, sessions: int) -> None:
        """Record how many sessions the bridge has: H grows and shrinks with them, also after the welcome."""
        self.beat_s = max(self._told_s, SECONDS_PER_SESSION * sessions)
        # The bridge waits as long as its last number asks: a beat that was due later comes earlier now.
        self._beat_at = min(self._beat_at, now + self.beat_s)

    def lost(self, now: float) -> None:
        """Record the end of a session."""
        self.welcomed = False
        if self._looking_since is None:
            self._looking_since = now

    def beat(self, now: float) -> int | None:
        """Return the stamp of the heartbeat to send now, own monotonic milliseconds; None if it is too early."""
        if not self.welcomed or now < self._beat_at:
            return None
        self._beat_at = now + self.beat_s
        return int(now * 1000)

    def echoed(self, now: float, stamp: int, since_ms: int) -> float | None:
        """Record the echo of a heartbeat; return the earliest time it can have been sent, None if it is invalid.

        Only an echo of this session counts: a bridge that sends but does not receive is useless.
        """
        sent = stamp / 1000 + since_ms / 1000
        if not self.welcomed or stamp < int(self._welcomed_at * 1000) or sent > now + 0.001:
            return None
        self._alive_at = max(self._alive_at, sent)
        self.latency_s = max(0.0, now - sent)
        return sent

    def dead(self, now: float) -> bool:
        """Return True once per case when the bridge is gone: close the session if there is one, and poll."""
        if self.welcomed:
            if now < self._alive_at + DEAD_AFTER_BEATS * self.beat_s:
                return False
            self.welcomed = False
        elif self.degraded or self._looking_since is None or now < self._looking_since + WELCOME_WITHIN_S:
            return False
        self.degraded = True
        return True

    def deadline(self) -> float | None:
        """Return when to ask `beat` and `dead` next."""
        if self.welcomed:
            return min(self._beat_at, self._alive_at + DEAD_AFTER_BEATS * self.beat_s)
        if self.degraded or self._looking_since is None:
            return None
        return self._looking_since + WELCOME_WITHIN_S


def fit_failures(frame: ListenerHeartbeat) -> None:
    """Leave out which queues are in failures where not all fit: a frame that is too large would end the session."""
    failing = [
        queue for queue, beat in frame.queues.items() if beat.failing_ms is not None or beat.hung or beat.starved
    ]
    if not failing:
        return
    over = len(encode_frame(frame)) + FRAME_EXTRA_BYTES - FRAME_BYTES_MAX
    for queue in failing[: max(0, -(-over // TROUBLE_BYTES_MIN))]:
        frame.queues[queue] = msgspec.structs.replace(frame.queues[queue], failing_ms=None, hung=0, starved=None)
