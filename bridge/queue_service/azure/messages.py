"""The operations on messages: put, get, peek, update, delete and clear."""

from __future__ import annotations

from collections.abc import Callable

from bridge.queue import NEVER, TTL_S_MAX, VISIBILITY_S_MAX, Claim, NewMessage, Received, Settled, Settlement, Settling
from bridge.queue_service.azure import xml_in, xml_out
from bridge.queue_service.azure.errors import AzureError, busy
from bridge.queue_service.azure.exchange import Asked, Call, Reply
from bridge.queue_service.azure.naming import message_id, stored_id
from bridge.queue_service.azure.versions import LONG_LIVES, PUT_ANSWERS
from bridge.queues.own import OwnStore, Stamped

TEXT_BYTES_MAX = 65_536
DOCUMENT_BYTES_MAX = 6 * TEXT_BYTES_MAX + 1024
"""The largest text, every character of it written as an entity of six, and the elements around it."""
PEEK_CHARS_MAX = 4 * 1024 * 1024
"""Of one answer to a peek; 32 of the largest texts take less, unless nearly all of them has to be escaped."""
WEEK_S = 604_800
MESSAGES_MAX = 32
_LIFE_S_MAX = 2**31 - 1

_FRESH = {"Cache-Control": "no-cache"}


class MessageOperations:
    """What can be done with messages; each brings the `Reply` or raises `AzureError` or an error of the store."""

    def __init__(self, store: OwnStore) -> None:
        self._store = store
        self.fits: Callable[[int], bool] = _always
        """Says whether an answer of so many bytes may be given now."""

    async def put(self, call: Call) -> Reply:
        """Put one message on a queue that exists; that is its own trigger."""
        life_s = self._life(call)
        delay_s = call.number("visibilitytimeout", 0, VISIBILITY_S_MAX, 0)
        if life_s != NEVER and delay_s >= life_s:
            raise AzureError(
                "OutOfRangeQueryParameterValue",
                "The visibility timeout is not below the time to live of the message.",
                details={"QueryParameterName": "visibilitytimeout", "QueryParameterValue": str(delay_s)},
            )
        body = _text(await call.request.body(DOCUMENT_BYTES_MAX))
        # The store's own limit is ten years; nobody will see the difference to never.
        life_s = NEVER if life_s > TTL_S_MAX else life_s
        (receipt,), now_ms, up_ms = await self._store.put_existing(
            call.queue, (NewMessage(body, delay_s * 1000, life_s),)
        )
        if call.version < PUT_ANSWERS:
            return Reply(201)
        return Reply(
            201,
            xml_out.put(
                message_id(receipt.id),
                receipt.pop_receipt,
                now_ms,
                None if life_s == NEVER else up_ms + life_s * 1000,
                up_ms + delay_s * 1000 if delay_s else now_ms,
            ),
        )

    def get(self, call: Call) -> Asked:
        """Take messages, each leased for the visibility timeout."""
        limit = call.number("numofmessages", 1, MESSAGES_MAX, 1)
        lease_s = call.number("visibilitytimeout", 1, VISIBILITY_S_MAX, 30)

        def taken(answer: Stamped[Received]) -> Reply:
            found = answer.answer.messages
            if not found:
                return Reply(200, xml_out.EMPTY, _FRESH)
            if self.fits(sum(len(message.body) for message in found)):
                ids = [message_id(message.id) for message in found]
                receipts = [message.pop_receipt for message in found]
                body = xml_out.received(found, ids, receipts, answer.up_ms + lease_s * 1000)
                if self.fits(len(body)):
                    return Reply(200, body, _FRESH)
            self._store.reclaim(call.queue, [Claim(message.id, message.pop_receipt) for message in found])
            raise _unread()

        return Asked(self._store.ask_receive(call.queue, limit, lease_s), taken)

    async def peek(self, call: Call) -> Reply:
        """Look at messages without taking them; fewer than asked for where their answer would be long."""
        limit = call.number("numofmessages", 1, MESSAGES_MAX, 1)
        if "visibilitytimeout" in call.at.query:
            raise AzureError("UnsupportedQueryParameter", details={"QueryParameterName": "visibilitytimeout"})
        found = await self._store.peek(call.queue, limit)
        if not self.fits(sum(len(message.body) for message in found)):
            raise _unread()
        body = xml_out.peeked(found, [message_id(message.id) for message in found], PEEK_CHARS_MAX)
        return Reply(200, body, _FRESH)

    async def update(self, call: Call) -> Reply:
        """Move a message's visibility, with another text where a body came."""
        claim = self._claim(call)
        visibility_s = call.number("visibilitytimeout", 0, VISIBILITY_S_MAX, None)
        raw = await call.request.body(DOCUMENT_BYTES_MAX)
        body = _text(raw) if raw else None
        settled, now_ms, up_ms = await self._store.update(call.queue, claim, visibility_s, body)
        receipt = _settled(settled).pop_receipt or ""
        visible_ms = up_ms + visibility_s * 1000 if visibility_s else now_ms
        return Reply(204, b"", {"x-ms-popreceipt": receipt, "x-ms-time-next-visible": xml_out.http_date(visible_ms)})

    def delete(self, call: Call) -> Asked:
        """Delete a message under its newest receipt."""
        return Asked(self._store.ask_settle(call.queue, Settlement(delete=(self._claim(call),))), _deleted)

    async def clear(self, call: Call) -> Reply:
        """Remove every message of a queue."""
        await self._store.clear(call.queue)
        return Reply(204)

    def _life(self, call: Call) -> int:
        if call.version < LONG_LIVES:
            return call.number("messagettl", 1, WEEK_S, WEEK_S)
        if call.at.query.get("messagettl") == "-1":
            return NEVER
        return call.number("messagettl", 1, _LIFE_S_MAX, WEEK_S)

    def _claim(self, call: Call) -> Claim:
        receipt = call.at.query.get("popreceipt")
        if receipt is None:
            raise AzureError("MissingRequiredQueryParameter", details={"QueryParameterName": "popreceipt"})
        return Claim(stored_id(call.at.message), receipt)


def _always(_: int) -> bool:
    return True


def _unread() -> AzureError:
    return busy("Too many answers are not read by their clients; nothing was taken. Try again.")


def _text(raw: bytes) -> bytes:
    body = xml_in.message_text(raw).encode()
    if len(body) > TEXT_BYTES_MAX:
        raise AzureError("MessageTooLarge", details={"MaxLimit": str(TEXT_BYTES_MAX)})
    return body


def _deleted(settling: Settling) -> Reply:
    _settled(settling.delete[0])
    return Reply(204)


def _settled(settled: Settled) -> Settled:
    if not settled.ok:
        raise AzureError("PopReceiptMismatch" if settled.code == "pop_receipt_mismatch" else "MessageNotFound")
    return settled
