"""Settling as such: what a call names and when it leaves, what its answer means, and what becomes of a failure."""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from queuebell.bridge.contract.errors import BadInput, QueueNotFound, StoreError, StoreUnavailable, UnknownOutcome
from queuebell.bridge.queues.base import (
    Capabilities,
    Claim,
    Extend,
    Release,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
)
from queuebell.listeners.work.lease import Act, Held
from queuebell.listeners.work.settlements import Item, Settlements
from tests.listeners.rig import QUEUE
from tests.support.sim_loop import pass_time, simulated


def several(count: int, first: int = 1) -> list[Held]:
    return [held(number) for number in range(first, first + count)]


def failing(**codes: str) -> Answer:
    """Carry out all but the messages that are named, whose requests fail with these codes."""

    def answer(call: Settlement) -> Settling:
        def told(item: Claim | Release | Extend, done: Settled) -> Settled:
            return Settled(False, code=codes[item.id]) if item.id in codes else done

        done = carried_out(call)
        lists = ((getattr(call, each), getattr(done, each)) for each in LISTS)
        return Settling(*([told(*pair) for pair in zip(*both, strict=True)] for both in lists))

    return answer


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


@simulated
async def test_what_failed_beside_others_is_not_tried_beyond_its_lease() -> None:
    """It is told as lost, as where the whole call fails; a newer wish for it takes its place."""
    site = Site()
    site.store.seconds = 2.0
    codes = dict.fromkeys(("m1", "m2"), "storage_unavailable")
    site.store.script = [failing(**codes)]
    two = held(2)
    site.add(Act.EXTEND, held(1, lease_s=2.0), two, held(3), seconds=30.0)
    await pass_time(1)
    site.add(Act.DELETE, two)
    await site.settlements.idle()
    assert site.told == [
        (2.0, "m3", Act.EXTEND, None),
        (2.0, "m1", Act.EXTEND, "lease_ended"),
        (4.0, "m2", Act.DELETE, None),
    ]


@simulated
async def test_a_defect_holds_up_nobody_behind_it() -> None:
    """The message is settled alone, and then what is behind it, by the same task."""
    site = Site()
    site.store.seconds = 1.0
    site.store.script = [ZeroDivisionError()]
    site.add(Act.DELETE, held(1))
    await pass_time(0.5)
    site.add(Act.DELETE, held(2))
    await site.settlements.idle()
    assert site.told == [(2.0, "m1", Act.DELETE, None), (3.0, "m2", Act.DELETE, None)]


@simulated
async def test_what_ends_in_one_tick_goes_in_one_call_of_its_line() -> None:
    """Deletes and releases together, renewals beside them; each is told of once, in the order of the lists."""
    site = Site()
    one, two, three, four = several(4)
    site.add(Act.RELEASE, two, seconds=1.5)
    site.add(Act.DELETE, one, four)
    site.add(Act.EXTEND, three, seconds=30.0)
    assert (len(site.settlements.settling.waiting), site.settlements.idling, site.store.calls) == (3, False, [])
    names = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
    assert names == {f"settle[{QUEUE}]#1", f"renew[{QUEUE}]#1"}
    await site.settlements.idle()
    assert site.store.calls == [
        (0.0, Settlement([Claim("m1", "r1"), Claim("m4", "r4")], [Release("m2", "r2", 1500)], [])),
        (0.0, Settlement([], [], [Extend("m3", "r3", 30.0)])),
    ]
    deletes = [("m1", Act.DELETE), ("m4", Act.DELETE)]
    wanted = [*deletes, ("m2", Act.RELEASE), ("m3", Act.EXTEND)]
    assert [(id_, act, code) for _, id_, act, code in site.told] == [(*each, None) for each in wanted]
    assert (len(site.settlements.settling.waiting), site.settlements.idling) == (0, True)


@simulated
async def test_a_task_that_somebody_cancels_before_its_first_step_costs_no_settlement() -> None:
    """What waited for it goes with the next, and its line starts as many tasks as before."""
    site = Site()
    helds = several(4)
    for act, one in ((Act.DELETE, 0), (Act.EXTEND, 1)):
        site.add(act, helds[one], seconds=30.0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await pass_time(0)
    for act, one in ((Act.DELETE, 2), (Act.EXTEND, 3)):
        site.add(act, helds[one], seconds=30.0)
    await site.settlements.idle()
    assert sorted(id_ for _, id_, _, _ in site.told) == ["m1", "m2", "m3", "m4"] and site.settlements.idling


CALL_FAILED = (
    "deleting, releasing or renewing 2 messages failed (0 more failures since the last report). It is tried again "
    "until their leases end, then they are handled again"
)


@pytest.mark.parametrize(
    ("error", "again", "doubtful", "code", "said"),
    [
        (UnknownOutcome("lost"), True, True, None, None),
        (
            StoreUnavailable("away"),
            True,
            False,
            None,
            f"{QUEUE}: {CALL_FAILED}: away",
        ),
        (
            StoreError("broken"),
            True,
            False,
            None,
            f"{QUEUE}: {CALL_FAILED}: broken",
        ),
        (QueueNotFound("gone"), False, False, "message_not_found", None),
        (
            BadInput("too_large", "no"),
            False,
            False,
            "too_large",
            f"{QUEUE}: the store refused to delete, release or renew messages, they are handled again: no",
        ),
    ],
)
@simulated
async def test_what_becomes_of_a_failed_call(
    error: Exception, again: bool, doubtful: bool, code: str | None, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """What may pass is tried again, what may have been done is in doubt, and what is refused is told at once."""
    caplog.set_level(logging.INFO, "queuebell.listener")
    site, one, two = Site(), held(), held(2)
    site.store.script = [error]
    site.add(Act.DELETE, one)
    site.add(Act.RELEASE, two)
    await site.settlements.idle()
    assert site.store.times == ([0, 0.05] if again else [0])
    assert site.store.calls[0][1] == site.store.calls[-1][1]
    assert [one.doubted, two.doubted] == ([Act.DELETE, Act.RELEASE] if doubtful else [None, None])
    assert site.codes() == [code] * 2
    # The lane lives on, and what comes next is settled.
    site.add(Act.DELETE, held(3))
    await site.settlements.idle()
    assert site.codes() == [code, code, None]
    heard = [record.getMessage() for record in caplog.records]
    assert [line[: len(said or "")] for line in heard] == ([] if said is None else [said])


@pytest.mark.parametrize(
    ("error", "settled_at"),
    [(StoreUnavailable("away"), 9), (UnknownOutcome("lost"), 9), (TimeoutError(), 9), (StoreError("broken"), 11.35)],
)
@simulated
async def test_after_an_outage_all_is_settled_once_the_store_is_heard(error: Exception, settled_at: float) -> None:
    """Not at the end of a pause that an outage made long; a store that answers, and refuses, is not hurried."""
    site = Site()
    site.store.script = [error] * 16
    site.add(Act.DELETE, held(1))
    site.add(Act.EXTEND, held(2), seconds=30.0)
    await pass_time(9)
    assert site.told == [] and site.store.times[-1] < 9
    del site.store.script[:]
    site.settlements.heard()
    await site.settlements.idle()
    assert sorted((at, id_) for at, id_, _, _ in site.told) == [(settled_at, "m1"), (settled_at, "m2")]


@simulated
async def test_an_item_that_cannot_be_settled_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A pause that is no number breaks the call of all; alone, each of the others is settled."""
    site = Site()
    site.add(Act.DELETE, *several(2))
    site.add(Act.RELEASE, held(3), seconds=math.nan)
    await site.settlements.idle()
    assert sorted((id_, said) for _, id_, _, said in site.told) == [("m1", None), ("m2", None), ("m3", "internal")]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]


@pytest.mark.parametrize(
    ("act", "first", "then", "code"),
    [
        (Act.DELETE, "unknown_outcome", "message_not_found", None),
        (Act.DELETE, "storage_unavailable", "message_not_found", "message_not_found"),
        (Act.DELETE, "unknown_outcome", "pop_receipt_mismatch", "pop_receipt_mismatch"),
        (Act.RELEASE, "unknown_outcome", "pop_receipt_mismatch", None),
        (Act.RELEASE, "storage_unavailable", "pop_receipt_mismatch", "pop_receipt_mismatch"),
        (Act.EXTEND, "unknown_outcome", "pop_receipt_mismatch", "pop_receipt_mismatch"),
        (Act.EXTEND, "unknown_outcome", "message_not_found", "message_not_found"),
    ],
)
@simulated
async def test_what_a_second_try_says_of_the_first(act: Act, first: str, then: str, code: str | None) -> None:
    """A refusal is success only where the first try may have been carried out and would have left just that."""
    site = Site()
    site.store.script = [failing(m1=first), failing(m1=then)]
    site.add(act, held(1), held(2), seconds=30.0)
    await site.settlements.idle()
    assert sorted((id_, said) for _, id_, _, said in site.told) == [("m1", code), ("m2", None)]
