"""Several requests of one store call at the same time, for stores that take one item or few a request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def side_by_side(name: str, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run ``calls`` together and return their results in order; the first failure cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call, name=name) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
