"""Several requests of one store call at the same time."""

from __future__ import annotations

import asyncio

import pytest

from bridge.contract.errors import StoreUnavailable
from bridge.queues.side_by_side import side_by_side


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
