"""The backend for Django's tasks: each enqueued task is a message that wakes a worker within milliseconds."""

from __future__ import annotations

import datetime
import functools
import math
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Final

import msgspec
from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone
from django.utils.asyncio import async_unsafe
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string

from queuebell.bridge.brokers.postgres.access import SCHEMES, PostgresAccess
from queuebell.bridge.contract.address import one_text
from queuebell.bridge.contract.errors import BadInput, ConfigurationError
from queuebell.bridge.contract.names import POISON_SUFFIX, is_token, reference
from queuebell.bridge.contract.settings import resolve
from queuebell.bridge.producer.blocking import BlockingStore
from queuebell.bridge.queues import class_of
from queuebell.bridge.queues.base import Capabilities
from queuebell.bridge.queues.postgres.transaction import put_in_transaction
from queuebell.frameworks.django.interface import BaseTaskBackend, InvalidTask, base, signals
from queuebell.frameworks.django.task_message import TaskMessage

APPLICATION: Final = "queuebell.frameworks.django"
ERROR: Final = "queuebell.E001"
TOKENS: Final = "a name has letters, digits, '_' and '-', begins with a letter or digit, and has 80 of them at most"
_OF_ONE_PROCESS: Final = ("memory", "sqlite")


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of ``OPTIONS``."""

    store: str | list[str]
    """Where tasks wait: the URL of a store that several processes can open."""
    bridge: str | list[str] | None = None
    """The bridge that wakes the workers; not needed if the store is the bridge's own."""
    account: str = "django"
    """The first part of queue names: Django's queue ``mail`` is ``django/mail``."""
    database: str | None = None
    """The alias of the Django database whose transactions include the puts; the store must be in that database."""
    timeout: float = 30.0
    """Seconds that a put may take; with ``database``, the database's own time-outs count instead."""


class QueuebellBackend(BaseTaskBackend):
    """Puts each task to a store as one message, for ``manage.py queuebell_worker``; tasks run at least once.

    Threads share one connection, and a forked process opens its own. ``manage.py check`` reports wrong settings, and
    their first use raises `ImproperlyConfigured`.
    """

    supports_async_task = True

    @property
    def supports_defer(self) -> bool:
        """Whether the store can delay a put."""
        try:
            return self.capabilities.delayed_put
        except ImproperlyConfigured:
            return False  # modules with tasks are imported before the check that reports it

    @functools.cached_property
    def settings(self) -> TaskOptions:
        """``OPTIONS`` as a struct; raises `ImproperlyConfigured`."""
        try:
            if "store" not in self.options:
                raise ConfigurationError("OPTIONS: store: where do tasks wait? For example 'http://127.0.0.1:8470'")
            options = resolve(TaskOptions, table=self.options, source="OPTIONS")
            _check(options, self.queues)
        except (BadInput, ConfigurationError) as error:
            raise ImproperlyConfigured(f"TASKS['{self.alias}']: {error}") from error
        return options

    @property
    def capabilities(self) -> Capabilities:
        """The store's capabilities, as far as they are known without a connection."""
        found: Any = getattr(class_of(str(one_text(self.settings.store))), "capabilities", None)
        return found if isinstance(found, Capabilities) else Capabilities()

    def reference(self, queue_name: str) -> str:
        """Return the queue reference of a Django queue. Raises `BadQueueReference` for an invalid name."""
        return reference(self.settings.account, queue_name)

    @async_unsafe("enqueue() would block this event loop: use `await task.aenqueue(...)`")  # type: ignore[untyped-decorator]
    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Put a task to its queue, and return its result, which is never refreshed.

        With ``database`` it joins the open transaction there, or has its own. Raises Django's ``InvalidTask``,
        `TypeError` or `ValueError` for arguments that are not JSON, and what a store's put raises: nothing is enqueued
        then, except that after `UnknownOutcome` it may be.
        """
        self.validate_task(task)
        _findable(task)
        result = base.TaskResult(
            task=task,
            id=get_random_string(32),
            status=base.TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        asked = TaskMessage(
            task=task.module_path,
            id=result.id,
            args=result.args,
            kwargs=result.kwargs,
            enqueued_at=result.enqueued_at,
            run_after=task.run_after,
        )
        self._put(self.reference(task.queue_name), asked.encode(), _delay_ms(task.run_after))
        # If a receiver's error reached the caller, it would enqueue the task again.
        signals.task_enqueued.send_robust(type(self), task_result=result)
        return result

    def validate_task(self, task: Any) -> None:
        """Refuse a task that the backend cannot run, or with an invalid queue name."""
        super().validate_task(task)
        if not is_token(task.queue_name):  # without QUEUES any valid name will do
            raise InvalidTask(f"Queue '{task.queue_name}' is not valid for backend: {TOKENS}.")

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:
        """Report errors to ``manage.py check``."""
        if not apps.is_installed(APPLICATION):
            yield checks.Error(
                f"TASKS['{self.alias}']: the application {APPLICATION} is not installed, which brings the worker",
                hint=f"Add '{APPLICATION}' to INSTALLED_APPS.",
                id=ERROR,
            )
        try:
            _ = self.settings
        except ImproperlyConfigured as error:
            yield checks.Error(str(error), id=ERROR)

    def _put(self, queue: str, body: str, delay_ms: int) -> None:
        alias = self.settings.database
        if alias is None:
            store = _store(one_text(self.settings.store), one_text(self.settings.bridge), self.settings.timeout)
            store.put(queue, [body], visible_after_ms=delay_ms)
            return
        connection = connections[alias]
        schema = PostgresAccess(str(one_text(self.settings.store))).search_path
        with nullcontext() if connection.in_atomic_block else transaction.atomic(using=alias):
            put_in_transaction(connection, queue, [body], visible_after_ms=delay_ms, schema=schema)


_lock = threading.Lock()


def _store(store: Any, bridge: Any, timeout: float) -> BlockingStore:
    """Return the process's one store; Django makes a backend for each thread."""
    with _lock:
        return _made(store, bridge, timeout)


@functools.cache
def _made(store: str, bridge: str | None, timeout: float) -> BlockingStore:
    return BlockingStore(store, bridge=bridge, timeout=timeout)


def _check(options: TaskOptions, queues: set[str]) -> None:
    """Raise `ConfigurationError` or `BadInput` for invalid options; opens no connection."""
    store = str(one_text(options.store))
    scheme = store.partition(":")[0].lower()
    if scheme in _OF_ONE_PROCESS:
        raise ConfigurationError(f"OPTIONS: store: {scheme}: is one process's own, and a worker is another process")
    _store(store, one_text(options.bridge), options.timeout)
    if not is_token(options.account):
        raise ConfigurationError(f"OPTIONS: account: {TOKENS}")
    for name in queues:
        if not is_token(name):
            raise ConfigurationError(f"QUEUES: '{name}': {TOKENS}")
        if name.endswith(POISON_SUFFIX):
            raise ConfigurationError(f"QUEUES: {name}: a name with {POISON_SUFFIX} is where failed tasks of another go")
    if options.database is None:
        return
    if options.database not in connections:
        raise ConfigurationError(f"OPTIONS: database: DATABASES has no '{options.database}'")
    if scheme not in SCHEMES or connections[options.database].vendor != "postgresql":
        raise ConfigurationError(
            f"OPTIONS: database: the store and Django's database '{options.database}' are the same PostgreSQL database,"
            " or a put cannot be part of its transactions: leave it out, and enqueue by transaction.on_commit"
        )


def _findable(task: Any) -> None:
    try:
        found = import_string(task.module_path)
    except ImportError:
        found = None
    if getattr(found, "func", None) is not task.func:
        raise InvalidTask(f"No worker could find {task.module_path}: a function with @task at the top of a module is")


def _delay_ms(run_after: datetime.datetime | None) -> int:
    if run_after is None:
        return 0
    return max(0, math.ceil((run_after - datetime.datetime.now(run_after.tzinfo)).total_seconds() * 1000))
