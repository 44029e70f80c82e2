"""Puts and new queues within what their sender's principal may use, whichever door they come by."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

from bridge.access.grants import Principal, Reach, Verb
from bridge.contract.names import POISON_SUFFIX

if TYPE_CHECKING:
    from bridge.access.limits import Allowance
    from bridge.queues.served import ServedStore


QUEUES_RETRY_S: Final = 60
"""What a principal is told to wait that has as many queues as it may: until somebody deletes one."""
BYTES_RETRY_S: Final = 1
_NOTHING: Final = contextlib.nullcontext()


class PastLimit(Exception):
    """A principal uses as much as it may; it asked to ``verb``, and may come again after some seconds."""

    def __init__(self, verb: Verb, detail: str, retry_after_s: int) -> None:
        super().__init__(detail)
        self.verb = verb
        self.retry_after_s = retry_after_s


class Allowances(Protocol):
    """Knows what each principal uses (`bridge.access.access_watch.AccessWatch`)."""

    def allowance(self, principal: Principal) -> Allowance:
        """Return what a principal uses of its limits."""
        ...


class QuotaGuard:
    """Keeps what requests use within the limits of their principals; without limits it costs nothing.

    What it gives is entered for as long as a request takes, and raises `PastLimit`. A principal of None is nobody that
    was asked for.
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
        """Let a request make ``queue``, if it is ``asked`` to, where it is missing and its sender may have one more."""
        if not asked or self._access is None or principal is None or principal.limits.queues is None:
            return _NOTHING
        return self._making(self._access.allowance(principal), principal, principal.limits.queues, queue)

    @contextlib.contextmanager
    def _waiting(self, allowance: Allowance, size: int) -> Iterator[None]:
        if not allowance.hold(size):
            raise PastLimit(Verb.PUT, "slow down: too many bytes of this principal wait to be put", BYTES_RETRY_S)
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
                raise PastLimit(Verb.MANAGE, f"this principal may have {limit} queues at most", QUEUES_RETRY_S)
            yield
        finally:
            allowance.making[queue] -= 1
            if not allowance.making[queue]:
                del allowance.making[queue]

    async def _exempt(self, queue: str) -> bool:
        """Say whether a queue is there, or is the poison queue of one that is.

        A worker that could not bury would lose what it cannot handle, or try it for ever.
        """
        names = [queue]
        base = queue.removesuffix(POISON_SUFFIX)
        if base != queue and not base.endswith(POISON_SUFFIX):
            # The partitions of a queue share one.
            names += [base, f"{base}-p0"]
        for name in names:
            if await self._store.exists(name):
                return True
        return False

    async def _count(self, principal: Principal, making: list[str], queue: str, limit: int) -> int:
        """Count the queues that one may make, this one, and those being made since before, to past the limit."""
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
"""Names that one call of the store reads at most."""
CALLS_MAX: Final = 32
"""Calls of the store that one request makes at most."""

Row = tuple[str, dict[str, str]]
"""A queue with its metadata."""


async def listed(
    read: Callable[[str, str, int], Awaitable[list[Row]]],
    reach: Reach,
    prefix: str,
    after: str,
    count: int,
    fits: Callable[[str], bool] | None = None,
) -> tuple[list[Row], str | None]:
    """Return up to ``count`` queues of ``reach`` that ``fits`` accepts, and where a next page begins, or None.

    ``read`` takes a prefix, the name to go on after, and a limit. A page may hold fewer queues than ``count``, or none,
    although another one follows: a request makes at most 32 calls.
    """
    found: list[Row] = []
    calls = 0
    for stretch, exact in reach.stretches(prefix, after):
        more = True
        while more:
            if calls == CALLS_MAX:
                return found, after
            calls += 1
            # One more than asked for: it tells whether there is a next page.
            most = 1 if exact else READ_AT_ONCE if fits else min(READ_AT_ONCE, count + 1 - len(found))
            rows = await read(stretch, "" if exact else after, most)
            more = len(rows) == most and not exact
            if exact:
                rows = [row for row in rows if row[0] == stretch]
            after = stretch if exact else rows[-1][0] if rows else after
            found += [row for row in rows if fits is None or fits(row[0])]
            if len(found) > count:
                return found[:count], found[count - 1][0]
    return found, None
