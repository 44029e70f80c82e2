"""How much a principal may use, and what it uses; pure. All its keys, tokens and connections share it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from bridge.contract.errors import ConfigurationError
from bridge.core.admission import BYTES_MIN
from bridge.core.rate import RATE_MAX, RATE_MIN, TokenBuckets

Rate = Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one principal may use at most; None sets no limit. Of a rate, one second's worth may come at once."""

    requests_per_second: Rate | None = None
    """Requests of any kind. A trigger past it is answered 429 and marked all the same."""
    puts_per_second: Rate | None = None
    """Messages put. A request of several is let in whole, and the next ones wait for it."""
    connections: Annotated[int, Meta(ge=1)] | None = None
    """Sessions and event streams at once."""
    queues: Annotated[int, Meta(ge=0)] | None = None
    """Queues among those that it may put in or manage; past it, it makes none."""
    waiting_bytes: Annotated[int, Meta(ge=BYTES_MIN)] | None = None
    """Bytes of its puts that are on their way or wait for their commit."""


NO_LIMITS: Final = Limits()
NONE: Final = "none"


def limited(limits: Limits, given: Mapping[str, str]) -> Limits:
    """Return limits with others that are written as text, ``none`` for one that is taken away.

    Raises `ConfigurationError` that names the one that is wrong.
    """
    known = Limits.__struct_fields__
    for name, text in given.items():
        if name not in known:
            raise ConfigurationError(f"limit: there is none called {name!r}: {', '.join(known)}")
        if text == NONE:
            continue
        try:
            # "nan" is neither too small nor too large.
            if not math.isfinite(float(text)):
                raise ValueError
            msgspec.convert({name: text}, Limits, strict=False)
        except ValueError as error:  # `msgspec.ValidationError` is one
            why = str(error).partition(" - at ")[0].replace("`", "'") if isinstance(error, msgspec.MsgspecError) else ""
            raise ConfigurationError(f"limit: {name}: {why or 'it is a number, or none'}") from None
    wanted = {name: None if text == NONE else text for name, text in given.items()}
    return msgspec.convert(msgspec.structs.asdict(limits) | wanted, Limits, strict=False)


class Allowance:
    """What one principal uses of its limits; ``now`` is of any clock that does not go back."""

    __slots__ = ("_puts", "_requests", "connections", "limits", "making", "waiting_bytes")

    def __init__(self) -> None:
        self.limits = NO_LIMITS
        self.connections = 0
        """Sessions and streams that are open."""
        self.waiting_bytes = 0
        self.making: Counter[str] = Counter()
        """Queues that requests of its are making at this moment."""
        self._requests: TokenBuckets | None = None
        self._puts: TokenBuckets | None = None

    def limit(self, limits: Limits) -> None:
        """Hold to other limits from now on; what is used stays counted, and nothing that is open ends."""
        if limits.requests_per_second != self.limits.requests_per_second:
            self._requests = _buckets(limits.requests_per_second)
        if limits.puts_per_second != self.limits.puts_per_second:
            self._puts = _buckets(limits.puts_per_second)
        self.limits = limits

    def request(self, now: float) -> int:
        """Count a request: 0, or the seconds after which it may come again."""
        return 0 if self._requests is None else self._requests.take("", now)

    def put(self, now: float) -> int:
        """Count a put of one message: 0, or the seconds after which it may come again."""
        return 0 if self._puts is None else self._puts.take("", now)

    def may_put(self, now: float) -> bool:
        """Say whether `request` and `put` would let one come now, and count nothing."""
        return all(rate is None or rate.has("", now) for rate in (self._requests, self._puts))

    def put_more(self, now: float, messages: int) -> None:
        """Count so many messages more of a put that was let in."""
        if self._puts is not None and messages > 0:
            self._puts.charge("", now, messages)

    def connect(self) -> bool:
        """Count a session or stream more, until `disconnect`; False where there are as many as there may be."""
        if self.limits.connections is not None and self.connections >= self.limits.connections:
            return False
        self.connections += 1
        return True

    def disconnect(self) -> None:
        """Count one less."""
        self.connections -= 1

    def hold(self, size: int) -> bool:
        """Count ``size`` bytes more that wait, until `give_back`; False where there is no room for them."""
        if self.limits.waiting_bytes is not None and self.waiting_bytes + size > self.limits.waiting_bytes:
            return False
        self.waiting_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Count so many bytes less."""
        self.waiting_bytes -= size


def _buckets(rate: float | None) -> TokenBuckets | None:
    return None if rate is None else TokenBuckets(rate, math.ceil(rate))
