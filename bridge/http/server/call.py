"""A call over a wire, as the routes see it: the same questions that they ask of an HTTP request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

from aiohttp import hdrs
from multidict import CIMultiDict

from bridge.contract.calls import CallFrame, settles

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from bridge.access.keys import Identity


class Carrier(Protocol):
    """The wire that a call came over (`bridge.http.wire.wire.Wire`)."""

    address: str

    def identity(self) -> Identity | None:
        """Return who holds its key, None once it is void."""
        ...


class Call:
    """One call: whole when it comes, and sent by the holder of the wire's key."""

    __slots__ = ("_kept", "content", "headers", "method", "n", "protocol", "raw_path", "settles")

    def __init__(self, wire: Carrier, frame: CallFrame) -> None:
        self.n = frame.n
        self.method = frame.method
        self.raw_path = frame.target
        self.content = Whole(frame.body)
        self.headers = CIMultiDict({hdrs.CONTENT_TYPE: frame.media, hdrs.CONTENT_LENGTH: str(len(frame.body))})
        self.protocol = wire
        self.settles = settles(frame.method, frame.target)
        """Whether it gives messages back: it has neither a rate nor a place in the window."""
        self._kept: dict[Any, Any] = {}

    @property
    def body_exists(self) -> bool:
        """Whether there is a body."""
        return self.content.size > 0

    @property
    def remote(self) -> str:
        """The address that the wire comes from."""
        return self.protocol.address

    @property
    def identity(self) -> Identity | None:
        """Who holds the key of the wire, None once it is void."""
        return self.protocol.identity()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return what was kept with the call."""
        return self._kept.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __getitem__(self, key: Any) -> Any:
        return self._kept[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._kept[key] = value


class Whole:
    """A body that has come."""

    __slots__ = ("_body", "size")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.size = len(body)

    def is_eof(self) -> bool:
        """Return True: all of it is there."""
        return True

    def read_nowait(self) -> bytes:
        """Return the body."""
        return self._body


Caller: TypeAlias = Union["BaseRequest", Call]
"""A request over HTTP, or a call over a wire."""
