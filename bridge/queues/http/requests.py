"""Requests to a bridge: over the process's connection, or over HTTP if they are large or there is no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from queuebell.bridge.brokers.wire import NoWire, WireUser
from queuebell.bridge.contract.calls import BOOT_HEADER, CALL_BYTES_MAX, JSON, SERVICE_ABLE_HEADER, TARGET_MAX

if TYPE_CHECKING:
    from queuebell.bridge.brokers.credential import Credential
    from queuebell.bridge.contract.address import HttpAddress
    from queuebell.bridge.queues.http.session import Fallback

# Below the 75 s after which the server closes an idle connection, so that no request meets a closed one.
KEEPALIVE_S: Final = 30.0


class Limits(NamedTuple):
    """Time limits in seconds of one request, and of its connection attempt."""

    total_s: float
    connect_s: float | None = None


class Exchanged(NamedTuple):
    """An answer by either way; header names are in lower case."""

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
        """Requests over HTTP, once one is needed."""

    async def ask(
        self, where: HttpAddress, method: str, path: str, raw: bytes, limits: Limits, media: str = JSON
    ) -> Exchanged:
        """Send one request and return its answer.

        Raises `NotSent` if nothing was done, `Unanswered` if no answer came, `Closed` after `close`, and
        `KeyUnavailable`.
        """
        if len(raw) <= CALL_BYTES_MAX and len(path) <= TARGET_MAX and self._wires.may_use(where):
            now = asyncio.get_running_loop().time
            deadline = now() + limits.total_s
            try:
                wire = await self._wires.wire(where, min(limits.total_s, limits.connect_s or limits.total_s))
                answer = await wire.call(self._wires, method, path, raw, media, max(0.0, deadline - now()))
            except NoWire as error:
                if error.refused:
                    return Exchanged(error.status, error.headers, error.body, None, ())
            else:
                ready = wire.ready.result()
                return Exchanged(answer.status, answer.headers, answer.body, ready.boot, ready.able)
        if self._fallback is None:
            # Imported late: only this needs aiohttp.
            from queuebell.bridge.queues.http.session import Fallback

            self._fallback = Fallback(self._credential, KEEPALIVE_S)
        status, headers, body = await self._fallback.ask(where, method, path, raw, media, *limits)
        able = headers.get(SERVICE_ABLE_HEADER.lower(), "").replace(" ", "").split(",")
        return Exchanged(status, headers, body, headers.get(BOOT_HEADER.lower()), able)

    async def close(self) -> None:
        """Fail requests in progress and close the connections; may be called twice."""
        await self._wires.close()
        if self._fallback is not None:
            await self._fallback.close()
