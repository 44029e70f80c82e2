"""The callbacks of a bridge: an exception in one costs that one a single call, and no other anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bridge.contract.event import CloudQueueWorkDetected
from bridge.core.commands import Announce, AnnounceInTurn
from bridge.observe.facts import Fact, Observer
from bridge.observe.swallowed import swallow, swallowing

SUBSCRIBER = "a subscriber of wakes"


class Callbacks:
    """Calls everybody who asked to be called. No callback may block or call back."""

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.subscribers: list[Callable[[Announce], None]] = []
        self.forwards: list[Callable[[Sequence[CloudQueueWorkDetected], str], None]] = []
        self.session_watchers: list[Callable[[Iterable[str]], None]] = []
        self.tellers: dict[str, list[Callable[[AnnounceInTurn], None]]] = {}
        """By the way that other bridges share."""

    def emit(self, fact: Fact) -> None:
        """Report a fact to all observers."""
        for observer in self.observers:
            try:
                observer(fact)
            except Exception as error:  # noqa: BLE001 - it costs this observer this fact
                swallow("an observer of facts", error)

    def announce(self, announced: Announce) -> None:
        """Send a wake to the plain subscribers."""
        for hear in self.subscribers:
            with swallowing(SUBSCRIBER):
                hear(announced)

    def tell_in_turn(self, told: AnnounceInTurn) -> None:
        """Report what becomes of a wake that was held for another bridge."""
        for hear in self.tellers.get(told.way, ()):
            with swallowing(SUBSCRIBER):
                hear(told)

    def forward(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> None:
        """Pass triggers on that were marked."""
        for hear in self.forwards:
            with swallowing("a way to pass triggers on"):
                hear(events, bus)

    def session_heard(self, queues: Iterable[str]) -> None:
        """Report the queues of a session that sent a frame."""
        for hear in self.session_watchers:
            with swallowing("a watcher of sessions"):
                hear(queues)
