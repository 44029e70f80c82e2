"""A put as a span, whose context goes with each message that brings none of its own, where the store carries it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from bridge.contract.errors import BadInput, Unsupported
from bridge.contract.headers import checked_headers
from bridge.contract.trace_context import is_traceparent
from bridge.observe import tracing
from bridge.observe.tracing import TRACEPARENT, TRACESTATE, Cause
from bridge.queues.base import NewMessage, PutReceipt, QueueStore

T = TypeVar("T")


async def sent(
    store: QueueStore, queue: str, messages: list[NewMessage], put: Callable[[list[NewMessage]], Awaitable[T]]
) -> T:
    """Carry out ``put`` of ``messages`` to ``store``, within the span of a send where spans are asked for.

    One that is part of another put is no span of its own.
    """
    on = tracing.on
    if on is None or on.within_send:
        return await put(messages)
    own = [Cause(message.headers) for message in messages if is_traceparent(message.headers.get(TRACEPARENT))]
    with on.send(queue, own, len(messages), str(store)) as span:
        try:
            receipts = await put(_carrying(messages, on.carried()) if store.capabilities.headers else messages)
        except Unsupported:
            # An engine behind a bridge that carries none, which only its first answer tells: nothing was put.
            receipts = await put(messages)
        told: object = receipts[0] if isinstance(receipts, list) and len(receipts) == 1 else receipts
        if isinstance(told, PutReceipt):
            span.set_attribute("messaging.message.id", told.id)
        return receipts


def _carrying(messages: Sequence[NewMessage], context: dict[str, str]) -> list[NewMessage]:
    return [_with(message, context) for message in messages]


def _with(message: NewMessage, context: dict[str, str]) -> NewMessage:
    if is_traceparent(message.headers.get(TRACEPARENT)):
        return message
    kept = {name: value for name, value in message.headers.items() if name not in (TRACEPARENT, TRACESTATE)}
    try:
        return msgspec.structs.replace(message, headers=checked_headers({**kept, **context}))
    except BadInput:
        # As large as headers may be: the message goes as it was given, without a context.
        return message
