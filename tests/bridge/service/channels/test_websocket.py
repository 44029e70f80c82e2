"""What a session over WebSocket may be sent that it should not (S6 to S8, S14): it ends with a code, and no other."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import zlib
from typing import Any

import pytest

from bridge.contract.wire import FRAME_BYTES_MAX, SUBSCRIPTIONS_MAX, Hello, Subscription, encode_frame
from tests.support.web import Client, Reply, Served, request, serving

TEXT, BINARY, CLOSE = 1, 2, 8
FINAL, COMPRESSED, MASKED = 0x80, 0x40, 0x80
HELLO = encode_frame(Hello("a" * 32, "one", [Subscription("a/x", 4)]))
MANY = encode_frame(Hello("a" * 32, "one", [Subscription(f"a/{n}", 1) for n in range(SUBSCRIPTIONS_MAX + 1)]))


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
        "Sec_WebSocket_Protocol": "queuebell.v1",
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


@pytest.mark.parametrize("welcomed", [False, True])
@pytest.mark.parametrize(
    ("data", "close", "code"),
    [
        (frame(HELLO, FINAL | BINARY), 1003, None),
        (frame(b'{"type":"\xff"}'), 1007, None),
        (frame(b"x" * (FRAME_BYTES_MAX + 1)), 1009, None),
        (frame(b"{")[:2] + struct.pack("!B", 0), None, None),
        (frame(HELLO, FINAL | COMPRESSED | TEXT), 1002, None),
        (frame(zlib.compress(b" " * 10_000_000)[2:-4], FINAL | COMPRESSED | TEXT), 1002, None),
        (frame(HELLO, FINAL | 3), 1002, None),
        (frame(b"{"), 1008, "bad_json"),
        (frame(b"[" * 5000), 1008, "bad_json"),
        (frame(b"5"), 1008, "bad_parameter"),
        (frame(b'{"type":"hello"}'), 1008, "bad_parameter"),
        (frame(HELLO.replace(b"a/x", b"a/*")), 1008, "bad_queue_reference"),
        (frame(HELLO.replace(b"a/x", b"a/x\\n")), 1008, "bad_queue_reference"),
        (frame(MANY), 1008, "too_many_items"),
    ],
    ids=["binary", "no UTF-8", "too large", "cut off", "compressed", "a bomb", "opcode", "no JSON", "nested",
         "no object", "no hello", "a wildcard", "a line break", "too many queues"],
)  # fmt: skip
async def test_what_no_session_may_be_sent(data: bytes, close: int | None, code: str | None, welcomed: bool) -> None:
    """It is closed with the code of its fault, in words where there are any, and is gone; another one goes on."""
    async with serving() as served, served.client() as other, served.client() as client:
        for each in (other, client):
            assert (await shaken(each)).status == 101
        await other.send(frame(encode_frame(Hello("b" * 32, "other", [Subscription("a/y", 4)]))))
        if welcomed:
            await client.send(frame(HELLO))
        await client.send(data)
        if close is None:
            client.writer.write_eof()
        frames, closed = await heard(client)
        assert closed == close or (close is None and closed == 1002), frames
        assert [each["code"] for each in frames if each["type"] == "error"] == ([] if code is None else [code])
        assert welcomed or "welcome" not in [each["type"] for each in frames]
        async with asyncio.timeout(100):
            while [row.listener for row in served.bridge.listeners()] != ["other"]:
                await asyncio.sleep(0)


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
        assert frames[0]["type"] == "welcome"
        assert code is not None and code != 1002
