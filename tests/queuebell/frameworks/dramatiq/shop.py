"""The actors of the tests, for workers of Dramatiq's own command; each writes a line into a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import dramatiq

from queuebell.frameworks.dramatiq import QueuebellBroker

FOLDER = Path(os.environ["FOLDER"])

LEASE_S = 6
"""Shorter than what `hold` is asked for; longer than a busy machine may stop a worker."""
broker: Any = QueuebellBroker(os.environ["STORE"], bridge=os.environ["BRIDGE"], visibility_timeout=LEASE_S)
dramatiq.set_broker(broker)


def write(*words: object) -> None:
    """Add a line to the file, in one write."""
    with (FOLDER / "lines").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


@dramatiq.actor
def add(x: int, y: int) -> None:
    """Add, as all do."""
    write("add", x + y)


@dramatiq.actor(time_limit=60_000)
def hold(name: str, seconds: float) -> None:
    """Take longer than the lease."""
    write("begins", name)
    threading.Event().wait(seconds)
    write("ends", name)


@dramatiq.actor(max_retries=1, min_backoff=100)
def fails() -> None:
    """Fail at each attempt."""
    write("fails")
    raise ValueError("no price")
