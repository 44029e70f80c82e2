"""Puts and new queues within what their sender's principal may use: bytes that wait, messages, queues."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs

from bridge.contract.names import POISON_SUFFIX
from bridge.core.grants import Verb
from bridge.http.server.doorkeeper import Doorkeeper

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from bridge.core.limits import Allowance
    from bridge.queues.served import ServedStore

QUEUES_RETRY_S: Final = 60
"""What a principal is told to wait that has as many queues as it may: until somebody deletes one."""
BYTES_RETRY_S: Final = 1
_PAGE: Final = 1000
_NOTHING: Final = contextlib.nullcontext()


class Within:
    """Keeps what requests use within the limits of their senders, who were admitted; without limits it costs nothing.

    What it gives is entered for as long as a request takes. Raises `Refusal` (429).
    """

    def __init__(self, store: ServedStore, door: Doorkeeper) -> None:
        self._store = store
        self._door = door

    def waiting(self, request: BaseRequest, queue: str, most: int) -> AbstractContextManager[None]:
        """Count the bytes of a put, at most ``most``, from before its body is read until it is answered."""
        allowance = self._door.allowance(request)
        if allowance is None or allowance.limits.waiting_bytes is None:
            return _NOTHING
        return self._waiting(allowance, request, queue, most)

    def making(self, request: BaseRequest, queue: str, asked: bool = True) -> AbstractAsyncContextManager[None]:
        """Let a request make ``queue``, if it is ``asked`` to, where it is missing and its sender may have one more."""
        allowance = self._door.allowance(request)
        if not asked or allowance is None or allowance.limits.queues is None:
            return _NOTHING
        return self._making(allowance, allowance.limits.queues, request, queue)

    @contextlib.contextmanager
    def _waiting(self, allowance: Allowance, request: BaseRequest, queue: str, most: int) -> Iterator[None]:
        length = request.headers.get(hdrs.CONTENT_LENGTH)
        size = most if length is None else min(int(length), most)
        if not allowance.hold(size):
            raise self._door.over(
                request, Verb.PUT, queue, "slow down: too many bytes of this principal wait to be put", BYTES_RETRY_S
            )
        try:
            yield
        finally:
            allowance.give_back(size)

    @contextlib.asynccontextmanager
    async def _making(self, allowance: Allowance, limit: int, request: BaseRequest, queue: str) -> AsyncIterator[None]:
        if await self._exempt(queue):
            yield
            return
        allowance.making[queue] += 1
        try:
            if await self._count(request, [*allowance.making], queue, limit) > limit:
                raise self._door.over(
                    request, Verb.MANAGE, queue, f"this principal may have {limit} queues at most", QUEUES_RETRY_S
                )
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

    async def _count(self, request: BaseRequest, making: list[str], queue: str, limit: int) -> int:
        """Count the queues that the sender may make, this one, and those being made since before, to past the limit."""
        making = making[: making.index(queue) + 1]
        count, after = len(making), ""
        while count <= limit:
            page = await self._store.queues("", after, _PAGE)
            count += sum(self._door.makes(request, each) and each not in making for each in page)
            if len(page) < _PAGE:
                break
            after = page[-1]
        return count
