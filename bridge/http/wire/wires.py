"""The wires of one web server: ``GET /v1/sessions``, subprotocol ``queuebell.v2``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from bridge.access.grants import Principal, Verb
from bridge.contract.calls import CALL_BYTES_MAX, CARRIES, HEAD_BYTES_MAX, WINDOW
from bridge.contract.errors import BadInput
from bridge.contract.wire import SUBPROTOCOL, Ready
from bridge.http.api.ingress import refuse_while_draining
from bridge.http.server.authorizer import Authorizer
from bridge.http.wire.wire import CLOSE_TIMEOUT_S, Wire
from bridge.queues.aiohttp_private.server import Socket
from bridge.service.channels.base import OVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.web import BaseRequest, Request, StreamResponse

    from bridge.access.access_watch import End, Permit
    from bridge.access.keys import Identity
    from bridge.http.api.routes import Routes
    from bridge.http.server.answer import Answer
    from bridge.http.server.connection import Connection
    from bridge.service.bridge import Bridge

# aiohttp closes at messages of this size and more; a call or frame that is somewhat too large gets an answer instead.
_MESSAGE_MAX: Final = 4 * CALL_BYTES_MAX + HEAD_BYTES_MAX


class Wires:
    """The wires that are open, and what they share; ``refused`` makes the answer that tells an error."""

    def __init__(
        self, bridge: Bridge, routes: Routes, authorizer: Authorizer, refused: Callable[[Exception], Answer]
    ) -> None:
        self.bridge = bridge
        self.routes = routes
        self.refused = refused
        self.open: set[Wire] = set()
        self._authorizer = authorizer
        self._ready = Ready(WINDOW, bridge.named_boot, [CARRIES])

    def add_to(self, routes: Routes) -> None:
        """Put the route into the table; it asks for no grant itself, since every call and session does."""
        routes.add("GET", "/v1/sessions", None, self.serve)

    async def serve(self, request: BaseRequest, _: str) -> StreamResponse:
        """Serve one wire until it ends.

        Raises `BadInput` (``bad_parameter``) if this is no WebSocket handshake that offers ``queuebell.v2``, and
        (``draining``) while the bridge stops.
        """
        refuse_while_draining(self.bridge)
        if (waits := self._authorizer.admit(request, None, "")) is not None:
            await waits
        offered = [part.strip() for part in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        ws = Socket(
            protocols=(SUBPROTOCOL,), compress=False, max_msg_size=_MESSAGE_MAX, timeout=CLOSE_TIMEOUT_S, autoping=False
        )
        # Our requests are aiohttp's base class, which is all that its WebSockets use.
        handshake = cast("Request", request)
        if SUBPROTOCOL not in offered or not ws.can_prepare(handshake).ok:
            older = ": this client is of an older version; upgrade it" if "queuebell.v1" in offered else ""
            raise BadInput("bad_parameter", f"a WebSocket handshake must offer the subprotocol {SUBPROTOCOL}{older}")
        await ws.prepare(handshake)
        # Not asked for its class: uvloop's is no asyncio.Transport, and every session ended at once.
        transport = request.transport
        if transport is None:
            # The peer was gone before it began.
            return ws
        wire = Wire(self, ws, transport, cast("Connection", request.protocol), request.remote or "")
        self.open.add(wire)
        wire.permit = self._authorizer.permit(
            request, None, lambda name: wire.close(OVER[name].close_code, OVER[name].why)
        )
        try:
            wire.send(self._ready)
            await wire.read()
        finally:
            self.open.discard(wire)
            await wire.closed()
        return ws

    def stop(self) -> None:
        """Have every wire answer the calls that have come, take no more, and close."""
        for wire in list(self.open):
            wire.go_away()

    # For the wires

    def void(self, identity: Identity) -> bool:
        """Say whether what proved somebody to be somebody has expired."""
        access = self._authorizer.access
        return access is not None and access.wall() >= identity.until

    def connect(self, principal: Principal) -> Callable[[], None] | None:
        """Count a session of its holder; returns what ends it. Raises `PastLimit`."""
        access = self._authorizer.access
        return None if access is None else access.connect(principal)

    def permit(self, identity: Identity, end: End) -> Permit | None:
        """Return what a session has, which ends with the grant to take."""
        access = self._authorizer.access
        return None if access is None else access.permit(identity, Verb.TAKE, end)
