"""Runs tasks: the handler of a worker's listener."""

from __future__ import annotations

import dataclasses
import inspect
import random
import traceback
from collections.abc import Awaitable
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import import_string

from queuebell.bridge.contract.errors import named
from queuebell.frameworks.django.interface import base, signals
from queuebell.frameworks.django.task_message import TaskMessage
from queuebell.listeners.handler import Bury, Message, Retry
from queuebell.listeners.work.retry import DeadLetter, Failed, Outcome, RetryPolicy, WantsRetry, classify, verdict

UNKNOWN_WORKER = "unknown"
"""In the place of who made the attempts before this one."""


class TaskHandler:
    """Calls the task that a message asks for: a function in the listener's thread, a coroutine on its event loop.

    The signals are sent as Django says: ``task_started`` for each attempt, ``task_finished`` once, when no other
    attempt follows by ``policy``. Receivers that raise are logged by Django. A message that asks for no task of this
    program is buried (`Bury`). Database connections are looked after as around a request.
    """

    def __init__(self, backend: Any, policy: RetryPolicy, worker: str) -> None:
        self._backend, self._policy, self._worker = backend, policy, worker

    def __call__(self, message: Message) -> Awaitable[None] | None:
        """Carry out a task, or return the coroutine that does."""
        attempt = self._attempt(message)
        if inspect.iscoroutinefunction(attempt.result.task.func):
            return self._await(attempt)
        self._call(attempt)
        return None

    def _call(self, attempt: Attempt) -> None:
        close_old_connections()
        try:
            signals.task_started.send_robust(type(self._backend), task_result=attempt.result)
            try:
                value = attempt.result.task.call(*attempt.args, **attempt.result.kwargs)
            except Exception as error:
                if self._is_last(attempt, error):
                    signals.task_finished.send_robust(type(self._backend), task_result=attempt.failed(error))
                raise
            signals.task_finished.send_robust(type(self._backend), task_result=attempt.succeeded(value))
        finally:
            close_old_connections()

    async def _await(self, attempt: Attempt) -> None:
        # What a coroutine asks of the database by Django's functions runs in asgiref's thread: its connections.
        await sync_to_async(close_old_connections)()
        try:
            await signals.task_started.asend_robust(type(self._backend), task_result=attempt.result)
            try:
                value = await attempt.result.task.acall(*attempt.args, **attempt.result.kwargs)
            except Exception as error:
                if self._is_last(attempt, error):
                    await signals.task_finished.asend_robust(type(self._backend), task_result=attempt.failed(error))
                raise
            await signals.task_finished.asend_robust(type(self._backend), task_result=attempt.succeeded(value))
        finally:
            await sync_to_async(close_old_connections)()

    def _attempt(self, message: Message) -> Attempt:
        asked = TaskMessage.decode(message.body)
        try:
            found = import_string(asked.task)
        except ImportError as error:
            raise Bury(f"this program has no task {asked.task}: {error}") from error
        # A message can name any importable object; only tasks may be called.
        if not isinstance(found, base.Task):
            raise Bury(f"{asked.task} is no task in this program: it has no @task")
        try:
            task = found.using(
                backend=self._backend.alias, queue_name=message.queue.partition("/")[2], run_after=asked.run_after
            )
        except Exception as error:
            raise Bury(f"{asked.task}: the worker's settings refuse it: {error}") from error
        now = timezone.now()
        attempt = Attempt(
            base.TaskResult(
                task=task,
                id=asked.id,
                status=base.TaskResultStatus.RUNNING,
                enqueued_at=asked.enqueued_at,
                started_at=now,
                finished_at=None,
                last_attempted_at=now,
                args=asked.args,
                kwargs=asked.kwargs,
                backend=self._backend.alias,
                errors=[],
                worker_ids=[*[UNKNOWN_WORKER] * (message.attempt - 1), self._worker],
            )
        )
        try:
            inspect.signature(task.func).bind(*attempt.args, **asked.kwargs)
        except TypeError as error:
            raise Bury(f"{asked.task}: the arguments of the message do not fit it: {error}") from error
        return attempt

    def _is_last(self, attempt: Attempt, error: Exception) -> bool:
        """Return whether the listener dead-letters the message after this error."""
        outcome: Outcome
        if isinstance(error, Retry):
            outcome = WantsRetry(error.after)
        elif isinstance(error, Bury):
            outcome = DeadLetter(error.reason)
        else:
            outcome = Failed(named(error), classify(error))
        number = attempt.result.attempts
        return isinstance(verdict(outcome, number, self._policy, True, random.random), DeadLetter)


class Attempt(NamedTuple):
    """One attempt to run a task."""

    result: Any

    @property
    def args(self) -> list[Any]:
        """The positional arguments of the function."""
        context = [base.TaskContext(task_result=self.result)] if self.result.task.takes_context else []
        return [*context, *self.result.args]

    def succeeded(self, value: Any) -> Any:
        """Return the result for a returned value."""
        result = self._finished(base.TaskResultStatus.SUCCESSFUL)
        # As Django's own backends do: `__init__` does not have the field.
        object.__setattr__(result, "_return_value", value)
        return result

    def failed(self, error: Exception) -> Any:
        """Return the result for a final error."""
        kind, trace = type(error), "".join(traceback.format_exception(error))
        told = base.TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=trace)
        return self._finished(base.TaskResultStatus.FAILED, [told])

    def _finished(self, status: Any, errors: list[Any] | None = None) -> Any:
        return dataclasses.replace(self.result, status=status, finished_at=timezone.now(), errors=errors or [])
