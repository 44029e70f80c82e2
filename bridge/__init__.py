"""Queuebell's bridge: put work on a queue, and a worker starts within milliseconds.

The public names are loaded when they are first used, so that `import bridge` loads no SDK and no web server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge.contract.errors import BadInput as BadInput
    from bridge.contract.errors import BadQueueReference as BadQueueReference
    from bridge.contract.errors import BlobNotFound as BlobNotFound
    from bridge.contract.errors import BusUnavailable as BusUnavailable
    from bridge.contract.errors import ChannelLost as ChannelLost
    from bridge.contract.errors import Closed as Closed
    from bridge.contract.errors import ConfigurationError as ConfigurationError
    from bridge.contract.errors import Conflict as Conflict
    from bridge.contract.errors import HandlersStuck as HandlersStuck
    from bridge.contract.errors import KeyUnavailable as KeyUnavailable
    from bridge.contract.errors import NoQueueService as NoQueueService
    from bridge.contract.errors import NotAllowed as NotAllowed
    from bridge.contract.errors import NotPrepared as NotPrepared
    from bridge.contract.errors import Overloaded as Overloaded
    from bridge.contract.errors import QueuebellError as QueuebellError
    from bridge.contract.errors import QueueNotFound as QueueNotFound
    from bridge.contract.errors import StoreDamaged as StoreDamaged
    from bridge.contract.errors import StoreError as StoreError
    from bridge.contract.errors import StoreFull as StoreFull
    from bridge.contract.errors import StoreOwned as StoreOwned
    from bridge.contract.errors import StoreUnavailable as StoreUnavailable
    from bridge.contract.errors import UnknownOutcome as UnknownOutcome
    from bridge.contract.errors import Unsupported as Unsupported
    from bridge.contract.errors import WrongThread as WrongThread
    from bridge.contract.event import CloudQueueWorkDetected as CloudQueueWorkDetected
    from bridge.contract.partitioning import Partitions as Partitions
    from bridge.observe.tracing import start_tracing as start_tracing
    from bridge.producer.blocking import BlockingStore as BlockingStore
    from bridge.producer.partitions import PartitionedQueue as PartitionedQueue
    from bridge.producer.partitions import PartlyPut as PartlyPut
    from bridge.producer.publisher import BlockingPublisher as BlockingPublisher
    from bridge.producer.publisher import Publisher as Publisher
    from bridge.producer.publishing_queue import PublishingQueue as PublishingQueue
    from bridge.queues import open_store as open_store
    from bridge.queues.base import NewMessage as NewMessage
    from bridge.queues.base import once as once
    from bridge.queues.postgres.transaction import put_in_transaction as put_in_transaction
    from bridge.queues.postgres.transaction import put_once_in_transaction as put_once_in_transaction
    from bridge.service.bridge import Bridge as Bridge
    from bridge.storage.claim_check import ClaimCheck as ClaimCheck

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
    "BlockingPublisher": "bridge.producer.publisher",
    "BlockingStore": "bridge.producer.blocking",
    "Bridge": "bridge.service.bridge",
    "ClaimCheck": "bridge.storage.claim_check",
    "CloudQueueWorkDetected": "bridge.contract.event",
    "NewMessage": "bridge.queues.base",
    "PartitionedQueue": "bridge.producer.partitions",
    "Partitions": "bridge.contract.partitioning",
    "PartlyPut": "bridge.producer.partitions",
    "Publisher": "bridge.producer.publisher",
    "PublishingQueue": "bridge.producer.publishing_queue",
    "once": "bridge.queues.base",
    "open_store": "bridge.queues",
    "put_in_transaction": "bridge.queues.postgres.transaction",
    "put_once_in_transaction": "bridge.queues.postgres.transaction",
    "start_tracing": "bridge.observe.tracing",
    **dict.fromkeys(_ERRORS, "bridge.contract.errors"),
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
