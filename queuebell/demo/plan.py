"""What the demo is asked to play."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import msgspec

WORKER_COMMAND: Final = (sys.executable, "-m", "queuebell.demo.worker")


class Plan(msgspec.Struct, frozen=True):
    """What to play; ``sources`` (relative to the standard library) of None are all it has, or ``files`` of them.

    A burst is followed by ``quiet_s`` seconds of quiet; ``keep`` leaves the bridge's data and the logs where they are.
    ``auth`` has the bridge ask everybody for a key.
    """

    workers: int = 4
    bursts: int = 3
    quiet_s: float = 1.2
    files: int | None = None
    sources: Sequence[str] | None = None
    keep: bool = False
    auth: bool = False
    worker_command: Sequence[str] = WORKER_COMMAND


class DemoFailed(Exception):
    """The demo could not be played to its end; one clear line says why."""
