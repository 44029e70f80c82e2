"""What a listener remembers of failed attempts, so that a burial can tell them: some messages, the newest kept."""

from __future__ import annotations

import datetime
from collections import OrderedDict
from typing import Final

from bridge.contract.burial import HISTORY_MAX, Attempt, shortened

MESSAGES_MAX: Final = 1024
REASON_MAX: Final = 256


class History:
    """The failed attempts at ``most`` messages, 16 of each; who failed longest ago is forgotten first.

    With reasons of at most 256 characters that is some 4 MiB where every message fails, and next to nothing elsewhere.
    Attempts made by other listeners, or before this one was started, are not known here.
    """

    def __init__(self, most: int = MESSAGES_MAX) -> None:
        self._most = most
        self._attempts: OrderedDict[str, tuple[Attempt, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    def failed(self, id_: str, attempt: int, at: datetime.datetime, reason: str) -> None:
        """Remember that an attempt failed at a moment, for a reason."""
        known = self._attempts.get(id_, ())
        self._attempts[id_] = (*known, Attempt(attempt, at, shortened(reason, REASON_MAX)))[-HISTORY_MAX:]
        self._attempts.move_to_end(id_)
        if len(self._attempts) > self._most:
            self._attempts.popitem(last=False)

    def of(self, id_: str) -> tuple[Attempt, ...]:
        """Return the failed attempts at a message, oldest first."""
        return self._attempts.get(id_, ())

    def forget(self, id_: str) -> None:
        """Hear that a message has ended."""
        self._attempts.pop(id_, None)
