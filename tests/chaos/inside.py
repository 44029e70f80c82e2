"""Starts a bridge, a scaler or a worker with a fault inside: ``inside.py FAULT ARGUMENT serve|scale|JSON ...``.

``exit MODULE:NAME/COUNT``    after SIGUSR1 the process ends, as by kill -9, on the COUNT-th call of that method
``clock SECONDS``             each SIGUSR1 sets the wall clock this far ahead, and further with the next
``tomorrow -``                every frame sent has a field that nobody knows, and comes after a frame of unknown type
``way FROM/TO``               who connects to port FROM is connected to port TO, by the same address
``disk BYTES``                files cannot grow past BYTES, as on a full disk, until SIGUSR1
``files COUNT``               no more than so many file descriptors can be had
"""

from __future__ import annotations

import functools
import importlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

# Private: `_Frame`: the frame class of the standard library's tracing types.


def on_signal(act: Callable[[], None]) -> None:
    """Have SIGUSR1 do something."""

    def hear(_: int, __: FrameType | None) -> None:
        act()

    signal.signal(signal.SIGUSR1, hear)


def failpoint(where: str) -> None:
    """End this process on a call of a method, once SIGUSR1 has armed it."""
    path, _, count = where.partition("/")
    module_name, _, names = path.partition(":")
    owner: Any = importlib.import_module(module_name)
    *outer, name = names.split(".")
    for part in outer:
        owner = getattr(owner, part)
    real = getattr(owner, name)
    left = -1

    def arm() -> None:
        nonlocal left
        left = int(count)

    @functools.wraps(real)
    def counting(*args: Any, **named: Any) -> Any:
        nonlocal left
        if left > 0:
            left -= 1
            if left == 0:
                os._exit(9)
        return real(*args, **named)

    setattr(owner, name, counting)
    on_signal(arm)


def wrong_clock(step_s: float) -> None:
    """Let the wall clock jump; the monotonic clock goes on as it did."""
    ahead = 0.0
    real, real_ns = time.time, time.time_ns

    def jump() -> None:
        nonlocal ahead
        ahead += step_s

    time.time = lambda: real() + ahead
    time.time_ns = lambda: real_ns() + int(ahead * 1e9)
    on_signal(jump)


def tomorrow() -> None:
    """Speak as a later version may."""
    from queuebell.bridge.brokers import wire as listeners
    from queuebell.bridge.contract import framing, wire
    from queuebell.bridge.http import wire as bridges

    def encode(frame: Any) -> bytes:
        # A key that nobody knows, with a value of a shape that no field has.
        return wire.encode_frame(frame)[:-1] + b',"of_tomorrow":{"list":[1,null,{"deep":true}]}}'

    for module in (bridges, framing, listeners):
        assert hasattr(module, "encode_frame"), module
        module.encode_frame = encode
    sends = (bridges.Wire, "send"), (listeners.Wire, "send")
    for owner, name in sends:
        _with_strangers(owner, name, wire)


def _with_strangers(owner: Any, name: str, wire: Any) -> None:
    """Send a frame of an unknown type before every real one."""
    real = getattr(owner, name)

    class Stranger(wire._Frame, frozen=True, tag="rumour_of_tomorrow"):
        """A frame type that nobody knows."""

        weight: float = 1.5

    def send(self: Any, frame: Any) -> None:
        # Nothing may come before a hello or a welcome.
        if not isinstance(frame, wire.Hello | wire.Welcome | wire.Ready):
            real(self, Stranger())
        real(self, frame)

    setattr(owner, name, send)


def other_way(ports: str) -> None:
    """Lead connections to one port to another: of equal addresses that several processes are given, one can be cut."""
    given, _, real = ports.partition("/")
    connect = socket.socket.connect

    def lead(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[1] == int(given):
            address = (address[0], int(real), *address[2:])
        connect(self, address)

    socket.socket.connect = lead  # type: ignore[method-assign]


def small_disk(size: int) -> None:
    """Limit the size of files: a write past it fails as one on a full disk does (Python ignores SIGXFSZ)."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    on_signal(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)))


def main(arguments: list[str]) -> None:
    """Plant the fault and become the program."""
    fault, argument, *rest = arguments
    if fault == "exit":
        failpoint(argument)
    elif fault == "clock":
        wrong_clock(float(argument))
    elif fault == "tomorrow":
        tomorrow()
    elif fault == "way":
        other_way(argument)
    elif fault == "disk":
        small_disk(int(argument))
    elif fault == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(argument), int(argument)))
    else:
        sys.exit(f"no such fault: {fault}")
    # A subcommand is told by its first word; a worker by its JSON.
    if rest[0] in ("serve", "scale"):
        from queuebell.command.main import main as queuebell

        sys.exit(queuebell(rest))
    from tests.chaos import worker

    worker.main(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
