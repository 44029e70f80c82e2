"""Additional fields of frames over brokers, where many sessions share one connection (S1).

Every frame has ``instance`` and ``seq``. The sequence rises over the life of its sender and shows reordered and
repeated frames. The upper bits count the sender's connections: the last will of a connection, written at its begin, is
its last possible frame, but older than every frame of the next connection.

Two optional fields let several bridges share a broker: a bridge's frames have its ``boot``; a listener's have ``to``,
the boot of its welcome, and other bridges ignore them.

A hello and a welcome have the ``version`` of the protocol: peers of another version are rejected with an error, as
WebSockets are by their subprotocol.

Two more authenticate the listener if the bridge requires it: the ``credential`` of a hello, and the ``ticket`` of every
frame, a secret of which the instance is a hash. A bridge never sends either.
"""

from __future__ import annotations

import hashlib

import msgspec

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.wire import FRAME_BYTES_MAX, Bye, DownFrame, Hello, UpFrame, Welcome, encode_frame

VERSION = 2
_COUNT_BITS = 32
LAST_COUNT = (1 << _COUNT_BITS) - 1
INSTANCE_LENGTH = 32
_HEX = frozenset("0123456789abcdef")


class Stamp(msgspec.Struct, frozen=True):
    """The additional fields of a frame over a broker, as far as present."""

    instance: str | None = None
    seq: int | None = None
    boot: str | None = None
    to: str | None = None
    credential: str | None = None
    ticket: str | None = None
    version: int = 1
    """Of a hello and a welcome; the first version had no field."""

    def __repr__(self) -> str:
        # Credentials must not get into logs.
        return f"Stamp({self.instance}, {self.seq}, {self.boot}, {self.to})"


_stamp = msgspec.json.Decoder(Stamp)


def is_instance(text: str) -> bool:
    """Return whether ``text`` is 32 hex digits; check it before it is part of a topic."""
    return len(text) == INSTANCE_LENGTH and _HEX.issuperset(text)


def instance_of(ticket: str) -> str:
    """Return the instance of a ticket, a hash that does not reveal the ticket."""
    return hashlib.sha256(ticket.encode()).hexdigest()[:INSTANCE_LENGTH]


def seq_of(connection: int, count: int) -> int:
    """Return the sequence number of a frame: ``count`` from 1, on the sender's ``connection`` from 0."""
    return (connection << _COUNT_BITS) | count


def is_will(stamp: Stamp) -> bool:
    """Return whether a frame is its sender's last will, published by the broker."""
    return stamp.seq is not None and stamp.seq & LAST_COUNT == LAST_COUNT


def encode_up(
    frame: UpFrame,
    instance: str,
    seq: int,
    to: str | None = None,
    *,
    ticket: str | None = None,
    credential: str | None = None,
) -> bytes:
    """Encode a listener's frame with its stamp; a credential must need no escapes (RFC 6750's b64token)."""
    named = b',"version":%d' % VERSION if isinstance(frame, Hello) else b',"instance":"%s"' % instance.encode()
    meant = b"" if to is None else b',"to":"%s"' % to.encode()
    proven = b"" if ticket is None else b',"ticket":"%s"' % ticket.encode()
    proof = b"" if credential is None else b',"credential":"%s"' % credential.encode()
    return b'%s%s,"seq":%d%s%s%s}' % (encode_frame(frame)[:-1], named, seq, meant, proven, proof)


def encode_will(instance: str, connection: int, *, ticket: str | None = None) -> bytes:
    """Encode the last will of a listener's connection: a `bye` after all its frames."""
    return encode_up(Bye(), instance, seq_of(connection, LAST_COUNT), ticket=ticket)


def encode_down(frame: DownFrame, instance: str, seq: int, boot: str) -> bytes:
    """Encode a bridge's frame with its stamp."""
    ours = b"" if hasattr(frame, "boot") else b',"boot":"%s"' % boot.encode()
    if isinstance(frame, Welcome):
        ours = b',"version":%d' % VERSION
    return b'%s,"instance":"%s","seq":%d%s}' % (encode_frame(frame)[:-1], instance.encode(), seq, ours)


def read_stamp(data: bytes) -> Stamp:
    """Read the stamp of a frame. Raises `BadInput` (``bad_json``, ``too_large``)."""
    if len(data) > FRAME_BYTES_MAX:
        raise BadInput("too_large", f"a frame may have at most {FRAME_BYTES_MAX} bytes")
    try:
        return _stamp.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput("bad_json", "a frame must be one JSON object in UTF-8") from None
