"""What `taskiq worker` and `taskiq scheduler` run in a test: tasks that say what they do, one line of JSON each."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pydantic
from taskiq import AsyncResultBackend, TaskiqResult, TaskiqScheduler
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.schedule_sources import LabelScheduleSource

from queuebell.frameworks.taskiq import QueuebellBroker

FOLDER = Path(os.environ.get("FOLDER", "."))
GLANCE_S = 0.02


class Results(AsyncResultBackend[Any]):
    """A result backend that several processes share: one file for each result."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        """Keep a result."""
        made = self._folder / f"{task_id}.made"
        made.write_bytes(pickle.dumps(result.model_dump()))
        made.rename(self._folder / f"{task_id}.result")

    async def is_result_ready(self, task_id: str) -> bool:
        """Say whether it is there."""
        return (self._folder / f"{task_id}.result").exists()

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:
        """Return it."""
        return TaskiqResult(**pickle.loads((self._folder / f"{task_id}.result").read_bytes()))

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """No progress is kept."""

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """No progress is kept."""
        return None


broker = QueuebellBroker(
    os.environ.get("STORE", "http://127.0.0.1:8470"),
    "billing/orders",
    bridge=os.environ.get("BRIDGE"),
    concurrency=int(os.environ.get("CONCURRENCY", "100")),
    visibility_timeout=float(os.environ.get("VISIBILITY", "30")),
).with_result_backend(Results(FOLDER))
scheduler = TaskiqScheduler(broker, [LabelScheduleSource(broker)])


class Order(pydantic.BaseModel):
    """A typed argument."""

    number: int
    cents: int


def say(event: str, **more: Any) -> None:
    """Write what happens to standard output, in one piece."""
    os.write(1, json.dumps({"event": event, "who": os.getpid(), **more}).encode() + b"\n")


@broker.task
async def charge(order: Order) -> int:
    """Charge an order."""
    say("done", body=str(order.number))
    return order.cents * 2


@broker.task
async def hold(name: str) -> str:
    """Begin, and end when the test says so."""
    say("start", body=name)
    while not (FOLDER / "go").exists():
        await asyncio.sleep(GLANCE_S)
    say("done", body=name)
    return name


@broker.task(schedule=[{"cron": "* * * * *"}])
def tick() -> None:
    """Come with the minute."""
    say("tick")
