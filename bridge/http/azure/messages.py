"""The operations on messages: put, get, peek, update, delete and clear."""

from __future__ import annotations

import time

from queuebell.bridge.http.azure import xml
from queuebell.bridge.http.azure.errors import UNREAD, AzureError, busy
from queuebell.bridge.http.azure.exchange import LONG_LIVES, PUT_ANSWERS, Reply, Request, message_id, stored_id
from queuebell.bridge.http.server.memory_bounds import AnswerMemory
from queuebell.bridge.queues.base import NEVER, TTL_S_MAX, VISIBILITY_S_MAX, Claim, NewMessage, Settled, Settlement
from queuebell.bridge.queues.served import ServedStore

TEXT_BYTES_MAX = 65_536
DOCUMENT_BYTES_MAX = 6 * TEXT_BYTES_MAX + 1024
"""The largest text with every character written as an entity of six, and its elements."""
PEEK_CHARS_MAX = 4 * 1024 * 1024
"""Of one answer to a peek; 32 of the largest texts take less unless nearly everything is escaped."""
WEEK_S = 604_800
MESSAGES_MAX = 32
_LIFE_S_MAX = 2**63 - 1
"""The service keeps any positive number of seconds; clients send their largest integer for "for ever"."""

_FRESH = {"Cache-Control": "no-cache"}
TOO_LARGE = "RequestBodyTooLarge"
_LIMIT = {"MaxLimit": str(TEXT_BYTES_MAX)}


class MessageOperations:
    """The operations on messages; each returns a `Reply` or raises `AzureError` or an error of the store."""

    def __init__(self, store: ServedStore) -> None:
        self._store = store
        self.room = AnswerMemory(time.monotonic)
        """Bounds answers; the server replaces it by its own."""

    async def put(self, call: Request) -> Reply:
        """Put one message on an existing queue, which also triggers it."""
        life_s = self._life(call)
        delay_s = call.number("visibilitytimeout", 0, VISIBILITY_S_MAX, 0)
        if life_s != NEVER and delay_s >= life_s:
            raise AzureError(
                "OutOfRangeQueryParameterValue",
                details={
                    "QueryParameterName": "visibilitytimeout",
                    "QueryParameterValue": str(delay_s),
                    "Reason": "The visibility timeout must be less than the time to live of the message.",
                },
            )
        body = _text(await _document(call))
        # The store's own limit is ten years.
        life_s = NEVER if life_s > TTL_S_MAX else life_s
        (receipt,), now_ms, up_ms = await self._store.put_existing(
            call.reference, (NewMessage(body, delay_s * 1000, life_s),)
        )
        if call.version < PUT_ANSWERS:
            return Reply(201)
        return Reply(
            201,
            xml.put(
                message_id(receipt.id),
                receipt.pop_receipt,
                now_ms,
                None if life_s == NEVER else up_ms + life_s * 1000,
                up_ms + delay_s * 1000 if delay_s else now_ms,
            ),
        )

    async def get(self, call: Request) -> Reply:
        """Receive messages, each leased for the visibility timeout."""
        limit = call.number("numofmessages", 1, MESSAGES_MAX, 1)
        lease_s = call.number("visibilitytimeout", 1, VISIBILITY_S_MAX, 30)
        with self.room.share() as share:
            received, _, up_ms = await share.reading(
                lambda: self._store.receive_stamped(call.reference, limit, lease_s, room=share)
            )
            found = received.messages
            if not found:
                return Reply(200, xml.EMPTY, _FRESH)
            ids = [message_id(message.id) for message in found]
            receipts = [message.pop_receipt for message in found]
            body = xml.received(found, ids, receipts, up_ms + lease_s * 1000)
            if self.room.fits(len(body)):
                return Reply(200, body, _FRESH)
        self._store.reclaim(call.reference, [Claim(message.id, message.pop_receipt) for message in found])
        raise busy(UNREAD)

    async def peek(self, call: Request) -> Reply:
        """Return messages without receiving them; fewer than asked for if the answer would be long."""
        limit = call.number("numofmessages", 1, MESSAGES_MAX, 1)
        if "visibilitytimeout" in call.query:
            raise AzureError("UnsupportedQueryParameter", details={"QueryParameterName": "visibilitytimeout"})
        with self.room.share() as share:
            found = await share.reading(lambda: self._store.peek(call.reference, limit, room=share))
            body = xml.peeked(found, [message_id(message.id) for message in found], PEEK_CHARS_MAX)
        return Reply(200, body, _FRESH)

    async def update(self, call: Request) -> Reply:
        """Change a message's visibility, and its text if there is a body."""
        claim = self._claim(call)
        visibility_s = call.number("visibilitytimeout", 0, VISIBILITY_S_MAX, None)
        raw = await _document(call)
        body = _text(raw) if raw else None
        settled, now_ms, up_ms = await self._store.update(call.reference, claim, visibility_s, body)
        receipt = _settled(settled).pop_receipt or ""
        visible_ms = up_ms + visibility_s * 1000 if visibility_s else now_ms
        return Reply(204, b"", {"x-ms-popreceipt": receipt, "x-ms-time-next-visible": xml.http_date(visible_ms)})

    async def delete(self, call: Request) -> Reply:
        """Delete a message under its newest receipt."""
        settling = await self._store.settle(call.reference, Settlement(delete=(self._claim(call),)))
        _settled(settling.delete[0])
        return Reply(204)

    async def clear(self, call: Request) -> Reply:
        """Remove every message of a queue."""
        await self._store.clear(call.reference)
        return Reply(204)

    def _life(self, call: Request) -> int:
        if call.version < LONG_LIVES:
            return call.number("messagettl", 1, WEEK_S, WEEK_S)
        if call.query.get("messagettl") == "-1":
            return NEVER
        return call.number("messagettl", 1, _LIFE_S_MAX, WEEK_S)

    def _claim(self, call: Request) -> Claim:
        receipt = call.query.get("popreceipt")
        if receipt is None:
            raise AzureError("MissingRequiredQueryParameter", details={"QueryParameterName": "popreceipt"})
        return Claim(stored_id(call.message), receipt)


async def _document(call: Request) -> bytes:
    try:
        return await call.body(DOCUMENT_BYTES_MAX)
    except AzureError as error:
        if error.code == TOO_LARGE:
            error.details = _LIMIT
        raise


def _text(raw: bytes) -> bytes:
    body = xml.message_text(raw).encode()
    if len(body) > TEXT_BYTES_MAX:
        raise AzureError(TOO_LARGE, details=_LIMIT)
    return body


def _settled(settled: Settled) -> Settled:
    if not settled.ok:
        raise AzureError("PopReceiptMismatch" if settled.code == "pop_receipt_mismatch" else "MessageNotFound")
    return settled
