"""A put as a span, whose context goes with each message that brings none of its own, where the store carries it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import msgspec

from bridge.contract.errors import BadInput, Unsupported
from bridge.contract.headers import checked_headers
from bridge.contract.trace_context import TRACEPARENT, is_traceparent
from bridge.observe import tracing
from bridge.observe.tracing import TRACESTATE, Cause
from bridge.queues.base import NewMessage, PutReceipt, QueueStore

T = TypeVar("T")


async def sent(
    store: QueueStore, queue: str, messages: list[NewMessage], put: Callable[[list[NewMessage]], Awaitable[T]]
) -> T:
    """Carry out ``put`` of ``messages`` to ``store``, within the span of a send where spans are asked for."""
    if tracing.on is None:
        return await put(messages)
    with sending(queue, messages, str(store), carries=store.capabilities.headers) as (carrying, told):
        try:
            receipts = await put(carrying)
        except Unsupported:
            # An engine behind a bridge that carries none, which only its first answer tells: nothing was put.
            receipts = await put(messages)
        told(receipts)
        return receipts


@contextlib.contextmanager
def sending(
    queue: str, messages: list[NewMessage], store: str = "", *, carries: bool
) -> Iterator[tuple[list[NewMessage], Callable[[object], None]]]:
    """Make the span of a send current; give the messages to put, and what is told their receipts.

    One that is part of another put is no span of its own.
    """
    on = tracing.on
    if on is None or on.within_send:
        yield messages, lambda receipts: None
        return
    own = [Cause(message.headers) for message in messages if is_traceparent(message.headers.get(TRACEPARENT))]
    with on.send(queue, own, len(messages), store) as span:

        def told(receipts: object) -> None:
            one = receipts[0] if isinstance(receipts, list) and len(receipts) == 1 else receipts
            if isinstance(one, PutReceipt):
                tracing.note(span, "messaging.message.id", one.id)

        context = on.carried()
        yield [_with(message, context) for message in messages] if carries else messages, told


def _with(message: NewMessage, context: dict[str, str]) -> NewMessage:
    if is_traceparent(message.headers.get(TRACEPARENT)):
        return message
    kept = {name: value for name, value in message.headers.items() if name not in (TRACEPARENT, TRACESTATE)}
    try:
        return msgspec.structs.replace(message, headers=checked_headers({**kept, **context}))
    except BadInput:
        # As large as headers may be: the message goes as it was given, without a context.
        return message
