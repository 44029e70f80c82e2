"""moto's server, with the queues of SQS looked at by one request at a time; run as a program.

moto answers each request in a thread of its own and takes a message without a lock: of two receives at once both may
get it, or one ends in an error 500 (``Set changed size during iteration``). The service does neither as a rule.

``/let-pass/SECONDS`` puts its clock forward, so that no test waits for a lease to end. With ``HASTY`` in its
environment a receive that finds nothing waits a moment, and the clock passes over the rest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final

from moto.server import DomainDispatcherApplication, main
from moto.sqs import models
from moto.sqs.models import Queue
from moto.sqs.responses import SQSResponse

_TURN: Final = threading.Lock()
_act: Final = SQSResponse.call_action
_wait: Final = Queue.wait_for_messages
_answer: Final = DomainDispatcherApplication.__call__
_time: Final = models.unix_time
_passed: Final[list[float]] = []
_HASTY: Final = "HASTY" in os.environ


def one_at_a_time(self: SQSResponse) -> Any:
    """Answer a request while no other is being answered."""
    with _TURN:
        return _act(self)


def wait_aside(self: Queue, timeout: int) -> None:
    """Let others have their turn while a receive waits for messages."""
    end = clock() + timeout
    _TURN.release()
    try:
        _wait(self, 0.05 if _HASTY else timeout)  # type: ignore[arg-type]
    finally:
        _TURN.acquire()
    if _HASTY and not self.messages:
        _passed.append(max(0.0, end - clock()))


def clock() -> float:
    """Return the seconds since 1970, and those that were let pass."""
    return _time() + sum(_passed)


def answer(self: DomainDispatcherApplication, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
    """Answer a request of the SDK, or let time pass."""
    _, word, *seconds = environ["PATH_INFO"].split("/")
    if word != "let-pass":
        return _answer(self, environ, start_response)
    _passed.extend(map(float, seconds))
    start_response("204 No Content", [])
    return []


if __name__ == "__main__":
    SQSResponse.call_action = one_at_a_time  # type: ignore[method-assign, assignment]
    Queue.wait_for_messages = wait_aside  # type: ignore[method-assign]
    DomainDispatcherApplication.__call__ = answer  # type: ignore[method-assign]
    models.unix_time, models.unix_time_millis = clock, lambda: clock() * 1000.0
    main()
