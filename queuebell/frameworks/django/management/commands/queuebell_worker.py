"""``manage.py queuebell_worker``: run the tasks that were enqueued with `QueuebellBackend`."""

from __future__ import annotations

import argparse
import logging
import os
import socket
from typing import Any

import msgspec
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from queuebell.bridge.contract.address import one_text
from queuebell.bridge.contract.errors import BadInput, ConfigurationError, QueuebellError
from queuebell.bridge.observe.logs import configure
from queuebell.command.listen import add_settings, listen
from queuebell.command.listen_settings import load, retry_of
from queuebell.frameworks.django.execution import TaskHandler
from queuebell.frameworks.django.interface import tasks
from queuebell.frameworks.django.tasks import QueuebellBackend

CONFIGURATION = 78
"""The exit code for wrong settings: a supervisor should not restart it."""


class Command(BaseCommand):
    """``manage.py queuebell_worker``."""

    help = (
        "Carries out the tasks of one backend of TASKS. SIGTERM and Ctrl-C stop in order, a second one at once. "
        "Settings may also stand in the file and in the environment that `queuebell listen` reads."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options for tasks, and those of a listener."""
        parser.add_argument("--backend", metavar="ALIAS", default="default", help="a key of TASKS (default)")
        parser.add_argument(
            "--queue", metavar="NAME", action="append", default=[], help="one of its QUEUES (all); may come again"
        )
        add_settings(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Work until a signal; exit code 78 for wrong settings, 1 where a task did not end."""
        try:
            self._work(options)
        except (BadInput, ConfigurationError, ImproperlyConfigured) as error:
            raise CommandError(" ".join(str(error).split()), returncode=CONFIGURATION) from error
        except QueuebellError as error:
            raise CommandError(f"{type(error).__name__}: {error}") from error

    def _work(self, options: dict[str, Any]) -> None:
        alias = options["backend"]
        backend = tasks.task_backends[alias]
        if not isinstance(backend, QueuebellBackend):
            raise ConfigurationError(f"TASKS['{alias}']: its BACKEND is another one, and has no tasks for this worker")
        names = options["queue"] or sorted(backend.queues)
        if not names:
            raise ConfigurationError(f"TASKS['{alias}']: QUEUES is empty: name what to work on with --queue")
        if backend.queues and (strange := sorted(set(names) - backend.queues)):
            raise ConfigurationError(
                f"--queue: {strange[0]} is none of TASKS['{alias}']['QUEUES']: {', '.join(sorted(backend.queues))}"
            )
        settings = load(options["config"], options=options)
        settings = msgspec.structs.replace(
            settings,
            bridge=settings.bridge or one_text(backend.settings.bridge),
            name=settings.name or f"{socket.gethostname()}:{os.getpid()}",
        )
        if not logging.getLogger("queuebell").hasHandlers():  # LOGGING does not configure it
            configure(settings.log_format, settings.log_level)
        handler = TaskHandler(backend, retry_of(settings), str(settings.name))
        queues = [backend.reference(name) for name in names]
        listen(str(one_text(backend.settings.store)), queues, handler, settings, pull_only=options["pull_only"])
