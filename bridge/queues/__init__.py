"""Queue stores: `base.QueueStore` is the promise, `open_store` loads the class for an address's scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from queuebell.bridge.brokers.address import argument_of, class_for
from queuebell.bridge.contract.address import one_text
from queuebell.bridge.queues.base import QueueStore

STORES: Final[dict[str, tuple[str, str]]] = {
    "memory": ("queuebell.bridge.queues.embedded.store", "MemoryStore"),
    "sqlite": ("queuebell.bridge.queues.embedded.sqlite", "SqliteStore"),
    "http": ("queuebell.bridge.queues.http.store", "HttpStore"),
    "https": ("queuebell.bridge.queues.http.store", "HttpStore"),
    "postgres": ("queuebell.bridge.queues.postgres.store", "PostgresStore"),
    "postgresql": ("queuebell.bridge.queues.postgres.store", "PostgresStore"),
    "pgmq": ("queuebell.bridge.queues.postgres.pgmq", "PgmqStore"),
    "sqs": ("queuebell.bridge.queues.sqs.store", "SqsStore"),
    "azure": ("queuebell.bridge.queues.azure.store", "AzureStore"),
    "nats": ("queuebell.bridge.queues.jetstream.store", "JetStreamStore"),
    "tls": ("queuebell.bridge.queues.jetstream.store", "JetStreamStore"),
    "redis": ("queuebell.bridge.queues.redis.store", "RedisStore"),
    "rediss": ("queuebell.bridge.queues.redis.store", "RedisStore"),
}
"""Module and class by scheme."""
WITHOUT_HOST: Final = frozenset({"memory", "sqlite", "azure"})
"""Schemes whose addresses have no ``//HOST``."""


def open_store(url: str | Sequence[str], **options: Any) -> QueueStore:
    """Return the store for ``url``, ready to be called; options go to its class.

    ``memory:NAME``, ``sqlite:///absolute/path.db`` (``sqlite:relative.db`` from the working directory),
    ``http://host:port``, ``https://host:port`` (for bridges that share a store ``http://a:8470,b:8470`` or a list);
    with its extra ``postgres://user@host/database``, ``pgmq://user@host/database``, ``sqs://region``, ``azure:``
    (connection string in the environment), ``nats://host:4222`` and ``tls://host:4222`` (JetStream; servers of a
    cluster as ``nats://a:4222,b:4222`` or a list), ``redis://host:6379/0`` and ``rediss://host:6379/0``.

    Raises `ConfigurationError` for anything else, without repeating the URL, which may contain a secret.
    """
    url = cast(str, one_text(url))
    return class_of(url)(argument_of(url, "store", "sqlite", "/var/lib/queuebell/queue.db"), **options)


def class_of(url: str) -> Callable[..., QueueStore]:
    """Return the class for a URL. Raises `ConfigurationError` as `open_store` does."""
    return cast("Callable[..., QueueStore]", class_for(url, STORES, "store"))
