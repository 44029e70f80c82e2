"""The worker of ``python -m bench scale``: it notes when each of its handlers begins and ends.

``python from_zero.py STORE QUEUE BRIDGE FILE SECONDS``, a handler taking so many seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from queuebell import Listener, Message, run

STORE, QUEUE, BRIDGE, FILE, SECONDS = sys.argv[1:]
notes = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(word: str, body: str) -> None:
    """Add a line at one stroke, whoever else writes to the file."""
    os.write(notes, f"{word} {body} {os.getpid()} {time.monotonic()}\n".encode())


async def handle(message: Message) -> None:
    """Take a while."""
    note("begins", message.text())
    await asyncio.sleep(float(SECONDS))
    note("ends", message.text())


run(Listener(STORE, QUEUE, handle, bridge=BRIDGE))
