"""A small change to how nats-py greets a server. Imports nats: itself imported only to connect."""

from __future__ import annotations

from nats.aio.transport import TcpTransport


class Together(TcpTransport):
    """Sends CONNECT together with the PING that follows it.

    Sent apart, the PING often meets a server that has refused the user and hung up: its reset then takes back the
    server's reason before it is read, and a wrong password looks like a broken network.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held = b""

    def write(self, payload: bytes) -> None:
        """Hold a CONNECT back until the next write."""
        if payload.startswith(b"CONNECT "):
            self._held = payload
            return
        held, self._held = self._held, b""
        super().write(held + payload)  # type: ignore[no-untyped-call]

    def __bool__(self) -> bool:
        """Be there before the connection is: the library would put its own transport in the place of a false one."""
        return True
