"""For tests of handlers: run one once, without a queue, a bridge or a network."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from queuebell.bridge.contract.burial import Burial, replay_target
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.headers import checked_headers
from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.queues.base import StoredMessage
from queuebell.listeners.handler import Bury, Done, Outcome, Replay, Retry, message_of
from queuebell.listeners.work.invoke import Invoker
from queuebell.listeners.work.ledger import check_progress
from queuebell.listeners.work.payload import decoder
from queuebell.listeners.work.retry import (
    ATTEMPTS,
    STAYS_S,
    Classify,
    DeadLetter,
    Delete,
    ReplayTo,
    RetryPolicy,
    classify,
    policy_of,
    verdict,
)

__all__ = ["run_once"]


async def run_once(
    handler: Callable[[Any], object],
    body: bytes | str,
    *,
    payload: Any | None = None,
    attempt: int = 1,
    max_attempts: int = ATTEMPTS,
    retry: RetryPolicy | None = None,
    queue: str = "test/queue",
    handler_timeout: float | None = None,
    failures: Classify = classify,
    progress: bytes | None = None,
    burial: Burial | None = None,
    headers: Mapping[str, str] | None = None,
) -> Outcome:
    """Return what a listener would do with the message: `Done`, `Retry`, `Bury` or `Replay`.

    A handler that raises gives `Retry`, or at the last attempt `Bury`, with its reason; a body that ``payload`` cannot
    decode gives `Bury` and is not handled. On a poison queue nothing gives `Bury`: such a body is handled, with the
    value None. A batch handler gets a list of this one message. ``progress`` is what an earlier attempt wrote down;
    checkpoints are taken and forgotten.
    ``burial`` is what a supervisor's handler finds in ``message.burial``; the `Replay` that is returned names the queue
    it would go to. One that cannot be gives `Retry`. ``headers`` are those of the message; raises `BadInput` for what a
    put would refuse.
    """
    raw = body.encode() if isinstance(body, str) else body
    now = datetime.datetime.now(datetime.UTC)
    stored = StoredMessage("test", "", raw, attempt, now, headers=checked_headers(headers or {}))
    decode = None if payload is None else decoder(payload)
    supervised = queue.endswith(POISON_SUFFIX)
    try:
        message = message_of(stored, queue, "trigger", decode, burial, must_decode=not supervised)
    except Bury as undecodable:
        return undecodable
    message = msgspec.structs.replace(message, progress=progress, entry=_Forgetful())
    invoker = Invoker(handler, threads=1, timeout=handler_timeout, failures=failures)
    try:
        if invoker.batch:
            (outcome,) = await invoker.many([message], _forget)
        else:
            outcome = await invoker.one(message, _forget)
    finally:
        invoker.close()
    decided = verdict(outcome, attempt, policy_of(retry, max_attempts), not supervised, lambda: 0.5)
    if isinstance(decided, ReplayTo):
        try:
            return Replay(decided.after_s, replay_target(queue, burial, decided.queue))
        except BadInput:
            return Retry(STAYS_S)
    if isinstance(decided, Delete):
        return Done()
    if isinstance(decided, DeadLetter):
        return Bury(decided.reason)
    return Retry(decided.after_s)


class _Forgetful:
    """Takes checkpoints (`listeners.handler.Checkpoints`) without a ledger; too large ones are refused as there."""

    async def checkpoint(self, progress: bytes) -> None:
        check_progress(progress)

    def checkpoint_from_thread(self, progress: bytes) -> None:
        check_progress(progress)


def _forget(call: object) -> None:
    pass
