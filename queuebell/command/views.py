"""Follows a view that the bridge sends once a second, across restarts and failover to another bridge."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeVar

import aiohttp
import msgspec

from queuebell.bridge.brokers.connection import why_unreachable
from queuebell.bridge.brokers.credential import Credential
from queuebell.bridge.contract.address import HttpAddress, http_addresses
from queuebell.bridge.contract.backoff import FullJitter
from queuebell.bridge.contract.errors import STATUS_BY_CODE, BusUnavailable, NotAllowed
from queuebell.bridge.contract.failover import TRY_S, Failover, Outcome
from queuebell.command.client import plain

CONNECT_S: Final = 10.0
SILENT_S: Final = 60.0
"""A bridge sends something at least this often; after it the connection counts as lost."""
AGAIN_S: Final = 0.25
AGAIN_CAP_S: Final = 5.0
_NOT_ALLOWED: Final = frozenset({401, 403})
_BYTES_MAX: Final = 16 * 1024 * 1024

View = TypeVar("View")


class Views:
    """Receives one view at a time from the first bridge that answers; an async context manager.

    Nobody is asked by it: a bridge tells what it knows anyway, and an idle queue costs nothing.
    """

    def __init__(self, url: str) -> None:
        addresses = http_addresses(url, "bridge")
        self._failover = Failover(addresses, random.random)
        self._credential = Credential.of(addresses)
        self._heard = False

    async def __aenter__(self) -> Views:
        connect_s = TRY_S if self._failover.several else CONNECT_S
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=SILENT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def follow(
        self, path: str, kind: type[View], told: Callable[[str, View], None], lost: Callable[[str], None]
    ) -> None:
        """Call back with each view and its bridge's address, or with the reason of an interruption, until cancelled.

        Raises `NotAllowed` where it is not granted, or not any more, and `BusUnavailable` where no bridge was ever
        heard.
        """
        loop = asyncio.get_running_loop()
        pause = FullJitter(AGAIN_S, AGAIN_CAP_S)
        while True:
            whys: list[str] = []
            for where in self._failover.round(loop.time()):
                try:
                    async with contextlib.aclosing(self._views(where, path, kind)) as views:
                        async for view in views:
                            self._failover.record(where, Outcome.ANSWERED, loop.time())
                            self._heard, pause, whys = True, FullJitter(AGAIN_S, AGAIN_CAP_S), []
                            told(where.url, view)
                    whys.append(f"the bridge at {where.url} tells no more for now")
                except BusUnavailable as error:
                    whys.append(str(error))
                self._failover.record(where, Outcome.UNKNOWN, loop.time())
                lost("; ".join(whys))
            if not self._heard:
                raise BusUnavailable("; ".join(whys))
            await asyncio.sleep(pause.miss(random.random))

    async def _views(self, where: HttpAddress, path: str, kind: type[View]) -> AsyncGenerator[View]:
        try:
            async with self._session.get(
                where.url + path,
                headers={"Accept": "text/event-stream", **self._credential.headers()},
                ssl=self._credential.tls() or True,
                allow_redirects=False,
            ) as answer:
                if answer.status != 200 or answer.content_type != "text/event-stream":
                    raise _refusal(where, answer.status, await answer.content.read(4096))
                rest = b""
                async for data in answer.content.iter_any():
                    *events, rest = (rest + data).split(b"\n\n")
                    # Each is a whole view: of several that came at once the newest counts.
                    lines = (line for event in events for line in event.split(b"\n"))
                    views = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
                    if views:
                        yield msgspec.json.decode(views[-1], type=kind)
                    if len(rest) > _BYTES_MAX:
                        raise BusUnavailable(f"what answers at {where.url} is no bridge: its answer does not end")
        except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise BusUnavailable(f"no bridge answers at {where.url}: {why_unreachable(error)}") from None
        except msgspec.DecodeError as error:
            raise BusUnavailable(
                f"the bridge at {where.url} is of another version than this command: {plain(str(error))}"
            ) from None


def _refusal(where: HttpAddress, status: int, body: bytes) -> BusUnavailable | NotAllowed:
    try:
        told = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = {}
    if status in _NOT_ALLOWED and told.get("code") in STATUS_BY_CODE:
        return NotAllowed(str(told["code"]), f"{where.url}: {plain(told.get('detail'))}")
    return BusUnavailable(
        f"what answers at {where.url} tells no views: it answers {status}. Is the address right, and the bridge no "
        "older than this command?"
    )
