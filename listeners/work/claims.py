"""Fetch put-aside bodies before the handler, copy them for the poison queue, remove them after a delete."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.bounds import STORE_CALL_S
from queuebell.bridge.contract.burial import BODY_LOST, Burial, write_burial
from queuebell.bridge.contract.claim import BadClaim, is_claim
from queuebell.bridge.contract.errors import BadInput, BlobNotFound, QueuebellError
from queuebell.bridge.queues.base import NewMessage, QueueStore
from queuebell.bridge.storage.claim_check import ClaimCheck, claim_in
from queuebell.listeners.handler import Bury
from queuebell.listeners.work.retry_until import retry_until

log = logging.getLogger("queuebell.claims")

SWEEP_S: Final = 6 * 3600.0
"""Seconds between searches for orphans by each listener, +-20 %."""
LAST_DROPS_S: Final = 2.0


class BodyLost(Bury):
    """A body that was put aside is gone or damaged: no attempt will bring it back."""

    failure = BODY_LOST


class Claims:
    """What a listener does with the claims of its queues; a body that is none costs nothing.

    ``check`` is a `ClaimCheck` of the caller's, or the URL of a blob store.
    """

    def __init__(self, check: ClaimCheck | str, draw: Draw) -> None:
        self._owned = isinstance(check, str)
        self._check = ClaimCheck(check) if isinstance(check, str) else check
        self._draw = draw
        self._tasks: set[asyncio.Task[None]] = set()

    async def fetch(self, body: bytes, wanted: Callable[[], bool]) -> bytes:
        """Return the whole body, however long the blob store is away.

        Raises `BodyLost` where no attempt will help, `NoLongerWanted` as `retry_until` does.
        """
        if not is_claim(body):
            return body
        try:
            return await retry_until(
                lambda: self._check.fetch(body), "fetch a body that was put aside", wanted=wanted, draw=self._draw
            )
        except BlobNotFound as error:
            raise BodyLost(
                f"its body was put aside and is gone: {error}. Either another worker finished it after its lease had "
                "ended, or the blob was removed"
            ) from error
        except BadClaim as error:
            raise BodyLost(f"its body was put aside and cannot be read: {error}") from error

    async def copy(self, body: bytes, queue: str, store: QueueStore, wanted: Callable[[], bool]) -> bytes:
        """Return the body to put on another queue: with its own claim, or the same claim where the body is missing.

        If the body is restored later, that claim still fetches it.
        """
        if not is_claim(body):
            return body
        try:
            return await retry_until(
                lambda: self._check.copy(body, queue, store),
                f"copy a body that was put aside for {queue}",
                wanted=wanted,
                draw=self._draw,
            )
        except (BlobNotFound, BadClaim):
            return body

    async def put_aside(
        self, poison: str, burial: Burial, body: bytes, store: QueueStore, wanted: Callable[[], bool]
    ) -> bytes | None:
        """Return a claim on a dead letter over the store's ``limit``; None where it is too large for that too."""
        whole = write_burial(burial, body, sys.maxsize, shorten=False)
        if whole is None:
            return None
        message = NewMessage(whole)
        try:
            ready = await retry_until(
                lambda: self._check.put_aside(poison, message, store.capabilities.body_bytes_max, store),
                f"put a body for {poison} aside",
                wanted=wanted,
                draw=self._draw,
            )
        except BadInput:
            return None
        return ready.body

    def drop(self, body: bytes) -> None:
        """Remove the blob of a message that is known to be deleted; a failure is left to the sweep."""
        if claim_in(body) is not None:
            self._spawn(self._drop(body), "claim-drop")

    def sweep(self, store: QueueStore, queues: Mapping[str, str | None]) -> None:
        """Search for orphans of these queues from now on, the first time within a tenth of the period.

        Each is given with its poison queue, whose messages may have a claim as it stood on it.
        """
        self._spawn(self._sweep(store, queues), "claim-sweep")

    async def close(self) -> None:
        """Let removals end within two seconds, end the sweep, and close what was opened here."""
        drops = [task for task in self._tasks if task.get_name() == "claim-drop"]
        if drops:
            await asyncio.wait(drops, timeout=LAST_DROPS_S)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        if self._owned:
            await self._check.close()

    async def _drop(self, body: bytes) -> None:
        try:
            async with asyncio.timeout(STORE_CALL_S):
                await self._check.drop(body)
        except (QueuebellError, TimeoutError) as error:
            log.info(
                "the blob of a handled message could not be deleted; the next sweep deletes it: %s",
                str(error) or "time-out",
            )

    async def _sweep(self, store: QueueStore, queues: Mapping[str, str | None]) -> None:
        await asyncio.sleep(SWEEP_S * 0.1 * self._draw())
        while True:
            for queue, poison in queues.items():
                try:
                    await self._check.sweep(store, queue, also=[] if poison is None else [poison])
                except QueuebellError as error:
                    log.info(
                        "%s: searching for orphaned blobs failed and is repeated at the next sweep: %s", queue, error
                    )
                except Exception:
                    log.exception("%s: unexpected error while searching for orphaned blobs", queue)
            await asyncio.sleep(SWEEP_S * (0.8 + 0.4 * self._draw()))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
