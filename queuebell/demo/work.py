"""What travels on the demo's two queues: paths go in, facts come back. Never a file's contents.

Stamps are nanoseconds of this machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from queuebell.demo.analysis import FileFacts

INPUT_QUEUE: Final = "demo/files"
RESULT_QUEUE: Final = "demo/results"


class AnalyseFile(msgspec.Struct, frozen=True, tag="file"):
    """A work item: count this file. ``id`` is unique in a run, ``put_ns`` the moment before it was put."""

    id: int
    path: str
    put_ns: int


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """A work item that only asks how long the wake-up took."""

    id: int
    put_ns: int


WorkItem = AnalyseFile | Probe


class FileAnalysed(msgspec.Struct, frozen=True, tag="file"):
    """A result: what ``worker`` found at this ``attempt`` (1 = first), begun at ``started_ns``."""

    id: int
    worker: int
    attempt: int
    put_ns: int
    started_ns: int
    facts: FileFacts


class ProbeSeen(msgspec.Struct, frozen=True, tag="probe"):
    """A result: the probe's handler began at ``started_ns``."""

    id: int
    worker: int
    attempt: int
    put_ns: int
    started_ns: int


WorkResult = FileAnalysed | ProbeSeen


def worker_log(folder: Path, number: int | str) -> Path:
    """Return where the worker of this process number writes what it says."""
    return folder / f"worker-{number}.log"
