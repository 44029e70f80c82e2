"""Settling as such: what a call names and when it leaves, what its answer means, and what becomes of a failure."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from bridge.contract.errors import BadInput, QueueNotFound
from bridge.queues.base import Capabilities, Settled, Settlement, Settling, StoredMessage
from listeners.work.held import Act, Held
from listeners.work.settlements import Item, Settlements
from tests.listeners.rig import QUEUE
from tests.support.sim_loop import pass_time, simulated

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
LONG_S = 3600.0
LISTS = ("delete", "release", "extend")
Answer = Callable[[Settlement], Settling]


def carried_out(settlement: Settlement) -> Settling:
    """All is well; an extension gives the receipt that it had, with a mark."""
    ok = Settled(True)
    return Settling(
        [ok] * len(settlement.delete),
        [ok] * len(settlement.release),
        [Settled(True, f"{item.pop_receipt}'") for item in settlement.extend],
    )


class Scripted:
    """A store whose calls take ``seconds``, and go as ``script`` says: each entry answers one call, or breaks it."""

    def __init__(self, **capabilities: Any) -> None:
        self.capabilities = Capabilities(**{"uncounted_release": True, **capabilities})
        self.calls: list[tuple[float, Settlement]] = []
        self.script: list[Answer | Exception] = []
        self.seconds = 0.0
        self.busy = self.busiest = self.cut = 0

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        assert queue == QUEUE
        self.calls.append((now(), settlement))
        answer = self.script.pop(0) if self.script else carried_out
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        try:
            await pass_time(self.seconds)
        except asyncio.CancelledError:
            self.cut += 1
            raise
        finally:
            self.busy -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer(settlement)

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.calls]

    def named(self) -> list[tuple[list[str], list[str], list[str]]]:
        """Return the ids that each call named, list by list."""
        return [tuple([i.id for i in getattr(call, each)] for each in LISTS) for _, call in self.calls]  # type: ignore[misc]


def now() -> float:
    """Return the seconds since the story began."""
    return round(asyncio.get_running_loop().time() - 1000.0, 6)


class Site:
    """Settlements over a scripted store, and all that they told."""

    def __init__(self, **capabilities: Any) -> None:
        self.store = Scripted(**capabilities)
        self.told: list[tuple[float, str, Act, str | None]] = []
        store: Any = self.store
        clock = asyncio.get_running_loop().time
        self.settlements = Settlements(QUEUE, store, settled=self._settled, clock=clock, draw=lambda: 0.5)

    def _settled(self, item: Item, code: str | None) -> None:
        self.told.append((now(), item.held.stored.id, item.act, code))

    def codes(self) -> list[str | None]:
        return [code for _, _, _, code in self.told]

    def add(self, act: Act, *helds: Held, seconds: float = 0.0) -> None:
        for held in helds:
            self.settlements.add(act, held, seconds)


def held(number: int = 1, lease_s: float = LONG_S) -> Held:
    """Return a message m1 under the receipt r1, leased for so many seconds from the beginning."""
    return Held(number, StoredMessage(f"m{number}", f"r{number}", b"x", 1, NOON), 1000.0 + lease_s, "trigger")


# Lanes ---------------------------------------------------------------------------------------------------------------


# What an answer means ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [BadInput("too_large", "no"), QueueNotFound("gone"), "message_not_found"])
@simulated
async def test_a_renewal_that_is_refused_leaves_the_word_to_its_delete(answer: Exception | str) -> None:
    """Once the delete waits, what it meets is what became of the message: a store without fences carries it out."""
    site, one = Site(), held()
    site.store.seconds = 2.0
    refused = Settled(False, code=str(answer))
    site.store.script = [answer if isinstance(answer, Exception) else lambda call: Settling([], [], [refused])]
    site.add(Act.EXTEND, one, seconds=30.0)
    await pass_time(1)
    site.add(Act.DELETE, one)
    await site.settlements.idle()
    assert site.told == [(4.0, "m1", Act.DELETE, None)]
