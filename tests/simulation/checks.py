"""All checkers of one run, fed with what happens: the invariants I1 to I8, O4, K1 and K2, and Jepsen's numbers.

A checker sees true time and the truth about the store; it never looks into the system under test. Every violation is
one line that begins with its rule, so that two runs can be said to fail in the same way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tests.simulation import events as e
from tests.simulation.cost_check import CostCheck
from tests.simulation.outcome import Figures
from tests.simulation.plan import Plan
from tests.simulation.promise import promise
from tests.simulation.scale_check import ScaleCheck
from tests.simulation.wake_check import WakeCheck
from tests.support.total_queue import TotalQueue

ACCESS_S: Final = 1.0
"""Within which a bridge that runs follows its access file, and a key that ends by itself."""
ROUNDING_S: Final = 1e-6
VIOLATIONS_MAX: Final = 100
"""One fault in the rules breaks a promise over and over; the first lines say it all."""


class TurnCost:
    """Counts; ``seconds`` is how long was counted once it is over."""

    def __init__(self) -> None:
        self.triggers = 0
        self.receives = 0
        self.words: Counter[str] = Counter()
        self.seconds = 0.0
        self._began: float | None = None
        self._over = False

    def trigger(self, at: float) -> None:
        """A trigger was published."""
        if not self._over:
            self._began = at if self._began is None else self._began
            self.triggers += 1

    def receive(self) -> None:
        """A receive began."""
        if self._counts:
            self.receives += 1

    def said(self, kind: str) -> None:
        """A bridge said something to the others."""
        if self._counts:
            self.words[kind] += 1

    def phase(self, at: float, name: str) -> None:
        """The run entered a phase."""
        if name == "healed" and not self._over:
            self._over = True
            self.seconds = 0.0 if self._began is None else at - self._began

    @property
    def _counts(self) -> bool:
        return self._began is not None and not self._over


def rule_of(violation: str) -> str:
    """Return the rule that a violation names: ``I1`` to ``I8``, ``O4``, ``K1``, ``lost``, or the kernel's."""
    return violation.split(maxsplit=1)[0].rstrip(":")


class Checks:
    """Feed it every event in order with `hear`, then call `finish` once; ``violations`` tells what did not hold.

    ``wake``, ``cost`` and ``total`` hold the figures. Times never go back.
    """

    def __init__(self, plan: Plan) -> None:
        self.violations: list[str] = []
        self.promise = promise(plan)
        self.wake = WakeCheck(self.promise, self.violations)
        self.cost = CostCheck(self.promise, self.violations)
        self.total = TotalQueue()
        self.turns = TurnCost()
        self.scale = ScaleCheck(plan, self.promise, self.violations)
        self._several = plan.bridges > 1
        self._own = plan.store == "own"
        self._auth = plan.auth
        self._bridge_resumed = 0.0
        self._queues = plan.queues
        self._bridges = plan.bridge_names
        self._boots: dict[str, None] = {}
        """Of the bridges that run."""
        self._covered: dict[tuple[str, str], int] = {}
        """By boot and queue: the newest generation of this boot that a cover was heard of."""
        self._gens: dict[tuple[str, str], int] = {}
        self._leased: dict[str, int] = {}
        self._handled: dict[str, int] = {}
        self._still: dict[str, bool] = {}
        """Processes that stand still."""
        self._checked: Counter[str] = Counter()
        self._puts: dict[type[e.Put], Callable[[int, int, int], None]] = {
            e.PutAttempted: self.total.attempt,
            e.PutAcknowledged: self.total.acknowledge,
            e.PutUnknown: self.total.unknown,
        }
        self._hear: dict[type[e.Event], Callable[[Any], None]] = {
            e.PutAttempted: self._put,
            e.PutAcknowledged: self._put,
            e.PutUnknown: self._put,
            e.PutFailed: self._moved,
            e.Published: self._moved,
            e.Deleted: self._moved,
            e.Triggered: self._triggered,
            e.ReceiveBegan: self._receive_began,
            e.StoreReceived: self._store_received,
            e.HandlerBegan: self._handler_began,
            e.HandlerEnded: self._handler_ended,
            e.BecameVisible: self._level,
            e.BecameInvisible: self._level,
            e.ProcessUp: self._process_up,
            e.ProcessDown: self._process_down,
            e.ProcessPaused: self._stands,
            e.ProcessResumed: self._stands,
            e.ListenerRoom: self._room,
            e.ListenerIdle: self._idle,
            e.CountBegan: self._counted,
            e.ScalerRoom: self._scaler,
            e.EndAsked: self.scale.asked,
            e.Calm: lambda event: self.scale.calm(event.at),
            e.StoreUp: self._store,
            e.StoreDown: self._store,
            e.BridgeUp: self._bridge_up,
            e.BridgeDown: self._bridge_down,
            e.Marked: self._marked,
            e.MarkedBy: self._marked,
            e.MarkForgiven: self._mark_forgiven,
            # What it may hold is looked for V later, by each bridge that it left (B8).
            e.SessionMoved: lambda event: self.cost.churn(event.at),
            e.WordSaid: lambda event: self.turns.said(event.kind),
            e.Phase: lambda event: self.turns.phase(event.at, event.name),
            e.CoverHeard: self._cover_heard,
            e.Held: self._held,
            e.Audited: self._audited,
            e.Judged: self._judged,
            e.FaultBegan: self._fault,
            e.FaultEnded: self._fault,
        }

    def hear(self, event: e.Event) -> None:
        """Take note of one event."""
        known = self._hear.get(type(event))
        if known is not None:
            known(event)

    def finish(self, at: float) -> None:
        """End the run: judge what is still open, and count; everything must have been drained before."""
        self.wake.finish(at)
        self.cost.finish(at)
        self.scale.finish(at)
        numbers = self.total.numbers()
        if numbers.lost:
            which = ", ".join(f"{producer}/{number}" for producer, number in self.total.first_lost())
            self.violations.append(
                f"lost: {numbers.lost} of {numbers.acknowledged} acknowledged messages were never handled, the first"
                f" are {which}"
            )
        if numbers.unexpected:
            self.violations.append(f"unexpected: {numbers.unexpected} messages were handled that nobody put")
        del self.violations[VIOLATIONS_MAX:]

    def figures(self) -> Figures:
        """Return what was measured so far."""
        scaled = self.scale.checked()
        return Figures(
            bound_s=None if math.isinf(self.promise.wake_s) else self.promise.wake_s,
            worst_gap_s={situation: round(gap, 6) for situation, gap in sorted(self.wake.worst_s.items())},
            calm_receives=self.cost.receives,
            calm_s=round(self.cost.seconds, 6),
            restarts=self.cost.restarts,
            restart_receives=self.cost.restart_receives,
            triggers=self.turns.triggers,
            load_s=round(self.turns.seconds, 6),
            load_receives=self.turns.receives,
            words=dict(sorted(self.turns.words.items())),
            checked={
                "I1": self.wake.measured,
                # Only own queues, and those of several bridges, have the tighter bound; scalers have one of theirs.
                **({"I1 prompt": self.wake.prompt} if (self._own or self._several) and not scaled else {}),
                "I2": self.cost.stretches,
                **{rule: self._checked[rule] for rule in ("I3", "I4", "I5")},
                "I6": self.cost.restarts,
                **{rule: self._checked[rule] for rule in ("I7", "I8")},
                **({rule: self._checked[rule] for rule in ("K1", "K2")} if self._auth else {}),
                **({rule: self._checked[rule] for rule in ("C4", "C5")} if self._several else {}),
                **scaled,
            },
        )

    # -- messages ------------------------------------------------------------------------------------------------------

    def _put(self, event: e.Put) -> None:
        self._puts[type(event)](event.producer, event.first, event.count)
        self.cost.moved(event.at, event.queue)

    def _moved(self, event: e.PutFailed | e.Published | e.Deleted) -> None:
        if isinstance(event, e.Published):
            self.turns.trigger(event.at)
        self.cost.moved(event.at, event.queue)

    def _level(self, event: e.BecameVisible | e.BecameInvisible) -> None:
        self.wake.level(event.at, event.queue, event.visible)
        self.scale.level(event)
        self.cost.moved(event.at, event.queue, event.visible)

    def _store_received(self, event: e.StoreReceived) -> None:
        self._leased[event.queue] = self._leased.get(event.queue, 0) + event.count

    def _handler_began(self, event: e.HandlerBegan) -> None:
        self.cost.moved(event.at, event.queue)
        handled = self._handled[event.queue] = self._handled.get(event.queue, 0) + 1
        # Own queues also lease in the commit of the put, to carry messages in the wake (O7).
        if self._own:
            return
        self._checked["I7"] += 1
        if handled > self._leased.get(event.queue, 0):
            self._broken(
                event,
                "I7",
                f"{event.queue}: handler {handled} began though only {self._leased.get(event.queue, 0)} messages were"
                " leased; promised that duplicates only add receives",
            )

    def _handler_ended(self, event: e.HandlerEnded) -> None:
        self.cost.moved(event.at, event.queue)
        if event.outcome == "done":
            self.total.handle(event.producer, event.number)

    # -- listeners -----------------------------------------------------------------------------------------------------

    def _receive_began(self, event: e.ReceiveBegan) -> None:
        self.turns.receive()
        self.wake.receive(event.at, event.queue)
        self.scale.received(event.at, event.queue)
        self.cost.receive(event.at, event.queue)

    def _counted(self, event: e.CountBegan) -> None:
        self.scale.counted(event.at, event.queue)
        self.cost.receive(event.at, event.queue)  # a transaction of the store like any other

    def _scaler(self, event: e.ScalerRoom) -> None:
        self.scale.room(event)
        self.cost.know(event.queue)

    def _room(self, event: e.ListenerRoom) -> None:
        able = event.live and event.subscribed and event.free > 0 and event.reaches_store
        self.wake.room(event.at, event.worker, event.queue, able)
        self.cost.know(event.queue)

    def _idle(self, event: e.ListenerIdle) -> None:
        if event.newest_wake is None:
            return
        self._checked["I4"] += 1
        if event.newest_empty is None or event.newest_wake > event.newest_empty:
            empty = "none" if event.newest_empty is None else f"one that began at {event.newest_empty:.3f} s"
            self._broken(
                event,
                "I4",
                f"{event.queue}: {event.worker} is idle though woken at {event.newest_wake:.3f} s; its newest empty"
                f" receive is {empty}, promised is one after the wake",
            )

    def _held(self, event: e.Held) -> None:
        self._checked["I5"] += 1
        if event.most > event.allowed:
            self._broken(event, "I5", f"{event.most} {event.what} held for a session; promised {event.allowed} at most")

    def _audited(self, event: e.Audited) -> None:
        self._broken(
            event,
            "O4",
            f"{event.queue}: the audit found {event.visible} visible that nobody had been told of; promised is that it"
            " never finds any",
        )

    # -- processes and faults ------------------------------------------------------------------------------------------

    def _process_up(self, event: e.ProcessUp) -> None:
        self.wake.disturb(event.at)
        self.scale.disturb(event.at, 0, event.process)
        self.scale.up(event)
        if event.role != "bridge":
            self.cost.churn(event.at)

    def _process_down(self, event: e.ProcessDown) -> None:
        # Whoever is killed while it stands still is never resumed.
        loop_blocked = -1 if self._still.pop(event.process, False) else 0
        self.wake.disturb(event.at, loop_blocked)
        self.scale.disturb(event.at, loop_blocked, event.process)
        self.scale.down(event)
        if loop_blocked:
            self.cost.churn(event.at, loop_blocked)
        if event.role != "bridge":
            self.cost.churn(event.at)
            self.wake.gone(event.at, event.process)

    def _stands(self, event: e.ProcessPaused | e.ProcessResumed) -> None:
        still = isinstance(event, e.ProcessPaused)
        wrong = 1 if still else -1
        if still:
            self._still[event.process] = True
        else:
            self._still.pop(event.process, None)
        if not still and event.process in self._bridges:
            self._bridge_resumed = event.at
        self.cost.churn(event.at, wrong)
        self.wake.disturb(event.at, wrong)
        self.wake.still(event.at, event.process, still)
        self.scale.disturb(event.at, wrong, event.process)
        self.scale.still(event.at, event.process, still)

    def _store(self, event: e.StoreUp | e.StoreDown) -> None:
        self.wake.store(event.at, isinstance(event, e.StoreUp))
        self.scale.store(event.at, isinstance(event, e.StoreUp))
        # An own store comes and goes with its bridge, and that is judged as a restart (I6).
        if not self._own:
            self.cost.churn(event.at)

    def _fault(self, event: e.FaultBegan | e.FaultEnded) -> None:
        began = isinstance(event, e.FaultBegan)
        wrong = 1 if began else -1
        self.wake.disturb(event.at, wrong)
        self.wake.fault(event.at, event.kind, event.target, began)
        self.scale.disturb(event.at, wrong)
        # Nothing but a bridge that goes and comes is judged as that, by I6.
        if event.target not in self._bridges or event.kind not in ("crash", "restart"):
            self.cost.churn(event.at, wrong)

    # -- the bridge ----------------------------------------------------------------------------------------------------

    def _judged(self, event: e.Judged) -> None:
        rule = "K2" if event.may else "K1"
        self._checked[rule] += 1
        # A bridge that stood still reads its file when it goes on.
        late = event.at - max(event.since, self._bridge_resumed)
        if event.let_in != event.may and late > ACCESS_S:
            what = f"{event.who} was {'let' if event.let_in else 'not let'} {event.verb} {event.queue}"
            self._broken(
                event,
                rule,
                f"{what} though since {event.since:.3f} s its access file {'grants' if event.may else 'does not grant'}"
                f" it; promised is that it follows within {ACCESS_S:g} s",
            )

    def _bridge_up(self, event: e.BridgeUp) -> None:
        if not self._several:
            self._forget_boots(list(self._boots))
        self._boots[event.boot] = None
        if len(self._boots) == len(self._bridges):
            self.cost.bridge(event.at, True)
        else:
            self.cost.churn(event.at)

    def _bridge_down(self, event: e.BridgeDown) -> None:
        if not self._several or len(self._boots) == len(self._bridges):
            self.cost.bridge(event.at, False)
        else:
            self.cost.churn(event.at)
        if self._several:
            self._forget_boots([event.boot])

    def _forget_boots(self, boots: list[str]) -> None:
        for boot in boots:
            self._boots.pop(boot, None)
        for known in (self._covered, self._gens):
            for key in [key for key in known if key[0] in boots]:
                del known[key]

    def _triggered(self, event: e.Triggered) -> None:
        self.cost.moved(event.at, event.queue)
        self._checked["I8"] += 1
        if not event.merged and event.gen <= event.gen_before:
            self._broken(
                event,
                "I8",
                f"{event.queue}: a trigger was accepted and neither raised the generation above {event.gen_before}"
                " nor was a copy of one that did",
            )

    def _marked(self, event: e.Marked) -> None:
        self._checked["I7"] += 1
        boot = event.boot if isinstance(event, e.MarkedBy) else next(iter(self._boots), "")
        key = (boot, event.queue)
        before = self._gens.get(key, 0)
        if event.gen < before:
            self._broken(event, "I7", f"{event.queue}: the generation went back from {before} to {event.gen}")
        self._gens[key] = event.gen
        if event.dirty or self._own or (isinstance(event, e.MarkedBy) and event.settled_by_peer):
            return
        self._checked["I3"] += 1
        covered = self._covered.get(key)
        if covered is None or covered < event.gen:
            heard = "no cover of this boot" if covered is None else f"covers up to generation {covered}"
            self._broken(
                event,
                "I3",
                f"{event.queue}: clean at generation {event.gen} after {heard}; promised only after a cover of that"
                " generation or a later one",
            )

    def _cover_heard(self, event: e.CoverHeard) -> None:
        if event.boot in self._boots:
            key = (event.boot, event.queue)
            self._covered[key] = max(event.gen, self._covered.get(key, event.gen))

    def _mark_forgiven(self, event: e.MarkForgiven) -> None:
        rule = "C5" if event.by == "cover" else "C4"
        self._checked[rule] += 1
        if event.requested_at <= event.emptied_at + ROUNDING_S:
            return
        what = (
            "a receive was believed to have begun" if event.by == "cover" else f"forgiven by {event.by} was a mark made"
        )
        self._broken(
            event,
            rule,
            f"{event.queue}: {what} at {event.requested_at:.3f} s on a peer's word, but the newest that came back empty"
            f" began at {event.emptied_at:.3f} s",
        )

    def _broken(self, event: e.Event, rule: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"{rule} at {event.at:.3f} s {text}")
