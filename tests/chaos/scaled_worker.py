"""A worker that a scaler starts: writes what it does to a file of all, and dies at a step that a marker names.

``scaled_worker.py FOLDER STORE BRIDGE QUEUE VISIBILITY``. A file ``die-STEP`` in the folder is taken by the first that
comes to that step, which kills itself with -9. While there is a file ``hold`` handlers of a first attempt wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from queuebell.bridge.contract.backoff import RandomExponential
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.listeners import Listener, Message
from queuebell.listeners.session.session import Session

STEPS = ("begin", "hello", "receive", "handle", "delete", "deleted")


class Work:
    """What one process does; its events are lines of ``FOLDER/events``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # One write for each line: it is whole or not there, whoever is killed. A pipe would end with its scaler.
        self._events = os.open(folder / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, event: str, **what: Any) -> None:
        """Write one event."""
        line = {"event": event, "at": time.monotonic(), "pid": os.getpid(), **what}
        os.write(self._events, json.dumps(line).encode() + b"\n")

    def reach(self, step: str) -> None:
        """Die here, if that is what is to come."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / f"die-{step}").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: type, name: str, before: str = "", after: str = "") -> None:
        """Have these steps stand before and after a method of the library."""
        real = getattr(owner, name)

        @functools.wraps(real)
        async def calls(*args: Any, **named: Any) -> Any:
            self.reach(before)
            try:
                return await real(*args, **named)
            finally:
                self.reach(after)

        setattr(owner, name, calls)

    async def handle(self, message: Message) -> None:
        """Handle one message."""
        self.say("start", body=message.text())
        self.reach("handle")
        while message.attempt == 1 and (self._folder / "hold").exists():
            await asyncio.sleep(0.02)
        self.say("done", body=message.text())


async def main(folder: str, store: str, bridge: str, queue: str, visibility: str) -> None:
    """Run a listener until SIGTERM."""
    work = Work(Path(folder))
    work.say("up")
    work.reach("begin")
    work.watch(Session, "_serve", before="hello")
    work.watch(HttpStore, "receive", before="receive")
    work.watch(HttpStore, "settle", before="delete", after="deleted")
    await Listener(
        store,
        queue,
        work.handle,
        bridge=bridge,
        concurrency=4,
        visibility_timeout=float(visibility),
        max_attempts=0,
        grace=1.0,
        backoff=RandomExponential(0.1, 3.0, 0.1),
        handle_signals=True,
    ).run()
    work.say("stopped")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
