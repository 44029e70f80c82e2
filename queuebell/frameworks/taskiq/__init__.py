"""A broker for taskiq: its tasks wait in a queue of ours, and its workers are woken instead of polling.

Decorators, typed arguments, results, schedules and middlewares are taskiq's; what is here puts and hands over.
"""

from queuebell.frameworks.taskiq.broker import QueuebellBroker
from queuebell.frameworks.taskiq.delivery import NotAcknowledged
from queuebell.frameworks.taskiq.formatter import UnknownTask

__all__ = ["NotAcknowledged", "QueuebellBroker", "UnknownTask"]
