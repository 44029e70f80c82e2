"""The numbers of the wake protocol, bridge's side; each has its reason in docs/guarantees.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from bridge.contract.bounds import SLACK_S, SPREAD_S, STORE_CALL_S, SWEEP_S, Bound, bound
from bridge.contract.errors import ConfigurationError

Wake = Literal["enough", "all"]
SweepSeconds = Annotated[float, Meta(ge=0, le=86_400)]
AckSeconds = Annotated[float, Meta(ge=0.05, le=3600)]
CallSeconds = Annotated[float, Meta(ge=0.05, le=3600)]
SlackSeconds = Annotated[float, Meta(ge=0.1, le=86_400)]
SpreadSeconds = Annotated[float, Meta(ge=0, le=3600)]
HardLookSeconds = Annotated[float, Meta(ge=0, le=604_800)]

RULES_MAX: Final = 1000
HARD_LOOK_MIN_S: Final = 1.0
_TOKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}\*?|\*")


class QueueRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[queue]]`` table: other numbers for the queues it matches. What is absent is as for all queues."""

    match: str
    """A reference ``account/queue``; either token may end in ``*``. ``*`` alone is every queue. The first that matches
    wins."""
    sweep_s: SweepSeconds | None = None
    start_ack_s: AckSeconds | None = None
    store_call_s: CallSeconds | None = None
    slack_s: SlackSeconds | None = None
    spread_s: SpreadSeconds | None = None
    hard_look_s: HardLookSeconds | None = None
    wake: Wake | None = None

    def matches(self, queue: str) -> bool:
        """Whether this rule is for ``queue``."""
        return _covers(self.match, queue)


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one queue; times in seconds, the letters are those of the protocol."""

    start_ack_s: float
    """A: how long the bridge waits for `started`, and how long carried messages are leased."""
    store_call_s: float
    """R: how long one store call may take."""
    sweep_s: float
    """T: the sweep's period; 0 switches sweeps off."""
    slack_s: float
    """S: what a listener's dead-man timer waits beyond 1.1 T."""
    spread_s: float
    """The least that dead-man timers are spread by."""
    hard_look_s: float
    """T_hard: one look by each listener however much cover is heard of; 0 switches it off."""
    wake: Wake
    """Whom a wake reaches."""

    def bound(self, listeners: int = 1) -> Bound:
        """Return what these numbers promise, and what they cost."""
        return bound(
            sweep_s=self.sweep_s,
            slack_s=self.slack_s,
            spread_s=self.spread_s,
            store_call_s=self.store_call_s,
            hard_look_s=self.hard_look_s,
            listeners=listeners,
        )


class Periods(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds; the letters are those of the protocol."""

    heartbeat_s: float = 5.0
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
    """The least that the dead-man timers of one queue are spread by. Defaults to 10 s."""
    hard_look_s: float = 0.0
    """T_hard: one look by each listener however much cover is heard of; 0 switches it off. Defaults to off."""
    wake: Wake = "enough"
    """Whom a wake reaches: as many sessions as its size hint asks for, or all. Defaults to enough."""
    queues_max: int = 100_000
    """Known queue names; clean ones without a subscriber go first. Defaults to 100,000."""
    rules: tuple[QueueRule, ...] = ()
    """Other numbers for some queues; the first that matches wins."""


class Tuning:
    """Which numbers hold for which queue; queues of one rule share one object."""

    __slots__ = ("_rules", "common")

    def __init__(self, periods: Periods) -> None:
        self.common = Numbers(
            start_ack_s=periods.start_ack_s,
            store_call_s=periods.store_call_s,
            sweep_s=periods.sweep_s,
            slack_s=periods.slack_s,
            spread_s=periods.spread_s,
            hard_look_s=periods.hard_look_s,
            wake=periods.wake,
        )
        """Of every queue that no rule matches."""
        self._rules = tuple((rule, self._with(rule)) for rule in periods.rules)

    def of(self, queue: str) -> Numbers:
        """Return the numbers of ``queue``."""
        for rule, numbers in self._rules:
            if rule.matches(queue):
                return numbers
        return self.common

    def each(self) -> list[tuple[str, Numbers]]:
        """Return every rule's pattern with its numbers, in order; the common ones, as ``*``, are last."""
        rules = [(rule.match, numbers) for rule, numbers in self._rules]
        return rules if any(match == "*" for match, _ in rules) else [*rules, ("*", self.common)]

    def _with(self, rule: QueueRule) -> Numbers:
        given = {name: value for name, value in msgspec.structs.asdict(rule).items() if value is not None}
        given.pop("match")
        return msgspec.structs.replace(self.common, **given)


def check_rules(rules: Sequence[QueueRule]) -> None:
    """Raise `ConfigurationError` that names the table and the key for a rule that is malformed or can never apply."""
    if len(rules) > RULES_MAX:
        raise ConfigurationError(f"queue: at most {RULES_MAX} tables")
    for number, rule in enumerate(rules, 1):
        tokens = rule.match.split("/")
        if rule.match != "*" and not (len(tokens) == 2 and all(_TOKEN.fullmatch(token) for token in tokens)):
            raise ConfigurationError(
                f"queue {number}: match: is account/queue, where either may end in *, or * alone for every queue"
            )
        check_hard_look(rule.hard_look_s or 0.0, f"queue {number}: hard_look_s")
        for before, other in enumerate(rules[: number - 1], 1):
            if _covers(other.match, rule.match):
                raise ConfigurationError(
                    f"queue {number}: match: '{rule.match}' never applies: queue {before} ('{other.match}') comes "
                    "first and matches the same; put the narrower one before it"
                )


def check_hard_look(seconds: float, key: str) -> None:
    """Raise `ConfigurationError` that names ``key`` for a period that would be a poll."""
    if seconds and seconds < HARD_LOOK_MIN_S:
        raise ConfigurationError(f"{key}: is 0 (off) or at least {HARD_LOOK_MIN_S:g} s; each listener looks that often")


def _covers(pattern: str, other: str) -> bool:
    """Whether every queue that ``other`` (a pattern or a reference) matches is matched by ``pattern``."""
    if pattern == "*":
        return True
    if other == "*":
        return pattern == "*/*"
    tokens = zip(pattern.split("/"), other.split("/"), strict=True)
    return all(_token_covers(ours, theirs) for ours, theirs in tokens)


def _token_covers(pattern: str, other: str) -> bool:
    return other.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == other
