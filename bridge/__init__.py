"""Queuebell's bridge: put work on a queue, and a worker starts within milliseconds.

The public names are loaded when they are first used, so that `import queuebell.bridge` loads no SDK and no web server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ == "bridge":
    raise ImportError("this folder is the package queuebell.bridge: import that, or the public names from queuebell")

if TYPE_CHECKING:
    from queuebell.bridge.contract.errors import BadInput as BadInput
    from queuebell.bridge.contract.errors import BadQueueReference as BadQueueReference
    from queuebell.bridge.contract.errors import BlobNotFound as BlobNotFound
    from queuebell.bridge.contract.errors import BusUnavailable as BusUnavailable
    from queuebell.bridge.contract.errors import ChannelLost as ChannelLost
    from queuebell.bridge.contract.errors import Closed as Closed
    from queuebell.bridge.contract.errors import ConfigurationError as ConfigurationError
    from queuebell.bridge.contract.errors import Conflict as Conflict
    from queuebell.bridge.contract.errors import HandlersStuck as HandlersStuck
    from queuebell.bridge.contract.errors import KeyUnavailable as KeyUnavailable
    from queuebell.bridge.contract.errors import NoQueueService as NoQueueService
    from queuebell.bridge.contract.errors import NotAllowed as NotAllowed
    from queuebell.bridge.contract.errors import NotPrepared as NotPrepared
    from queuebell.bridge.contract.errors import Overloaded as Overloaded
    from queuebell.bridge.contract.errors import QueuebellError as QueuebellError
    from queuebell.bridge.contract.errors import QueueNotFound as QueueNotFound
    from queuebell.bridge.contract.errors import StoreDamaged as StoreDamaged
    from queuebell.bridge.contract.errors import StoreError as StoreError
    from queuebell.bridge.contract.errors import StoreFull as StoreFull
    from queuebell.bridge.contract.errors import StoreOwned as StoreOwned
    from queuebell.bridge.contract.errors import StoreUnavailable as StoreUnavailable
    from queuebell.bridge.contract.errors import UnknownOutcome as UnknownOutcome
    from queuebell.bridge.contract.errors import Unsupported as Unsupported
    from queuebell.bridge.contract.errors import WrongThread as WrongThread
    from queuebell.bridge.contract.event import CloudQueueWorkDetected as CloudQueueWorkDetected
    from queuebell.bridge.contract.partitioning import Partitions as Partitions
    from queuebell.bridge.observe.tracing import start_tracing as start_tracing
    from queuebell.bridge.producer.blocking import BlockingStore as BlockingStore
    from queuebell.bridge.producer.partitions import PartitionedQueue as PartitionedQueue
    from queuebell.bridge.producer.partitions import PartlyPut as PartlyPut
    from queuebell.bridge.producer.publisher import BlockingPublisher as BlockingPublisher
    from queuebell.bridge.producer.publisher import Publisher as Publisher
    from queuebell.bridge.producer.publishing_queue import PublishingQueue as PublishingQueue
    from queuebell.bridge.queues import open_store as open_store
    from queuebell.bridge.queues.base import NewMessage as NewMessage
    from queuebell.bridge.queues.base import once as once
    from queuebell.bridge.queues.postgres.transaction import put_in_transaction as put_in_transaction
    from queuebell.bridge.queues.postgres.transaction import put_once_in_transaction as put_once_in_transaction
    from queuebell.bridge.service.bridge import Bridge as Bridge
    from queuebell.bridge.storage.claim_check import ClaimCheck as ClaimCheck

__version__ = "0.1.0"

_ERRORS = (
    "BadInput",
    "BadQueueReference",
    "BlobNotFound",
    "BusUnavailable",
    "ChannelLost",
    "Closed",
    "ConfigurationError",
    "Conflict",
    "HandlersStuck",
    "KeyUnavailable",
    "NoQueueService",
    "NotAllowed",
    "NotPrepared",
    "Overloaded",
    "QueueNotFound",
    "QueuebellError",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreOwned",
    "StoreUnavailable",
    "UnknownOutcome",
    "Unsupported",
    "WrongThread",
)
_HOME = {
    "BlockingPublisher": "queuebell.bridge.producer.publisher",
    "BlockingStore": "queuebell.bridge.producer.blocking",
    "Bridge": "queuebell.bridge.service.bridge",
    "ClaimCheck": "queuebell.bridge.storage.claim_check",
    "CloudQueueWorkDetected": "queuebell.bridge.contract.event",
    "NewMessage": "queuebell.bridge.queues.base",
    "PartitionedQueue": "queuebell.bridge.producer.partitions",
    "Partitions": "queuebell.bridge.contract.partitioning",
    "PartlyPut": "queuebell.bridge.producer.partitions",
    "Publisher": "queuebell.bridge.producer.publisher",
    "PublishingQueue": "queuebell.bridge.producer.publishing_queue",
    "once": "queuebell.bridge.queues.base",
    "open_store": "queuebell.bridge.queues",
    "put_in_transaction": "queuebell.bridge.queues.postgres.transaction",
    "put_once_in_transaction": "queuebell.bridge.queues.postgres.transaction",
    "start_tracing": "queuebell.bridge.observe.tracing",
    **dict.fromkeys(_ERRORS, "queuebell.bridge.contract.errors"),
}

__all__ = [
    "BadInput",
    "BadQueueReference",
    "BlobNotFound",
    "BlockingPublisher",
    "BlockingStore",
    "Bridge",
    "BusUnavailable",
    "ChannelLost",
    "ClaimCheck",
    "Closed",
    "CloudQueueWorkDetected",
    "ConfigurationError",
    "Conflict",
    "HandlersStuck",
    "KeyUnavailable",
    "NewMessage",
    "NoQueueService",
    "NotAllowed",
    "NotPrepared",
    "Overloaded",
    "PartitionedQueue",
    "Partitions",
    "PartlyPut",
    "Publisher",
    "PublishingQueue",
    "QueueNotFound",
    "QueuebellError",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreOwned",
    "StoreUnavailable",
    "UnknownOutcome",
    "Unsupported",
    "WrongThread",
    "__version__",
    "once",
    "open_store",
    "put_in_transaction",
    "put_once_in_transaction",
    "start_tracing",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
