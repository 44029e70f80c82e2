"""A faster way through nats-py for plain messages. Imports nats: itself imported only to connect.

The library brings each message by four expressions, two coroutines, a queue and a task, which is most of what a
trigger costs. Here a message without headers for a subscription that is heard straight is cut out of what was read and
handed over; everything else is the library's. Nothing waits in between: a bridge that is behind reads later, and the
server's own bound on slow clients ends the connection, which is a gap like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

REST_MAX = 64 * 1024
"""Above this an unfinished message is the library's, which does not copy it anew with every read."""

Take = Callable[[bytes, bytes, bytes], None]
"""Subject, reply and payload; must not raise."""


class Reading(Parser):
    """nats-py's parser, with a short cut."""

    def __init__(self, client: Client) -> None:
        self._straight: dict[bytes, Take] = {}
        self._rest = b""
        super().__init__(client)

    def reset(self) -> None:
        """Forget what was read in part."""
        self._rest = b""
        super().reset()

    def hear(self, subscription: Subscription, take: Take, taking: Callable[[Msg], None]) -> bool:
        """Hand the messages of a subscription that heard none yet to ``take``, or with headers to ``taking``.

        Says False, with nothing changed, if there were some: those wait in the library's queue, and must come first.
        """
        if subscription._received:
            return False
        subscription._pending_queue = _Straight(subscription, taking)
        self._straight[str(subscription._id).encode()] = take
        return True

    async def parse(self, data: bytes = b"") -> None:
        """Take what was read."""
        if not self.buf and self.state == AWAITING_CONTROL_LINE:
            if self._rest:
                data = self._rest + data
                self._rest = b""
            at, unfinished = self._cut(data)
            if at == len(data):
                return
            data = data[at:] if at else data
            if unfinished and len(data) < REST_MAX:
                self._rest = data
                return
        await super().parse(data)
        if self.buf and self.state == AWAITING_CONTROL_LINE:
            # The beginning of a line; left there, all that follows would go the long way.
            self._rest = bytes(self.buf)
            self.buf.clear()

    def _cut(self, data: bytes) -> tuple[int, bool]:
        """Hand over what is plain; return where that ended, and whether what follows only lacks its end."""
        straight, find, size = self._straight, data.find, len(data)
        at = heard = length = 0
        unfinished = False
        while data.startswith(b"MSG ", at):
            end = find(b"\r\n", at)
            if end < 0:
                unfinished = True
                break
            words = data[at + 4 : end].split(b" ")
            take = straight.get(words[1]) if 3 <= len(words) <= 4 else None
            if take is None or not words[-1].isdigit():
                break
            start = end + 2
            stop = start + int(words[-1])
            if stop + 2 > size:
                unfinished = True
                break
            take(words[0], words[2] if len(words) == 4 else b"", data[start:stop])
            at = stop + 2
            heard += 1
            length += stop - start
        if heard:
            stats = self.nc.stats
            stats["in_msgs"] += heard
            stats["in_bytes"] += length
        return at, unfinished


class _Straight(asyncio.Queue[Any]):
    """The queue of a subscription that is heard straight: nothing ever waits in it."""

    def __init__(self, subscription: Subscription, taking: Callable[[Msg], None]) -> None:
        super().__init__()
        self._subscription = subscription
        self._taking = taking

    def put_nowait(self, item: Msg) -> None:
        self._subscription._pending_size -= len(item.data)
        self._taking(item)
