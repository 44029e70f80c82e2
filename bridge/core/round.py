"""What is known of the rounds of one store: one question about all of its queues, in place of a sweep of each (B17)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

SWEEP_JITTER = 0.1
ROUND_SHARE = 1 - SWEEP_JITTER
"""A round begins when the earliest sweep would be due; its answer postpones sweeps to the last tenth of a period."""
HERE = "here"
"""The place of receives through this bridge."""
TRUSTED = 4
"""How many periods a bridge relies on peers' answers after its own last answer: its address may lead elsewhere."""


class Round:
    """Ask one store about all of its queues at once.

    ``fingerprint`` returns that of a queue in the store (B11), ``scope`` tells it from others (C11), empty if nothing
    does; ``here`` if it is the store of this bridge. The answer only postpones sweeps and requests checks: it settles
    nothing, and without it every queue has its own sweep.
    """

    def __init__(self, fingerprint: Callable[[str], str], period_s: float, *, scope: str, here: bool) -> None:
        self.wanted_at = -math.inf
        """When a queue of the store last had a listener, as far as its sweeps show."""
        self.every_s = period_s * ROUND_SHARE
        """The time between the begins of two rounds; 0 if there are no sweeps."""
        self.again_s = period_s * SWEEP_JITTER / 2
        """The time from a failed round to its repetition: before any of its queues is swept."""
        self.began: float | None = None
        """When the newest answered round began, this bridge's or a peer's; None before the first."""
        self.asked_at = -math.inf
        """When this bridge last asked, or would have, had there been listeners."""
        self.asked_dated: float | None = None
        """The same by the clock that runs while the machine sleeps; None if it was not known (C4)."""
        self.scope = scope
        self.told = False
        """Whether the peers have the newest answer, too."""
        self.peers_asked: dict[str, float] = {}
        """When the peers asked, as far as they told."""
        self.place: str | None = None
        """Which tables the newest answer is about."""
        self.found: frozenset[str] = frozenset()
        """The queues that had visible messages."""
        self._read_at = -math.inf
        """When this bridge asked its last question that was answered; a suspend forgets it."""
        self._resumed_at = -math.inf
        self._here = here
        self._fingerprint = fingerprint

    def is_of(self, queue: str, store: str) -> bool:
        """Return whether a listener of a queue, which names its ``store``, uses the one that is asked."""
        return store == self._fingerprint(queue)

    def is_like(self, now: float, scope: str, place: str) -> bool:
        """Return whether a peer that asked a store of this ``scope``, and read this ``place``, asked the same as this.

        Only for some periods after this bridge has read that place itself.
        """
        fresh = now - self._read_at <= TRUSTED * self.every_s / ROUND_SHARE
        return fresh and place == self.place and bool(scope) and scope == self.scope

    def ranks(self, boot: str, own: str) -> tuple[float, str]:
        """Return a sort key for the order in which members ask: the one whose last question is oldest is first."""
        return (self.asked_at if boot == own else self.peers_asked.get(boot, -math.inf), boot)

    def wanted(self, now: float) -> bool:
        """Return whether a queue of the store has a listener, or had one two periods ago."""
        return now - self.wanted_at <= 2 * self.every_s / ROUND_SHARE

    def due_at(self, delay_s: float) -> float:
        """Return when to ask next, ``delay_s`` later than the first member of a cluster does."""
        newest = self.asked_at if self.began is None else max(self.asked_at, self.began)
        return newest + self.every_s + delay_s

    def read(self, found: Collection[str], place: str | None) -> bool:
        """Record the answer to the newest question of this bridge; return as `answered` does."""
        if not self.answered(self.asked_at, found, place):
            return False
        self._read_at = self.asked_at
        return True

    def answered(self, began: float, found: Collection[str], place: str | None) -> bool:
        """Record that a round which began then found visible messages in these queues of ``place``, and in no others.

        Without a place it stands only for receives through this bridge. Return False if it says nothing: a newer one
        was answered, or the machine slept.
        """
        newer = self.began is None or began >= self.began
        if not newer or began < self._resumed_at:
            return False
        self.began, self.place, self.found = began, place, frozenset(found)
        return True

    def suspended(self, now: float) -> None:
        """Forget the newest answers, and the one that is under way: their ages are not known (B15)."""
        self.began, self._read_at, self._resumed_at = None, -math.inf, now

    def found_empty_at(self, queue: str, place: str | None) -> float | None:
        """Return when the newest round began if it found this queue of the store empty, else None.

        Only if the queue's newest empty receive read the tables that the round read, its ``place``: an address can lead
        to others, on another machine or for another user. By a receive through this bridge it is known to be the store
        of this bridge.
        """
        if place is None or queue in self.found:
            return None
        return self.began if place == self.place or (self._here and place == HERE) else None
