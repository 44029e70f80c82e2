"""Names at a NATS server: the stream, subject and consumer of a queue, and what an acknowledgement's subject tells."""

from __future__ import annotations

import datetime
from typing import NamedTuple

from bridge.contract.names import parse_reference, split_reference


class Names(NamedTuple):
    """What a queue is called there. Tokens of a reference hold neither a dot nor an equals sign."""

    stream: str
    subject: str
    consumer: str

    @classmethod
    def of(cls, prefix: str, reference: str) -> Names:
        """Return the names of a reference; raises `BadQueueReference`."""
        account, queue = split_reference(parse_reference(reference))
        return cls(f"{prefix}={account}={queue}", f"{prefix}.queue.{account}.{queue}", prefix)


def reference_of(prefix: str, stream: str) -> str | None:
    """Return the reference of a stream; None where it is none of ours."""
    parts = stream.split("=")
    if len(parts) != 3 or parts[0] != prefix:
        return None
    try:
        return parse_reference(f"{parts[1]}/{parts[2]}")
    except ValueError:
        return None


class Delivery(NamedTuple):
    """One delivery of a message, as the subject of its acknowledgement has it."""

    stream: str
    consumer: str
    delivered: int
    sequence: int
    stored_at: datetime.datetime

    @classmethod
    def of(cls, subject: str) -> Delivery | None:
        """Read ``$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.NUMBER.TIME.PENDING``; None for anything else.

        Newer servers put a domain and an account before the stream, and more behind.
        """
        parts = subject.split(".")
        if parts[:2] != ["$JS", "ACK"] or len(parts) < 9 or not subject.isascii() or subject.split() != [subject]:
            return None
        stream, consumer, delivered, sequence, _, time = parts[2:8] if len(parts) == 9 else parts[4:10]
        if not (delivered.isdigit() and sequence.isdigit() and time.isdigit()) or len(time) > 19:
            return None
        stored_at = datetime.datetime.fromtimestamp(int(time) // 1000 / 1e6, datetime.UTC)
        return cls(stream, consumer, int(delivered), int(sequence), stored_at)
