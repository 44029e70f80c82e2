"""Call the bridge's registered callbacks; an exception costs one callback one call and affects no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bridge.contract.event import CloudQueueWorkDetected
from bridge.core.commands import Announce, AnnounceInTurn
from bridge.observe.facts import Fact, Observer
from bridge.observe.swallowed import swallow, swallowing

SUBSCRIBER = "a subscriber of wakes"


class Callbacks:
    """Holds and calls the registered callbacks. None of them may block or call back."""

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.subscribers: list[Callable[[Announce], None]] = []
        self.forwards: list[Callable[[Sequence[CloudQueueWorkDetected], str], None]] = []
        self.session_watchers: list[Callable[[Iterable[str]], None]] = []
        self.tellers: dict[str, list[Callable[[AnnounceInTurn], None]]] = {}
        """By the subscriber's ``way``, which other bridges share."""

    def emit(self, fact: Fact) -> None:
        """Send a fact to all observers."""
        for observer in self.observers:
            try:
                observer(fact)
            except Exception as error:  # noqa: BLE001 - this observer loses this fact
                swallow("an observer of facts", error)

    def announce(self, announced: Announce) -> None:
        """Send a wake to the plain subscribers."""
        for callback in self.subscribers:
            with swallowing(SUBSCRIBER):
                callback(announced)

    def tell_in_turn(self, decision: AnnounceInTurn) -> None:
        """Report whether a wake held for another bridge is sent here."""
        for callback in self.tellers.get(decision.way, ()):
            with swallowing(SUBSCRIBER):
                callback(decision)

    def forward(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> None:
        """Pass on accepted triggers."""
        for callback in self.forwards:
            with swallowing("a way to pass triggers on"):
                callback(events, bus)

    def session_heard(self, queues: Iterable[str]) -> None:
        """Report the queues of a session that sent a frame."""
        for callback in self.session_watchers:
            with swallowing("a watcher of sessions"):
                callback(queues)
