"""Enforce each principal's quota of waiting bytes and queues, on all endpoints."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

from queuebell.bridge.access.grants import Principal, Reach, Verb
from queuebell.bridge.contract.names import POISON_SUFFIX

if TYPE_CHECKING:
    from queuebell.bridge.access.limits import Allowance
    from queuebell.bridge.queues.served import ServedStore


QUEUES_RETRY_S: Final = 60
"""Retry time for a principal at its limit of queues, until a queue is deleted."""
BYTES_RETRY_S: Final = 1
_NOTHING: Final = contextlib.nullcontext()


class PastLimit(Exception):
    """A principal that wants to ``verb`` is at its limit and may retry after ``retry_after_s``."""

    def __init__(self, verb: Verb, detail: str, retry_after_s: int) -> None:
        super().__init__(detail)
        self.verb = verb
        self.retry_after_s = retry_after_s


class Allowances(Protocol):
    """Declares access to each principal's usage (`queuebell.bridge.access.access_watch.AccessWatch`)."""

    def allowance(self, principal: Principal) -> Allowance:
        """Return a principal's usage of its limits."""
        ...


class QuotaGuard:
    """Enforces the limits of principals on requests; costs nothing without limits.

    Enter the context managers for the duration of a request; they raise `PastLimit`. The principal is None without
    authentication.
    """

    def __init__(self, store: ServedStore, access: Allowances | None) -> None:
        self._store = store
        self._access = access

    def waiting(self, principal: Principal | None, size: int) -> AbstractContextManager[None]:
        """Count the bytes of a put from before its body is read until it is answered."""
        if self._access is None or principal is None or principal.limits.waiting_bytes is None:
            return _NOTHING
        return self._waiting(self._access.allowance(principal), size)

    def making(self, principal: Principal | None, queue: str, asked: bool = True) -> AbstractAsyncContextManager[None]:
        """Check, if ``asked``, that the principal may create ``queue`` or that it exists."""
        if not asked or self._access is None or principal is None or principal.limits.queues is None:
            return _NOTHING
        return self._making(self._access.allowance(principal), principal, principal.limits.queues, queue)

    @contextlib.contextmanager
    def _waiting(self, allowance: Allowance, size: int) -> Iterator[None]:
        if not allowance.hold(size):
            raise PastLimit(Verb.PUT, "slow down: too many bytes of this principal's puts are pending", BYTES_RETRY_S)
        try:
            yield
        finally:
            allowance.give_back(size)

    @contextlib.asynccontextmanager
    async def _making(self, allowance: Allowance, principal: Principal, limit: int, queue: str) -> AsyncIterator[None]:
        if await self._exempt(queue):
            yield
            return
        allowance.making[queue] += 1
        try:
            if await self._count(principal, [*allowance.making], queue, limit) > limit:
                raise PastLimit(Verb.MANAGE, f"this principal may have at most {limit} queues", QUEUES_RETRY_S)
            yield
        finally:
            allowance.making[queue] -= 1
            if not allowance.making[queue]:
                del allowance.making[queue]

    async def _exempt(self, queue: str) -> bool:
        """Return whether the queue exists or is the poison queue of an existing one.

        Without a poison queue, a worker would lose failing messages or retry them forever.
        """
        names = [queue]
        base = queue.removesuffix(POISON_SUFFIX)
        if base != queue and not base.endswith(POISON_SUFFIX):
            # The partitions of a queue share a poison queue.
            names += [base, f"{base}-p0"]
        for name in names:
            if await self._store.exists(name):
                return True
        return False

    async def _count(self, principal: Principal, making: list[str], queue: str, limit: int) -> int:
        """Count the principal's queues, with this one and those being created before it, until past the limit."""
        reach = principal.reach(Verb.PUT) | principal.reach(Verb.MANAGE)
        making = making[: making.index(queue) + 1]
        count = len(making)
        after: str | None = ""
        while count <= limit and after is not None:
            found, after = await listed(self._read, reach, "", after, limit + 1 - count)
            count += sum(name not in making for name, _ in found)
        return count

    async def _read(self, prefix: str, after: str, limit: int) -> list[Row]:
        return [(name, {}) for name in await self._store.queues(prefix, after, limit)]


READ_AT_ONCE: Final = 1000
"""Maximum names per call of the store."""
CALLS_MAX: Final = 32
"""Maximum calls of the store per request."""

Row = tuple[str, dict[str, str]]
"""A queue and its metadata."""


async def listed(
    read: Callable[[str, str, int], Awaitable[list[Row]]],
    reach: Reach,
    prefix: str,
    after: str,
    count: int,
    fits: Callable[[str], bool] | None = None,
) -> tuple[list[Row], str | None]:
    """Return up to ``count`` queues of ``reach`` that ``fits`` accepts, and where the next page begins, or None.

    ``read`` takes a prefix, the name to continue after, and a limit. As a request makes at most 32 calls, a page may
    have fewer queues than ``count``, or none, although another page follows.
    """
    found: list[Row] = []
    calls = 0
    for stretch, exact in reach.stretches(prefix, after):
        more = True
        while more:
            if calls == CALLS_MAX:
                return found, after
            calls += 1
            # One more than requested shows whether there is a next page.
            size = 1 if exact else READ_AT_ONCE if fits else min(READ_AT_ONCE, count + 1 - len(found))
            rows = await read(stretch, "" if exact else after, size)
            more = len(rows) == size and not exact
            if exact:
                rows = [row for row in rows if row[0] == stretch]
            after = stretch if exact else rows[-1][0] if rows else after
            found += [row for row in rows if fits is None or fits(row[0])]
            if len(found) > count:
                return found[:count], found[count - 1][0]
    return found, None
