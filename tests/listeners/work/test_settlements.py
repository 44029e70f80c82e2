"""Settling as such: what a call names and when it leaves, what its answer means, and what becomes of a failure."""

from __future__ import annotations

import asyncio
import datetime
import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from bridge.contract.errors import BadInput, QueueNotFound, StoreError, StoreUnavailable, UnknownOutcome
from bridge.queues.base import Capabilities, Claim, Extend, Release, Settled, Settlement, Settling, StoredMessage
from bridge.queues.side_by_side import apart, outcomes
from listeners.work.held import Act, Held
from listeners.work.settlements import Item, Line, Settlements
from tests.listeners.rig import QUEUE
from tests.support.sim_loop import pass_time, simulate, simulated

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


def several(count: int, first: int = 1) -> list[Held]:
    return [held(number) for number in range(first, first + count)]


# What a call names ---------------------------------------------------------------------------------------------------


@simulated
async def test_what_ends_in_one_tick_goes_in_one_call_of_its_line() -> None:
    """Deletes and releases together, renewals beside them; each is told of once, in the order of the lists."""
    site = Site()
    one, two, three, four = several(4)
    site.add(Act.RELEASE, two, seconds=1.5)
    site.add(Act.DELETE, one, four)
    site.add(Act.EXTEND, three, seconds=30.0)
    assert (len(site.settlements), site.settlements.idling, site.store.calls) == (3, False, [])
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
    assert (len(site.settlements), site.settlements.idling) == (0, True)


@pytest.mark.parametrize(
    ("seconds", "after_ms"),
    [(-1.0, 0), (0.0, 0), (0.0004, 0), (0.0006, 1), (0.5, 500), (59.9994, 59_999), (60.0, 60_000), (3600.0, 60_000)],
)
@simulated
async def test_a_release_waits_as_long_as_asked_or_as_the_store_can(seconds: float, after_ms: int) -> None:
    """To the millisecond, never below nothing, and never longer than its store can hide a message."""
    site = Site(visibility_s_max=60)
    site.add(Act.RELEASE, held(), seconds=seconds)
    await site.settlements.idle()
    assert [item.after_ms for item in site.store.calls[0][1].release] == [after_ms]


@pytest.mark.parametrize("given_back", [False, True])
@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("able", [False, True])
def test_only_what_no_handler_has_answered_costs_no_attempt(given_back: bool, answered: bool, able: bool) -> None:
    """Given back before its handler had its say, to a store that can take the count back."""

    async def story() -> None:
        site, one = Site(uncounted_release=able), held()
        one.given_back, one.answered = given_back, answered
        site.add(Act.RELEASE, one)
        await site.settlements.idle()
        assert [item.uncounted for item in site.store.calls[0][1].release] == [given_back and not answered and able]

    simulate(story())


def test_the_newest_wish_for_a_message_counts() -> None:
    """Of one tick: a delete replaces what was asked for before, and nobody renews what is on its way."""
    cases: list[tuple[list[tuple[Act, float]], list[tuple[Act, float]]]] = [
        ([(Act.EXTEND, 30.0), (Act.DELETE, 0.0)], [(Act.DELETE, 0.0)]),
        ([(Act.EXTEND, 30.0), (Act.RELEASE, 2.0)], [(Act.RELEASE, 2.0)]),
        ([(Act.DELETE, 0.0), (Act.EXTEND, 30.0)], [(Act.DELETE, 0.0)]),
        ([(Act.DELETE, 0.0), (Act.RELEASE, 2.0)], [(Act.RELEASE, 2.0)]),
        ([(Act.EXTEND, 30.0), (Act.EXTEND, 60.0)], [(Act.EXTEND, 30.0)]),
    ]

    async def story(wishes: list[tuple[Act, float]], left: list[tuple[Act, float]]) -> None:
        site, one = Site(), held()
        for act, seconds in wishes:
            site.add(act, one, seconds=seconds)
        await site.settlements.idle()
        calls = [call for _, call in site.store.calls]
        asked = [(Act.DELETE, 0.0) for call in calls for _ in call.delete]
        asked += [(Act.RELEASE, item.after_ms / 1000) for call in calls for item in call.release]
        asked += [(Act.EXTEND, item.visibility_s) for call in calls for item in call.extend]
        assert asked == left
        assert [act for _, _, act, _ in site.told] == [act for act, _ in left]

    for wishes, left in cases:
        simulate(story(wishes, left))


# Lanes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "lanes", "fresh", "settles", "renews"),
    [
        (0, 0, 0, False, False),
        (1, 0, 0, True, True),
        (1, 1, 1, False, False),
        (1, 1, 0, False, True),
        (1, 3, 0, False, True),
        (1, 4, 0, False, False),
        (31, 1, 1, False, False),
        (32, 1, 1, True, True),
        (63, 2, 2, False, False),
        (64, 2, 2, True, True),
        (63, 2, 1, False, True),
        (96, 3, 3, True, True),
        (999, 4, 4, False, False),
    ],
)
@simulated
async def test_when_a_line_opens_a_lane(waiting: int, lanes: int, fresh: int, settles: bool, renews: bool) -> None:
    """Four at most; one more where a whole call waits for each there is; renewals wait only for lanes that begin."""
    tasks = {asyncio.create_task(pass_time(0), name=f"lane-{number}") for number in range(lanes)}
    for kind, wanted in ((False, settles), (True, renews)):
        line = Line("any", renews=kind)
        assert not line.wants_lane(32)
        line.waiting = {one.number: Item(Act.DELETE, one, 0.0) for one in several(waiting)}
        line.tasks, line.fresh = tasks, fresh
        assert line.wants_lane(32) is wanted


@pytest.mark.parametrize("act", [Act.DELETE, Act.EXTEND])
@simulated
async def test_lanes_are_opened_by_what_waits(act: Act) -> None:
    """One for what comes in a tick, one more for each whole call of it; and so again when they have ended."""
    site = Site()
    for count, lanes in ((1, 1), (31, 1), (2, 1), (32, 2), (63, 2), (64, 3), (2, 1)):
        site.add(act, *several(count), seconds=30.0)
        assert len(asyncio.all_tasks()) - 1 == lanes, count
        await site.settlements.idle()


@simulated
async def test_what_is_added_as_a_lane_ends_is_settled() -> None:
    """In the very turn in which the last lane ended: nothing waits without one."""
    for act in Act:
        site, two = Site(), held(2)
        told = site.settlements._settled

        def settled(
            item: Item, code: str | None, told: Any = told, add: Any = site.add, two: Held = two, act: Act = act
        ) -> None:
            told(item, code)
            if item.held is not two:
                asyncio.get_running_loop().call_soon(add, act, two)

        site.settlements._settled = settled
        site.add(act, held(1))
        await pass_time(1)
        assert [id_ for _, id_, _, _ in site.told] == ["m1", "m2"]


@pytest.mark.parametrize("act", Act)
@pytest.mark.parametrize(("batch_max", "most"), [(10, 32), (32, 32), (64, 64)])
@simulated
async def test_many_go_in_four_lanes_of_what_a_call_takes(act: Act, batch_max: int, most: int) -> None:
    """Never more than one call may name, four calls at a time, all of them once, and the rest as soon as one ends."""
    site = Site(batch_max=batch_max)
    site.store.seconds = 1.0
    site.add(act, *several(6 * most + 1), seconds=30.0)
    assert len(site.settlements) == (0 if act is Act.EXTEND else 6 * most + 1)
    await site.settlements.idle()
    sizes = [sum(len(each) for each in call) for call in site.store.named()]
    assert list(zip(site.store.times, sizes, strict=True)) == [
        *[(0.0, most)] * 4,
        *[(1.0, most)] * 2,
        (1.0, 1),
    ]
    assert site.store.busiest == 4
    assert sorted(int(id_[1:]) for _, id_, _, _ in site.told) == list(range(1, 6 * most + 2))
    assert site.settlements.idling


@pytest.mark.parametrize(("act", "begun"), [(Act.DELETE, [0, 5]), (Act.EXTEND, [0, 1, 2, 3, 5])])
@simulated
async def test_a_call_that_takes_long_holds_up_no_renewal(act: Act, begun: list[int]) -> None:
    """What settles waits for the lane there is; what renews takes another while one of the four is free."""
    site = Site()
    site.store.seconds = 5.0
    for one in several(5):
        site.add(act, one)
        await pass_time(0.999)
    await site.settlements.idle()
    assert [round(at) for at in site.store.times] == begun
    assert [id_ for _, id_, _, _ in site.told] == [f"m{number}" for number in range(1, 6)]


@pytest.mark.parametrize(("first", "then"), [(Act.EXTEND, Act.DELETE), (Act.DELETE, Act.EXTEND)])
@simulated
async def test_a_message_in_flight_waits_for_its_answer(first: Act, then: Act) -> None:
    """Never two calls for one message: the next leaves at the answer, with the receipt that it brought."""
    site, one = Site(), held()
    site.store.seconds = 3.0
    site.add(first, one, seconds=30.0)
    await pass_time(1)
    site.add(then, one)
    assert not site.settlements.idling
    await site.settlements.idle()
    assert site.store.times == [0, 3]
    last = site.store.calls[-1][1]
    receipts = [item.pop_receipt for item in last.delete] + [item.pop_receipt for item in last.extend]
    assert receipts == ["r1'" if first is Act.EXTEND else "r1"]


# What an answer means ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "answer", "doubted", "code"),
    [
        (Act.DELETE, Settled(True), None, None),
        (Act.DELETE, Settled(False, code="message_not_found"), None, "message_not_found"),
        (Act.DELETE, Settled(False, code="message_not_found"), Act.DELETE, None),
        (Act.DELETE, Settled(False, code="message_not_found"), Act.RELEASE, "message_not_found"),
        (Act.DELETE, Settled(False, code="pop_receipt_mismatch"), Act.DELETE, "pop_receipt_mismatch"),
        (Act.RELEASE, Settled(False, code="pop_receipt_mismatch"), None, "pop_receipt_mismatch"),
        (Act.RELEASE, Settled(False, code="pop_receipt_mismatch"), Act.RELEASE, None),
        (Act.RELEASE, Settled(False, code="message_not_found"), Act.RELEASE, None),
        (Act.EXTEND, Settled(False, code="pop_receipt_mismatch"), Act.RELEASE, "pop_receipt_mismatch"),
        (Act.EXTEND, Settled(False), None, "internal"),
        (Act.DELETE, Settled(False), None, "internal"),
    ],
)
@simulated
async def test_what_the_store_says_of_one_message(
    act: Act, answer: Settled, doubted: Act | None, code: str | None
) -> None:
    """Its code is told; what a first try of unknown outcome would have left behind shows that it was carried out."""
    site, one = Site(), held(lease_s=20)
    one.doubted = doubted
    site.store.script = [lambda call: Settling(*([answer] * len(getattr(call, each)) for each in LISTS))]
    site.add(act, one, seconds=30.0)
    await site.settlements.idle()
    assert site.told == [(0.0, "m1", act, code)]
    assert (one.receipt, one.lease_ends) == ("r1", 1020.0), "a refusal changes nothing"


@pytest.mark.parametrize(
    ("act", "receipt", "seconds", "now_receipt", "now_ends"),
    [
        (Act.EXTEND, "new", 30.0, "new", 1032.0),
        (Act.EXTEND, None, 30.0, "r1", 1032.0),
        (Act.EXTEND, "new", 5.0, "new", 1020.0),
        (Act.RELEASE, "new", 30.0, "r1", 1020.0),
    ],
)
@simulated
async def test_an_extension_counts_from_before_it_left(
    act: Act, receipt: str | None, seconds: float, now_receipt: str, now_ends: float
) -> None:
    """The lease known here is a lower bound, and never gets shorter; the receipt is the newest."""
    site, one = Site(), held(lease_s=20)
    site.store.seconds = 3.0
    site.store.script = [lambda call: Settling([], *([Settled(True, receipt)] * len(e) for e in _rest(call)))]
    await pass_time(2)
    site.add(act, one, seconds=seconds)
    await site.settlements.idle()
    assert (one.receipt, one.lease_ends) == (now_receipt, now_ends)
    assert site.codes() == [None]


def _rest(call: Settlement) -> tuple[Any, Any]:
    return call.release, call.extend


# Failures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "again", "doubtful", "code", "said"),
    [
        (UnknownOutcome("lost"), True, True, None, None),
        (StoreUnavailable("away"), True, False, None, f"{QUEUE}: settling failed, trying again: away"),
        (StoreError("broken"), True, False, None, f"{QUEUE}: settling failed, trying again: broken"),
        (QueueNotFound("gone"), False, False, "message_not_found", None),
        (BadInput("too_large", "no"), False, False, "too_large", f"{QUEUE}: the store refuses to settle: no"),
        (ZeroDivisionError("defect"), False, False, "internal", f"{QUEUE}: settling broke"),
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
    assert [bool(record.exc_info) for record in caplog.records] == [code == "internal"] * len(heard)


@pytest.mark.parametrize("act", Act)
@simulated
async def test_a_store_that_leaves_out_a_result_has_settled_nothing(act: Act) -> None:
    """Nobody can tell whose results they are: the messages come back, and none stays held for ever."""
    site = Site()
    site.store.script = [lambda _: Settling([], [], [])]
    site.add(act, held())
    await site.settlements.idle()
    assert site.codes() == ["internal"]


@simulated
async def test_a_defect_holds_up_nobody_behind_it() -> None:
    """What is behind it in its line goes at once, by the same lane."""
    site = Site()
    site.store.seconds = 1.0
    site.store.script = [ZeroDivisionError()]
    site.add(Act.DELETE, held(1))
    await pass_time(0.5)
    site.add(Act.DELETE, held(2))
    await site.settlements.idle()
    assert site.told == [(1.0, "m1", Act.DELETE, "internal"), (2.0, "m2", Act.DELETE, None)]


@simulated
async def test_a_defect_in_a_renewal_holds_up_no_delete() -> None:
    """A message that was handled while its renewal broke is deleted all the same, and only that is told of it."""
    site, one = Site(), held()
    site.store.seconds = 2.0
    site.store.script = [ZeroDivisionError()]
    site.add(Act.EXTEND, one, seconds=30.0)
    await pass_time(1)
    site.add(Act.DELETE, one)
    await site.settlements.idle()
    assert site.told == [(4.0, "m1", Act.DELETE, None)]
    assert (len(site.settlements), site.settlements.idling) == (0, True)


@simulated
async def test_pauses_double_up_to_five_seconds_and_begin_anew() -> None:
    """From 0.05 s; one success, and the next failure is followed by the first pause again."""
    site = Site()
    site.store.script = [StoreUnavailable("away")] * 10
    site.add(Act.DELETE, held())
    await site.settlements.idle()
    pauses = [later - at for at, later in zip(site.store.times, site.store.times[1:], strict=False)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
    site.store.calls.clear()
    site.store.script = [StoreUnavailable("away")]
    began = now()
    site.add(Act.DELETE, held(2))
    await site.settlements.idle()
    assert [at - began for at in site.store.times] == pytest.approx([0, 0.05])


@pytest.mark.parametrize("allowed", [None, 3.0])
@simulated
async def test_a_call_ends_by_our_own_timer(allowed: float | None) -> None:
    """After R, 10 s where nothing else was said; its outcome is in doubt, and it is tried again."""
    site, one = Site(), held()
    if allowed is not None:
        site.settlements.store_call_s = allowed
    site.store.seconds = 1e6
    site.add(Act.DELETE, one)
    await pass_time(0)
    await pass_time(0)
    site.store.seconds = 0.0
    await site.settlements.idle()
    assert site.store.times == [0, (allowed or 10.0) + 0.05]
    assert (one.doubted, site.codes(), site.store.cut) == (Act.DELETE, [None], 1)


@pytest.mark.parametrize("act", Act)
@pytest.mark.parametrize(("lease_s", "code"), [(2.0, "lease_ended"), (2.001, None)])
@simulated
async def test_nothing_is_tried_beyond_its_lease(act: Act, lease_s: float, code: str | None) -> None:
    """A call that failed at the very end of a lease was the last: the message is somebody else's from then on."""
    site = Site()
    site.store.seconds = 2.0
    site.store.script = [StoreUnavailable("away")]
    site.add(act, held(lease_s=lease_s), seconds=30.0)
    await site.settlements.idle()
    assert site.codes() == [code]
    assert len(site.store.calls) == (1 if code else 2)


@pytest.mark.parametrize(("lease_s", "code"), [(2.0, "lease_ended"), (60.0, None)])
@simulated
async def test_a_delete_takes_over_from_a_renewal_that_failed(lease_s: float, code: str | None) -> None:
    """What was asked for meanwhile is done instead, or told of instead: one word for each message."""
    site, one = Site(), held(lease_s=lease_s)
    site.store.seconds = 2.0
    site.store.script = [StoreUnavailable("away")]
    site.add(Act.EXTEND, one, seconds=30.0)
    await pass_time(1)
    site.add(Act.DELETE, one)
    await site.settlements.idle()
    assert [(id_, act, said) for _, id_, act, said in site.told] == [("m1", Act.DELETE, code)]
    assert site.store.named() == [([], [], ["m1"]), *([] if code else [(["m1"], [], [])])]
    assert (len(site.settlements), site.settlements.idling) == (0, True)


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


# Of several requests some fail ---------------------------------------------------------------------------------------


def failing(**codes: str) -> Answer:
    """Carry out all but the messages that are named, whose requests fail with these codes."""

    def answer(call: Settlement) -> Settling:
        def told(item: Claim | Release | Extend, done: Settled) -> Settled:
            return Settled(False, code=codes[item.id]) if item.id in codes else done

        done = carried_out(call)
        lists = ((getattr(call, each), getattr(done, each)) for each in LISTS)
        return Settling(*([told(*pair) for pair in zip(*both, strict=True)] for both in lists))

    return answer


@simulated
async def test_only_what_failed_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """The others are told of at once; what failed follows after a pause, with what came meanwhile behind it."""
    caplog.set_level(logging.INFO, "queuebell.listener")
    site = Site()
    site.store.script = [failing(m2="storage_unavailable", m3="unknown_outcome"), failing(m2="storage_unavailable")]
    site.add(Act.DELETE, held(1), held(2))
    site.add(Act.RELEASE, held(3), held(4))
    await pass_time(0.01)
    assert site.told == [(0.0, "m1", Act.DELETE, None), (0.0, "m4", Act.RELEASE, None)]
    site.add(Act.DELETE, held(5))
    await site.settlements.idle()
    assert site.store.named() == [
        (["m1", "m2"], ["m3", "m4"], []),
        (["m2", "m5"], ["m3"], []),
        (["m2"], [], []),
    ]
    assert site.store.times == pytest.approx([0, 0.05, 0.15])
    assert sorted(id_ for _, id_, _, _ in site.told) == ["m1", "m2", "m3", "m4", "m5"]
    assert site.codes() == [None] * 5
    assert [record.getMessage() for record in caplog.records] == [
        f"{QUEUE}: settling 2 of 4 messages failed, trying them again: storage_unavailable",
        f"{QUEUE}: settling 1 of 3 messages failed, trying them again: storage_unavailable",
    ]


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


@simulated
async def test_a_delete_after_a_renewal_without_an_answer_is_no_success_when_it_is_refused() -> None:
    """The message comes again, or somebody else had it: nothing that was tried before has deleted it."""
    for code in ("message_not_found", "pop_receipt_mismatch"):
        site, one = Site(), held()
        site.store.seconds = 2.0
        site.store.script = [UnknownOutcome("lost"), failing(m1=code)]
        site.add(Act.EXTEND, one, seconds=30.0)
        await pass_time(1)
        site.add(Act.DELETE, one)
        await site.settlements.idle()
        assert [told[1:] for told in site.told] == [("m1", Act.DELETE, code)]


@simulated
async def test_a_request_that_hangs_takes_no_answer_along() -> None:
    """However short a call is told to be: it alone is in doubt, and the others are told of within the call."""
    site, hung = Site(), [1e6]
    site.settlements.store_call_s = 2.0

    async def one(item: Claim) -> Settled:
        await pass_time(hung.pop() if item.id == "m2" and hung else 0.0)
        return Settled(True)

    async def settle(queue: str, settlement: Settlement) -> Settling:
        calls = (functools.partial(one, item) for item in settlement.delete)
        return Settling(outcomes(await apart("settle", calls)), [], [])

    site.store.settle = settle  # type: ignore[method-assign]
    two = held(2)
    site.add(Act.DELETE, held(1), two, held(3))
    await site.settlements.idle()
    assert site.told == [
        (1.6, "m1", Act.DELETE, None),
        (1.6, "m3", Act.DELETE, None),
        (1.65, "m2", Act.DELETE, None),
    ]
    assert two.doubted is Act.DELETE


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
async def test_what_failed_goes_before_what_came_later() -> None:
    """It has waited longest; of a call that failed only what still has its lease is tried again."""
    site = Site()
    site.store.seconds = 1.0
    site.store.script = [StoreUnavailable("away")]
    site.add(Act.DELETE, held(1), held(2, lease_s=1.0), held(3))
    await pass_time(0.5)
    site.add(Act.DELETE, held(4))
    await site.settlements.idle()
    assert site.store.named() == [(["m1", "m2", "m3"], [], []), (["m1", "m3", "m4"], [], [])]
    assert site.told[0] == (1.0, "m2", Act.DELETE, "lease_ended")


# The end -------------------------------------------------------------------------------------------------------------


@simulated
async def test_what_is_abandoned_is_left_to_its_lease() -> None:
    """Calls are cut off, what waits is forgotten, and nobody is told: the messages come back by themselves."""
    site = Site()
    site.store.seconds = 1e6
    await site.settlements.abandon()
    site.add(Act.DELETE, *several(200))
    site.add(Act.EXTEND, *several(200, 201))
    await pass_time(1)
    assert len(site.settlements) == 200 - 4 * 32
    await site.settlements.abandon()
    assert (len(site.settlements), site.settlements.idling) == (0, True)
    assert (site.store.cut, site.told) == (8, [])
    await site.settlements.idle()
    await pass_time(60)
    assert len(site.store.calls) == 8
    # Messages that were in flight are free again.
    site.store.seconds = 0.0
    site.add(Act.DELETE, held(1))
    await site.settlements.idle()
    assert site.codes() == [None]
