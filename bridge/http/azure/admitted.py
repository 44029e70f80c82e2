"""Puts at the Azure endpoint that the gate let in, each counted until the store has carried it out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from bridge.access.grants import Principal
from bridge.access.put_gate import PutGate, Ticket
from bridge.access.quota_guard import QuotaGuard
from bridge.http.azure.errors import AzureError
from bridge.http.azure.exchange import Reply, Request
from bridge.http.azure.messages import DOCUMENT_BYTES_MAX

Operation = Callable[[Request], Coroutine[Any, Any, Reply]]


class AdmittedPuts:
    """Carries puts out, and owns those that nobody waits for any more."""

    def __init__(self, within: QuotaGuard) -> None:
        self._within = within
        self._under_way: set[asyncio.Task[Reply]] = set()

    async def carry_out(
        self, call: Request, put: Operation, gate: PutGate, seconds: int | None, principal: Principal | None
    ) -> Reply:
        """Let a put in before its body is read, and wait for it ``seconds`` at most.

        Raises `Overloaded`, `PastLimit` of its ``principal``, and `AzureError` (``OperationTimedOut``); a put that went
        to the store goes on.
        """
        admitted = _Admitted(call, gate, self._within, principal)
        if seconds is None:
            try:
                reply = await put(call)
            except BaseException:
                admitted.drop()
                raise
            admitted.end()
            return reply
        # What nobody waits for any more still takes its bytes until the store is done with it.
        task = asyncio.create_task(put(call), name="queuebell-azure-put")
        self._under_way.add(task)

        def ended(task: asyncio.Task[Reply]) -> None:
            self._under_way.discard(task)
            if task.cancelled() or task.exception() is not None:
                admitted.drop()
            else:
                admitted.end()

        task.add_done_callback(ended)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except TimeoutError:
            raise AzureError("OperationTimedOut") from None
        finally:
            if not admitted.begun:
                task.cancel()


class _Admitted:
    """One put that was let in; its request tells the gate once its body was read."""

    __slots__ = ("_gate", "_held", "_read", "_ticket", "begun")

    def __init__(self, request: Request, gate: PutGate, within: QuotaGuard, principal: Principal | None) -> None:
        self.begun = False
        self._gate = gate
        self._read = request.read
        size = _announced(request)
        with contextlib.ExitStack() as stack:
            stack.enter_context(within.waiting(principal, size))
            self._ticket = gate.admit(size, arriving=not request.whole)
            self._held = stack.pop_all()
        request.read = self._counted

    def end(self) -> None:
        self._held.close()
        self._gate.end(self._ticket)

    def drop(self) -> None:
        self._held.close()
        self._gate.drop(self._ticket)

    async def _counted(self, limit: int, _: Ticket | None) -> bytes:
        raw = await self._read(limit, self._ticket)
        self._gate.begin(self._ticket, len(raw))
        self.begun = True
        return raw


def _announced(request: Request) -> int:
    # Chunked, which no SDK sends for a message, counts as the largest there is; what is longer is refused when read.
    text = request.headers.get("content-length", "")
    return min(int(text), DOCUMENT_BYTES_MAX) if text.isascii() and text.isdigit() else DOCUMENT_BYTES_MAX
