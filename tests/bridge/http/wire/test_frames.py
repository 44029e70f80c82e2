"""Frames of a WebSocket as bytes: with masks, in pieces, of every size (RFC 6455 5.2)."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pytest

from bridge.contract.wire import Hello, Subscription, encode_frame
from bridge.http.wire import ws_frame
from tests.support.web import Client, Reply, Served, request

TEXT, BINARY, CLOSE = 1, 2, 8
FINAL, COMPRESSED, MASKED = 0x80, 0x40, 0x80
HELLO = encode_frame(Hello("a" * 32, "one", [Subscription("a/x", 4)]))


def frame(payload: bytes, first: int = FINAL | TEXT) -> bytes:
    """One frame as a client sends it (RFC 6455 5.2); of a mask of zeros."""
    size = len(payload)
    length = bytes((MASKED | size,)) if size < 126 else struct.pack("!BQ", MASKED | 127, size)
    return bytes((first,)) + length + bytes(4) + payload


async def shaken(client: Client, **more: str) -> Reply:
    """The answer to a handshake."""
    head: dict[str, Any] = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": base64.b64encode(b"k" * 16).decode(),
        "Sec_WebSocket_Protocol": "queuebell.v2",
    }
    await client.send(request("GET", "/v1/sessions", **{**head, **more}))
    return await client.reply(head_only=True)


async def heard(client: Client) -> tuple[list[dict[str, Any]], int | None]:
    """The frames of a session until its end, and the code that it was closed with."""
    frames: list[dict[str, Any]] = []
    async with asyncio.timeout(100):
        while True:
            try:
                first, length = await client.reader.readexactly(2)
                if length >= 126:
                    form = "!H" if length == 126 else "!Q"
                    (length,) = struct.unpack(form, await client.reader.readexactly(struct.calcsize(form)))
                payload = await client.reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return frames, None
            assert not first & COMPRESSED
            if first & 0x0F == CLOSE:
                return frames, struct.unpack("!H", payload[:2])[0]
            frames.append(json.loads(payload))


LONG = frame(json.dumps({"type": "of a time to come", "x": "y" * 300}).encode())


@pytest.mark.parametrize("step", [1, 5, 1 << 20])
async def test_frames_with_masks_pass_in_any_pieces(served: Served, step: int) -> None:
    """Of each length that a frame can announce."""
    async with served.client() as client:
        assert (await shaken(client)).status == 101
        short = json.dumps({"type": "of a time to come", "x": "y" * 200}).encode()
        middle = bytes((FINAL | TEXT, MASKED | 126)) + struct.pack("!H", len(short)) + bytes(4) + short
        sent = frame(HELLO) + middle + LONG + frame(b"") + frame(struct.pack("!H", 1000), FINAL | CLOSE)
        for place in range(0, len(sent), step):
            await client.send(sent[place : place + step])
        frames, code = await heard(client)
        kinds = [each["type"] for each in frames if each["type"] != "wake"]
        assert kinds == ["ready", "welcome", "error", "ended"]
        assert code == 1000


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65535, b"\x81\x7e\xff\xff"),
        (65536, b"\x81\x7f" + struct.pack("!Q", 65536)),
    ],
)
def test_a_frame_names_its_size_in_the_shortest_form(size: int, head: bytes) -> None:
    """RFC 6455 5.2: in 7, 16 or 64 bits."""
    assert ws_frame(b"x" * size) == head + b"x" * size
