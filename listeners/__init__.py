"""Run handlers on the messages of queues, woken by a bridge: `Listener`, `Pool`, `Scaler`, `Ledger` and outcomes.

Rooms: `session` talks to the bridge, `wake` decides when to receive, `work` receives and handles messages, `scaling`
starts and ends workers. No SDK and no web library is loaded until a store or a bridge needs it.
"""

from bridge.contract.backoff import CappedExponential, FullJitter, RandomExponential
from bridge.contract.burial import Burial
from listeners.figures import ListenerFigures, PlaceFigures, PoolFigures, QueueFigures, ScalerFigures
from listeners.handler import Bury, Done, Message, Outcome, Replay, Retry, batch
from listeners.listener import Listener
from listeners.pool import Pool
from listeners.running import collector, lifespan, run
from listeners.scaling.scaler import Scaler
from listeners.session.opening import PULL_ONLY
from listeners.wake.pool import Share
from listeners.wake.receive_scaling import DepthScaling, StepScaling
from listeners.work.ledger import Ledger
from listeners.work.retry import Failure, RetryPolicy, classify

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
