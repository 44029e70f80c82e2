"""Listening sockets, where they are reached, and how many connections a process can bear."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import Callable

from bridge.http.server.accepting import Acceptor, Tls
from bridge.http.server.settings import WILDCARDS

BACKLOG = 1024
# The data file and its log, the loop's own, logs, a bus or two, and who is being turned away.
_OTHER_FILES = 32


async def listen(
    make: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    tls: Tls = None,
    *,
    handshakes: int = 1024,
    handshakes_per_address: int = 0,
) -> tuple[list[Acceptor], int]:
    """Listen on every address of ``host``, all on one port, and return that; ``make`` makes a connection's protocol.

    The limits are `Acceptor`'s. Raises `OSError` where an address or the port cannot be had: nothing listens then.
    """
    sockets = await bind(host, port)
    try:
        for sock in sockets:
            sock.listen(BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    limits = {"handshakes": handshakes, "handshakes_per_address": handshakes_per_address}
    return [Acceptor(sock, make, tls, **limits) for sock in sockets], sockets[0].getsockname()[1]


def local_url(scheme: str, host: str, port: int) -> str:
    """Return where a client on this machine reaches what listens there, without a trailing slash."""
    if host in WILDCARDS:
        host = "::1" if host == "::" else "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def bind(host: str, port: int) -> list[socket.socket]:
    """Bind every address of ``host``, all to one port also where ``port`` is 0."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in dict.fromkeys(found):
            # A second address of the same name takes the port that the first was given.
            where = (address[0], sockets[0].getsockname()[1] if sockets else port, *address[2:])
            try:
                sock = socket.socket(family, kind, proto)
            except OSError:
                # A machine that names an IPv6 address without speaking IPv6.
                continue
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind(where)
            except OSError as error:
                if len(sockets) > 1 and error.errno != errno.EADDRINUSE:
                    sockets.pop().close()
                    continue
                raise
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise OSError("no address to listen on")
    return sockets


def default_connections() -> int:
    """Return how many connections are borne at once where no setting says so: 80 % of the file descriptors (S12)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Unlimited is told as -1 on some systems; a fifth stays for the data file, buses and logs (S12), but enough.
    return 100_000 if soft <= 0 else max(16, min(soft * 4 // 5, soft - _OTHER_FILES))
