"""The bindings of queues to exchanges, and where they are kept."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from queuebell.bridge.contract.names import parse_reference
from queuebell.frameworks.names import digest

BINDINGS: Final = "-bindings"
"""What is added to the account for the empty queues whose metadata are bindings."""


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
        return parse_reference(f"{self.prefix(binding.exchange)}{digest(key)}")

    def prefix(self, exchange: str | None) -> str:
        """Return what the names of an exchange's bindings begin with; those of all exchanges for None."""
        return f"{self.account}{BINDINGS}/" + ("" if exchange is None else f"{digest(exchange)}-")
