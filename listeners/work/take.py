"""Messages that came inside a wake, as a store would have handed them out (O7)."""

from __future__ import annotations

import base64

from bridge.contract.times import from_rfc3339
from bridge.contract.wire import CarriedMessage
from bridge.queues.base import StoredMessage


def carried_message(carried: CarriedMessage) -> StoredMessage:
    """Read one carried message. Raises `ValueError` if its body or a date is malformed."""
    if carried.body is not None:
        body = carried.body.encode()
    else:
        body = base64.b64decode(carried.body_base64 or "", validate=True)
    return StoredMessage(
        carried.id,
        carried.pop_receipt,
        body,
        carried.dequeue_count,
        from_rfc3339(carried.inserted_at),
        None if carried.expires_at is None else from_rfc3339(carried.expires_at),
        carried.key,
        carried.headers,
    )
