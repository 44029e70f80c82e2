"""Requests to a bridge: over the wire of the process, or over HTTP where they are large or there is no wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.brokers.wire import NoWire, WireUser
from bridge.contract.calls import BOOT_HEADER, CALL_BYTES_MAX, JSON, SERVICE_ABLE_HEADER, TARGET_MAX

if TYPE_CHECKING:
    from bridge.brokers.credential import Credential
    from bridge.contract.address import HttpAddress
    from bridge.queues.http_session import Fallback

# Below the 75 s after which the server closes an idle connection: a request never meets a connection just closed.
KEEPALIVE_S: Final = 30.0


class Limits(NamedTuple):
    """How long one request may take, and how long it may take to be connected where that is less; seconds."""

    total_s: float
    connect_s: float | None = None


class Exchanged(NamedTuple):
    """What was answered, by whichever way; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    boot: str | None
    able: Sequence[str]


class Requests:
    """The requests of one store or publisher; each is sent once (L6)."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._wires = WireUser(credential)
        self._fallback: Fallback | None = None
        """What goes over HTTP, once something has to."""

    async def ask(
        self, where: HttpAddress, method: str, path: str, raw: bytes, limits: Limits, media: str = JSON
    ) -> Exchanged:
        """Send one request and wait for its answer.

        Raises `NotSent` where nothing was done, `Unanswered` where no answer came, `Closed` once it is closed, and
        `KeyUnavailable`.
        """
        if len(raw) <= CALL_BYTES_MAX and len(path) <= TARGET_MAX and self._wires.may_use(where):
            try:
                answer, ready = await self._wires.call(
                    where, method, path, raw, media, within_s=limits.total_s, connect_s=limits.connect_s
                )
            except NoWire as error:
                if error.refused:
                    return Exchanged(error.status, error.headers, error.body, None, ())
            else:
                return Exchanged(answer.status, answer.headers, answer.body, ready.boot, ready.able)
        if self._fallback is None:
            # Late, for nothing but this needs aiohttp.
            from bridge.queues.http_session import Fallback

            self._fallback = Fallback(self._credential, KEEPALIVE_S)
        status, headers, body = await self._fallback.ask(where, method, path, raw, media, *limits)
        able = headers.get(SERVICE_ABLE_HEADER.lower(), "").replace(" ", "").split(",")
        return Exchanged(status, headers, body, headers.get(BOOT_HEADER.lower()), able)

    async def close(self) -> None:
        """Fail what is under way, and let go of connections; may be called twice."""
        await self._wires.close()
        if self._fallback is not None:
            await self._fallback.close()
