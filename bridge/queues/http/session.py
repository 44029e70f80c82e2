"""HTTP requests that are sent once. Imports aiohttp, so it is imported late."""

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

from queuebell.bridge.brokers.connection import why_unreachable
from queuebell.bridge.brokers.wire import NotSent, Unanswered
from queuebell.bridge.contract.errors import Closed

if TYPE_CHECKING:
    from queuebell.bridge.brokers.credential import Credential
    from queuebell.bridge.contract.address import HttpAddress

# aiohttp warns of larger bytes, which it would copy at once.
_WHOLE_BYTES_MAX = 1 << 20


def open_session(keepalive_s: float, **options: Any) -> ClientSession:
    """Return a session that never repeats a request, keeps no cookies and does not decompress bodies.

    ``keepalive_s`` should be below the server's time-out of idle connections, so that no request meets a closed one.
    """
    session = ClientSession(
        # No limit: a listener with many slots settles as many messages at once, and each call has a time-out.
        connector=TCPConnector(limit=0, keepalive_timeout=keepalive_s),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        **options,
    )
    # By default aiohttp sends GET, PUT and DELETE again if a kept connection drops before the answer (L6).
    session._retry_connection = False
    return session


class Fallback:
    """Requests of one store over HTTP.

    Each is sent once: by default aiohttp repeats GET, PUT and DELETE if the connection drops before the answer.
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
        """Send one request; return status, headers with names in lower case, and body of its answer.

        Raises `NotSent` if nothing was sent, `Unanswered` if no answer came, and `Closed`.
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
            # aiohttp raises this if the session is closed during a call.
            if self._closed:
                raise Closed("the store was closed") from error
            raise

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        self._closed = True
        await self._session.close()
