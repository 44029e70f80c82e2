"""The queues of a store that the queues of a framework have."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from queuebell.bridge.contract.names import POISON_SUFFIX, is_token

_ENCODED: Final = "x--"
_DIGITS: Final = 16
_READABLE: Final = 50


def queue_name(name: str) -> str:
    """Return the name in a store of a framework's queue; the same in every process, and of no other queue.

    A name that a store takes stays as it is: ``celery`` is ``celery``.
    """
    if is_token(name) and len(name) <= _READABLE and not name.startswith(_ENCODED) and not name.endswith(POISON_SUFFIX):
        return name
    return f"{_ENCODED}{re.sub('[^A-Za-z0-9]+', '-', name)[:_READABLE]}-{digest(name)}"


def digest(text: str) -> str:
    """Return 16 hex digits that no other text has."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
