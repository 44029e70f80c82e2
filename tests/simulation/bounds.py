"""What is promised as numbers, and what measures it: waits (I1), the cost of a calm queue (I2, I6), scalers (Z1 to Z7).

The clock of a queue's wait starts anew with every receive, so that it bounds every gap and not only the first. For each
listener it runs while messages are visible and that listener lives, is subscribed, has a free slot and reaches a store
that answers; what only stands together, but not at once in one listener, promises nothing.

A queue is calm once nothing of it moved for T + R and no process came, went or stood still for V longer. Receives of
calm queues are counted until the calm ends; then the count is held against the bound for a stretch of that length.

Of scalers, how long work waits is two promises: one that could count does so within B, as a listener receives. And from
nothing to a receive it takes a wake and a start, while nothing is wrong.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import msgspec

from queuebell.bridge.contract.bounds import EARLY, PATH_LATENCY_S, STORE_CALL_S, SWEEP_S, bound
from queuebell.bridge.core.cluster.subscribers import PLACE_S
from queuebell.bridge.core.settings import Periods
from tests.simulation.plan import Plan

PATH_S: Final = 1.0
"""What frames, turns and a store call take together while nothing is wrong, amply."""
SLOW_LATENCY_S: Final = 6.0
"""Path latency where links may be made slow: 3 s each way, as the faults draw it."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one plan; seconds, and whole numbers of receives."""

    wake_s: float
    """B of I1: T_dead + w + R. Infinite where the plan switches the dead-man timer off."""
    calm_s: float
    """T + R: how long a queue must have been empty before I2 says anything."""
    churn_s: float
    """The same after a process came, went or stood still: its leases may be asked about until V has passed (B8)."""
    sweep_least_s: float
    """The shortest time between two sweeps; infinite where none are needed."""
    receives_a_look: int
    """2 where an empty receive needs another to be believed (L8), else 1."""
    receives_a_restart: int
    """I6: what a queue costs when the bridge starts again."""
    prompt_s: float = math.inf
    """I1 of an own queue while nothing is wrong: A, within which a wake is passed on, and the path; of several bridges
    also their places in the order. Else infinite."""

    def receives(self, length_s: float) -> int:
        """Return the most receives that ``length_s`` seconds of an empty queue may see (I2)."""
        if math.isinf(self.sweep_least_s):
            return 0
        # One more than the whole periods: a window may begin just before a sweep.
        return (int(length_s / self.sweep_least_s) + 1) * self.receives_a_look

    @property
    def receives_an_hour(self) -> int:
        """Return the most receives an hour of an empty queue, in the long run: 67 elsewhere, 0 for own queues."""
        return 0 if math.isinf(self.sweep_least_s) else math.ceil(3600 / self.sweep_least_s) * self.receives_a_look


def _prompt(plan: Plan) -> float:
    if plan.bridges > 1:
        # Who was thought to come first may just have run out of room (C3).
        return Periods().start_ack_s + PLACE_S * (plan.bridges - 1) + PATH_S
    return Periods().start_ack_s + PATH_S if plan.store == "own" else math.inf


def promise(plan: Plan) -> Promise:
    """Reckon the bounds of a plan, with the protocol's default periods and `queuebell.bridge.contract.bounds.bound`.

    B is 116 s at the defaults, and longer only where a fleet is large or its links are slow. A store that does not
    answer is no part of it: time counts while it answers.
    """
    latency = SLOW_LATENCY_S if "slow_link" in plan.faults else PATH_LATENCY_S
    found = bound(listeners=plan.listeners, latency_s=latency)
    own = plan.store == "own"
    calm_s = SWEEP_S + STORE_CALL_S
    look = (1 if own or plan.complete_receive else 2) + int(plan.scalers > 0 and not plan.exact_depth)  # Z7
    return Promise(
        wake_s=found.bound_s if plan.deadman else math.inf,
        calm_s=calm_s,
        churn_s=calm_s + plan.visibility_s,
        sweep_least_s=math.inf if own or not plan.sweep else EARLY * SWEEP_S,
        receives_a_look=look,
        # Over a broker nobody can tell a store that started again from one elsewhere before its first answer.
        # Of several, a listener that comes may be the first to tell its next bridge of the queue (B10), and V after one
        # is gone each of the others may look for what it alone knew: within a word's latency nothing is proven (C5).
        receives_a_restart=0
        if own and plan.channel == "wire"
        else look
        if plan.bridges == 1
        else look * (1 + plan.bridges),
        prompt_s=_prompt(plan),
    )


STANDING_S: Final = 60.0
"""How long nothing has been wrong, and no process came or went, before an own queue is held to its tighter bound:
back-offs of up to 30 s, and sessions that are held alive for D, are over by then."""


class _Queue:
    """How one queue stands; ``able`` says since when each listener could receive, the earliest first."""

    def __init__(self) -> None:
        self.visible = 0
        self.since = 0.0
        self.able: dict[str, float] = {}
        self.broken = False


class WakeCheck:
    """Measures every gap, keeps the longest, and writes down those beyond B.

    Own queues have a second, tighter bound while nothing is wrong and everything has been standing for `STANDING_S`.
    ``look`` is what has to begin. ``measured`` counts the gaps, ``prompt`` those held against the tighter bound. Times
    are true virtual seconds and never go back.
    """

    def __init__(self, bounds: Promise, violations: list[str], look: str = "receive") -> None:
        self._look = look
        self.measured = 0
        self.prompt = 0
        self.worst_s = 0.0
        self._bounds = bounds
        self._violations = violations
        self._queues: dict[str, _Queue] = {}
        self._rooms: dict[tuple[str, str], bool] = {}
        """By worker and queue: whether it said that it could receive."""
        self._still: dict[str, None] = {}
        self._store_up = True
        self._wrong = 0
        self._disturbed_at = 0.0

    def level(self, at: float, queue: str, visible: int) -> None:
        q = self._queue(queue)
        if q.visible and not visible:
            self._measure(at, queue, q)
            q.broken = False
        elif visible and not q.visible:
            q.since = at
        q.visible = visible

    def receive(self, at: float, queue: str) -> None:
        q = self._queue(queue)
        if q.visible:
            self._measure(at, queue, q)
        q.since = at
        q.broken = False

    def room(self, at: float, worker: str, queue: str, able: bool) -> None:
        self._rooms[worker, queue] = able
        self._weigh(at, worker, queue)

    def gone(self, at: float, worker: str) -> None:
        self._still.pop(worker, None)
        for key in [key for key in self._rooms if key[0] == worker]:
            self._rooms[key] = False
            self._weigh(at, *key)
            del self._rooms[key]

    def still(self, at: float, worker: str, still: bool) -> None:
        if still:
            self._still[worker] = None
        else:
            self._still.pop(worker, None)
        for name, queue in list(self._rooms):
            if name == worker:
                self._weigh(at, worker, queue)

    def store(self, at: float, up: bool) -> None:
        self._store_up = up
        for worker, queue in list(self._rooms):
            self._weigh(at, worker, queue)

    def disturb(self, at: float, wrong: int = 0) -> None:
        """A process came or went; ``wrong`` is 1 where a fault began or something stood still, -1 where that ended."""
        for queue, q in self._queues.items():
            if q.visible:
                self._judge_prompt(at, queue, q)
        self._wrong = max(0, self._wrong + wrong)
        self._disturbed_at = at

    def finish(self, at: float) -> None:
        for queue, q in self._queues.items():
            if q.visible:
                self._measure(at, queue, q)

    def _queue(self, queue: str) -> _Queue:
        q = self._queues.get(queue)
        if q is None:
            q = self._queues[queue] = _Queue()
        return q

    def _weigh(self, at: float, worker: str, queue: str) -> None:
        q = self._queue(queue)
        able = self._store_up and worker not in self._still and self._rooms[worker, queue]
        if able and worker not in q.able:
            q.able[worker] = at
        elif not able and worker in q.able:
            if q.visible:
                if worker == next(iter(q.able)):
                    self._judge_prompt(at, queue, q)
                self._note(at, queue, q, worker)
            del q.able[worker]

    def _measure(self, at: float, queue: str, q: _Queue) -> None:
        self._judge_prompt(at, queue, q)
        # Who was able first stands first: whoever becomes able is added at the end.
        if q.able:
            self._note(at, queue, q, next(iter(q.able)))

    def _note(self, at: float, queue: str, q: _Queue, worker: str) -> None:
        began = max(q.since, q.able[worker])
        gap = at - began
        self.measured += 1
        self.worst_s = max(self.worst_s, gap)
        if gap > self._bounds.wake_s and not q.broken:
            q.broken = True
            self._violations.append(
                f"I1 {queue}: {q.visible} visible since {q.since:.3f} s or before and {worker} able since"
                f" {q.able[worker]:.3f} s, but at {at:.3f} s no {self._look} had begun for {gap:.3f} s;"
                f" promised within {self._bounds.wake_s:.1f} s"
            )

    def _judge_prompt(self, at: float, queue: str, q: _Queue) -> None:
        """Hold a gap against the tighter bound, as far as it lies where nothing was wrong."""
        promised = self._bounds.prompt_s
        if self._wrong or q.broken or not q.able or promised == math.inf:
            return
        began = max(q.since, next(iter(q.able.values())), self._disturbed_at + STANDING_S)
        if at < began:
            return
        self.prompt += 1
        if at - began > promised:
            q.broken = True
            self._violations.append(
                f"I1 {queue}: {q.visible} visible in an own queue, {next(iter(q.able))} able and nothing wrong, but at"
                f" {at:.3f} s no receive had begun for {at - began:.3f} s; promised within {promised:.1f} s"
            )


RESTART_WITHIN_S: Final = 4.0
"""A bridge away for longer makes its listeners look by themselves, rightly (L9)."""
RESTART_WATCH_S: Final = 50.0
"""How long receives are laid to a restart: less than the shortest time to the next sweep."""


class _Calm:
    """One queue: since when nothing of it moved, and what was counted in the stretch of calm under way."""

    def __init__(self) -> None:
        self.visible = 0
        self.moved_at = 0.0
        self.counted = 0
        self.restart: int | None = None
        """Receives since the bridge went, None while no restart is watched."""


class CostCheck:
    """Counts receives of calm queues.

    ``receives`` and ``seconds`` are those of all calm stretches of all queues together; ``restarts`` and
    ``restart_receives`` the restarts watched to their end, and the most receives that one queue saw in one of them.
    """

    def __init__(self, bounds: Promise, violations: list[str]) -> None:
        self.receives = 0
        self.seconds = 0.0
        self.stretches = 0
        self.restarts = 0
        self.restart_receives = 0
        self._bounds = bounds
        self._violations = violations
        self._queues: dict[str, _Calm] = {}
        self._churned_at = 0.0
        self._wrong = 0
        self._away = False
        self._down_at: float | None = None
        self._watch_until = math.inf

    def know(self, queue: str) -> None:
        """A listener serves this queue; one that nothing ever happened to is watched as well."""
        self._queue(queue)

    def moved(self, at: float, queue: str, visible: int | None = None) -> None:
        """Something of this queue moved: a message, a trigger, a handler; ``visible`` where that changed."""
        self._lapse(at)
        q = self._queue(queue)
        self._end(at, queue, q)
        if visible is not None:
            q.visible = visible
        q.moved_at = at
        q.restart = None

    def receive(self, at: float, queue: str) -> None:
        q = self._queue(queue)
        self._lapse(at)
        if q.restart is not None:
            q.restart += 1
            self._judge_restart(at, queue, q)
        if at > self._calm_from(q):
            q.counted += 1

    def churn(self, at: float, wrong: int = 0) -> None:
        """A process came or went; ``wrong`` is 1 where a fault began or something stood still, -1 where that ended."""
        self._lapse(at)
        self._end_all(at)
        self._wrong = max(0, self._wrong + wrong)
        self._churned_at = at
        for q in self._queues.values():
            q.restart = None

    def bridge(self, at: float, up: bool) -> None:
        self._lapse(at)
        if not up:
            calm = [q for q in self._queues.values() if at > self._calm_from(q)]
            self.churn(at)
            for q in calm:
                q.restart = 0
            self._down_at, self._watch_until, self._away = at, math.inf, True
            return
        self._away = False
        watched = [(queue, q, q.restart) for queue, q in self._queues.items()]
        self.churn(at)
        if self._down_at is not None and at - self._down_at <= RESTART_WITHIN_S:
            self._watch_until = at + RESTART_WATCH_S
            for queue, q, count in watched:
                q.restart = count
                self._judge_restart(at, queue, q)
        else:
            self._down_at = None

    def finish(self, at: float) -> None:
        self._lapse(at)
        self._end_all(at)

    def _queue(self, queue: str) -> _Calm:
        q = self._queues.get(queue)
        if q is None:
            q = self._queues[queue] = _Calm()
        return q

    def _calm_from(self, q: _Calm) -> float:
        if q.visible or self._wrong or self._away:
            return math.inf
        return max(q.moved_at + self._bounds.calm_s, self._churned_at + self._bounds.churn_s)

    def _end_all(self, at: float) -> None:
        for queue, q in self._queues.items():
            self._end(at, queue, q)

    def _end(self, at: float, queue: str, q: _Calm) -> None:
        length = at - self._calm_from(q)
        counted, q.counted = q.counted, 0
        if length <= 0:
            return
        self.receives += counted
        self.seconds += length
        self.stretches += 1
        allowed = self._bounds.receives(length)
        if counted > allowed:
            self._violations.append(
                f"I2 {queue}: {counted} receives in {length:.3f} s of calm until {at:.3f} s;"
                f" promised at most {allowed} ({self._bounds.receives_an_hour} an hour)"
            )

    def _judge_restart(self, at: float, queue: str, q: _Calm) -> None:
        """Hold the receives since the bridge went against I6, as soon as it is known to have been a restart."""
        if self._away or q.restart is None or q.restart <= self._bounds.receives_a_restart:
            return
        self._violations.append(
            f"I6 {queue}: {q.restart} receives by {at:.3f} s after the bridge went at {self._down_at or 0:.3f} s and"
            f" came back; promised at most {self._bounds.receives_a_restart}"
        )
        # Once is enough to say so.
        q.restart = None

    def _lapse(self, at: float) -> None:
        if at < self._watch_until:
            return
        for q in self._queues.values():
            if q.restart is not None:
                self.restarts += 1
                self.restart_receives = max(self.restart_receives, q.restart)
                q.restart = None
        self._down_at, self._watch_until = None, math.inf


RATE_S: Final = 0.95
"""The second within which so many starts are begun, less what one takes more than another until it is a process."""
SAID_S: Final = 0.5
"""Within which a scaler knows that a worker of its machine has become busy."""


class _Scaler:
    """One scaler: its workers that live, and when it started some."""

    def __init__(self, hosts: list[str]) -> None:
        self.hosts = hosts
        self.living: dict[str, bool] = {}
        """By host, whether it was told to end or lost its scaler."""
        self.started: deque[float] = deque()


class ScaleCheck:
    """Feed it what happens; ``violations`` is shared.

    ``wake`` measures how long counts are waited for. Times never go back.
    """

    def __init__(self, plan: Plan, bounds: Promise, violations: list[str]) -> None:
        self.started = self.ends = self.zeros = 0
        prompt = bounds.prompt_s + plan.start_s[1] + PATH_S
        self.counts = WakeCheck(msgspec.structs.replace(bounds, prompt_s=math.inf), violations, "count or receive")
        self.receives = WakeCheck(msgspec.structs.replace(bounds, wake_s=math.inf, prompt_s=prompt), violations)
        self._plan = plan
        self._violations = violations
        self._scalers = {
            name: _Scaler(plan.worker_names[number :: plan.scalers]) for number, name in enumerate(plan.scaler_names)
        }
        self._of = {host: name for name, scaler in self._scalers.items() for host in scaler.hosts}

    def checked(self) -> dict[str, int]:
        """Return how often each rule had something to check; none without scalers."""
        if not self._scalers:
            return {}
        return {
            "Z1": self.started,
            "Z2": self.ends,
            "Z2 prompt": self.receives.prompt,
            "Z2 zero": self.zeros,
            "Z3": self.counts.measured,
        }

    def up(self, at: float, process: str) -> None:
        name = self._of.get(process)
        if name is None:
            return
        scaler, plan = self._scalers[name], self._plan
        scaler.living[process] = False
        scaler.started.append(at)
        while scaler.started[0] <= at - RATE_S:
            scaler.started.popleft()
        kept = sum(not lost for lost in scaler.living.values())
        self.started += 1
        if kept > plan.workers:
            self._broken(at, "Z1", f"{name}: {kept} workers run; promised {plan.workers} at most")
        if len(scaler.started) > plan.start_rate:
            self._broken(
                at, "Z2", f"{name}: {len(scaler.started)} starts in a second; promised {plan.start_rate} at most"
            )

    def down(self, at: float, process: str) -> None:
        scaler = self._scalers.get(process)
        if scaler is not None:
            # Its workers hear of it; the next scaler of this machine counts only its own (Z4).
            scaler.started.clear()
            for host in scaler.living:
                scaler.living[host] = not self._plan.outlive
            return
        name = self._of.get(process)
        if name is not None:
            self._scalers[name].living.pop(process, None)

    def asked(self, at: float, scaler: str, worker: str, all_: bool, busy_since: float | None) -> None:
        self.ends += 1
        if busy_since is not None and not all_ and at - busy_since > SAID_S:
            self._broken(
                at,
                "Z2",
                f"{scaler} ended {worker}, where a handler had been running since {busy_since:.3f} s;"
                " promised is that no worker is ended to save while it holds a message",
            )

    def finish(self, at: float) -> None:
        """End the run: nobody may live whose scaler is gone, and no more than are kept where there is no work."""
        for name, scaler in self._scalers.items():
            left = [host for host, lost in scaler.living.items() if lost and host not in self.counts._still]
            if left:
                self._violations.append(f"Z4 at {at:.3f} s {', '.join(left)}: still there though {name} is gone")

    def calm(self, at: float) -> None:
        """So late after all work nobody is left but who is kept, where the store says that there is none."""
        for name, scaler in self._scalers.items():
            self.zeros += 1
            if scaler.living:
                text = f"{len(scaler.living)} workers though there has been no work for long; promised none"
                self._violations.append(f"Z2 at {at:.3f} s {name}: {text}")

    def room(self, at: float, scaler: str, queue: str, able: bool, free: int, coming: int) -> None:
        self.counts.room(at, scaler, queue, able and free > 0)
        self.receives.room(at, scaler, queue, able and free + coming > 0)

    def disturb(self, at: float, wrong: int = 0, process: str = "") -> None:
        """As `WakeCheck.disturb`; that a scaler's worker comes or goes is nothing out of the ordinary."""
        if wrong or process not in self._of:
            self.receives.disturb(at, wrong)

    def _broken(self, at: float, rule: str, text: str) -> None:
        self._violations.append(f"{rule} at {at:.3f} s {text}")
