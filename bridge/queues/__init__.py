"""The ways to keep a queue store's promise, by scheme; each is loaded when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from bridge.contract.errors import ConfigurationError
from bridge.queue import QueueStore

STORES: Final[dict[str, str]] = {
    "memory": "bridge.queues.memory:MemoryStore",
    "sqlite": "bridge.queues.sqlite:SqliteStore",
    "http": "bridge.queues.http:HttpStore",
    "https": "bridge.queues.http:HttpStore",
    "postgres": "bridge.queues.postgres:PostgresStore",
    "postgresql": "bridge.queues.postgres:PostgresStore",
    "sqs": "bridge.queues.sqs:SqsStore",
    "azure": "bridge.queues.azure:AzureStore",
    "nats": "bridge.queues.jetstream:JetStreamStore",
    "tls": "bridge.queues.jetstream:JetStreamStore",
    "redis": "bridge.queues.redis:RedisStore",
    "rediss": "bridge.queues.redis:RedisStore",
}
"""Scheme to the class that serves it, by dotted name."""


def open_store(url: str, **options: Any) -> QueueStore:
    """Return the store that ``url`` names, ready to be called; options go to its class.

    ``memory:NAME``, ``sqlite:///absolute/path.db`` (``sqlite:relative.db`` from the working directory),
    ``http://host:port``, ``https://host:port``; with the extra for it ``postgres://user@host/database``,
    ``sqs://region``, ``azure:`` (its connection string is in the environment), ``nats://host:4222`` and
    ``tls://host:4222`` (JetStream), ``redis://host:6379/0`` and ``rediss://host:6379/0``. Raises `ConfigurationError`
    for anything else, without repeating the URL, which may hold a secret.
    """
    scheme, _, rest = url.partition(":")
    return class_of(url)(_argument(scheme.lower(), url, rest), **options)


def class_of(url: str) -> Callable[..., QueueStore]:
    """Return the class that serves a URL. Raises `ConfigurationError` as `open_store` does."""
    scheme, colon, _ = url.partition(":")
    name = STORES.get(scheme.lower()) if colon else None
    if name is None:
        known = ", ".join(f"{scheme}:" for scheme in STORES)
        raise ConfigurationError(f"store: the scheme of its URL is one of {known}")
    module, _, attribute = name.partition(":")
    return cast("Callable[..., QueueStore]", getattr(importlib.import_module(module), attribute))


def _argument(scheme: str, url: str, rest: str) -> str:
    """Return what the class of a scheme takes: a name, a path, or the whole URL."""
    if scheme == "memory":
        return rest.strip("/") or "default"
    if scheme != "sqlite":
        return url
    parts = urlsplit(url)
    if parts.netloc:
        raise ConfigurationError("store: sqlite takes a path and no host, as in sqlite:///var/lib/queuebell/queue.db")
    if not parts.path.strip("/"):
        raise ConfigurationError("store: sqlite needs the path of a file, as in sqlite:///var/lib/queuebell/queue.db")
    path = unquote(parts.path)
    if "\0" in path:
        raise ConfigurationError("store: the path of its file holds a NUL character")
    return path
