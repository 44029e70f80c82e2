"""For tests of handlers: run one once, without a queue, a bridge or a network."""

from __future__ import annotations

import concurrent.futures
import datetime
from collections.abc import Callable
from typing import Any

import msgspec

from bridge.queue import StoredMessage
from listeners.core import settle
from listeners.handler import Bury, Done, Outcome, Retry, message_of
from listeners.invoke import Invoker

__all__ = ["run_once"]


async def run_once(
    handler: Callable[[Any], object],
    body: bytes | str,
    *,
    payload: Any | None = None,
    attempt: int = 1,
    max_attempts: int = 5,
    queue: str = "test/queue",
    handler_timeout: float | None = None,
) -> Outcome:
    """Return what a listener would do with the message: `Done`, `Retry` or `Bury`.

    A handler that raises gives `Retry`, or `Bury` at ``max_attempts``, with its reason; a body that ``payload`` cannot
    decode gives `Bury` and is not handled. A batch handler gets a list of this one message.
    """
    raw = body.encode() if isinstance(body, str) else body
    stored = StoredMessage("test", "", raw, attempt, datetime.datetime.now(datetime.UTC))
    decode = None if payload is None else msgspec.json.Decoder(payload).decode
    try:
        message = message_of(stored, queue, "trigger", decode)
    except Bury as undecodable:
        return undecodable
    invoker = Invoker(handler, threads=1, timeout=handler_timeout)
    try:
        if invoker.batch:
            (outcome,) = await invoker.many([message], _forget)
        else:
            outcome = await invoker.one(message, _forget)
    finally:
        invoker.close()
    decided = settle.verdict(outcome, attempt, max_attempts, True, lambda: 0.5)
    if isinstance(decided, settle.Delete):
        return Done()
    if isinstance(decided, settle.Bury):
        return Bury(decided.reason)
    return Retry(decided.after_s)


def _forget(thread: concurrent.futures.Future[Any]) -> None:
    pass
