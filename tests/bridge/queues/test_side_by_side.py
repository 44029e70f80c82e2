"""Several requests of one store call at the same time."""

from __future__ import annotations

import asyncio

import pytest

from bridge.contract.errors import (
    BadInput,
    Overloaded,
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.queues.base import Settled
from bridge.queues.side_by_side import apart, outcomes, side_by_side
from tests.support.sim_loop import pass_time, simulated


class TestSideBySide:
    async def test_results_come_in_order(self) -> None:
        """Whoever ends first, the answers stand where their requests stood."""
        second = asyncio.Event()

        async def first_waits() -> int:
            await second.wait()
            return 1

        async def second_ends() -> int:
            second.set()
            return 2

        assert await side_by_side("test", (first_waits(), second_ends())) == [1, 2]
        assert await side_by_side("test", ()) == []

    async def test_the_first_failure_is_raised_as_it_is(self) -> None:
        """The caller sees the store's own error, and what still runs is cancelled."""
        ended: list[str] = []

        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

        async def fails() -> None:
            await asyncio.sleep(0)
            raise StoreUnavailable("no")

        with pytest.raises(StoreUnavailable):
            await side_by_side("test", (waits(), fails()))
        assert ended == ["cancelled"]

    async def test_a_cancelled_caller_takes_its_requests_along(self) -> None:
        """No request outlives the call that it is part of."""
        begun = asyncio.Event()
        ended: list[str] = []

        async def waits() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

        task = asyncio.create_task(side_by_side("test", (waits(),)), name="caller")
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled"]


class TestApart:
    @simulated
    async def test_a_failure_takes_no_other_along(self) -> None:
        """Whatever one request fails by, those that take longer come to their end."""
        away = StoreUnavailable("away")

        async def ends(seconds: float) -> float:
            await pass_time(seconds)
            return seconds

        async def fails() -> float:
            raise away

        assert await apart("test", (lambda: ends(3), fails, lambda: ends(1))) == [3, away, 1]
        assert await apart("test", ()) == []

    @simulated
    async def test_a_request_that_hangs_does_not_hold_up_the_answers(self) -> None:
        """It ends before the whole call may, and nobody knows what it did."""
        began = asyncio.get_running_loop().time()

        async def hangs() -> int:
            await pass_time(1e6)
            return 1

        async def ends() -> int:
            return 2

        hung, ended = await apart("test", (hangs, ends))
        assert isinstance(hung, UnknownOutcome) and ended == 2
        assert asyncio.get_running_loop().time() - began == 8

    async def test_a_defect_is_raised(self) -> None:
        """What is no error of a store is nobody's outcome."""

        async def breaks() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await apart("test", (breaks, asyncio.Event().wait))


class TestOutcomes:
    @pytest.mark.parametrize(
        ("failure", "code", "open_"),
        [
            (StoreUnavailable("busy"), "storage_unavailable", True),
            (Overloaded("busy"), "storage_unavailable", True),
            (StoreError("refused"), "storage_unavailable", True),
            (UnknownOutcome("lost"), "unknown_outcome", True),
            (QueueNotFound("gone"), "message_not_found", False),
            (BadInput("message_too_large", "no"), "message_too_large", False),
        ],
    )
    def test_a_failure_beside_others_is_the_outcome_of_its_item(
        self, failure: QueuebellError, code: str, open_: bool
    ) -> None:
        """By a code that is stable, and says whether it is to be tried again."""
        done, refused = Settled(True, "r2"), Settled(False, code="pop_receipt_mismatch")
        first, failed, last = outcomes([done, failure, refused])
        assert (first, last) == (done, refused)
        assert (failed.ok, failed.code, failed.open) == (False, code, open_)
        assert not first.open and not last.open
        other = UnknownOutcome("x") if not isinstance(failure, UnknownOutcome) else StoreUnavailable("x")
        assert outcomes([failure, other])[0] == failed, "two ways to fail are none of the store as a whole"

    def test_what_all_failed_by_is_raised(self) -> None:
        """The first one of them; nothing at all has failed by nothing."""
        first = StoreUnavailable("one")
        with pytest.raises(StoreUnavailable) as raised:
            outcomes([first, StoreUnavailable("two")])
        assert raised.value is first
        assert outcomes([]) == []
