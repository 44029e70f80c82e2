"""A Django project of a test, whose programs are real processes."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.processes import Processes, Program, Service, environment, until

PROJECT = Path(__file__).parent / "project"
BACKEND = "queuebell.frameworks.django.tasks.QueuebellBackend"
SETUP = """\
import json, django
django.setup()
from shop.models import Order
from shop.tasks import *
"""
TABLE = "CREATE TABLE shop_order (id {serial} PRIMARY KEY, number int UNIQUE, charged int NOT NULL)"


class Shop:
    """The project in `project`, with a database and a bridge of its own."""

    def __init__(
        self, processes: Processes, bridge: Service, database: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self._processes = processes
        self.bridge = bridge
        self.database = database
        self.told_in = processes.folder / "told"
        tasks = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}}
        self._environment = {
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONWARNINGS": "error",
            "SHOP_DATABASE": json.dumps(database),
            "SHOP_TASKS": json.dumps(tasks),
            "SHOP_TOLD": str(self.told_in),
        }

    async def start(self, *words: str, **more: str) -> Program:
        """Start a Python within the project."""
        known = environment(**(self._environment | more))
        known["PYTHONPATH"] = f"{PROJECT}:{known['PYTHONPATH']}"
        program: Program = await self._processes.start(sys.executable, *words, env=known)
        return program

    async def run(self, code: str, **more: str) -> Any:
        """Run lines of Python that end well, and return what the last one printed, read as JSON."""
        program = await self.start("-c", SETUP + code, **more)
        assert await program.ended() == 0, program.errors
        return json.loads(program.lines[-1]) if program.lines else None

    async def manage(self, *words: str, **more: str) -> Program:
        """Run one command of ``manage.py`` to its end."""
        program = await self.start(str(PROJECT / "manage.py"), *words, **more)
        await program.ended()
        return program

    async def worker(self, *words: str, **more: str) -> Program:
        """Start a worker, and wait until it listens."""
        worker = await self.start(str(PROJECT / "manage.py"), "queuebell_worker", *words, **more)
        await worker.complains("listens to")
        return worker

    def told(self, *events: str) -> list[dict[str, Any]]:
        """Return what tasks told so far."""
        text = self.told_in.read_text() if self.told_in.exists() else ""
        # The last line may be written just now.
        whole = text[: text.rfind("\n") + 1]
        return [each for each in map(json.loads, whole.splitlines()) if each["event"] in events]

    async def tells(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many tasks told of an event."""
        await until(lambda: len(self.told(event)) >= count, f"{count} x {event}")
        return self.told(event)

    async def buried(self, count: int, queue: str = "django/default-poison") -> list[str]:
        """Wait until so many messages are buried, and return why, in alphabetical order."""

        async def enough() -> Any:
            depth = (await self.bridge.queue(queue)).get("depth") or {"visible": 0}
            return depth["visible"] >= count

        await until(enough, f"{count} are buried")
        words = ("-m", "queuebell", "queue", "peek", queue, "--json", "--store", self.bridge.url)
        peek = await self.start(*words)
        assert await peek.ended() == 0, peek.errors
        return sorted(json.loads(line)["burial"]["reason"] for line in peek.lines)

    async def depth(self, queue: str = "django/default") -> int:
        """Return how many messages a queue holds."""
        found = (await self.bridge.queue(queue)).get("depth") or {"visible": 0, "invisible": 0}
        return int(found["visible"] + found["invisible"])


def sqlite(folder: Path, numbers: Iterable[int] = ()) -> dict[str, Any]:
    """Make a database with orders, and return its settings."""
    path = folder / "shop.db"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(TABLE.format(serial="integer"))
        connection.executemany("INSERT INTO shop_order (number, charged) VALUES (?, 0)", [(each,) for each in numbers])
    connection.close()
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {"timeout": 60}}
