"""All checkers of one run, fed with what happens: the invariants I1 to I8, O4, K1, K2, C4, C5, and Jepsen's numbers.

A checker sees true time and the truth about the store; it never looks into the system under test. Every violation is
one line that begins with its rule, so that two runs can be said to fail in the same way. Each method takes one kind of
event, and its name and parameters are the event's line in the story; ``at`` is virtual seconds since the run's
beginning, true time, which never goes back. A message is named by its producer's number and its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from tests.simulation.bounds import CostCheck, ScaleCheck, WakeCheck, promise
from tests.simulation.plan import Plan
from tests.support.total_queue import TotalQueue

ACCESS_S: Final = 1.0
"""Within which a bridge that runs follows its access file, and a key that ends by itself."""
ROUNDING_S: Final = 1e-6
VIOLATIONS_MAX: Final = 100
"""One fault in the rules breaks a promise over and over; the first lines say it all."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the checkers measured."""

    worst_gap_s: float
    """The longest that visible work waited for a receive while a listener could have begun one."""
    calm_receives: int
    """Receives of queues that had been empty for long (I2), and how many seconds of such queues were watched."""
    calm_s: float
    triggers: int
    """Triggers published in the phase with faults, and the receives from the first of them on."""
    load_receives: int
    words: dict[str, int]
    """By kind: what bridges said to each other meanwhile."""
    checked: dict[str, int]
    """How often each checker had something to check."""


def rule_of(violation: str) -> str:
    """Return the rule that a violation names: ``I1`` to ``I8``, ``O4``, ``K1``, ``lost``, or the kernel's."""
    return violation.split(maxsplit=1)[0].rstrip(":")


class Checks:
    """Feed it every event in order, then call `finish` once; ``violations`` tells what did not hold."""

    def __init__(self, plan: Plan) -> None:
        self.violations: list[str] = []
        self.promise = promise(plan)
        self.wake = WakeCheck(self.promise, self.violations)
        self.cost = CostCheck(self.promise, self.violations)
        self.total = TotalQueue()
        self.scale = ScaleCheck(plan, self.promise, self.violations)
        self._waits = (self.wake, self.scale.counts, self.scale.receives)
        self._triggers = self._load_receives = 0
        self._words: Counter[str] = Counter()
        self._phase = "faults"
        self._several = plan.bridges > 1
        self._own = plan.store == "own"
        self._auth = plan.auth
        self._bridge_resumed = 0.0
        self._bridges = plan.bridge_names
        self._boots: dict[str, None] = {}
        """Of the bridges that run."""
        self._covered: dict[tuple[str, str], int] = {}
        """By boot and queue: the newest generation of this boot that a cover was heard of."""
        self._gens: dict[tuple[str, str], int] = {}
        self._leased: Counter[str] = Counter()
        self._handled: Counter[str] = Counter()
        self._still: set[str] = set()
        self._checked: Counter[str] = Counter()

    def finish(self, at: float) -> None:
        """End the run: judge what is still open, and count; everything must have been drained before."""
        for check in (self.wake, self.cost, self.scale):
            check.finish(at)
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
        scaled = self.scale.checked()
        names = ["I3", "I4", "I5", "I7", "I8", *(["K1", "K2"] * self._auth), *(["C4", "C5"] * self._several)]
        # Only own queues, and those of several bridges, have the tighter bound; scalers have one of theirs.
        prompt = {"I1 prompt": self.wake.prompt} if (self._own or self._several) and not scaled else {}
        return Figures(
            worst_gap_s=round(self.wake.worst_s, 6),
            calm_receives=self.cost.receives,
            calm_s=round(self.cost.seconds, 6),
            triggers=self._triggers,
            load_receives=self._load_receives,
            words=dict(sorted(self._words.items())),
            checked={
                "I1": self.wake.measured,
                "I2": self.cost.stretches,
                "I6": self.cost.restarts,
                **prompt,
                **{rule: self._checked[rule] for rule in names},
                **scaled,
            },
        )

    def phase(self, at: float, name: str) -> None:
        """The run enters ``faults``, ``healed``, ``restart``, ``quiet`` or ``end``."""
        self._phase = name

    @property
    def _loaded(self) -> bool:
        return self._triggers > 0 and self._phase == "faults"

    def put(self, at: float, producer: int, queue: str, first: int, count: int, outcome: str) -> None:
        """A producer puts, or learns that its messages stand, do not, or may."""
        told = {"attempted": self.total.attempt, "acknowledged": self.total.acknowledge, "unknown": self.total.unknown}
        if outcome in told:
            told[outcome](producer, first, count)
        self.cost.moved(at, queue)

    def published(self, at: float, producer: int, queue: str, size: int) -> None:
        """A producer hands a trigger to its publisher."""
        self._triggers += self._phase == "faults"
        self.cost.moved(at, queue)

    def deleted(self, at: float, queue: str, count: int) -> None:
        self.cost.moved(at, queue)

    def level(self, at: float, queue: str, visible: int) -> None:
        """So many messages can be received now; only the store knows."""
        for wait in self._waits:
            wait.level(at, queue, visible)
        self.cost.moved(at, queue, visible)

    def store_received(self, at: float, queue: str, count: int) -> None:
        self._leased[queue] += count

    def handler_began(self, at: float, worker: str, queue: str, producer: int, number: int, attempt: int) -> None:
        self.cost.moved(at, queue)
        self._handled[queue] += 1
        # Own queues also lease in the commit of the put, to carry messages in the wake (O7).
        if self._own:
            return
        self._checked["I7"] += 1
        if self._handled[queue] > self._leased[queue]:
            text = f"handler {self._handled[queue]} began though only {self._leased[queue]} messages were leased"
            self._broken(at, "I7", f"{queue}: {text}; promised that duplicates only add receives")

    def handler_ended(self, at: float, worker: str, queue: str, producer: int, number: int, outcome: str) -> None:
        """It is ``done``, ``failed`` or ``cancelled``; a killed worker's handlers end without a word."""
        self.cost.moved(at, queue)
        if outcome == "done":
            self.total.handle(producer, number)

    def receive_began(self, at: float, worker: str, queue: str, limit: int) -> None:
        self._load_receives += self._loaded
        for wait in self._waits:
            wait.receive(at, queue)
        self.cost.receive(at, queue)

    def receive_answered(self, at: float, worker: str, queue: str, outcome: str, count: int, source: str) -> None:
        """It is ``found``, ``empty``, ``unknown``, which may have taken messages, or ``failed``."""

    def count_began(self, at: float, scaler: str, queue: str) -> None:
        self.scale.counts.receive(at, queue)
        self.cost.receive(at, queue)  # a transaction of the store like any other

    def scaler_room(
        self, at: float, scaler: str, queue: str, live: bool, free: int, coming: int, reaches_store: bool
    ) -> None:
        """A scaler may start ``free`` processes, 0 while some are ``coming`` or a start has failed just now (Z3)."""
        self.scale.room(at, scaler, queue, live and reaches_store, free, coming)
        self.cost.know(queue)

    def end_asked(self, at: float, scaler: str, worker: str, all_: bool, busy_since: float | None) -> None:
        """A scaler tells a worker to end, or all; ``busy_since`` is when its oldest handler began, None without any."""
        self.scale.asked(at, scaler, worker, all_, busy_since)

    def calm(self, at: float) -> None:
        """There has been no work for so long that only those listeners are left which scalers keep."""
        self.scale.calm(at)

    def room(
        self, at: float, worker: str, queue: str, live: bool, subscribed: bool, free: int, reaches_store: bool
    ) -> None:
        """How a worker stands with a queue: not asked to stop, serving it, with free slots, and its store there."""
        self.wake.room(at, worker, queue, live and subscribed and free > 0 and reaches_store)
        self.cost.know(queue)

    def idle(self, at: float, worker: str, queue: str, newest_wake: float | None, newest_empty: float | None) -> None:
        """No look is owed; when the newest wake came, and the newest receive began that left nothing."""
        if newest_wake is None:
            return
        self._checked["I4"] += 1
        if newest_empty is None or newest_wake > newest_empty:
            empty = "none" if newest_empty is None else f"one that began at {newest_empty:.3f} s"
            text = f"{worker} is idle though woken at {newest_wake:.3f} s; its newest empty receive is {empty}"
            self._broken(at, "I4", f"{queue}: {text}, promised is one after the wake")

    def held(self, at: float, what: str, most: int, allowed: int) -> None:
        """The most of a kind that the bridge held for one session in the run, and what it may hold."""
        self._checked["I5"] += 1
        if most > allowed:
            self._broken(at, "I5", f"{most} {what} held for a session; promised {allowed} at most")

    def audited(self, at: float, queue: str, visible: int) -> None:
        text = f"the audit found {visible} visible that nobody had been told of; promised is that it never finds any"
        self._broken(at, "O4", f"{queue}: {text}")

    def process_up(self, at: float, process: str, role: str) -> None:
        self.wake.disturb(at)
        self.scale.disturb(at, 0, process)
        self.scale.up(at, process)
        if role != "bridge":
            self.cost.churn(at)

    def process_down(self, at: float, process: str, role: str, why: str) -> None:
        # Whoever is killed while it stands still is never resumed.
        wrong = -1 if process in self._still else 0
        self._still.discard(process)
        self.wake.disturb(at, wrong)
        self.scale.disturb(at, wrong, process)
        self.scale.down(at, process)
        if role != "bridge" or wrong:
            self.cost.churn(at, wrong)
        for wait in self._waits:
            wait.gone(at, process)

    def stands(self, at: float, process: str, still: bool, suspended: bool) -> None:
        """A process does nothing from now on, or goes on; ``suspended``, its clock stands still as well."""
        wrong = 1 if still else -1
        if still:
            self._still.add(process)
        else:
            self._still.discard(process)
            if process in self._bridges:
                self._bridge_resumed = at
        self.cost.churn(at, wrong)
        self.wake.disturb(at, wrong)
        self.scale.disturb(at, wrong, process)
        for wait in self._waits:
            wait.still(at, process, still)

    def store(self, at: float, up: bool) -> None:
        """The store answers from now on, or does not, or wrongly."""
        for wait in self._waits:
            wait.store(at, up)
        # An own store comes and goes with its bridge, and that is judged as a restart (I6).
        if not self._own:
            self.cost.churn(at)

    def fault(self, at: float, kind: str, target: str, began: bool) -> None:
        wrong = 1 if began else -1
        self.wake.disturb(at, wrong)
        self.scale.disturb(at, wrong)
        # Nothing but a bridge that goes and comes is judged as that, by I6.
        if target not in self._bridges or kind not in ("crash", "restart"):
            self.cost.churn(at, wrong)

    def judged(self, at: float, who: str, verb: str, queue: str, let_in: bool, may: bool, since: float) -> None:
        """The bridge let somebody do something, or not; ``may`` is what its access file has said ``since`` then.

        Told of sessions that begin, of whatever is refused, and of all that is let in against the file.
        """
        rule = "K2" if may else "K1"
        self._checked[rule] += 1
        # A bridge that stood still reads its file when it goes on.
        if let_in != may and at - max(since, self._bridge_resumed) > ACCESS_S:
            what = (
                f"{who} was {'let' if let_in else 'not let'} {verb} {queue} though since {since:.3f} s its access file"
            )
            grants = "grants" if may else "does not grant"
            self._broken(at, rule, f"{what} {grants} it; promised is that it follows within {ACCESS_S:g} s")

    def bridge(self, at: float, boot: str, up: bool) -> None:
        if up and not self._several:
            self._forget_boots(list(self._boots))
        if up:
            self._boots[boot] = None
        if len(self._boots) == len(self._bridges) or not (up or self._several):
            self.cost.bridge(at, up)
        else:
            self.cost.churn(at)
        if self._several and not up:
            self._forget_boots([boot])

    def _forget_boots(self, boots: list[str]) -> None:
        for boot in boots:
            self._boots.pop(boot, None)
        for known in (self._covered, self._gens):
            for key in [key for key in known if key[0] in boots]:
                del known[key]

    def session_moved(self, at: float, listener: str) -> None:
        """One of several bridges ended a session whose listener, over a broker, is with another bridge."""
        # What it may hold is looked for V later, by each bridge that it left (B8).
        self.cost.churn(at)

    def word_said(self, at: float, kind: str) -> None:
        """A bridge says something to the others: ``member``, ``able`` or ``covered``."""
        if self._loaded:
            self._words[kind] += 1

    def triggered(self, at: float, queue: str, gen_before: int, gen: int, merged: bool) -> None:
        """The bridge takes a trigger; ``merged`` is one that was a copy."""
        self.cost.moved(at, queue)
        self._checked["I8"] += 1
        if not merged and gen <= gen_before:
            text = f"a trigger was accepted and neither raised the generation above {gen_before}"
            self._broken(at, "I8", f"{queue}: {text} nor was a copy of one that did")

    def marked(self, at: float, queue: str, boot: str, gen: int, dirty: bool, settled_by_peer: bool) -> None:
        """The debt of a queue changes at a bridge; ``settled_by_peer`` where a peer's word paid it (C4)."""
        self._checked["I7"] += 1
        key = (boot, queue)
        before = self._gens.get(key, 0)
        if gen < before:
            self._broken(at, "I7", f"{queue}: the generation went back from {before} to {gen}")
        self._gens[key] = gen
        if dirty or self._own or settled_by_peer:
            return
        self._checked["I3"] += 1
        covered = self._covered.get(key)
        if covered is None or covered < gen:
            heard = "no cover of this boot" if covered is None else f"covers up to generation {covered}"
            text = f"clean at generation {gen} after {heard}; promised only after a cover of that or a later one"
            self._broken(at, "I3", f"{queue}: {text}")

    def cover_heard(self, at: float, queue: str, boot: str, gen: int) -> None:
        """A bridge hears a cover frame, of whatever boot."""
        if boot in self._boots:
            self._covered[boot, queue] = max(gen, self._covered.get((boot, queue), gen))

    def forgiven(self, at: float, queue: str, boot: str, by: str, requested_at: float, emptied_at: float) -> None:
        """A bridge forgives a mark on a peer's word, by ``name`` or ``time``, or believes its receive (``cover``, C5).

        ``requested_at`` is when that mark was made, by a name where it was made first at the peer, for C5 the moment
        that was taken for the receive's beginning; ``emptied_at`` when the newest receive began that came back empty,
        of all that were answered. Both are true time.
        """
        rule = "C5" if by == "cover" else "C4"
        self._checked[rule] += 1
        if requested_at > emptied_at + ROUNDING_S:
            what = "a receive was believed to have begun" if by == "cover" else f"forgiven by {by} was a mark made"
            text = f"{what} at {requested_at:.3f} s on a peer's word, but the newest that came back empty began at"
            self._broken(at, rule, f"{queue}: {text} {emptied_at:.3f} s")

    def _broken(self, at: float, rule: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"{rule} at {at:.3f} s {text}")
