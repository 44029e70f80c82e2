"""moto's server, with the queues of SQS looked at by one request at a time; run as a program.

moto answers each request in a thread of its own and takes a message without a lock: of two receives at once both may
get it, or one ends in an error 500 (``Set changed size during iteration``). The service does neither as a rule.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from moto.server import main
from moto.sqs.models import Queue
from moto.sqs.responses import SQSResponse

_TURN: Final = threading.Lock()
_act: Final = SQSResponse.call_action
_wait: Final = Queue.wait_for_messages


def one_at_a_time(self: SQSResponse) -> Any:
    """Answer a request while no other is being answered."""
    with _TURN:
        return _act(self)


def wait_aside(self: Queue, timeout: int) -> None:
    """Let others have their turn while a receive waits for messages."""
    _TURN.release()
    try:
        _wait(self, timeout)
    finally:
        _TURN.acquire()


if __name__ == "__main__":
    SQSResponse.call_action = one_at_a_time  # type: ignore[method-assign, assignment]
    Queue.wait_for_messages = wait_aside  # type: ignore[method-assign]
    main()
