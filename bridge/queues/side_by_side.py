"""Several requests of one store call at the same time, for stores that take one item or few a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from bridge.contract.bounds import STORE_CALL_S
from bridge.contract.errors import QueuebellError, QueueNotFound, StoreError, UnknownOutcome
from bridge.queues.base import MAYBE_DONE, NOT_DONE, Settled

T = TypeVar("T")
CALL_S: Final = ContextVar("seconds the store call under way may take", default=STORE_CALL_S)
"""Set by a caller that ends its calls by another timer of its own."""
ALONE: Final = 0.8
"""How much of it each of `apart` gets: one that took it all would take the answers of the others along."""


async def side_by_side(name: str, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run ``calls`` together and return their results in order; the first failure cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call, name=name) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def apart(name: str, calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T | QueuebellError]:
    """Run ``calls`` together, all to their end, and return each one's result or what it raised, in order.

    One that does not end within `ALONE` of `CALL_S` is an `UnknownOutcome`. A defect cancels the rest and is raised.
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
    """Return what became of each item of a settlement, by its answer or by what its request failed with.

    What all of them failed with is raised: it is about the store, and no item.
    """
    failures = [answer for answer in answers if isinstance(answer, QueuebellError)]
    if failures and len(failures) == len(answers) and len({type(failure) for failure in failures}) == 1:
        raise failures[0]
    return [answer if isinstance(answer, Settled) else Settled(False, code=_code(answer)) for answer in answers]


def _code(failure: QueuebellError) -> str:
    if isinstance(failure, UnknownOutcome):
        return MAYBE_DONE
    if isinstance(failure, QueueNotFound):
        return "message_not_found"  # others were answered: the queue went away, and its messages with it
    return NOT_DONE if isinstance(failure, StoreError) else failure.code
