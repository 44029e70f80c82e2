"""The backend for Django's tasks: a task that is enqueued is a message, and a worker starts within milliseconds."""

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

from bridge.brokers.postgres.access import SCHEMES, PostgresAccess
from bridge.contract.address import one_text
from bridge.contract.errors import BadInput, ConfigurationError
from bridge.contract.names import POISON_SUFFIX, is_token, reference
from bridge.contract.settings import resolve
from bridge.producer.blocking import BlockingStore
from bridge.queues import class_of
from bridge.queues.base import Capabilities
from bridge.queues.postgres.transaction import put_in_transaction
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
    """Which bridge wakes the workers; it need not be named where the store is the bridge's own."""
    account: str = "django"
    """Django's queue ``mail`` is the queue ``django/mail``."""
    database: str | None = None
    """The alias of Django's database whose transactions puts are part of; the store is in that database too."""
    timeout: float = 30.0
    """How many seconds a put may take; without ``database``, where the database's own time-outs count."""


class QueuebellBackend(BaseTaskBackend):
    """Puts tasks to a store, for ``manage.py queuebell_worker``; one message each, handled at least once.

    Threads share one connection, and a process that is forked opens its own. Wrong settings are told by
    ``manage.py check``, and raise `ImproperlyConfigured` where they are used.
    """

    supports_async_task = True

    @property
    def supports_defer(self) -> bool:
        """Whether the store can delay a put."""
        try:
            return self.capabilities.delayed_put
        except ImproperlyConfigured:
            return False  # the modules of tasks are imported before the check that tells

    @functools.cached_property
    def settings(self) -> TaskOptions:
        """``OPTIONS``, read; what is wrong is raised as `ImproperlyConfigured`."""
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
        """What the store can do, as far as it is known before it is asked."""
        found: Any = getattr(class_of(str(one_text(self.settings.store))), "capabilities", None)
        return found if isinstance(found, Capabilities) else Capabilities()

    def reference(self, queue_name: str) -> str:
        """Return the queue of ours that one of Django's is. Raises `BadQueueReference` for a name that cannot be."""
        return reference(self.settings.account, queue_name)

    @async_unsafe("enqueue() would block this event loop: use `await task.aenqueue(...)`")  # type: ignore[untyped-decorator]
    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Put a task to its queue, and return its result, which is never refreshed.

        With ``database`` it is part of the transaction that is open there, or of one of its own. Raises what Django
        does for a task that cannot be (``InvalidTask``), `TypeError` or `ValueError` for arguments that JSON has no
        words for, and what a store's put raises: nothing is enqueued then, but that `UnknownOutcome` leaves it open.
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
        # A receiver that raises would have the caller enqueue anew what is enqueued.
        signals.task_enqueued.send_robust(type(self), task_result=result)
        return result

    def validate_task(self, task: Any) -> None:
        """Refuse a task that the backend cannot carry out, as Django's own do, or one whose queue cannot be."""
        super().validate_task(task)
        if not is_token(task.queue_name):  # with no QUEUES any other will do
            raise InvalidTask(f"Queue '{task.queue_name}' is not valid for backend: {TOKENS}.")

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:
        """Tell ``manage.py check`` what is wrong."""
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
    """Return the one store of a process: Django makes a backend for each thread."""
    with _lock:
        return _made(store, bridge, timeout)


@functools.cache
def _made(store: str, bridge: str | None, timeout: float) -> BlockingStore:
    return BlockingStore(store, bridge=bridge, timeout=timeout)


def _check(options: TaskOptions, queues: set[str]) -> None:
    """Raise `ConfigurationError` or `BadInput` for what cannot work; asks nobody."""
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
