"""Costs that once grew, planted anew: each is caught by the test that stands for it.

What PostgreSQL's pool of a process holds is counted beside a real server, in ``tests/bridge/queues``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from queuebell.bridge.contract import names
from queuebell.bridge.core.sessions import QueueSessions
from queuebell.bridge.producer.held_leases import HeldLeases
from queuebell.bridge.queues.embedded import state
from queuebell.bridge.service.announcing import Announcer, Subscriber
from queuebell.listeners.session import session as sessions
from tests.bridge.queues.test_engine import test_many_that_expire_together_go_in_slices as in_slices
from tests.growth.test_growth import grown
from tests.growth.test_names import test_a_queue_takes_little_memory_and_gives_it_back as little_memory
from tests.growth.worlds import Plain, Rules, Store
from tests.listeners.session.test_sessions import test_a_share_is_what_one_frame_can_name as fits_a_frame

# Private: `_by_queue`, `_flush`, `_reference`: the test plants faults there.


async def test_slots_that_are_sorted_before_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a plain subscriber that takes nothing: each announcement looked at all that it had not been told."""
    flush = Announcer._flush

    def planted(self: Announcer, subscriber: Subscriber) -> None:
        for _ in subscriber.slots._by_queue:
            pass
        flush(self, subscriber)

    monkeypatch.setattr(Announcer, "_flush", planted)
    assert set(await grown(Plain, "queues")) == {"publish"}


async def test_leases_that_are_all_looked_at_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a replay that passes most messages over."""
    renew = HeldLeases.renew

    async def planted(self: HeldLeases) -> None:
        for _ in self._held:
            pass
        await renew(self)

    monkeypatch.setattr(HeldLeases, "renew", planted)
    assert set(await grown(Store, "unmatched")) == {"pass_over_one"}


async def test_the_stores_of_all_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hello and each look compared its store with that of all who listen to the queue."""
    other = QueueSessions.any_other_store

    def planted(self: QueueSessions, store: str | None, besides: Iterable[int]) -> bool:
        for _ in self:
            pass
        return other(self, store, besides)

    monkeypatch.setattr(QueueSessions, "any_other_store", planted)
    assert {"hello", "wake_and_cover"} & set(await grown(Rules, "listeners"))


def test_all_that_expires_together_in_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_EXPIRED_ROWS", 1_000_000)
    with pytest.raises(AssertionError):
        in_slices(15_000)


def test_all_queues_of_a_listener_in_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "FRAME_BYTES_MAX", 1 << 30)
    with pytest.raises(AssertionError):
        fits_a_frame(40)


async def test_names_that_are_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They were not given back when their queues were deleted."""
    known: list[object] = []
    match = names._reference

    def planted(text: str) -> object:
        known.append((text,))
        return match(text)

    monkeypatch.setattr(names, "_reference", planted)
    with pytest.raises(AssertionError, match=r"< 250"):
        await little_memory(tmp_path)
