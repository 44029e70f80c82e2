"""The queues of a store that Celery's queues and bindings have."""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

import msgspec

from queuebell.bridge.contract.names import POISON_SUFFIX, is_token, parse_reference

BINDINGS: Final = "-bindings"
"""What is added to the account for the empty queues whose metadata are bindings."""
_ENCODED: Final = "x--"
_DIGITS: Final = 16
_READABLE: Final = 50


def queue_name(name: str) -> str:
    """Return the name in a store of one of Celery's queues; the same in every process, and of no other queue.

    A name that a store takes stays as it is: ``celery`` is ``celery``.
    """
    if is_token(name) and len(name) <= _READABLE and not name.startswith(_ENCODED) and not name.endswith(POISON_SUFFIX):
        return name
    return f"{_ENCODED}{re.sub('[^A-Za-z0-9]+', '-', name)[:_READABLE]}-{_digest(name)}"


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A binding of a queue to an exchange."""

    exchange: str
    routing_key: str
    pattern: str | None
    queue: str
    transient: bool = False
    """Whether the queue is that of one process, and ends with it."""
    seen: int = 0
    """Of a transient queue: when its process was last there, in seconds since 1970."""
    ttl_s: int = 0
    """After how long the messages of the queue expire; 0 is never."""


class BindingNames(NamedTuple):
    """The names of the empty queues that keep the bindings of an account: one each, found by their exchange."""

    account: str

    def of(self, binding: Binding) -> str:
        """Return the queue that keeps a binding."""
        key = "\n".join((binding.routing_key, binding.pattern or "", binding.queue))
        return parse_reference(f"{self.prefix(binding.exchange)}{_digest(key)}")

    def prefix(self, exchange: str | None) -> str:
        """Return what the names of an exchange's bindings begin with; those of all exchanges for None."""
        return f"{self.account}{BINDINGS}/" + ("" if exchange is None else f"{_digest(exchange)}-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
