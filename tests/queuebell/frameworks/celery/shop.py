"""The tasks of the tests, for workers of Celery's own command; each writes a line into a file."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Reject

import queuebell.frameworks.celery  # noqa: F401 - registers queuebell://

LEASE_S = 6
"""Shorter than what `hold` is asked for; longer than a busy machine may stop a worker."""
FOLDER = Path(os.environ["FOLDER"])

app: Any = Celery("shop", broker=os.environ["BROKER"], backend=f"file://{FOLDER}")
app.conf.broker_transport_options = {"visibility_timeout": LEASE_S, **json.loads(os.environ.get("STORE", "{}"))}
if os.environ["BROKER"].startswith("sqs:"):
    app.conf.broker_transport_options |= {"is_secure": False, "region": "us-east-1"}
if os.environ["BROKER"].startswith("redis:"):
    app.conf.broker_transport_options["unacked_restore_interval"] = 0.2  # each tenth time it looks
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 1


def write(*words: object) -> None:
    """Add a line to the file, in one write."""
    with (FOLDER / "lines").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


@app.task
def add(x: int, y: int) -> int:
    """Add, as all do."""
    write("add", x, y)
    return x + y


@app.task
def hold(name: str, seconds: float) -> None:
    """Take longer than the lease."""
    write("begins", name, os.getpid())
    threading.Event().wait(seconds)
    write("ends", name)


@app.task(bind=True)
def again(self: Any) -> None:
    """Want to have it again, once."""
    write("again", self.request.delivery_info["redelivered"])
    if not self.request.delivery_info["redelivered"]:
        raise Reject("not yet", requeue=True)


@app.task
def never() -> None:
    """Not want to have it at all."""
    raise Reject("never", requeue=False)


@app.task(bind=True, max_retries=1)
def retried(self: Any) -> None:
    """Fail once; the second try is a message of the worker's own process."""
    write("retried", self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0.1)


@app.task(bind=True)
def dies(self: Any) -> None:
    """Kill its process, once."""
    write("dies", self.request.delivery_info["redelivered"])
    if not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), 9)
