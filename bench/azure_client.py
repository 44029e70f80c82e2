"""A raw client of the Azure Queue REST interface: requests signed and written as bytes before the clock starts.

Blocking sockets and one epoll, one request under way on each connection, and no more read of an answer than its status
and where it ends. ``python -m bench.azure_client`` (bench.role); ``python -m bench.azure_client canned`` is a server
that answers without looking, to see what the client itself can do.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Final
from urllib.parse import quote, urlsplit

from bench.role import Deed, obey
from queuebell.bridge.http.azure.accounts import EMULATOR_ACCOUNT, EMULATOR_KEY

VERSION: Final = "2024-08-04"
QUEUE: Final = "bench"
TEXT: Final = f"{1:0100d}"
DOCUMENT: Final = f"<QueueMessage><MessageText>{TEXT}</MessageText></QueueMessage>".encode()
LEASE_S: Final = 3600
SILENCE_S: Final = 60
CANNED: Final = b"HTTP/1.1 201 Created\r\nContent-Type: application/xml\r\nContent-Length: 400\r\n\r\n" + b"x" * 400

_length = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search
_found = re.compile(rb"<MessageId>([^<]+)</MessageId>.*?<PopReceipt>([^<]+)</PopReceipt>", re.DOTALL).search
_key = base64.b64decode(EMULATOR_KEY)
_taken: list[tuple[str, str]] = []


def signed(netloc: str, method: str, path: str, query: dict[str, str], body: bytes = b"") -> bytes:
    """Return a request as it goes over the wire, under Shared Key; its date is now, and serves for 15 minutes."""
    path = f"/{EMULATOR_ACCOUNT}/{QUEUE}{path}"
    length, media = (str(len(body)), "application/xml") if body else ("", "")
    ours = f"x-ms-date:{formatdate(usegmt=True)}\nx-ms-version:{VERSION}\n"
    resource = f"/{EMULATOR_ACCOUNT}{path}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    text = f"{method}\n\n\n{length}\n\n{media}\n\n\n\n\n\n\n{ours}{resource}"
    signature = base64.b64encode(hmac.digest(_key, text.encode(), hashlib.sha256)).decode()
    target = path + ("?" if query else "") + "&".join(f"{name}={quote(query[name], safe='')}" for name in query)
    lines = [f"{method} {target} HTTP/1.1", f"Host: {netloc}", *ours.replace(":", ": ", 1).split("\n")[:1]]
    lines += [f"x-ms-version: {VERSION}", f"Authorization: SharedKey {EMULATOR_ACCOUNT}:{signature}"]
    if body:
        lines += [f"Content-Type: {media}", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def whole(data: bytes) -> bool:
    """Say whether an answer has come to its end."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return False
    if data[9:12] == b"204":
        return True
    length = _length(data, 0, head + 2)
    if length is not None:
        return len(data) >= head + 4 + int(length[1])
    return data.endswith(b"\r\n0\r\n\r\n")


def drive(url: str, requests: list[bytes], connections: int, status: int) -> tuple[dict[str, float], list[bytes]]:
    """Send all requests, one at a time on each connection; return the seconds, those on the processor, and the answers.

    Raises `RuntimeError` at the first answer of another status, and where none comes for a minute.
    """
    where = urlsplit(url)
    wanted = b"%d" % status
    answers: list[bytes] = []
    left = iter(requests)
    partial: dict[int, bytes] = {}
    poll = select.epoll()
    wires = {}
    for _ in range(connections):
        wire = socket.create_connection((str(where.hostname), where.port or 80), timeout=SILENCE_S)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wires[wire.fileno()] = (wire.recv, wire.sendall, wire)
        poll.register(wire, select.EPOLLIN)
        _warm(wire, str(where.netloc))
    begun, cpu = time.perf_counter(), time.process_time()
    try:
        for _, send, _ in wires.values():
            if request := next(left, None):
                send(request)
        while len(answers) < len(requests):
            events = poll.poll(SILENCE_S)
            if not events:
                raise RuntimeError(f"no answer for {SILENCE_S} s")
            for number, _ in events:
                receive, send, _ = wires[number]
                piece = receive(65536)
                data = partial.pop(number, b"") + piece
                if not whole(data):
                    if not piece:
                        raise RuntimeError("the connection was closed before the answer")
                    partial[number] = data
                    continue
                if data[9:12] != wanted:
                    raise RuntimeError(f"an answer was wrong: {data[:500]!r}")
                answers.append(data)
                if request := next(left, None):
                    send(request)
        taken, used = time.perf_counter() - begun, time.process_time() - cpu
    finally:
        for _, _, wire in wires.values():
            wire.close()
        poll.close()
    return {"requests": len(requests), "seconds": taken, "cpu": used}, answers


def _warm(wire: socket.socket, netloc: str) -> None:
    """Use a new connection once: what its making costs the server is no part of a rate."""
    wire.sendall(signed(netloc, "GET", "", {"comp": "metadata"}))
    data = b""
    while not whole(data):
        piece = wire.recv(65536)
        if not piece:
            raise RuntimeError("a new connection was closed")
        data += piece


async def create(url: str) -> None:
    """Make the queue."""
    drive(url, [signed(urlsplit(url).netloc, "PUT", "", {})], 1, 201)


async def put(url: str, count: int, connections: int) -> dict[str, float]:
    """Put messages."""
    return drive(url, [signed(urlsplit(url).netloc, "POST", "/messages", {}, DOCUMENT)] * count, connections, 201)[0]


async def get(url: str, count: int, connections: int) -> dict[str, float]:
    """Take messages one by one, and remember their ids and receipts; they must all be there."""
    query = {"numofmessages": "1", "visibilitytimeout": str(LEASE_S)}
    result, answers = drive(url, [signed(urlsplit(url).netloc, "GET", "/messages", query)] * count, connections, 200)
    for answer in answers:
        found = _found(answer)
        if found is None or TEXT.encode() not in answer:
            raise RuntimeError(f"a get brought nothing: {answer[:500]!r}")
        _taken.append((found[1].decode(), found[2].decode()))
    return result


async def delete(url: str, count: int, connections: int) -> dict[str, float]:
    """Delete what was taken."""
    netloc = urlsplit(url).netloc
    requests = [signed(netloc, "DELETE", f"/messages/{id_}", {"popreceipt": receipt}) for id_, receipt in _taken]
    _taken.clear()
    assert len(requests) == count
    return drive(url, requests, connections, 204)[0]


async def empty(url: str, count: int, connections: int) -> dict[str, float]:
    """Ask a queue that has nothing."""
    result, answers = drive(url, [signed(urlsplit(url).netloc, "GET", "/messages", {})] * count, connections, 200)
    if any(b"<MessageId>" in answer for answer in answers):
        raise RuntimeError("the queue was not empty")
    return result


async def ceiling(url: str, count: int, connections: int) -> dict[str, float]:
    """Ask the canned server."""
    return drive(url, [signed(urlsplit(url).netloc, "POST", "/messages", {}, DOCUMENT)] * count, connections, 201)[0]


async def sdk(url: str, count: int) -> float:
    """Put, take and delete through the unchanged Python SDK, one call after the other; return calls a second."""
    from azure.storage.queue import QueueClient

    account = f"AccountName={EMULATOR_ACCOUNT};AccountKey={EMULATOR_KEY}"
    text = f"DefaultEndpointsProtocol=http;{account};QueueEndpoint={url}/{EMULATOR_ACCOUNT};"
    with QueueClient.from_connection_string(text, QUEUE, api_version="2024-08-04") as client:
        client.get_queue_properties()
        begun = time.perf_counter()
        for _ in range(count):
            client.send_message(TEXT)
            message = client.receive_message(visibility_timeout=LEASE_S)
            assert message is not None
            client.delete_message(message)
        return 3 * count / (time.perf_counter() - begun)


@contextlib.contextmanager
def canned() -> Iterator[str]:
    """Answer whatever comes with the same bytes, as a put is answered; yields the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    wires: dict[int, socket.socket] = {}

    def serve() -> None:
        while True:
            for number, _ in poll.poll():
                if number == listener.fileno():
                    wire, _ = listener.accept()
                    wires[wire.fileno()] = wire
                    poll.register(wire, select.EPOLLIN)
                elif wires[number].recv(65536):
                    wires[number].sendall(CANNED)
                else:
                    wires.pop(number).close()

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def main() -> None:
    """Do what is asked for."""
    if sys.argv[1:] == ["canned"]:
        with canned() as url:
            await obey({}, url=url)
    else:
        deeds: dict[str, Deed] = {"create": create, "put": put, "get": get, "delete": delete, "empty": empty}
        deeds |= {"ceiling": ceiling, "sdk": sdk}
        await obey(deeds)


if __name__ == "__main__":
    asyncio.run(main())
