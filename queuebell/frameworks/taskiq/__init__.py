"""A taskiq broker: tasks wait in a Queuebell queue, and workers are woken instead of polling.

Decorators, typed arguments, results, schedules and middlewares are taskiq's own.
"""

from queuebell.frameworks.taskiq.broker import QueuebellBroker
from queuebell.frameworks.taskiq.delivery import NotAcknowledged
from queuebell.frameworks.taskiq.formatter import UnknownTask

__all__ = ["NotAcknowledged", "QueuebellBroker", "UnknownTask"]
