"""Sessions over the wire to a bridge: ``GET {bridge}/v1/sessions``, subprotocol ``queuebell.v2``, JSON text frames.

Of several equal bridges it uses one at a time: the first that accepts a session, and the next when that has ended.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import Callable

from queuebell.bridge.brokers.credential import ApiKey, Credential
from queuebell.bridge.brokers.wire import NotSent, NoWire, Wire, WireUser
from queuebell.bridge.contract.address import HttpAddress, http_addresses, in_one_text
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import ChannelLost, ChannelRefused
from queuebell.bridge.contract.failover import TRY_S, Failover, Outcome, retry_after_s
from queuebell.bridge.contract.wire import SUBPROTOCOL, DownFrame, UpFrame, Wake
from queuebell.listeners.session.channel import Link

CONNECT_WITHIN_S = 5.0
_REFUSAL = "application/problem+json"
_NOT_ALLOWED = {
    401: "the bridge knows no such key, or none was given (api_key, QUEUEBELL_API_KEY, QUEUEBELL_API_KEY_FILE)",
    403: "the key does not grant 'take' on the queues of this listener",
    421: "the bridge is not known by that name; its --allowed-hosts names further ones",
}
_CODES = {401: "unauthenticated", 403: "forbidden", 421: "unknown_host"}
_described = re.compile(r'error_description="([ !#-\[\]-~]{1,500})"').search
_BETWEEN = (408, 429, 500, 502, 503, 504)
"""What a proxy answers for a bridge that is away or busy."""


class WebSocketLink:
    """One session. ``where`` is its bridge; ``gone`` is called once, when a new session needs another link."""

    def __init__(self, where: str, gone: Callable[[], object]) -> None:
        self.wire: Wire | None = None
        self._where = where
        self._gone: Callable[[], object] | None = gone
        self._inbox: deque[DownFrame] = deque()
        self._ended: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._hear_wake: Callable[[Wake], None] | None = None

    def __str__(self) -> str:
        return self._where

    def send(self, frame: UpFrame) -> None:
        """Send one frame; after a break it is dropped."""
        if self.wire is not None and self._ended is None:
            self.wire.send(frame)

    def hand_over(self, hear: Callable[[Wake], None]) -> None:
        """Pass wakes to ``hear`` as they are read."""
        self._hear_wake = hear

    def on_frame(self, frame: DownFrame) -> None:
        """Accept one frame of the bridge."""
        if self._hear_wake is not None and not self._inbox and type(frame) is Wake and self._ended is None:
            self._hear_wake(frame)
            return
        self._inbox.append(frame)
        self._wake()

    def on_end(self, code: int | None, why: str) -> None:
        """Record that the session, or its wire, has ended."""
        if self._ended is None:
            self._ended = why if code is None and why else _ended(code)
        self._wake()

    async def receive(self) -> DownFrame:
        """Wait for the next frame of a type this version knows. Raises `ChannelLost` once the session is over."""
        while not self._inbox:
            if self._ended is not None:
                raise ChannelLost(self._ended)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._inbox.popleft()

    async def close(self) -> None:
        """End the session; what was handed over was written. The wire goes on."""
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()
        if self._ended is None:
            self._ended = "the session was closed"
            if self.wire is not None:
                self.wire.detach(self)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class WebSocketChannel:
    """A way to a bridge by its HTTP URL, or to any of several. Raises `ConfigurationError` for a URL that is none."""

    def __init__(self, url: str, *, api_key: ApiKey = None, draw: Draw = random.random) -> None:
        addresses = http_addresses(url, "bridge")
        self._where = in_one_text(addresses)
        self._wires = WireUser(Credential.of(addresses, api_key))
        self._failover = Failover(addresses, draw)
        self._within_s = TRY_S if len(addresses) > 1 else CONNECT_WITHIN_S

    def __str__(self) -> str:
        return self._where

    async def connect(self) -> Link:
        """Open a session. Raises `ChannelLost` when none can be made within 5 s, or not with a bridge.

        Several are tried in turn, 2 s each. A rejection ends the round, and the next round starts at the next bridge.
        """
        loop = asyncio.get_running_loop()
        reasons: list[str] = []
        refused = ""
        for where in self._failover.round(loop.time()):
            outcome, retry_after = Outcome.UNKNOWN, None
            link = WebSocketLink(where.url, self._lost(where))
            try:
                link.wire = await self._wires.open_session(where, link, self._within_s)
            except NoWire as error:
                outcome = Outcome.REFUSED if _refuses(error) else Outcome.NOT_DONE
                refused = _CODES.get(error.status, "") if outcome is Outcome.REFUSED else refused
                retry_after = retry_after_s(error.headers.get("retry-after"))
                reasons.append(_rejection(error))
            except NotSent as error:
                reasons.append(f"no session: {error}")
            except asyncio.CancelledError:
                self._failover.record(where, Outcome.UNKNOWN, loop.time())
                raise
            else:
                self._failover.record(where, Outcome.ANSWERED, loop.time())
                return link
            if self._failover.several:
                reasons[-1] += f" ({where.url})"
            if not self._failover.record(where, outcome, loop.time(), repeatable=True, retry_after=retry_after):
                break
        if refused:
            raise ChannelRefused(refused, "; ".join(reasons))
        raise ChannelLost("; ".join(reasons))

    def _lost(self, where: HttpAddress) -> Callable[[], object]:
        now = asyncio.get_running_loop().time
        return lambda: self._failover.record(where, Outcome.UNKNOWN, now())

    async def close(self) -> None:
        """Release the wires, which close once unused."""
        await self._wires.close()


def _ended(code: int | None) -> str:
    """Return what the end of a connection means, by its WebSocket close code."""
    if code is None:
        return "the connection broke"
    return _NOT_ALLOWED.get(code - 4000, f"the connection was closed ({code})")


def _refuses(error: NoWire) -> bool:
    """Return whether a bridge rejects this worker, as an equal one would too."""
    return error.status in _NOT_ALLOWED and error.headers.get("content-type", "").startswith(_REFUSAL)


def _rejection(error: NoWire) -> str:
    """Return what an answer means that opens no wire: a rejection by the bridge, or by a proxy without a bridge."""
    if _refuses(error):
        said = _described(error.headers.get("www-authenticate", ""))
        return f"no session: {said[1] if said else _NOT_ALLOWED[error.status]}"
    if error.headers.get("content-type", "").startswith(_REFUSAL):
        if error.status == 400:
            return f"no session: the bridge is of another version, which does not speak {SUBPROTOCOL}; upgrade it"
        return f"no session: the bridge answers {error.status}"
    if error.status in _BETWEEN:
        return f"no session: it answers {error.status}, as a proxy does while its bridge is away"
    if not error.status:
        return f"no session: {error}"
    return f"no bridge answers at this address: the answer is {error.status}, and not a bridge's. Check the address"
