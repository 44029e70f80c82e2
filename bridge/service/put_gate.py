"""The gate that every put over HTTP passes, whichever door it comes by; the rule behind it is `core/admission.py`.

Receives, settlements and heartbeats do not pass it: what waits has to drain.
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
"""So long after a refusal the bridge is said to refuse puts."""
SAID_EVERY_S: Final = 10.0
"""The least time between two lines of the log about refusals; each says how many there were since the last."""

log = logging.getLogger("queuebell.bridge")


class PutGate:
    """Lets puts in or refuses them, by ``clock`` (seconds that do not go back), and tells of each refusal."""

    def __init__(self, rule: Admission, clock: Callable[[], float], tell: Callable[[Fact], None]) -> None:
        self.rule = rule
        self._clock = clock
        self._tell = tell
        self._throttle = Throttle(SAID_EVERY_S)
        self.read_since: Callable[[], float] | None = None
        """When what is read now can have come at the earliest, by the same clock, where that is known."""

    def admit(self, size: int, *, arriving: bool = False) -> Ticket:
        """Let a put of ``size`` bytes in, before they are read where they are ``arriving``; it has to `end`.

        Raises `Overloaded`.
        """
        asked = self.ask(size, arriving=arriving)
        if isinstance(asked, Ticket):
            return asked
        raise Overloaded(in_words(asked), float(asked.retry_after_s))

    def ask(self, size: int, *, arriving: bool = False) -> Ticket | Refused:
        """Return what `admit` returns, or why it would raise."""
        now = self._clock()
        if arriving:
            for slow in self.rule.give_way(now, size):
                self.count(Reason.BYTES.value)
                if slow.yields is not None:
                    slow.yields()
        asked = self.rule.ask(now, size, arriving=arriving)
        if isinstance(asked, Refused):
            self.count(asked.reason.value)
            self._say(asked)
        return asked

    def begin(self, ticket: Ticket, size: int, since: float | None = None) -> None:
        """The whole body of ``size`` bytes is there, ``since`` then or now; the put goes to the store."""
        now = self._clock() if since is None else since
        self.rule.begin(ticket, now, size, now if self.read_since is None else self.read_since())

    def end(self, ticket: Ticket) -> None:
        """The put was answered."""
        self.rule.end(ticket, self._clock())

    def drop(self, ticket: Ticket) -> None:
        """The put came to nothing: it was refused, or its sender is gone."""
        self.rule.drop(ticket)

    def count(self, reason: str) -> None:
        """Count a put that was refused, also one that another limit refused."""
        self._tell(PutRefused(reason))

    def _say(self, refused: Refused) -> None:
        unsaid = self._throttle.passes(self._clock())
        if unsaid is not None:
            log.warning(
                "puts are refused with 429: %d since this was said last, or since the start; %s; "
                "what was acknowledged is safe",
                unsaid + 1,
                _WHY[refused.reason],
            )

    def refusing(self) -> str | None:
        """Say in words that puts are being refused, or were a moment ago; None where all are let in."""
        rule, now = self.rule, self._clock()
        if rule.refused_at is None or now - rule.refused_at > REFUSING_S:
            return None
        return (
            f"puts were refused with 429 in the last {REFUSING_S:g} s; now {rule.waiting} wait for the store, for some "
            f"{rule.expected_s(now):.1f} s, and {rule.bytes} of {rule.bytes_max} bytes are taken; "
            "what was acknowledged is safe"
        )


def in_words(refused: Refused) -> str:
    """Say why a put was refused, to whoever sent it."""
    return f"the queue service is busy: {_WHY[refused.reason]}; nothing was put, try again"


_WHY: Final = {Reason.WAIT: "its puts wait too long", Reason.BYTES: "too much waits to be put"}
