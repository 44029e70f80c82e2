"""The writer of a store, which can be made to stand still, and what lies beneath a store."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from queuebell.bridge.queues.embedded.committer import Call, Commit, Committer
from queuebell.bridge.queues.embedded.engine import Engine
from queuebell.bridge.queues.embedded.sqlite import SqliteStore
from queuebell.bridge.queues.embedded.state import Tally
from queuebell.bridge.queues.embedded.store import EmbeddedStore

# Private: `_engine`, `_committer`: what is beneath a store.


def engine_of(store: EmbeddedStore) -> Engine:
    """Return what is beneath an open store: its statements and counts are nobody's business but these tests'."""
    engine = store._engine()
    assert engine is not None
    return engine


def committer_of(store: SqliteStore) -> Committer:
    """Return the writer of an open store, whose disk a test makes fail."""
    assert store._committer is not None
    return store._committer


def counts_of(tally: Tally) -> tuple[int, dict[int, int], dict[int, int]]:
    """Return what a tally counts: the visible, and by time what becomes visible and what expires."""
    return tally.visible, dict(tally.due.items()), dict(tally.expiring.items())


@contextlib.contextmanager
def standing() -> Iterator[threading.Event]:
    """Have every writer stand still before it carries out calls, for as long as the event that it gives is clear."""
    go, run = threading.Event(), Committer.run

    def wait(committer: Committer, calls: Sequence[Call], tell: Callable[[Commit], None]) -> None:
        assert go.wait(30)
        run(committer, calls, tell)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Committer, "run", wait)
        try:
            yield go
        finally:
            go.set()
