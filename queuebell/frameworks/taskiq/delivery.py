"""A delivery: one message on its way through taskiq."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from taskiq import AckableMessage

from queuebell.listeners.handler import Message

log = logging.getLogger("queuebell.taskiq")


class NotAcknowledged(Exception):
    """A task ended without an acknowledgement."""

    def __init__(self) -> None:
        super().__init__("the task ended and was not acknowledged (ack_type manual: call `await context.ack()`)")


class Delivery:
    """One message; its handler waits for ``settled``, the exception to raise or None."""

    def __init__(self, message: Message, handler: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._message = message
        self._handler = handler
        self.arrived = loop.time()
        self.settled: asyncio.Future[Exception | None] = loop.create_future()
        self.handed = False
        self.refused: Exception | None = None
        """Why taskiq will not run it, although it acknowledges it."""

    def hand_over(self) -> AckableMessage:
        """Return the message in taskiq's form."""
        self.handed = True
        body = Body(self._message.body)
        body.delivery = self
        return AckableMessage.model_construct(data=body, ack=self._ack)

    def give_back(self) -> None:
        """Release the message without counting the attempt, by cancelling its handler."""
        if not self.settled.done():
            self._handler.cancel()

    def begins(self) -> None:
        """Note that the current asyncio task handles the message; when it ends, no `ack` can follow."""
        working = asyncio.current_task()
        if working is not None:
            working.add_done_callback(self._ended)

    async def _ack(self) -> None:
        if not self.settled.done():
            self.settled.set_result(self.refused)
        elif self.settled.cancelled():
            log.warning(
                "%s: message %s was done, but it was no longer held, for its lease was lost or the broker shut down:"
                " it is done again",
                self._message.queue,
                self._message.id,
            )

    def _ended(self, working: asyncio.Task[Any]) -> None:
        if self.settled.done():
            return
        if working.cancelled():
            self.give_back()
        else:
            error = working.exception()
            self.settled.set_result(error if isinstance(error, Exception) else NotAcknowledged())


class Body(bytes):
    """The body of a message with its delivery, for taskiq's formatter."""

    delivery: Delivery
