"""What a worker imports: a `Listener` runs a handler on the messages of a queue, woken by a bridge.

No SDK and no web library is loaded until a store or a bridge asks for it.
"""

from bridge.contract.backoff import CappedExponential, FullJitter, RandomExponential
from bridge.contract.burial import Burial
from listeners.core.failure import Failure, classify
from listeners.core.pool import Share
from listeners.core.retry_policy import RetryPolicy
from listeners.core.scaling import DepthScaling, StepScaling
from listeners.figures import ListenerFigures, PlaceFigures, PoolFigures, QueueFigures, ScalerFigures
from listeners.handler import Bury, Done, Message, Outcome, Replay, Retry, batch
from listeners.listener import Listener
from listeners.pool import Pool
from listeners.running import collector, lifespan, run
from listeners.scaling.scaler import Scaler
from listeners.session.opening import PULL_ONLY
from listeners.work.ledger import Ledger

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
