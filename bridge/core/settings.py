"""Define the bridge's numbers of the wake protocol; docs/explanation/guarantees.md gives the reason for each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from queuebell.bridge.contract.bounds import HEARTBEAT_S, SLACK_S, SPREAD_S, STORE_CALL_S, SWEEP_S, Bound, bound
from queuebell.bridge.contract.errors import ConfigurationError

Wake = Literal["enough", "all"]
SweepSeconds = Annotated[float, Meta(ge=0, le=86_400)]
AckSeconds = Annotated[float, Meta(ge=0.05, le=3600)]
CallSeconds = Annotated[float, Meta(ge=0.05, le=3600)]
SlackSeconds = Annotated[float, Meta(ge=0.1, le=86_400)]
SpreadSeconds = Annotated[float, Meta(ge=0, le=3600)]

RULES_MAX: Final = 1000
SWEEP_MIN_S: Final = 0.1
SLACK_BEATS: Final = 2
"""Minimum S in heartbeats: one until a listener receives an empty receive, one for the check and its transit."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}\*?|\*")


class QueueRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set other numbers for the queues that match, from one ``[[queue]]`` table; absent ones keep the defaults."""

    match: str
    """A reference ``account/queue``; either token may end in ``*``. ``*`` alone is every queue. The first that matches
    wins."""
    sweep_s: SweepSeconds | None = None
    start_ack_s: AckSeconds | None = None
    store_call_s: CallSeconds | None = None
    slack_s: SlackSeconds | None = None
    spread_s: SpreadSeconds | None = None
    wake: Wake | None = None

    def matches(self, queue: str) -> bool:
        """Return whether this rule applies to ``queue``."""
        return Patterns([self.match]).first(queue) is not None


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the numbers of one queue; times in seconds, letters as in the protocol."""

    start_ack_s: float
    """A: how long the bridge waits for `started`, and how long carried messages are leased."""
    store_call_s: float
    """R: how long one store call may take."""
    sweep_s: float
    """T: the sweep's period; 0 switches sweeps off."""
    slack_s: float
    """S: what a listener's dead-man timer waits beyond 1.1 T."""
    spread_s: float
    """The minimum by which dead-man timers are spread."""
    wake: Wake
    """How many sessions a wake reaches."""

    heartbeat_s: float = HEARTBEAT_S
    """Minimum H; one value for the whole bridge, never per queue."""

    def bound(self, listeners: int = 1) -> Bound:
        """Return what these numbers guarantee and cost."""
        return bound(
            heartbeat_s=self.heartbeat_s,
            sweep_s=self.sweep_s,
            slack_s=self.slack_s,
            spread_s=self.spread_s,
            store_call_s=self.store_call_s,
            listeners=listeners,
        )


class Periods(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the bridge's times in seconds; letters as in the protocol."""

    heartbeat_s: float = HEARTBEAT_S
    """H at its shortest; grows by 2.5 ms a session. Defaults to 5 s."""
    start_ack_s: float = 2.0
    """A: how long the bridge waits for `started`. Defaults to 2 s."""
    store_call_s: float = STORE_CALL_S
    """R: how long one store call may take. Defaults to 10 s."""
    sweep_s: float = SWEEP_S
    """T: the sweep's period; 0 switches sweeps off. Defaults to 60 s."""
    slack_s: float = SLACK_S
    """S: what a listener's dead-man timer waits beyond 1.1 T. Defaults to 30 s."""
    spread_s: float = SPREAD_S
    """The minimum by which the dead-man timers of one queue are spread. Defaults to 10 s."""
    wake: Wake = "enough"
    """How many sessions a wake reaches: as many as its size hint requires, or all. Defaults to enough."""
    again_s: float = 60.0
    """How long work may remain before subscribers are notified again. Defaults to 60 s."""
    queues_max: int = 100_000
    """Known queue names; those without work and sessions are dropped first. Defaults to 100,000."""
    rules: tuple[QueueRule, ...] = ()
    """Other numbers for some queues; the first match wins."""


class Patterns:
    """Find the first matching pattern with one combined expression."""

    __slots__ = ("_first",)

    def __init__(self, patterns: Sequence[str]) -> None:
        # An empty group at the end of each alternative identifies it; in front, it would hide common prefixes from the
        # compiler.
        self._first = re.compile("|".join(f"{_expression(each)}()" for each in patterns) or r"(?!)").fullmatch

    def first(self, text: str) -> int | None:
        """Return the index of the first pattern that matches all that ``text``, a reference or a pattern, matches."""
        found = self._first("*/*" if text == "*" else text)
        return None if found is None or found.lastindex is None else found.lastindex - 1


class Tuning:
    """Return the numbers for each queue; queues of one rule share one object."""

    __slots__ = ("_patterns", "_rules", "common")

    def __init__(self, periods: Periods) -> None:
        self.common = Numbers(
            start_ack_s=periods.start_ack_s,
            store_call_s=periods.store_call_s,
            sweep_s=periods.sweep_s,
            slack_s=periods.slack_s,
            spread_s=periods.spread_s,
            wake=periods.wake,
            heartbeat_s=periods.heartbeat_s,
        )
        """The numbers of every queue that no rule matches."""
        self._rules = tuple((rule, self._with(rule)) for rule in periods.rules)
        self._patterns = Patterns([rule.match for rule in periods.rules])

    def of(self, queue: str) -> Numbers:
        """Return the numbers of ``queue``."""
        index = self._patterns.first(queue)
        return self.common if index is None else self._rules[index][1]

    def each(self) -> list[tuple[str, Numbers]]:
        """Return each rule's pattern and numbers in order; the defaults, as ``*``, come last."""
        rules = [(rule.match, numbers) for rule, numbers in self._rules]
        return rules if any(match == "*" for match, _ in rules) else [*rules, ("*", self.common)]

    def _with(self, rule: QueueRule) -> Numbers:
        given = {name: value for name, value in msgspec.structs.asdict(rule).items() if value is not None}
        given.pop("match")
        return msgspec.structs.replace(self.common, **given)


def check_rules(rules: Sequence[QueueRule]) -> None:
    """Raise `ConfigurationError` with the table and key of a rule that is malformed or can never apply."""
    if len(rules) > RULES_MAX:
        raise ConfigurationError(f"queue: at most {RULES_MAX} tables")
    for number, rule in enumerate(rules, 1):
        tokens = rule.match.split("/")
        if rule.match != "*" and not (len(tokens) == 2 and all(_TOKEN.fullmatch(token) for token in tokens)):
            raise ConfigurationError(
                f"queue {number}: match: must be account/queue, where either may end in *, or * alone for every queue"
            )
        check_sweep(rule.sweep_s or 0.0, f"queue {number}: sweep_s")
    patterns = Patterns([rule.match for rule in rules])
    for number, rule in enumerate(rules, 1):
        before = patterns.first(rule.match)
        if before is not None and before + 1 < number:
            raise ConfigurationError(
                f"queue {number}: match: '{rule.match}' never applies: queue {before + 1} ('{rules[before].match}') "
                "comes first and matches the same queues; put the narrower one first"
            )


def check_sweep(seconds: float, key: str) -> None:
    """Raise `ConfigurationError` with ``key`` for a period that is too short to send to listeners."""
    if seconds and seconds < SWEEP_MIN_S:
        raise ConfigurationError(
            f"{key}: must be 0 (off) or at least {SWEEP_MIN_S:g} s; each queue in an external store is checked that "
            "often"
        )


def check_slack(periods: Periods) -> None:
    """Raise `ConfigurationError` if S is too short for the guaranteed cost.

    Listeners receive each other's empty receives by heartbeat. With S below two heartbeats, dead-man timers fire
    although all is well, and an empty queue costs receives of each listener instead of one for all.
    """
    least = SLACK_BEATS * periods.heartbeat_s
    given = [(f"queue {number}: slack_s", rule.slack_s) for number, rule in enumerate(periods.rules, 1)]
    for key, slack_s in (("slack_s", periods.slack_s), *given):
        if slack_s is not None and slack_s < least:
            raise ConfigurationError(
                f"{key}: must be at least {least:g} s, twice heartbeat_s ({periods.heartbeat_s:g} s): workers learn of "
                "each other's receives by heartbeat; with less, each would receive by itself"
            )


def _expression(pattern: str) -> str:
    return re.escape("*/*" if pattern == "*" else pattern).replace(r"\*", "[^/]*+")
