"""The body of a message that asks for a task: which one, and with what arguments."""

from __future__ import annotations

import datetime
import json
from typing import Any, Self

import msgspec

from queuebell.listeners.handler import Undecodable


class TaskMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer writes and a worker reads, as JSON; ``task`` is the module and the name that it is found by."""

    task: str
    id: str
    args: list[Any]
    kwargs: dict[str, Any]
    enqueued_at: datetime.datetime
    run_after: datetime.datetime | None = None

    def encode(self) -> str:
        """Return the body. Raises `TypeError` or `ValueError` for arguments that would not come back as they are."""
        given = {"args": self.args, "kwargs": self.kwargs}
        # Not by msgspec, which makes null of what is not a number.
        text = json.dumps(msgspec.to_builtins(self) | given, allow_nan=False)
        read = json.loads(text)
        if {name: read[name] for name in given} != given:
            raise TypeError(f"{self.task}: its arguments have keys that are not text, and JSON has no others")
        return text

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read a body; raises `Undecodable`, which has the listener bury it."""
        try:
            return msgspec.convert(json.loads(body), cls)
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise Undecodable(f"this message asks for no task: {error}") from error
