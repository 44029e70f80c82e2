"""Run handlers on the messages of queues, woken by a bridge: `Listener`, `Pool`, `Scaler`, `Ledger` and outcomes.

Rooms: `session` talks to the bridge, `wake` decides when to receive, `work` receives and handles messages, `scaling`
starts and ends workers. Codes such as L12 are rules of docs/reference/protocol.md. No SDK and no web library is loaded
until a store or a bridge needs it.
"""

if __name__ == "listeners":
    raise ImportError("this folder is the package queuebell.listeners: import that, or the public names from queuebell")

from queuebell.bridge.contract.backoff import CappedExponential, FullJitter, RandomExponential
from queuebell.bridge.contract.burial import Burial
from queuebell.listeners.figures import ListenerFigures, PlaceFigures, PoolFigures, QueueFigures, ScalerFigures
from queuebell.listeners.handler import Bury, Done, Message, Outcome, Replay, Retry, batch
from queuebell.listeners.listener import Listener
from queuebell.listeners.pool import Pool
from queuebell.listeners.running import collector, lifespan, run
from queuebell.listeners.scaling.scaler import Scaler
from queuebell.listeners.session.opening import PULL_ONLY
from queuebell.listeners.wake.pool import Share
from queuebell.listeners.wake.receive_scaling import DepthScaling, StepScaling
from queuebell.listeners.work.ledger import Ledger
from queuebell.listeners.work.retry import Failure, RetryPolicy, classify

__all__ = [
    "PULL_ONLY",
    "Burial",
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
    "PlaceFigures",
    "Pool",
    "PoolFigures",
    "QueueFigures",
    "RandomExponential",
    "Replay",
    "Retry",
    "RetryPolicy",
    "Scaler",
    "ScalerFigures",
    "Share",
    "StepScaling",
    "batch",
    "classify",
    "collector",
    "lifespan",
    "run",
]
