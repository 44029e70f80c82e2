"""Token buckets, one for each address or principal (S13); pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from bridge.contract.errors import ConfigurationError
from bridge.core.admission import BYTES_MIN

ADDRESSES_MAX = 10_000
RATE_MIN = 0.001
RATE_MAX = 1_000_000.0
BURST_MAX = 1_000_000_000
WAIT_S_MAX = 3600
"""No client is told to stay away for longer."""


class TokenBuckets:
    """Allows ``rate`` requests a second per key, after a burst of ``burst``; time comes in as an argument."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, now: float) -> int:
        """Take one token: 0 if there was one, else the whole seconds (1 to an hour) until there is."""
        tokens = self._tokens(key, now)
        wait = self._whole(tokens)
        self._keep(key, tokens if wait else tokens - 1.0, now)
        return wait

    def wait(self, key: str, now: float) -> int:
        """Return what `take` would, and take nothing."""
        return self._whole(self._tokens(key, now))

    def charge(self, key: str, now: float, tokens: int) -> float:
        """Take so many tokens, there or not, for what was let in: the next ones wait for them.

        Returns the seconds, an hour at most, until there is one again.
        """
        left = self._tokens(key, now) - tokens
        self._keep(key, left, now)
        return min(max(0.0, 1.0 - left) / self._rate, WAIT_S_MAX)

    def _tokens(self, key: str, now: float) -> float:
        tokens, since = self._buckets.get(key, (self._burst, now))
        return min(self._burst, tokens + (now - since) * self._rate)

    def _whole(self, tokens: float) -> int:
        # Bounded before it is made whole: of a small rate the seconds may be infinite.
        return 0 if tokens >= 1.0 else max(1, math.ceil(min((1.0 - tokens) / self._rate, WAIT_S_MAX)))

    def _keep(self, key: str, tokens: float, now: float) -> None:
        # Popped and put again, so that the first key is the one longest unheard of: it is the one to forget.
        self._buckets.pop(key, None)
        if len(self._buckets) >= ADDRESSES_MAX:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = (tokens, now)


REFUSALS_PER_SECOND: Final = 20.0
REFUSALS_AT_ONCE: Final = 100
HELD_S_MAX: Final = 5.0
"""Shorter than the time-outs of clients: whoever asks too often shall hear of it."""

Rate = Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)]
_SOON_S: Final = 0.001
"""Less is the rounding of sums, and not worth a timer."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one principal may use at most; None sets no limit. Of a rate, one second's worth may come at once."""

    requests_per_second: Rate | None = None
    """Requests of any kind, and frames of sessions. A trigger past it is answered 429; known queues are marked."""
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

    def wait(self, now: float, *, put: bool) -> int:
        """Return what `request`, and for a put `put`, would say now; counts nothing."""
        requests = 0 if self._requests is None else self._requests.wait("", now)
        return max(requests, self._puts.wait("", now)) if put and self._puts is not None else requests

    def request_more(self, now: float) -> float:
        """Count what cannot be refused as a request; return the seconds after which the next one is within the rate."""
        return 0.0 if self._requests is None else self._requests.charge("", now, 1)

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


class Refusals:
    """When refusals are answered: the first ones of each sender at once, and then ``per_second`` of them; pure.

    Whoever goes on asking is answered later, and not read meanwhile. All connections of a sender wait in one line, so
    that more of them bring it nothing; none waits for longer than ``held_s_max``.
    """

    def __init__(
        self,
        per_second: float = REFUSALS_PER_SECOND,
        at_once: int = REFUSALS_AT_ONCE,
        held_s_max: float = HELD_S_MAX,
    ) -> None:
        self._each_s = 1.0 / per_second
        self._ahead_s = at_once / per_second
        self._held_s_max = held_s_max
        # When the line of a sender has been answered, at its pace from the beginning on.
        self._until: dict[str, float] = {}

    def hold_s(self, sender: str, now: float) -> float:
        """Count a refusal; return for how many seconds its answer is held, 0 where it goes at once."""
        # Popped and put again, so that the first is the one longest unheard of: it is the one to forget.
        until = max(self._until.pop(sender, now), now) + self._each_s
        until = min(until, now + self._ahead_s + self._held_s_max)
        if len(self._until) >= ADDRESSES_MAX:
            del self._until[next(iter(self._until))]
        self._until[sender] = until
        held = until - now - self._ahead_s
        return held if held > _SOON_S else 0.0


def _buckets(rate: float | None) -> TokenBuckets | None:
    return None if rate is None else TokenBuckets(rate, math.ceil(rate))
