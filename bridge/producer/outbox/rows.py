"""What one message is while it waits in an outbox, and what becomes of it; pure.

A row is written in the transaction of whoever puts, and is deleted once the store has its message. Its ``key`` makes
the put one: asked again after a crash, a store that puts once knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from bridge.contract.backoff import Draw
from bridge.contract.errors import BadInput, Unsupported
from bridge.contract.headers import checked_headers
from bridge.contract.partitioning import Partitions, parse_queue
from bridge.queues.base import NEVER, Body, NewMessage, new_messages
from bridge.queues.limits import check_put

TABLE: Final = "queuebell_outbox"
VERSION: Final = 1
"""What rows mean; a relay leaves those of another version alone, and says so."""
PUT_MAX: Final = 10_000


class OutboxRow(msgspec.Struct, frozen=True, gc=False):
    """One message in an outbox; ``id`` is the table's, 0 before it is there. Times are those of `NewMessage`."""

    put_key: str
    queue: str
    body: bytes
    written_ms: int
    visible_after_ms: int = 0
    ttl_s: int = NEVER
    headers: str | None = None
    """As JSON, None for none."""
    id: int = 0


def new_rows(
    queue: str | Partitions,
    bodies: Sequence[Body],
    *,
    key: str | bytes | None,
    visible_after_ms: int,
    ttl_s: int,
    now_ms: int,
    name: Callable[[], str],
    draw: Draw,
) -> list[OutboxRow]:
    """Return a put of 1 to 10,000 messages as rows; ``name`` gives each a key of its own.

    Of a partitioned queue all go to the partition of ``key``, or without one to a partition that is drawn. Raises
    `BadInput` for what no store takes.
    """
    messages = new_messages(bodies, visible_after_ms, ttl_s)
    given = parse_queue(queue)
    if isinstance(given, Partitions):
        ref = given.of(key) if key is not None else given.reference(int(draw() * given.count))
    elif key is not None:
        raise BadInput(
            "bad_parameter",
            "key: chooses a partition, but this queue has none; a partitioned one is written billing/orders:8",
        )
    else:
        ref = given
    check_put(ref, messages, PUT_MAX)
    return [
        OutboxRow(name(), ref, each.body, now_ms, each.visible_after_ms, each.ttl_s, _written(each.headers))
        for each in messages
    ]


def _written(headers: dict[str, str]) -> str | None:
    return msgspec.json.encode(headers).decode() if headers else None


def message_of(row: OutboxRow, now_ms: int) -> NewMessage:
    """Return what is put for a row: of its delay only what is left, and never more than was asked, by any clock.

    Raises `BadInput` for a row that no put has written so: another program has changed or damaged it.
    """
    # SQLite keeps text in a column of bytes or numbers.
    fields = (row.body, row.written_ms, row.visible_after_ms, row.ttl_s)
    if [type(field) for field in fields] != [bytes, int, int, int]:
        raise BadInput(
            "bad_parameter", "the row is damaged: its body is not bytes, or one of its times is not a number"
        )
    waited = max(0, now_ms - row.written_ms)
    delay_ms = max(0, row.visible_after_ms - waited)
    return NewMessage(row.body, delay_ms, row.ttl_s, {} if row.headers is None else _read(row.headers))


def _read(headers: str) -> dict[str, str]:
    try:
        return checked_headers(msgspec.json.decode(headers))
    except (msgspec.DecodeError, BadInput, UnicodeError, RecursionError, TypeError):
        raise BadInput("bad_parameter", "the row is damaged: its headers are not JSON names and values") from None


def by_queue(rows: Sequence[OutboxRow]) -> dict[str, list[OutboxRow]]:
    """Return rows by their queues, each in the order given."""
    found: dict[str, list[OutboxRow]] = {}
    for row in rows:
        found.setdefault(row.queue, []).append(row)
    return found


def is_final(error: Exception) -> bool:
    """Say whether a store refuses a message for good, so that another try would be refused as well."""
    return isinstance(error, BadInput | Unsupported)
