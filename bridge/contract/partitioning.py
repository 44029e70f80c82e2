"""Partitioned queues: one logical queue over several physical ones, and the partition of a key; pure.

``billing/orders:4`` means the queues ``billing/orders-p0`` to ``billing/orders-p3``, and ``billing/orders-poison`` for
dead letters of all of them. References never contain a colon, so the two cannot be confused, and the form needs no
quotes in shells, URLs and TOML files.

The partition of a key is ``jump(first 8 bytes of SHA-256(key), count)``: the bytes as an unsigned number, the highest
first, and the jump consistent hash of Lamping and Veach ("A Fast, Minimal Memory, Consistent Hash Algorithm", 2014).
Going from n to n + 1 partitions moves one key in n + 1, and all of those to the new partition. Test vectors for
other languages are in docs/how-to/partitions.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import BadInput, BadQueueReference
from queuebell.bridge.contract.names import POISON_SUFFIX, parse_reference, poison_reference, split_reference

PARTITIONS_MAX: Final = 100
"""Each partition in an external store costs its own sweeps."""
NAME_MIN: Final = 3
NAME_MAX: Final = 63
"""Limit of every derived name: that of the strictest store (Azure)."""

_MASK: Final = (1 << 64) - 1
_portable = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*").fullmatch
_written = re.compile(r"([^:]*):([1-9][0-9]{0,2})").fullmatch
_partition = re.compile(r"(.+)-p(0|[1-9][0-9]?)").fullmatch


class Partitions(msgspec.Struct, frozen=True):
    """``count`` (1 to 100) physical queues that together are one logical ``queue``, in a fixed order.

    No message is put to the logical queue itself. Its name must be valid in the strictest store (Azure), so that a
    program can change stores by its URL alone: lower-case letters, digits and single hyphens, and short enough that
    each derived name, including poison queues, has at most 63 characters. Raises `BadQueueReference` or `BadInput`.
    """

    queue: str
    count: int

    def __post_init__(self) -> None:
        count: object = self.count
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= PARTITIONS_MAX:
            raise BadInput("bad_parameter", f"partitions: their number must be from 1 to {PARTITIONS_MAX}")
        _, name = split_reference(parse_reference(self.queue))
        longest = NAME_MAX - len(f"-p{count - 1}{POISON_SUFFIX}")
        if name.endswith(POISON_SUFFIX):
            raise BadQueueReference(
                "a poison queue cannot be partitioned: the partitions of a queue share one, named after "
                "the queue with -poison"
            )
        if not _portable(name) or not NAME_MIN <= len(name) <= longest:
            raise BadQueueReference(
                f"the name of a queue of {count} partitions must be {NAME_MIN} to {longest} lowercase "
                "letters, digits and single hyphens between them, which leaves room for -poison: the "
                "strictest store accepts no other names",
                self.queue,
            )

    def __str__(self) -> str:
        """Return the written form, ``account/queue:count``."""
        return f"{self.queue}:{self.count}"

    @property
    def references(self) -> tuple[str, ...]:
        """The physical queues, partition 0 first."""
        return tuple(self.reference(number) for number in range(self.count))

    @property
    def poison(self) -> str:
        """The default poison queue of a listener of all partitions."""
        return poison_reference(self.queue)

    def reference(self, number: int) -> str:
        """Return the physical queue of one partition, 0 to ``count`` - 1."""
        return f"{self.queue}-p{number}"

    def of(self, key: str | bytes) -> str:
        """Return the physical queue for messages of a key; raises `BadInput` as `partition` does."""
        return self.reference(partition(key, self.count))


def parse_partitions(text: object) -> Partitions:
    """Read the written form, ``account/queue:count``.

    Raises `BadQueueReference` for everything else, without repeating it, and errors of `Partitions`.
    """
    found = _written(text) if isinstance(text, str) else None
    if isinstance(text, str) and "://" in text:
        raise BadQueueReference("expected the name of a queue, such as billing/orders, not an address", text)
    if found is None:
        raise BadQueueReference(
            "a partitioned queue is 'account/queue:count' with a whole number from 1 to "
            f"{PARTITIONS_MAX}, such as billing/orders:8, without blanks, signs or leading zeros",
            text,
        )
    return Partitions(found[1], int(found[2]))


def parse_queue(text: object) -> str | Partitions:
    """Return a reference as it is, and the written form of a partitioned queue as its `Partitions`.

    Raises `BadQueueReference` for everything else, and errors of `Partitions`.
    """
    if isinstance(text, Partitions):
        return text
    return parse_partitions(text) if isinstance(text, str) and ":" in text else parse_reference(text)


def parse_physical(text: object) -> str:
    """Return a reference of a physical queue.

    Raises `BadQueueReference`, which suggests a partition for a partitioned queue.
    """
    given = parse_queue(text)
    if isinstance(given, Partitions):
        raise BadQueueReference(f"this needs a single queue: name a partition, such as {given.reference(0)}")
    return given


def expand(queues: Iterable[str | Partitions]) -> dict[str, Partitions | None]:
    """Return all physical queues in order, each with the partitioned queue that it belongs to, or None.

    Raises `BadInput` for no queue or a duplicate, and errors of `parse_queue`.
    """
    found: dict[str, Partitions | None] = {}
    for queue in queues:
        given = parse_queue(queue)
        for ref in given.references if isinstance(given, Partitions) else (given,):
            if ref in found:
                raise BadInput("bad_parameter", "queue: at least one reference, and no duplicates")
            found[ref] = given if isinstance(given, Partitions) else None
    if not found:
        raise BadInput("bad_parameter", "queue: at least one reference, and no duplicates")
    return found


def logical_reference(ref: str) -> str | None:
    """Return the logical queue of a name with the form of a partition, or None."""
    found = _partition(ref)
    return None if found is None else found[1]


def partition(key: str | bytes, count: int) -> int:
    """Return the partition of a key, 0 to ``count`` - 1; text counts as its UTF-8 bytes.

    The result is the same on every platform and in every release. Raises `BadInput` for an empty key, one that is
    neither text nor bytes, or invalid text: a missing id would put all work on one partition.
    """
    given: object = key
    try:
        data = given.encode() if isinstance(given, str) else given
    except UnicodeEncodeError:
        data = None
    if not isinstance(data, bytes) or not data:
        raise BadInput(
            "bad_parameter", "key: must be text or bytes, and not empty; None puts to the partitions in turn"
        )
    return jump(int.from_bytes(hashlib.sha256(data).digest()[:8], "big"), count)


def jump(number: int, count: int) -> int:
    """Return the bucket, 0 to ``count`` - 1, of an unsigned number of 64 bits: the jump consistent hash.

    The division is of IEEE 754 doubles, as in the paper. Both its operands are below 2**53, so every platform agrees.
    """
    bucket, following = -1, 0
    while following < count:
        bucket = following
        number = (number * 2862933555777941757 + 1) & _MASK
        following = int((bucket + 1) * (float(1 << 31) / float((number >> 33) + 1)))
    return bucket
