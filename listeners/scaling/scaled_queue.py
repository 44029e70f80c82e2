"""The scaler of one queue: a wake machine whose slots are processes and whose receive is a count of the queue.

Theory of operation
-------------------
A scaler speaks the protocol as a listener does, by the same `Controller`: a wake has it count the queue, and that count
is its receive (L1, L4). One that proves the queue empty is a cover (B7). Any other asks for processes, after which no
slot is free: `more` is said (L5), so that the debt is unowned and the first worker's hello takes it. Slots are free
again once all that was asked for are ready, or the back-off of what failed has ended (Z3).

So what wakes, when to poll without a bridge, and when to check unasked is decided once for both. This module adds how
many processes a count is worth (Z1), how many other workers are subtracted (Z5), what a count proves (Z7), and what
happens while none is available (Z6). `Processes` keeps what runs.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from queuebell.bridge.contract.backoff import Draw, RandomExponential
from queuebell.listeners.scaling.processes import Limits, Processes
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.receive_scaling import DepthScaling, Scaling
from queuebell.listeners.wake.table import Command, Mode, SendEmptyReceive, StartReceive
from queuebell.listeners.wake.timers import DeadMan

RETRY_FIRST_S = 1.0
RETRY_CAP_S = 30.0


class Proof(enum.Enum):
    """What has to be 0 in a count for the queue to be empty (Z7)."""

    VISIBLE = "visible"
    """The store counts exactly."""
    ALL = "all"
    """Messages whose lease has lapsed count as leased until the next receive."""
    NONE = "none"
    """The count is a rough one: its 0 proves nothing."""


class Count(msgspec.Struct, frozen=True):
    """What the store counted."""

    visible: int
    invisible: int = 0


class Audit(msgspec.Struct, frozen=True):
    """Count the queue for `ScaledQueue.audited`: some processes may not be wanted any more, or more of them be."""


class Look(msgspec.Struct, frozen=True):
    """Receive one message and give it back, since a rough count of 0 proves nothing (Z7); report `looked`."""

    rid: int


class Launch(msgspec.Struct, frozen=True):
    """Start so many processes; report `began` or `refused`."""

    count: int


class Finish(msgspec.Struct, frozen=True):
    """End these processes for this reason; report `ended` of each."""

    ids: tuple[str, ...]
    reason: str


class Waiting(msgspec.Struct, frozen=True):
    """A wake that came while the queue was counted, and is taken after that."""

    boot: str | None
    gen: int
    reason: str
    size: int
    came_at: float


Step = Command | Audit | Look | Launch | Finish


class ScaledQueue:
    """The rules of one scaled queue: feed an event with its time, perform what it returns, come back at `deadline`.

    ``scaling`` says how many processes an amount of work is worth (default: one for each ``per_process`` messages).
    Of processes that ``outlive`` their scaler none is ended when it stops.
    Times are seconds of one monotonic clock.
    """

    def __init__(
        self,
        now: float,
        limits: Limits,
        draw: Draw,
        *,
        proof: Proof = Proof.VISIBLE,
        own: bool = False,
        scaling: Scaling | None = None,
        pull_only: bool = False,
        outlive: bool = False,
    ) -> None:
        self.proof = proof
        self.limits = limits
        self.outlive = outlive
        self.processes = Processes(limits, draw)
        self.controller = Controller(
            limits.maximum,
            1,
            scaling=DepthScaling(1, 1, 1),
            polls=RandomExponential(RETRY_FIRST_S, RETRY_CAP_S, RETRY_FIRST_S),
            retries=RandomExponential(RETRY_FIRST_S, RETRY_CAP_S, RETRY_FIRST_S),
            draw=draw,
            deadman=None if pull_only else DeadMan(now, draw),
            own=own,
        )
        self.wanted = limits.minimum
        """How many processes the newest count is worth, all machines together."""
        self.counting_failed: str | None = None
        """Why the newest count failed, None where it did not."""
        self._scaling = scaling
        self._workers: int | None = None
        """Workers of this queue that the bridge knows of, ours among them."""
        self._ready = 0
        """How many of its processes were ready after the event before."""
        self._quiet_since: float | None = None
        self._audits_at = now
        """Not before this moment: a queue that is not wanted less is not counted in a hot loop."""
        self._auditing = False
        self._due_at: float | None = None
        """When the next message becomes visible, as the bridge's newest heartbeat said."""
        self._woken_while_full = False
        """A wake came while there was no room, and nothing was counted since (Z5)."""
        self._adds_at = now
        """Not before this moment: each of many puts is such a wake."""
        self._adds = False
        """The count under way is for that."""
        self._stopping = False
        self._waits: Waiting | None = None
        self._reported = False
        """Somebody reported work, and no worker was asked for since (Z7)."""
        self._rough = Count(0)
        """The count before a `Look`."""
        self._epoch = 0
        self._owes_since = now
        """When the newest reason to count came."""
        self._covered_at: float | None = None

    # The bridge -----------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Step]:
        """Begin: start what the minimum asks for. Before any other event."""
        return self._after(now, [])

    def wake(
        self, now: float, boot: str | None, gen: int, reason: str, size: int = 1, workers: int | None = None
    ) -> list[Step]:
        """Handle a wake; ``workers`` is how many the bridge knows of, including those that other scalers start."""
        if workers is not None:
            self._workers = workers
        if self.controller.receives and not self._stopping:
            # One count at a time. The answer to an older one ends the pause that a newer one began: each would have
            # `room` said after `more`, and the bridge wake again, for ever.
            if self._waits is None or self._waits.boot != boot or gen >= self._waits.gen:
                self._waits = Waiting(boot, gen, reason, size, now)
            return self._after(now, [])
        return self._after(now, self._woken(now, boot, gen, reason, size))

    def _woken(self, now: float, boot: str | None, gen: int, reason: str, size: int) -> list[Command]:
        self._reported = self._reported or reason not in ("sweep", "resync")
        # Those that start were asked for before this came: they may be too few (Z5).
        self._woken_while_full = self._woken_while_full or self.controller.free <= 0
        return self.controller.wake(now, boot, gen, reason, size)

    def welcomed(self, now: float, boot: str, gen: int) -> list[Step]:
        """Handle a welcome."""
        self._workers = self._waits = None
        return self._after(now, self.controller.welcomed(now, boot, gen))

    def lost(self, now: float) -> list[Step]:
        """Handle the loss of the bridge: count by a back-off (L9)."""
        self._workers = self._waits = self._due_at = None
        return self._after(now, self.controller.lost(now))

    def on_heartbeat(self, now: float, workers: int | None, due_s: float | None) -> list[Step]:
        """Record from a heartbeat how many workers the bridge knows of, and when the next message is due."""
        if workers is not None:
            self._workers = workers
        self._due_at = None if due_s is None else now + due_s
        return self._after(now, [])

    def on_empty_receive(self, now: float, at: float) -> list[Step]:
        """Record that a receive of any worker, begun at ``at`` or later, found the queue empty (L10)."""
        self._covered_at = at if self._covered_at is None else max(self._covered_at, at)
        self.controller.on_empty_receive(at)
        return self._after(now, [])

    def pull_only(self, now: float) -> list[Step]:
        """Work without a bridge for good."""
        return self._after(now, self.controller.pull_only(now))

    def stop(self, now: float) -> list[Step]:
        """Pass pending checks on, start nothing more, and end all processes that do not outlive it (L12)."""
        self._stopping = True
        self.processes.withdraw()
        return self._after(now, self.controller.stop(now))

    # Counts ---------------------------------------------------------------------------------------------------------

    def counted(self, now: float, rid: int, count: Count) -> list[Step]:
        """Handle the count that a `StartReceive` asked for."""
        self.counting_failed = None
        answered = self._answered and not self._proves_empty(count)
        if self._looks(count) and not answered:
            self._rough = count
            return self._after(now, [Look(rid)])
        self._reported = False
        self._judge(now, count, woken=not answered)
        self._ask(now, self.wanted)
        empty = answered or self._proves_empty(count)
        # With none to come, and no cover, others run enough: it is counted again after a back-off.
        commands = self.controller.received(
            now,
            rid,
            self.processes.coming,
            visible=0 if empty else max(1, count.visible),
            free=self.processes.free(now),
        )
        if answered:  # that worker has said so; this count proves nothing
            commands = [command for command in commands if not isinstance(command, SendEmptyReceive)]
        return self._after(now, commands + self._take_waiting(now))

    def _looks(self, count: Count) -> bool:
        """Whether to receive before a worker is started for a count that proves nothing: it would find nothing.

        Workers elsewhere receive themselves, and this scaler would start none for what it finds.
        """
        unproven = self.proof is Proof.NONE and not count.visible
        return unproven and not (self._reported or self.processes.own or self.others or self._stopping)

    def looked(
        self, now: float, rid: int, *, found: bool, complete: bool, blocked: bool, back_at: float | None = None
    ) -> list[Step]:
        """Handle the answer to a `Look`: whether it found a message, and whether its emptiness is proof (L8).

        ``back_at`` is when a message returns that could not be given back.
        """
        rough = self._rough
        self._judge(now, Count(int(found), rough.invisible), woken=False)
        self._ask(now, self.wanted)
        commands: Sequence[Step]
        if found:
            commands = self.controller.received(
                now, rid, self.processes.coming, visible=1, free=self.processes.free(now)
            )
        else:
            free = self.processes.free(now)
            commands = self.controller.received(
                now, rid, 0, complete=complete, free=free, blocked=blocked, count=rough.invisible
            )
            # A store that may miss messages is asked twice (L8), and counted once.
            commands = [Look(each.rid) if isinstance(each, StartReceive) else each for each in commands]
        if back_at is not None:
            commands = [*commands, *self.controller.came_back(now, back_at)]
        return self._after(now, [*commands, *self._take_waiting(now)])

    def look_failed(self, now: float, rid: int, back_at: float | None) -> list[Step]:
        """Handle a failed `Look`: a worker is started to receive.

        ``back_at`` is when a message returns that it may have leased (L6).
        """
        self._reported = True
        if back_at is not None:
            self.controller.came_back(now, back_at)
        return self.counted(now, rid, self._rough)

    def _take_waiting(self, now: float) -> list[Command]:
        """Handle the wake that came during the count."""
        waits, self._waits = self._waits, None
        if waits is None:
            return []
        as_before = self.controller.epoch == self._epoch
        commands = self._woken(now, waits.boot, waits.gen, waits.reason, waits.size)
        if as_before:
            # A worker that received during the count did so after this wake: its empty receive since then answers it.
            self._epoch, self._owes_since = self.controller.epoch, waits.came_at
        return commands

    @property
    def _answered(self) -> bool:
        """Whether a worker's empty receive has settled the pending check, which a rough count cannot (Z7).

        Nor can one that is above 0 for leased or delayed messages.
        """
        rough = self.proof is not Proof.VISIBLE
        return rough and self._covered_at is not None and self._covered_at > self._owes_since

    def _pauses_in_vain(self) -> bool:
        """Whether the pause after a count that asked for no process has lost its reason.

        Meanwhile the bridge takes this scaler for one without room, and would not wake it for the next put.
        """
        controller = self.controller
        pauses = controller.pending and not controller.receives and controller.timers.retry is not None
        return pauses and self.counting_failed is None and self._answered

    def count_failed(self, now: float, rid: int, why: str) -> list[Step]:
        """Handle a failed count: no process is ended for it, and one is started for the pending check (Z6)."""
        self.counting_failed = why
        self._quiet_since = None
        if self.controller.pending and not self._stopping:
            self._ask(now, max(self.limits.minimum, 1))
        return self._after(now, self.controller.failed(now, rid) + self._take_waiting(now))

    def audited(self, now: float, count: Count | None) -> list[Step]:
        """Handle the count that an `Audit` asked for; None where it failed, and nothing is ended (Z6)."""
        self._auditing, adds, self._adds = False, self._adds, False
        self._audits_at = now + max(1.0, self.limits.idle_s / 4)
        self._adds_at = now + 1.0
        if count is None:
            self._quiet_since = None
            return self._after(now, [])
        self._judge(now, count, woken=False)
        if adds:
            self._ask(now, self.wanted)
            return self._after(now, [])
        quiet = self._quiet_since is not None and now >= self._quiet_since + self.limits.idle_s
        spare = () if self._stopping else tuple(self.processes.spare(now, self.wanted, quiet=quiet))
        self.processes.end(list(spare))
        finish: list[Step] = [Finish(spare, f"idle for {self.limits.idle_s:g} s")] if spare else []
        return finish + self._after(now, [])

    def _judge(self, now: float, count: Count, *, woken: bool) -> None:
        """Apply a count."""
        self.wanted = self.worth(now, count, woken=woken)
        still = not count.visible and not self._leased(count) and not self._due_soon(now)
        self._quiet_since = (now if self._quiet_since is None else self._quiet_since) if still else None

    def worth(self, now: float, count: Count, *, woken: bool = True) -> int:
        """Return how many processes a count is worth, all machines together (Z1).

        Leased messages are work of those that hold them, and of no more than can: delayed messages are counted with
        them and need no process yet. After a wake (``woken``) a rough count is worth one process at least (Z7).
        """
        work = count.visible + self._leased(count)
        if self._due_soon(now) or (woken and self.proof is Proof.NONE):
            work = max(work, 1)
        if not work:
            return self.limits.minimum
        scaling = self._scaling or DepthScaling(self.limits.per_process, 1, self.limits.maximum)
        return max(self.limits.minimum, min(self.limits.maximum, scaling.tasks(work)))

    def _leased(self, count: Count) -> int:
        if self.proof is Proof.ALL:
            return count.invisible
        return min(count.invisible, (self.processes.holders + self.others) * self.limits.per_process)

    def _due_soon(self, now: float) -> bool:
        """Whether a process that ends now would be missed before another could be ready (Z2)."""
        return self._due_at is not None and now <= self._due_at <= now + self.limits.start_s

    def _proves_empty(self, count: Count) -> bool:
        if self.proof is Proof.NONE:
            return False
        return not count.visible and (self.proof is Proof.VISIBLE or not count.invisible)

    @property
    def others(self) -> int:
        """How many workers of this queue run or start under other scalers, as far as the bridge has reported (Z5)."""
        if self._workers is None or self.controller.mode is not Mode.PUSH:
            return 0
        return max(0, self._workers - self.processes.ready)

    def held(self, now: float) -> str | None:
        """Return, in one word, why no more are started now: `Processes.held` of the wire."""
        processes = self.processes
        reasons = {
            "stopping": self._stopping,
            "backoff": processes.backs_off(now),
            "uncounted": self.counting_failed is not None,
            "starting": processes.coming > 0,
            "maximum": self.wanted >= self.limits.maximum <= processes.own,
            "elsewhere": processes.own < self.wanted <= processes.own + self.others,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _ask(self, now: float, wanted: int) -> None:
        if not self._stopping:
            self.processes.ask(now, wanted - self.processes.own - self.others)

    # Processes ------------------------------------------------------------------------------------------------------

    def began(self, now: float, ids: list[str]) -> list[Step]:
        """Record that the actuator has started these."""
        self.processes.began(now, ids)
        return self._after(now, [])

    def found(self, now: float, ids: list[str]) -> list[Step]:
        """Record processes that run already; they are scaled like those that were asked for."""
        self.processes.found(now, ids)
        return self._after(now, [])

    def refused(self, now: float, count: int, why: str) -> list[Step]:
        """Record that so many could not be started."""
        self.processes.refused(now, count, why)
        return self._after(now, [])

    def ready(self, now: float, number: str) -> list[Step]:
        """Record that a process's listener has its session."""
        self.processes.became_ready(now, number)
        return self._after(now, [])

    def busy_changed(self, now: float, number: str, *, busy: bool) -> list[Step]:
        """Record that a process holds messages, or none any more."""
        self.processes.busy_changed(now, number, busy=busy)
        if busy:
            self._quiet_since = None
        return self._after(now, [])

    def ended(self, now: float, number: str, code: int | None, why: str) -> list[Step]:
        """Record that a process has ended."""
        self.processes.ended(now, number, code, why)
        return self._after(now, [])

    def retune(self, now: float, limits: Limits) -> list[Step]:
        """Apply other limits from now on; what is beyond a smaller maximum ends when it is idle."""
        self.limits = self.processes.limits = limits
        self.controller.capacity = limits.maximum
        return self._after(now, [])

    # Time -----------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Step]:
        """Handle what is due; harmless when it is too early."""
        return self._after(now, self.controller.tick(now))

    def deadline(self, now: float) -> float | None:
        """Return when to call `tick` next."""
        times = [self.controller.deadline()]
        if not self._stopping:
            times.append(self.processes.deadline(now))
            if self._may_audit(now):
                times.append(self._audits_at)
            if self._may_add(now):
                times.append(self._adds_at)
        return min((at for at in times if at is not None), default=None)

    def _may_audit(self, now: float) -> bool:
        return not self._auditing and self.processes.surplus() > 0 and bool(self.processes.idle(now))

    def _may_add(self, now: float) -> bool:
        """Whether to count for a wake that came without room: while some are coming, and more are allowed (Z5).

        Otherwise there is a back-off, or the maximum runs; the pending check begins when there is room again.
        """
        processes = self.processes
        return self._woken_while_full and not self._auditing and processes.coming > 0 and processes.left(now) > 0

    def _after(self, now: float, commands: Sequence[Step]) -> list[Step]:
        """Do what follows any event: keep the minimum, start by the rate, end late processes, report room."""
        steps: list[Step] = list(commands)
        processes = self.processes
        if self._workers is not None and processes.ready < self._ready:
            # The bridge's number is older than their end: they would be taken for workers of others.
            self._workers = max(0, self._workers - (self._ready - processes.ready))
        self._ready = processes.ready
        if self.controller.epoch != self._epoch:
            self._epoch, self._owes_since = self.controller.epoch, now
        if self._stopping:
            processes.withdraw()
            if self.outlive:
                return steps
            left = tuple(number for number in processes.ids if not processes.ends(number))
            processes.end(list(left), "stopping")
            return [*steps, Finish(left, "the scaler stops")] if left else steps
        late = processes.overdue(now)
        if late:
            steps.append(Finish(tuple(late), f"not ready within {self.limits.start_timeout_s:g} s"))
        processes.ask(now, processes.short())
        count = processes.launch(now)
        if count:
            steps.append(Launch(count))
        free = processes.free(now)
        if free != self.controller.free:
            steps += self.controller.room(now, free)
        if free > 0 and self._pauses_in_vain():
            self.controller.timers.retry = now
            steps += self.controller.tick(now)
        if self._woken_while_full and free > 0:
            self._woken_while_full = False  # the pending check counts now
        adds = now >= self._adds_at and self._may_add(now)
        if adds or (now >= self._audits_at and self._may_audit(now)):
            self._auditing, self._adds = True, adds
            self._woken_while_full = self._woken_while_full and not adds
            steps.append(Audit())
        return steps
