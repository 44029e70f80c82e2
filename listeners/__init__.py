"""The worker's front door: a `Listener` runs a handler on the messages of a queue, woken by a bridge.

No SDK and no web library is loaded until a store or a bridge asks for it.
"""

from bridge.contract.backoff import CappedExponential, FullJitter, RandomExponential
from listeners.core.failure import Failure, classify
from listeners.core.scaling import DepthScaling, StepScaling
from listeners.figures import ListenerFigures, QueueFigures
from listeners.handler import Bury, Done, Message, Outcome, Retry, batch
from listeners.ledger import Ledger
from listeners.listener import Listener

__all__ = [
    "Bury",
    "CappedExponential",
    "DepthScaling",
    "Done",
    "Failure",
    "FullJitter",
    "Ledger",
    "Listener",
    "ListenerFigures",
    "Message",
    "Outcome",
    "QueueFigures",
    "RandomExponential",
    "Retry",
    "StepScaling",
    "batch",
    "classify",
]
