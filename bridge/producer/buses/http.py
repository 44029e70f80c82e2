"""The HTTP bus: ``POST /v1/triggers`` of a bridge."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec

from bridge.brokers.credential import ApiKey, Credential
from bridge.brokers.ending import why_unreachable
from bridge.contract.address import http_address
from bridge.contract.errors import BadInput, BusUnavailable, Closed
from bridge.contract.event import CloudQueueWorkDetected, encode_events

REQUEST_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 4096
# What the bridge says of the content itself: sending it again cannot help. Everything else may pass.
_REFUSALS = frozenset({400, 413, 415})
_BETWEEN = frozenset({408, 429, 500, 502, 503, 504})
"""What a proxy says for a bridge that is away or busy."""


class _Problem(msgspec.Struct):
    code: str = ""
    detail: str = ""


class HttpBus:
    """Carries triggers to the bridge at ``url``, over one kept-alive connection."""

    def __init__(self, url: str, *, api_key: ApiKey = None) -> None:
        where = http_address(url, "bridge")
        self._base = where.url
        self._credential = Credential(where, api_key)
        self._url = self._base + "/v1/triggers"
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Send the events in one request and wait for the 202, 10 s at most. Raises as `Bus.publish` does."""
        if self._closed:
            raise Closed("the bus is closed")
        if self._session is None:
            # One connection: there is one request at a time, and a second would only be opened to be closed.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=30.0),
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        try:
            async with self._session.post(
                self._url,
                data=encode_events(list(events)),
                headers={"Content-Type": "application/json", **self._credential.headers()},
                ssl=self._credential.tls() or True,
                allow_redirects=False,
            ) as answer:
                if answer.status == 202:
                    return
                problem = _problem(await answer.content.read(_ANSWER_BYTES_MAX))
        except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise BusUnavailable(f"no bridge answers at {self._base}: {why_unreachable(error)}") from error
        if not problem.code and answer.status not in _BETWEEN:
            # Whoever it is has not refused the trigger: it is kept until there is a bridge.
            raise BusUnavailable(
                f"what answers at {self._base} is no bridge: it answers {answer.status}, and not as one does"
            )
        if answer.status in _REFUSALS:
            raise BadInput(problem.code, problem.detail or f"the bridge refused it: {answer.status}")
        raise BusUnavailable(f"the bridge at {self._base} answered {answer.status} {problem.code}".rstrip())

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        self._closed = True
        if self._session is not None:
            await self._session.close()


def _problem(body: bytes) -> _Problem:
    try:
        return msgspec.json.decode(body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Problem()
