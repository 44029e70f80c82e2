"""An outbox in Django's database: rows within `transaction.atomic`, messages right after its commit."""

from __future__ import annotations

import random
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Self

from django.db import DatabaseError, connections, router, transaction

from queuebell.bridge.contract.partitioning import Partitions
from queuebell.bridge.producer.outbox import table
from queuebell.bridge.producer.outbox.database import (
    LISTEN,
    BlockingDatabase,
    BlockingLink,
    OutboxDatabase,
    notify_relays,
)
from queuebell.bridge.producer.outbox.relay import Relay
from queuebell.bridge.producer.outbox.table import Execute, Place
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import NEVER, Body, QueueStore
from queuebell.bridge.queues.postgres.transaction import explained
from queuebell.frameworks.django.models import OutboxMessage


def put(
    queue: str | Partitions,
    bodies: Sequence[Body],
    *,
    key: str | bytes | None = None,
    visible_after_ms: int = 0,
    ttl_s: int = NEVER,
    using: str | None = None,
) -> list[str]:
    """Put 1 to 10,000 messages in the open `atomic` block; return the key of each.

    They are sent after the outermost block commits, and never after a rollback, also of an inner block. The delay
    counts from now, the time to live from the put to the store. ``key`` chooses the partition of a partitioned queue,
    such as ``billing/orders:8``. ``using`` is the name of a database, by default that of your routers.

    Raises `BadInput`, with nothing put and the transaction unchanged: ``no_transaction``, ``wrong_database``,
    ``transaction_failed``, and what any put raises. After `StoreUnavailable` it can only be rolled back.
    """
    written = table.new_rows(
        queue,
        bodies,
        key=key,
        visible_after_ms=visible_after_ms,
        ttl_s=ttl_s,
        now_ms=time.time_ns() // 1_000_000,
        name=lambda: uuid.uuid4().hex,
        draw=random.random,
    )
    alias = _alias(using)
    connection = connections[alias]
    place = _place(connection)
    with explained(written[0].queue):
        inside = connection.in_atomic_block or not connection.get_autocommit()
        table.insert(_executor(connection), place, written, inside)
    if place.dialect == "sqlite":
        transaction.on_commit(notify_relays, using=alias)
    return [row.put_key for row in written]


def relay(to: QueueStore | PublishingQueue, *, using: str | None = None, **options: Any) -> Relay:
    """Return the relay that puts committed rows to a store, an async context manager with the options of `Relay`.

    It uses its own thread with a Django connection, and on PostgreSQL a second connection to listen on.
    """
    return Relay(database(using), to, **options)


def database(using: str | None = None) -> OutboxDatabase:
    """Return the database that a relay reads."""
    alias = _alias(using)
    kept: list[_KeptLink] = []

    def open_kept() -> BlockingLink:
        if not kept:
            kept.append(_KeptLink(alias))
        return kept[0].begin()

    def end() -> None:
        for link in kept:
            link.end()
        kept.clear()

    place = _place(connections[alias])
    return BlockingDatabase(place, open_kept, open_listener=lambda: _DjangoLink(alias).begin(), end=end)


def _alias(using: str | None) -> str:
    return str(using or router.db_for_write(OutboxMessage))


def _place(connection: Any) -> Place:
    table.check_dialect(connection.vendor)
    name = OutboxMessage._meta.db_table
    return Place(connection.vendor, connection.ops.quote_name(name), name)


def _executor(connection: Any) -> Execute:
    def execute(statement: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(re.sub(r":(p\d+)", r"%(\1)s", statement), given)
            return list(cursor.fetchall()) if cursor.description else []

    return execute


class _DjangoLink:
    """A Django connection for the relay alone, made in the thread that uses it."""

    def __init__(self, alias: str) -> None:
        self._connection: Any = connections[alias].copy()
        self.execute = _executor(self._connection)
        self.commit = self._connection.commit

    def begin(self) -> Self:
        """Turn off autocommit; the first statement begins a transaction."""
        self._connection.set_autocommit(False)
        return self

    def listen(self) -> Any:
        self.execute(LISTEN, {})
        self.commit()
        return self._connection.connection

    def close(self) -> None:
        self._connection.close()


class _KeptLink(_DjangoLink):
    """A connection that stays open between reads."""

    def close(self) -> None:
        try:
            self._connection.rollback()
        except DatabaseError:
            self._connection.close()  # the next read connects again

    def end(self) -> None:
        self._connection.close()
