"""HTTP requests that are sent once. Imports aiohttp: itself imported by what is in use."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    InvalidURL,
    TCPConnector,
)
from yarl import URL

from bridge.brokers.connection import why_unreachable
from bridge.brokers.wire import NotSent, Unanswered
from bridge.contract.errors import Closed
from bridge.queues.aiohttp_private.client import try_once

if TYPE_CHECKING:
    from bridge.brokers.credential import Credential
    from bridge.contract.address import HttpAddress

# aiohttp warns of larger bytes, which it would copy in one go.
_WHOLE_BYTES_MAX = 1 << 20


def open_session(keepalive_s: float, **options: Any) -> ClientSession:
    """Return a session that repeats nothing, keeps no cookies and gives bodies as they came.

    ``keepalive_s`` is below what servers allow an idle connection: a request never meets one just closed.
    """
    session = ClientSession(
        # No limit of its own: a listener with many slots settles as many at once, and each call has a time-out.
        connector=TCPConnector(limit=0, keepalive_timeout=keepalive_s),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        **options,
    )
    try_once(session)
    return session


class Fallback:
    """Requests of one store to a queue service, where they do not go over a wire.

    aiohttp's client would repeat GET, PUT and DELETE after a connection that was dropped before the answer: ours does
    not.
    """

    def __init__(self, credential: Credential, keepalive_s: float) -> None:
        self._credential = credential
        self._session = open_session(keepalive_s, skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"))
        self._closed = False

    async def ask(
        self,
        where: HttpAddress,
        method: str,
        path: str,
        raw: bytes,
        media: str,
        total_s: float,
        connect_s: float | None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request, and return what was answered: status, headers by names in lower case, and body.

        Raises `NotSent` where nothing was sent, `Unanswered` where no answer came, and `Closed`.
        """
        try:
            async with self._session.request(
                method,
                URL(where.url + path, encoded=True),
                data=(raw or None) if len(raw) <= _WHOLE_BYTES_MAX else io.BytesIO(raw),
                headers={**self._credential.headers(), **({"Content-Type": media} if raw else {})},
                ssl=self._credential.tls() or True,
                allow_redirects=False,
                timeout=ClientTimeout(total=total_s, connect=connect_s),
            ) as answer:
                body = await answer.read()
                return answer.status, {name.lower(): value for name, value in answer.headers.items()}, body
        except (ClientConnectorError, ConnectionTimeoutError, InvalidURL) as error:
            raise NotSent(why_unreachable(error)) from error
        except (ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise Unanswered(why_unreachable(error)) from error
        except RuntimeError as error:
            # What aiohttp raises when the session was closed under a call.
            if self._closed:
                raise Closed("the store was closed") from error
            raise

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        self._closed = True
        await self._session.close()
