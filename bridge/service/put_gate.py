"""Admit or reject every put over HTTP, on all endpoints, by the rule in `core/admission.py`.

Receives, settlements and heartbeats are always admitted, so that the backlog can drain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from bridge.contract.errors import Overloaded
from bridge.contract.throttle import Throttle
from bridge.core.admission import Admission, Reason, Refused, Ticket
from bridge.observe.facts import Fact, PutRefused

REFUSING_S: Final = 5.0
"""Time after a rejection during which the bridge reports that it rejects puts."""
LOG_EVERY_S: Final = 10.0
"""Minimum time between two log lines about rejections; each has the number since the last."""

log = logging.getLogger("queuebell.bridge")


class PutGate:
    """Admits or rejects puts by ``clock`` (monotonic seconds), and reports each rejection."""

    def __init__(self, rule: Admission, clock: Callable[[], float], emit: Callable[[Fact], None]) -> None:
        self.rule = rule
        self._clock = clock
        self._emit = emit
        self._throttle = Throttle(LOG_EVERY_S)
        self.read_since: Callable[[], float] | None = None
        """Returns the earliest time, by the same clock, at which data read now can have arrived; None if unknown."""

    def admit(self, size: int, *, arriving: bool = False) -> Ticket:
        """Admit a put of ``size`` bytes, which are still to be read if ``arriving``; call `end` after it.

        Raises `Overloaded`.
        """
        answer = self.ask(size, arriving=arriving)
        if isinstance(answer, Ticket):
            return answer
        raise Overloaded(in_words(answer), float(answer.retry_after_s))

    def ask(self, size: int, *, arriving: bool = False) -> Ticket | Refused:
        """Return the ticket as `admit` does, or the reason for a rejection."""
        now = self._clock()
        if arriving:
            for slow in self.rule.give_way(now, size):
                self.count(Reason.BYTES.value)
                if slow.yields is not None:
                    slow.yields()
        answer = self.rule.ask(now, size, arriving=arriving)
        if isinstance(answer, Refused):
            self.count(answer.reason.value)
            self._log(answer)
        return answer

    def begin(self, ticket: Ticket, size: int, since: float | None = None) -> None:
        """Record that the body of ``size`` bytes arrived, at ``since`` or now, and that the put goes to the store."""
        now = self._clock() if since is None else since
        self.rule.begin(ticket, now, size, now if self.read_since is None else self.read_since())

    def end(self, ticket: Ticket) -> None:
        """Record that the put was answered."""
        self.rule.end(ticket, self._clock())

    def drop(self, ticket: Ticket) -> None:
        """Record that the put was rejected or its sender disconnected."""
        self.rule.drop(ticket)

    def count(self, reason: str) -> None:
        """Count a rejected put, also one that another limit rejected."""
        self._emit(PutRefused(reason))

    def _log(self, refused: Refused) -> None:
        suppressed = self._throttle.passes(self._clock())
        if suppressed is not None:
            log.warning(
                "puts are refused with 429: %d since this was said last, or since the start; %s; "
                "what was acknowledged is safe",
                suppressed + 1,
                _WHY[refused.reason],
            )

    def refusing(self) -> str | None:
        """Describe recent rejections; None if all puts are admitted."""
        rule, now = self.rule, self._clock()
        if rule.refused_at is None or now - rule.refused_at > REFUSING_S:
            return None
        return (
            f"puts were refused with 429 in the last {REFUSING_S:g} s; now {rule.waiting} wait for the store, for some "
            f"{rule.expected_s(now):.1f} s, and {rule.bytes} of {rule.bytes_max} bytes are taken; "
            "what was acknowledged is safe"
        )


def in_words(refused: Refused) -> str:
    """Return the error text for a rejected put."""
    return f"the queue service is busy: {_WHY[refused.reason]}; nothing was put, try again"


_WHY: Final = {Reason.WAIT: "its puts wait too long", Reason.BYTES: "too much waits to be put"}
