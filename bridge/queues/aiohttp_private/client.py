"""A client that asks once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import ClientSession


def try_once(session: ClientSession) -> None:
    """Have a client send each request once (L6).

    Without it GET, PUT and DELETE are sent a second time when a kept connection is dropped before the answer. It is the
    only switch there is, and used by aiohttp's own test client too.
    """
    session._retry_connection = False
