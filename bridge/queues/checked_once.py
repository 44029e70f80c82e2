"""What adapters of other systems' stores have in common that put once under a key."""

from __future__ import annotations

import hashlib

from bridge.contract.errors import BadInput, QueueNotFound
from bridge.queues import limits
from bridge.queues.base import AsyncConnection, Body, NewMessage, PutOnceStore, PutReceipt, new_messages
from bridge.queues.checked import CheckedStore
from bridge.queues.sending import sent

CONFLICT = "another body was put under this id; nothing was changed"


class CheckedOnceStore(CheckedStore, PutOnceStore):
    """A `CheckedStore` with puts under keys; the requests are a subclass's."""

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Put a message under a key unless this very one was before."""
        limits.check_key(key)
        messages = new_messages([body])
        self._check_put(queue, messages, connection)

        async def put(messages: list[NewMessage]) -> PutReceipt | None:
            (message,) = messages
            return receipt(await self._put_once(queue, key, message, digest(message), create, connection))

        try:
            return await sent(self, queue, messages, put)
        except QueueNotFound:
            if create:
                raise
            raise await self._missing(queue) from None

    async def _put_once(
        self,
        queue: str,
        key: str,
        message: NewMessage,
        digest: str,
        create: bool,
        connection: AsyncConnection | None,
    ) -> PutReceipt | bool:
        """Return the receipt where it was put, else whether what was put before has this digest."""
        raise NotImplementedError


def digest(message: NewMessage) -> str:
    """Return what tells one body from another, as hex digits."""
    return hashlib.sha256(message.body).hexdigest()


def receipt(put: PutReceipt | bool) -> PutReceipt | None:
    """Return what `put_once` does; raises `BadInput` (``message_conflict``) where another body was put before."""
    if put is False:
        raise BadInput("message_conflict", CONFLICT)
    return None if put is True else put
