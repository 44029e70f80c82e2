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

from bridge.contract.cloudevents import encode_wake, wake_id
from bridge.contract.wire import Wake
from bridge.http.webhooks.addresses import refusal, refuse_any
from bridge.http.webhooks.rules import RATE_PER_MINUTE, Outcome, retry_after
from bridge.http.webhooks.settings import CheckedWebhook

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 4096
HOP_HEADER = "Queuebell-Hop"
"""Sent with every request; a bridge refuses what carries it (S32)."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
Own = Callable[[str, int], bool]
"""Whether an address and a port are where this bridge itself listens."""


class Refused(OSError):
    """The address is none that the bridge connects to; the text says why and repeats nothing."""


class PinnedResolver(AbstractResolver):
    """Resolves once per connection, checks all answers, and gives out those only (S25).

    aiohttp connects to the very addresses given here, with the name in SNI and Host: a name that resolves to another
    address a moment later (rebinding) changes nothing.
    """

    def __init__(self, allow_private: bool, own: Own, resolve: Resolve) -> None:
        self._allow_private = allow_private
        self._own = own
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of ``host``. Raises `Refused` if any of them is not to be connected to."""
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
        """Nothing is held."""


async def resolve_by_system(host: str, port: int) -> list[str]:
    """Ask the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


class Courier:
    """Brings wakes to one endpoint, one at a time; belongs to the event loop it is made on."""

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
        """Requests a minute that the target granted; None before it consented (S29)."""

    async def deliver(self, wake: Wake) -> Outcome:
        """Try once, the target's consent first where it is needed; never raises for what the network does."""
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
            # The kind only: texts of the library hold the address, whose path may be a secret.
            return Outcome(None, f"could not be reached ({type(error).__name__})")

    async def close(self) -> None:
        """Close what is open; may be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _check_literal(self) -> None:
        if not self._target.literal:
            return
        # An address is never resolved, so the resolver would never see it.
        why = refusal(self._target.host, allow_private=self._settings.allow_private)
        if why is None and self._own(self._target.host, self._target.port):
            why = "it is this bridge itself"
        if why is not None:
            raise Refused(why)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # `force_close`: a connection kept would skip the check of the next delivery (S25).
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
        """Ask for consent; None once it is given."""
        async with self._open().options(self._url, headers=request_headers(), allow_redirects=False) as response:
            self.rate = granted(response.headers)
            if self.rate is not None:
                return None
            return Outcome(
                # A good status is no consent either, and must not be taken for a delivery.
                None if response.status < 300 else response.status,
                "the target did not consent: it must answer OPTIONS with WebHook-Allowed-Origin, or its "
                "entry in the configuration must have handshake = false",
                retry_after(response.headers.get("Retry-After"), self._wall()),
            )

    async def _post(self, wake: Wake) -> Outcome:
        event = encode_wake(wake)
        # The time is that of the attempt, the id that of the wake (S28).
        headers = {
            "Content-Type": event.content_type,
            **sign(self._keys, wake_id(wake), int(self._wall()), event.body),
        }
        if self._settings.handshake:
            headers[ORIGIN_HEADER] = ORIGIN
        if wake.traceparent is not None and wake.traceparent.isascii():
            headers["traceparent"] = wake.traceparent
        async with self._open().post(self._url, data=event.body, headers=headers, allow_redirects=False) as response:
            # Read for the peer's sake, who would see a reset otherwise; never kept, never shown (S27).
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
    """Return how many requests a minute the answer allows, None where it does not consent.

    A target that consents without saying how often is taken to agree with what was asked.
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
    """Return the three headers for one attempt; with several keys (rotation) there are as many signatures.

    ``timestamp`` is whole seconds since 1970 of this very attempt; ``id_`` is the same for every attempt and holds no
    dot, or two different messages could have the same signed text.
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
