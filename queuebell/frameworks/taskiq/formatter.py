"""Reads tasks, and keeps those that taskiq would acknowledge although it cannot run them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import ValidationError
from taskiq import AsyncBroker, BrokerMessage, TaskiqMessage
from taskiq.abc.formatter import TaskiqFormatter
from taskiq.compat import parse_obj_as

from queuebell.bridge.contract.errors import said
from queuebell.frameworks.taskiq.delivery import Body
from queuebell.listeners.handler import Undecodable


class UnknownTask(LookupError):
    """A worker received a task whose function it has not imported; another worker or version may have it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no task {name!r} is known to this worker; name the module that defines it after the broker:"
            " `taskiq worker MODULE:BROKER MODULE_WITH_TASKS`"
        )


class CheckedFormatter(TaskiqFormatter):
    """Reads tasks, and detects those that taskiq would acknowledge without running them."""

    def __init__(self, formatter: TaskiqFormatter, broker: AsyncBroker) -> None:
        self._formatter = formatter
        self._broker = broker

    def dumps(self, message: TaskiqMessage) -> BrokerMessage:
        """Write a task."""
        return self._formatter.dumps(message)

    def loads(self, message: bytes) -> TaskiqMessage:
        """Read a task; raises if it is not one, or if its arguments do not fit its function."""
        if not isinstance(message, Body):
            return self._formatter.loads(message)
        delivery = message.delivery
        delivery.begins()
        try:
            task = self._formatter.loads(message)
            task.model_copy(update={"labels": {**task.labels}}).parse_labels()
            known = self._broker.find_task(task.task_name)
            if known is None:
                delivery.refused = UnknownTask(task.task_name)
            else:
                _check_arguments(known.original_func, task)
        except ValueError as error:
            delivery.refused = Undecodable(f"undecodable task: {_without_input(error)}")
            raise
        except Exception as error:
            delivery.refused = error
            raise
        return task


def _check_arguments(function: Callable[..., Any], task: TaskiqMessage) -> None:
    """Raise `ValueError` for arguments of wrong types, with which taskiq would call the function after a warning."""
    signature, hints = _shape(function)
    try:
        given = signature.bind_partial(*task.args, **task.kwargs).arguments
    except TypeError as error:
        raise ValueError(f"{task.task_name}: {error}") from None
    for name, value in given.items():
        kind = signature.parameters[name].kind
        if name not in hints or kind is inspect.Parameter.VAR_KEYWORD:
            continue
        for one in value if kind is inspect.Parameter.VAR_POSITIONAL else (value,):
            try:
                if one is not None:  # taskiq accepts None everywhere
                    parse_obj_as(hints[name], one)
            except ValueError as error:
                raise ValueError(f"{task.task_name}: argument {name}: {_without_input(error)}") from None
            except RuntimeError:
                pass  # pydantic has no rule for this type, and taskiq does not convert such values


@functools.lru_cache(maxsize=1024)
def _shape(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    return inspect.signature(function), get_type_hints(function)


def _without_input(error: ValueError) -> str:
    """Return what is wrong, without repeating values: they may be secrets."""
    if not isinstance(error, ValidationError):
        return said(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(": ".join([*map(str, one["loc"]), one["msg"]]) for one in found)
