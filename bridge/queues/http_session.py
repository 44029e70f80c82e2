"""HTTP sessions that send each request once. Imports aiohttp: itself imported by what is in use."""

from __future__ import annotations

from typing import Any

from aiohttp import ClientSession, DummyCookieJar, TCPConnector

from bridge.queues.aiohttp_private.client import try_once


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
