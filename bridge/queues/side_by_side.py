"""Concurrent requests of one store call, for stores that accept one or a few items a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from queuebell.bridge.contract.bounds import STORE_CALL_S
from queuebell.bridge.contract.errors import QueuebellError, QueueNotFound, StoreError, UnknownOutcome
from queuebell.bridge.queues.base import MAYBE_DONE, NOT_DONE, Settled

T = TypeVar("T")
CALL_S: Final = ContextVar("seconds the store call under way may take", default=STORE_CALL_S)
"""Set by callers with another time-out."""
ALONE: Final = 0.8
"""Share of it for each request of `apart`, so that a slow one does not time out the whole call."""


async def side_by_side(name: str, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run ``calls`` concurrently; return their results in order. The first failure cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call, name=name) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def apart(name: str, calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T | QueuebellError]:
    """Run all ``calls`` concurrently; return each result or `QueuebellError`, in order.

    A call longer than `ALONE` of `CALL_S` yields an `UnknownOutcome`. Other exceptions cancel the rest and are raised.
    """
    alone_s = ALONE * CALL_S.get()

    async def alone(call: Callable[[], Awaitable[T]]) -> T | QueuebellError:
        try:
            async with asyncio.timeout(alone_s):
                return await call()
        except QueuebellError as error:
            return error
        except TimeoutError:
            return UnknownOutcome(f"{name}: no answer within {alone_s:g} s")

    return await side_by_side(name, map(alone, calls))


def outcomes(answers: Sequence[Settled | QueuebellError]) -> list[Settled]:
    """Return the outcome of each item of a settlement, from its answer or its request's error.

    If all failed with the same kind of error, it is raised: it concerns the store, not an item.
    """
    failures = [answer for answer in answers if isinstance(answer, QueuebellError)]
    if failures and len(failures) == len(answers) and len({type(failure) for failure in failures}) == 1:
        raise failures[0]
    return [answer if isinstance(answer, Settled) else Settled(False, code=_code(answer)) for answer in answers]


def _code(failure: QueuebellError) -> str:
    if isinstance(failure, UnknownOutcome):
        return MAYBE_DONE
    if isinstance(failure, QueueNotFound):
        return "message_not_found"  # Others were answered, so the queue was deleted meanwhile.
    return NOT_DONE if isinstance(failure, StoreError) else failure.code
