"""One attempt to deliver one wake to one endpoint: resolve, check the addresses, connect, post, read little."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import aiohttp
import yarl
from aiohttp.abc import AbstractResolver, ResolveResult

from queuebell.bridge.contract.cloudevents import encode_wake, wake_id
from queuebell.bridge.contract.wire import Wake
from queuebell.bridge.http.webhooks.addresses import refusal, refuse_any
from queuebell.bridge.http.webhooks.rules import RATE_PER_MINUTE, Outcome, retry_after
from queuebell.bridge.http.webhooks.settings import CheckedWebhook

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 4096
HOP_HEADER = "Queuebell-Hop"
"""Sent with every request; bridges refuse requests with it (S32)."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
Own = Callable[[str, int], bool]
"""Returns whether this bridge listens at an address and port."""


class Refused(OSError):
    """The bridge does not connect to the address; the text has the reason without input."""


class PinnedResolver(AbstractResolver):
    """Resolves once per connection, and checks all addresses (S25).

    aiohttp connects to exactly these addresses, with the name in SNI and Host: later changes of the name (rebinding)
    have no effect.
    """

    def __init__(self, allow_private: bool, own: Own, resolve: Resolve) -> None:
        self._allow_private = allow_private
        self._own = own
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of ``host``; raises `Refused` if any of them is refused."""
        addresses = await self._resolve(host, port)
        why = refuse_any(addresses, allow_private=self._allow_private)
        if why is None and any(self._own(address, port) for address in addresses):
            why = "it is this bridge itself"
        if why is not None:
            raise Refused(why)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """No-op."""


async def resolve_by_system(host: str, port: int) -> list[str]:
    """Resolve by the system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


class Courier:
    """Delivers wakes to one endpoint, one at a time; belongs to one event loop."""

    def __init__(
        self,
        checked: CheckedWebhook,
        own: Own,
        *,
        resolve: Resolve = resolve_by_system,
        wall: Callable[[], float] = time.time,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self._settings = checked.settings
        self._target = checked.target
        self._keys = checked.keys
        self._own = own
        self._wall = wall
        self._timeout = timeout
        self._url = yarl.URL(checked.target.url, encoded=True)
        self._resolver = PinnedResolver(checked.settings.allow_private, own, resolve)
        self._session: aiohttp.ClientSession | None = None
        self.rate: float | None = None
        """Requests per minute that the target permits; None before its consent (S29)."""

    async def deliver(self, wake: Wake) -> Outcome:
        """Try once, first asking for consent if necessary; never raises for a network error."""
        try:
            self._check_literal()
            if self._settings.handshake and self.rate is None:
                async with asyncio.timeout(self._timeout):
                    refused = await self._ask()
                if refused is not None:
                    return refused
            async with asyncio.timeout(self._timeout):
                return await self._post(wake)
        except TimeoutError:
            return Outcome(None, f"no answer within {self._timeout:g} s")
        except aiohttp.ClientConnectorDNSError as error:
            why = error.os_error
            return Outcome(None, f"refused: {why}" if isinstance(why, Refused) else "its name cannot be resolved")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, Refused):
                return Outcome(None, f"refused: {error}")
            # Only the type: the library's texts contain the URL, whose path may be a secret.
            return Outcome(None, f"could not be reached ({type(error).__name__})")

    async def close(self) -> None:
        """Close what is open; may be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _check_literal(self) -> None:
        if not self._target.literal:
            return
        # An address does not pass the resolver.
        why = refusal(self._target.host, allow_private=self._settings.allow_private)
        if why is None and self._own(self._target.host, self._target.port):
            why = "it is this bridge itself"
        if why is not None:
            raise Refused(why)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # `force_close`: a kept connection would skip the check of the next delivery (S25).
            connector = aiohttp.TCPConnector(
                resolver=self._resolver, use_dns_cache=False, force_close=True, family=socket.AF_UNSPEC, limit=1
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=self._timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                raise_for_status=False,
                headers={"User-Agent": "queuebell", "Accept-Encoding": "identity", HOP_HEADER: "1"},
            )
        return self._session

    async def _ask(self) -> Outcome | None:
        """Ask for consent; None if it is given."""
        async with self._open().options(self._url, headers=request_headers(), allow_redirects=False) as response:
            self.rate = granted(response.headers)
            if self.rate is not None:
                return None
            return Outcome(
                # A good status without consent must not count as a delivery.
                None if response.status < 300 else response.status,
                "the target did not consent: it must answer OPTIONS with WebHook-Allowed-Origin, or its "
                "entry in the configuration must have handshake = false",
                retry_after(response.headers.get("Retry-After"), self._wall()),
            )

    async def _post(self, wake: Wake) -> Outcome:
        event = encode_wake(wake)
        # The time of the attempt, the id of the wake (S28).
        headers = {
            "Content-Type": event.content_type,
            **sign(self._keys, wake_id(wake), int(self._wall()), event.body),
        }
        if self._settings.handshake:
            headers[ORIGIN_HEADER] = ORIGIN
        if wake.traceparent is not None and wake.traceparent.isascii():
            headers["traceparent"] = wake.traceparent
        async with self._open().post(self._url, data=event.body, headers=headers, allow_redirects=False) as response:
            # Read so that the peer sees no reset; discarded (S27).
            left = ANSWER_BYTES_MAX
            while left > 0 and (chunk := await response.content.read(left)):
                left -= len(chunk)
            status = response.status
            return Outcome(
                status, f"it returned status {status}", retry_after(response.headers.get("Retry-After"), self._wall())
            )


ORIGIN = "queuebell"
ORIGIN_HEADER = "WebHook-Request-Origin"


def request_headers() -> dict[str, str]:
    """Return the headers that ask for consent."""
    return {ORIGIN_HEADER: ORIGIN, "WebHook-Request-Rate": str(RATE_PER_MINUTE)}


def granted(headers: Mapping[str, str]) -> float | None:
    """Return how many requests per minute the answer permits, None without consent.

    Consent without a rate permits the rate that was asked for. The status of the answer does not matter.
    """
    named = {name.lower(): value.strip() for name, value in headers.items()}
    origin = named.get("webhook-allowed-origin")
    if origin is None or origin.lower() not in ("*", ORIGIN):
        return None
    rate = named.get("webhook-allowed-rate", "*")
    if rate == "*":
        return float(RATE_PER_MINUTE)
    if not (rate.isascii() and rate.isdigit() and len(rate) < 10) or int(rate) < 1:
        return None
    return float(rate)


def sign(keys: Sequence[bytes], id_: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks v1 (S28) for one attempt: a signature for each key.

    ``timestamp`` is that of the attempt in seconds since 1970; ``id_`` is the same for every attempt. It has no dot, or
    two messages could have the same signed text.
    """
    if "." in id_:
        raise ValueError("an id must not contain a dot")
    signed = f"{id_}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys)
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
