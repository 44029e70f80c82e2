"""A process of Queuebell's with a clock at each stage of a put: ``python -m bench.traced PROGRAM [ARGUMENT ...]``.

It is the bench that looks, by wrapping what the stages call; the product knows nothing of it. The times are kept in
memory and written to the file ``TRACE`` when the process ends, one JSON object a stage.
"""

from __future__ import annotations

import asyncio.selector_events
import atexit
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

Marks = list[tuple[str, int]]


def wrap(owner: Any, name: str, marks: Marks, mark: str, *, after: bool = False, only: Any = None) -> None:
    """Have a function note when it is called, or (``after``) when it has returned."""
    inner: Callable[..., Any] = getattr(owner, name)

    def around(*args: Any, **options: Any) -> Any:
        noted = only is None or only(*args)
        if noted and not after:
            marks.append((mark, time.monotonic_ns()))
        result = inner(*args, **options)
        if noted and after:
            marks.append((mark, time.monotonic_ns()))
        return result

    setattr(owner, name, around)


def service(marks: Marks) -> None:
    """The bridge's process: from a request's bytes to a wake's."""
    from queuebell.bridge.contract.wire import Wake
    from queuebell.bridge.http.api import queues
    from queuebell.bridge.http.server.connection import Connection
    from queuebell.bridge.http.wire import Wire
    from queuebell.bridge.queues.embedded.committer import Committer
    from queuebell.bridge.queues.embedded.sqlite import SqliteStore
    from queuebell.bridge.queues.embedded.state import State

    wrap(Connection, "data_received", marks, "bytes")
    wrap(queues, "messages_of", marks, "parsed", after=True)
    wrap(Committer, "run", marks, "taken")
    wrap(State, "flush", marks, "written", after=True)
    wrap(State, "commit", marks, "on the disk", after=True)
    wrap(SqliteStore, "_deliver", marks, "delivered")
    wrap(Wire, "send", marks, "wake made", only=lambda _, frame: isinstance(frame, Wake))


def worker(marks: Marks) -> None:
    """The listener's process: from a wake's bytes to the handler."""
    import bench.programs.sample
    from queuebell.bridge.brokers import wire

    wrap(wire, "decode_wire", marks, "wake heard")
    wrap(bench.programs.sample, "sample", marks, "handler")


def producer(marks: Marks) -> None:
    """The producer's process: from the call to the request's bytes."""
    from queuebell.bridge.queues.http.store import HttpStore

    wrap(HttpStore, "put", marks, "called")
    wrap(asyncio.selector_events._SelectorSocketTransport, "write", marks, "sent")  # type: ignore[attr-defined]


ROLES: Final = {"queuebell": service, "bench.programs.producer": producer}


def main() -> None:
    """Set the clocks, and run the program."""
    marks: Marks = []
    program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    ROLES.get(program, worker)(marks)
    atexit.register(_write, marks)
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def _write(marks: Marks) -> None:
    lines = (json.dumps(mark) + "\n" for mark in marks)
    Path(os.environ["TRACE"]).write_text("".join(lines), "ascii")


if __name__ == "__main__":
    main()
