"""Sessions over WebSocket: ``GET {bridge}/v1/sessions``, subprotocol ``queuebell.v1``, JSON text frames.

Of several equal bridges with one at a time: the first that lets a session in, and the next when that has ended.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import Callable

import aiohttp

from bridge.brokers.credential import ApiKey, Credential
from bridge.brokers.ending import why_unreachable
from bridge.contract.address import HttpAddress, http_addresses, in_one_text
from bridge.contract.backoff import Draw
from bridge.contract.errors import BadInput, ChannelLost
from bridge.contract.failover import TRY_S, Failover, Outcome, retry_after_s
from bridge.contract.wire import FRAME_BYTES_MAX, SUBPROTOCOL, DownFrame, UpFrame, decode_down, encode_frame
from listeners.session.channels.base import Link

CONNECT_WITHIN_S = 5.0
CLOSE_WITHIN_S = 1.0
_REFUSAL = "application/problem+json"
_NOT_ALLOWED = {
    401: "the bridge knows no such key, or none was given (api_key, QUEUEBELL_API_KEY, QUEUEBELL_API_KEY_FILE)",
    403: "the key does not grant 'take' on the queues of this listener",
    421: "the bridge is not known by that name; its --allowed-hosts names further ones",
}
_described = re.compile(r'error_description="([ !#-\[\]-~]{1,500})"').search
_BETWEEN = (408, 429, 500, 502, 503, 504)
"""What a proxy says for a bridge that is away or busy."""


class WebSocketLink:
    """One connection. One task writes, so that frames leave in order and `send` never waits.

    ``where`` is the address of its bridge; ``over`` hears once that whoever wants a session needs another one.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, where: str, over: Callable[[], object]) -> None:
        self._socket = socket
        self._where = where
        self._over: Callable[[], object] | None = over
        self._outbox: deque[bytes] = deque()
        self._something = asyncio.Event()
        self._ending = False
        self._writer = asyncio.create_task(self._write(), name="websocket-writer")

    def __str__(self) -> str:
        return self._where

    def send(self, frame: UpFrame) -> None:
        """Put one frame on its way; after a break it is dropped."""
        if not self._ending and not self._writer.done():
            self._outbox.append(encode_frame(frame))
            self._something.set()

    async def receive(self) -> DownFrame:
        """Wait for the next frame of a type this version knows. Raises `ChannelLost` once the connection is over."""
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.TEXT:
                try:
                    frame = decode_down(message.data)
                except BadInput as error:
                    raise ChannelLost(f"the bridge sent a frame that cannot be read: {error}") from error
                if frame is not None:
                    return frame
            elif message.type is not aiohttp.WSMsgType.BINARY:
                # The frame's own code first: aiohttp's is 1006 as soon as its reply to the frame cannot be sent.
                code = message.data if message.type is aiohttp.WSMsgType.CLOSE else self._socket.close_code
                raise ChannelLost(_ended(code))

    async def close(self) -> None:
        """Send what was handed over, then close; takes at most about a second."""
        over, self._over = self._over, None
        if over is not None:
            over()
        self._ending = True
        self._something.set()
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                if not self._writer.done():
                    await asyncio.wait([self._writer])
                await self._socket.close()
        except TimeoutError:
            pass  # the peer is gone or does not read: the connection is dropped with the session below it
        finally:
            self._writer.cancel()

    async def _write(self) -> None:
        while True:
            while self._outbox:
                try:
                    await self._socket.send_frame(self._outbox.popleft(), aiohttp.WSMsgType.TEXT)
                except (ConnectionError, aiohttp.ClientError):
                    return  # `receive` tells
            if self._ending:
                return
            self._something.clear()
            await self._something.wait()


class WebSocketChannel:
    """A way to a bridge by its HTTP URL, or to any of several. Raises `ConfigurationError` for a URL that is none."""

    def __init__(self, url: str, *, api_key: ApiKey = None, draw: Draw = random.random) -> None:
        addresses = http_addresses(url, "bridge")
        self._where = in_one_text(addresses)
        self._credential = Credential.of(addresses, api_key)
        self._failover = Failover(addresses, draw)
        self._within_s = TRY_S if len(addresses) > 1 else CONNECT_WITHIN_S
        self._client: aiohttp.ClientSession | None = None

    def __str__(self) -> str:
        return self._where

    async def connect(self) -> Link:
        """Open a connection. Raises `ChannelLost` when none can be made within 5 s, or not with a bridge.

        Several are tried in turn, 2 s each. The one that refuses us is told of, and the next one tried the next time.
        """
        loop = asyncio.get_running_loop()
        told: list[str] = []
        for where in self._failover.round(loop.time()):
            outcome, retry_after = Outcome.UNKNOWN, None
            try:
                link = await self._open(where)
            except aiohttp.WSServerHandshakeError as error:
                outcome = Outcome.REFUSED if _refuses(error) else Outcome.NOT_DONE
                retry_after = None if error.headers is None else retry_after_s(error.headers.get("Retry-After"))
                told.append(_unwelcome(error))
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                told.append(f"no session: {why_unreachable(error)}")
            except asyncio.CancelledError:
                self._failover.tell(where, Outcome.UNKNOWN, loop.time())
                raise
            else:
                self._failover.tell(where, Outcome.ANSWERED, loop.time())
                return link
            if self._failover.several:
                told[-1] += f" ({where.url})"
            if not self._failover.tell(where, outcome, loop.time(), repeatable=True, retry_after=retry_after):
                break
        raise ChannelLost("; ".join(told))

    async def _open(self, where: HttpAddress) -> WebSocketLink:
        if self._client is None:
            self._client = aiohttp.ClientSession()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._within_s):
            # Heartbeats of our own say more than pings would: they prove that the bridge hears us (L9).
            socket = await self._client.ws_connect(
                f"{where.url}/v1/sessions",
                headers=self._credential.headers(),
                ssl=self._credential.tls() or True,
                protocols=(SUBPROTOCOL,),
                compress=0,
                max_msg_size=2 * FRAME_BYTES_MAX,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_WITHIN_S),
            )
        return WebSocketLink(socket, where.url, lambda: self._failover.tell(where, Outcome.UNKNOWN, loop.time()))

    async def close(self) -> None:
        """Close the client and whatever connection is left."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


def _ended(code: int | None) -> str:
    """Say what the end of a connection means, by its WebSocket close code."""
    if code is None:
        return "the connection broke"
    return _NOT_ALLOWED.get(code - 4000, f"the connection was closed ({code})")


def _refuses(error: aiohttp.WSServerHandshakeError) -> bool:
    """Say whether a bridge wants no session with us, as an equal one would not."""
    kind = "" if error.headers is None else error.headers.get("Content-Type", "")
    return error.status in _NOT_ALLOWED and kind.startswith(_REFUSAL)


def _unwelcome(error: aiohttp.WSServerHandshakeError) -> str:
    """Say what an answer means that opens no session: a bridge refuses in its own words, and a proxy waits for one."""
    kind = "" if error.headers is None else error.headers.get("Content-Type", "")
    if _refuses(error):
        said = None if error.headers is None else _described(error.headers.get("WWW-Authenticate", ""))
        return f"no session: {said[1] if said else _NOT_ALLOWED[error.status]}"
    if kind.startswith(_REFUSAL):
        return f"no session: the bridge answers {error.status}"
    if error.status in _BETWEEN:
        return f"no session: it answers {error.status}, as a proxy does while its bridge is away"
    return f"what answers there is no bridge: it answers {error.status}, and not as one does; is the address right?"
