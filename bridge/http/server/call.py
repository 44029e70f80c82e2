"""A call over a WebSocket, with the part of aiohttp's request interface that the routes use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

from aiohttp import hdrs
from multidict import CIMultiDict

from queuebell.bridge.contract.calls import CallFrame, settles

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from queuebell.bridge.access.keys import Identity


class Carrier(Protocol):
    """The wire that a call came over (`queuebell.bridge.http.wire.Wire`)."""

    address: str

    def identity(self) -> Identity | None:
        """Return the holder of its key, None once that is no longer valid."""
        ...


class Call:
    """One call, complete on arrival, sent by the holder of the wire's key."""

    __slots__ = ("_kept", "content", "headers", "method", "n", "protocol", "raw_path", "settles")

    def __init__(self, wire: Carrier, frame: CallFrame) -> None:
        self.n = frame.n
        self.method = frame.method
        self.raw_path = frame.target
        self.content = Whole(frame.body)
        self.headers = CIMultiDict({hdrs.CONTENT_TYPE: frame.media, hdrs.CONTENT_LENGTH: str(len(frame.body))})
        self.protocol = wire
        self.settles = settles(frame.method, frame.target)
        """Whether it settles messages: then neither rates nor the window apply."""
        self._kept: dict[Any, Any] = {}

    @property
    def body_exists(self) -> bool:
        """Whether there is a body."""
        return self.content.size > 0

    @property
    def remote(self) -> str:
        """The client's address."""
        return self.protocol.address

    @property
    def identity(self) -> Identity | None:
        """The holder of the wire's key, None once that is no longer valid."""
        return self.protocol.identity()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return what was stored with the call."""
        return self._kept.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __getitem__(self, key: Any) -> Any:
        return self._kept[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._kept[key] = value


class Whole:
    """A body that has arrived."""

    __slots__ = ("_body", "size")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.size = len(body)

    def is_eof(self) -> bool:
        """Return True: it is complete."""
        return True

    def read_nowait(self) -> bytes:
        """Return the body."""
        return self._body


Caller: TypeAlias = Union["BaseRequest", Call]
"""A request over HTTP, or a call over a wire."""
