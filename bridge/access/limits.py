"""Limit the requests, puts and connections of each address or principal with token buckets (S13); pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from queuebell.bridge.contract.errors import ConfigurationError

ADDRESSES_MAX = 10_000
RATE_MIN = 0.001
RATE_MAX = 1_000_000.0
BURST_MAX = 1_000_000_000
WAIT_S_MAX = 3600
"""Longest wait that a client is asked for."""
BYTES_MIN: Final = 8 * 1024 * 1024
"""More than twice the largest put: below this it could never be accepted while its body arrives."""


class TokenBuckets:
    """Allows ``rate`` requests a second per key, after a burst of ``burst``."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, now: float) -> int:
        """Take one token and return 0, or return the whole seconds (1 to 3600) until there is one."""
        tokens = self._tokens(key, now)
        wait = self._whole(tokens)
        self._keep(key, tokens if wait else tokens - 1.0, now)
        return wait

    def wait(self, key: str, now: float) -> int:
        """Return what `take` would, without taking a token."""
        return self._whole(self._tokens(key, now))

    def charge(self, key: str, now: float, tokens: int) -> float:
        """Take tokens, available or not, for an admitted request; return the seconds (at most 3600) until the next."""
        left = self._tokens(key, now) - tokens
        self._keep(key, left, now)
        return min(max(0.0, 1.0 - left) / self._rate, WAIT_S_MAX)

    def _tokens(self, key: str, now: float) -> float:
        tokens, since = self._buckets.get(key, (self._burst, now))
        return min(self._burst, tokens + (now - since) * self._rate)

    def _whole(self, tokens: float) -> int:
        # Bound before rounding: at a small rate the seconds may be infinite.
        return 0 if tokens >= 1.0 else max(1, math.ceil(min((1.0 - tokens) / self._rate, WAIT_S_MAX)))

    def _keep(self, key: str, tokens: float, now: float) -> None:
        # Reinsert, so that the first key is the least recently used one, which is evicted.
        self._buckets.pop(key, None)
        if len(self._buckets) >= ADDRESSES_MAX:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = (tokens, now)


REFUSALS_PER_SECOND: Final = 20.0
REFUSALS_AT_ONCE: Final = 100
HELD_S_MAX: Final = 5.0
"""Shorter than clients' timeouts, so that they get the answer."""

Rate = Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)]
_SOON_S: Final = 0.001
"""Shorter delays are rounding errors, and need no timer."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of a principal; None means no limit. Rates allow a burst of one second's worth."""

    requests_per_second: Rate | None = None
    """Requests of any kind, and frames of sessions. A trigger beyond it gets 429 but still wakes known queues."""
    puts_per_second: Rate | None = None
    """Messages put. A request with several is admitted as a whole, and delays the next ones."""
    connections: Annotated[int, Meta(ge=1)] | None = None
    """Concurrent sessions and event streams."""
    queues: Annotated[int, Meta(ge=0)] | None = None
    """Existing queues that it may put to or manage, above which it cannot create more."""
    waiting_bytes: Annotated[int, Meta(ge=BYTES_MIN)] | None = None
    """Bytes of its puts that are arriving or wait for their commit."""


NO_LIMITS: Final = Limits()
NONE: Final = "none"


def limited(limits: Limits, given: Mapping[str, str]) -> Limits:
    """Return the limits with ``given`` ones, as text, changed; ``none`` removes a limit.

    Raises `ConfigurationError` that names the invalid limit.
    """
    known = Limits.__struct_fields__
    for name, text in given.items():
        if name not in known:
            raise ConfigurationError(f"limit: {name!r} is unknown; the limits are {', '.join(known)}")
        if text == NONE:
            continue
        try:
            # "nan" passes both bounds.
            if not math.isfinite(float(text)):
                raise ValueError
            msgspec.convert({name: text}, Limits, strict=False)
        except ValueError as error:  # `msgspec.ValidationError` is one
            why = str(error).partition(" - at ")[0].replace("`", "'") if isinstance(error, msgspec.MsgspecError) else ""
            raise ConfigurationError(f"limit: {name}: {why or 'must be a number, or none'}") from None
    wanted = {name: None if text == NONE else text for name, text in given.items()}
    return msgspec.convert(msgspec.structs.asdict(limits) | wanted, Limits, strict=False)


class Allowance:
    """Tracks a principal's usage against its limits; ``now`` is from any monotonic clock."""

    __slots__ = ("_puts", "_requests", "connections", "limits", "making", "waiting_bytes")

    def __init__(self) -> None:
        self.limits = NO_LIMITS
        self.connections = 0
        """Open sessions and streams."""
        self.waiting_bytes = 0
        self.making: Counter[str] = Counter()
        """Queues that its requests are creating now."""
        self._requests: TokenBuckets | None = None
        self._puts: TokenBuckets | None = None

    def limit(self, limits: Limits) -> None:
        """Replace the limits; usage stays counted, and open connections stay open."""
        if limits.requests_per_second != self.limits.requests_per_second:
            self._requests = _buckets(limits.requests_per_second)
        if limits.puts_per_second != self.limits.puts_per_second:
            self._puts = _buckets(limits.puts_per_second)
        self.limits = limits

    def request(self, now: float) -> int:
        """Count a request and return 0, or return the seconds after which to retry."""
        return 0 if self._requests is None else self._requests.take("", now)

    def put(self, now: float) -> int:
        """Count a put of one message and return 0, or return the seconds after which to retry."""
        return 0 if self._puts is None else self._puts.take("", now)

    def wait(self, now: float, *, put: bool) -> int:
        """Return what `request`, and for a put also `put`, would return, without counting."""
        requests = 0 if self._requests is None else self._requests.wait("", now)
        return max(requests, self._puts.wait("", now)) if put and self._puts is not None else requests

    def request_more(self, now: float) -> float:
        """Count a request that cannot be rejected; return the seconds until the next one is within the rate."""
        return 0.0 if self._requests is None else self._requests.charge("", now, 1)

    def put_more(self, now: float, messages: int) -> None:
        """Count further messages of an admitted put."""
        if self._puts is not None and messages > 0:
            self._puts.charge("", now, messages)

    def connect(self) -> bool:
        """Count one more session or stream until `disconnect`; return False at the limit."""
        if self.limits.connections is not None and self.connections >= self.limits.connections:
            return False
        self.connections += 1
        return True

    def disconnect(self) -> None:
        """Count one session or stream less."""
        self.connections -= 1

    def hold(self, size: int) -> bool:
        """Count ``size`` waiting bytes until `give_back`; return False at the limit."""
        if self.limits.waiting_bytes is not None and self.waiting_bytes + size > self.limits.waiting_bytes:
            return False
        self.waiting_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Count ``size`` waiting bytes less."""
        self.waiting_bytes -= size


class Refusals:
    """Delays rejections: a sender's first ones are answered immediately, later ones at ``per_second``; pure.

    Nothing is read from a connection whose answer is delayed. All connections of a sender share one rate, so that more
    connections do not help; no delay exceeds ``held_s_max``.
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
        # By sender: when all its rejections would have been answered at that rate.
        self._until: dict[str, float] = {}

    def hold_s(self, sender: str, now: float) -> float:
        """Count a rejection; return the delay of its answer in seconds, or 0."""
        # Reinsert, as above.
        until = max(self._until.pop(sender, now), now) + self._each_s
        until = min(until, now + self._ahead_s + self._held_s_max)
        if len(self._until) >= ADDRESSES_MAX:
            del self._until[next(iter(self._until))]
        self._until[sender] = until
        held = until - now - self._ahead_s
        return held if held > _SOON_S else 0.0


def _buckets(rate: float | None) -> TokenBuckets | None:
    return None if rate is None else TokenBuckets(rate, math.ceil(rate))
