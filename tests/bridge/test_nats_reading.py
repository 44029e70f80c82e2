"""The short cut through nats-py's parser: the same messages in the same order, however what was read is sliced."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ProtocolError

from bridge.brokers.nats_reading import REST_MAX, Reading

HEADERS = b"NATS/1.0\r\nname: value\r\n\r\n"
Heard = tuple[str, str, bytes]


class Ends:
    """A client that was never connected, with one subscription heard straight and one that is not."""

    def __init__(self) -> None:
        self.client = Client()
        self.reading = self.client._ps = Reading(self.client)
        self.heard: list[Heard] = []
        self.other: asyncio.Queue[Msg] = asyncio.Queue()
        self.straight = self._subscribe(1)
        self._subscribe(2)._pending_queue = self.other
        assert self.reading.hear(self.straight, self.take, self.taking)

    def _subscribe(self, number: int) -> Subscription:
        subscription = self.client._subs[number] = Subscription(self.client, number, "a.*")
        return subscription

    def take(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        self.heard.append((subject.decode(), reply.decode(), payload))

    def taking(self, msg: Msg) -> None:
        # What came in a piece with something of the library's came its long way, with headers or without.
        assert msg.headers == ({"name": "value"} if msg.subject == "a.h" else None)
        self.heard.append((msg.subject, msg.reply, msg.data))


def spoken() -> tuple[bytes, list[Heard]]:
    """Return what a server says, and what of it is heard straight."""
    bodies = [b"", b"x", b"MSG a.b 1 3\r\nx\r\n", b"\r\n", b"y" * 300]
    said, heard = b"", []
    for number, body in enumerate(bodies):
        said += b"MSG a.%d 1 %d\r\n%s\r\n" % (number, len(body), body)
        said += b"MSG a.x 2 2\r\nno\r\n+OK\r\n"
        said += b"MSG a.%d 1 to.me %d\r\n%s\r\n" % (number, len(body), body)
        said += b"HMSG a.h 1 %d %d\r\n%s%s\r\n" % (len(HEADERS), len(HEADERS) + len(body), HEADERS, body)
        heard += [(f"a.{number}", "", body), (f"a.{number}", "to.me", body), ("a.h", "", body)]
    return said, heard


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 13, 17, 64, 100, 255, 10_000])
async def test_every_slice(size: int) -> None:
    """However the bytes come, each message is heard once, in order, and the library's own stay with it."""
    ends = Ends()
    said, heard = spoken()
    for start in range(0, len(said), size):
        await ends.reading.parse(said[start : start + size])
    assert ends.heard == heard
    assert [ends.other.get_nowait().data for _ in range(ends.other.qsize())] == [b"no"] * 5
    assert ends.client.stats["in_msgs"] == len(heard) + 5
    assert ends.straight._pending_size == 0


@pytest.mark.asyncio
async def test_large() -> None:
    """A message larger than what is kept back is the library's, and comes in its turn."""
    ends, size = Ends(), 5 * REST_MAX
    said = b"MSG a.b 1 1\r\nx\r\nMSG a.b 1 %d\r\n%s\r\nMSG a.b 1 1\r\ny\r\n" % (size, b"z" * size)
    for start in range(0, len(said), 32_768):
        await ends.reading.parse(said[start : start + 32_768])
    assert [len(payload) for _, _, payload in ends.heard] == [1, size, 1]


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [b"MSG a.b 1 x\r\n", b"MSG a.b 1\r\n", b"nonsense\r\n"])
async def test_what_is_wrong(said: bytes) -> None:
    """What is no message is left to the library, which refuses it."""
    ends = Ends()
    with pytest.raises(ProtocolError):
        await ends.reading.parse(b"MSG a.b 1 1\r\nx\r\n" + said)
    assert len(ends.heard) == 1


@pytest.mark.asyncio
async def test_too_late() -> None:
    """A subscription that has heard something keeps the library's queue, where that may still wait."""
    ends = Ends()
    late = ends.client._subs[3] = Subscription(ends.client, 3, "a.*")
    await ends.reading.parse(b"MSG a.b 3 1\r\nx\r\n")
    assert not ends.reading.hear(late, ends.take, ends.taking)
    await ends.reading.parse(b"MSG a.b 3 1\r\ny\r\n")
    assert [late._pending_queue.get_nowait().data for _ in range(2)] == [b"x", b"y"]


@pytest.mark.asyncio
async def test_reset() -> None:
    """What was read in part of one connection is not the beginning of the next."""
    ends = Ends()
    await ends.reading.parse(b"MSG a.b 1 5\r\nx")
    ends.reading.reset()
    await ends.reading.parse(b"MSG a.b 1 1\r\ny\r\n")
    assert ends.heard == [("a.b", "", b"y")]
