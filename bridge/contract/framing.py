"""What a frame carries besides itself where many sessions share one connection: over brokers (S1).

Every frame has ``instance`` and ``seq``. The sequence grows over the life of its sender, so that what was overtaken or
repeated on its way is known by it. The upper bits count the sender's connections: the last will of one, written when
it was made, is its last possible frame and yet older than every frame of the next.

Two fields let several bridges share a broker. The bridge's frames all carry its ``boot``; the listener's carry ``to``,
the boot that it was welcomed by, and other bridges leave it alone. Both may be absent.

A hello and a welcome carry the ``version`` of the protocol: peers of another one are refused with a plain error, as
WebSockets are by their subprotocol.

Two more prove who speaks, where a bridge asks for that: a hello carries the ``credential``, and every frame of the
listener the ``ticket`` that it drew, which nobody else knows, and of which its instance is made. A bridge never says
either.
"""

from __future__ import annotations

import hashlib

import msgspec

from bridge.contract.errors import BadInput
from bridge.contract.wire import FRAME_BYTES_MAX, Bye, DownFrame, Hello, UpFrame, Welcome, encode_frame

VERSION = 2
_COUNT_BITS = 32
LAST_COUNT = (1 << _COUNT_BITS) - 1
INSTANCE_LENGTH = 32
_HEX = frozenset("0123456789abcdef")


class Stamp(msgspec.Struct, frozen=True):
    """The fields that all frames over brokers have in common, as far as they are there."""

    instance: str | None = None
    seq: int | None = None
    boot: str | None = None
    to: str | None = None
    credential: str | None = None
    ticket: str | None = None
    version: int = 1
    """Of a hello and a welcome; the first version named none."""

    def __repr__(self) -> str:
        # What proves somebody to be somebody is in no log, whoever logs it.
        return f"Stamp({self.instance}, {self.seq}, {self.boot}, {self.to})"


_stamp = msgspec.json.Decoder(Stamp)


def is_instance(text: str) -> bool:
    """Say whether ``text`` is 32 hex digits; to be asked before any topic is built of it."""
    return len(text) == INSTANCE_LENGTH and _HEX.issuperset(text)


def instance_of(ticket: str) -> str:
    """Return the instance of whoever drew this ticket: who hears the one cannot tell the other."""
    return hashlib.sha256(ticket.encode()).hexdigest()[:INSTANCE_LENGTH]


def seq_of(connection: int, count: int) -> int:
    """Return the sequence number of a frame: ``count`` from 1 on the sender's ``connection`` from 0."""
    return (connection << _COUNT_BITS) | count


def is_will(stamp: Stamp) -> bool:
    """Say whether a frame is its sender's last will, published by the broker."""
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
    """Encode a listener's frame with its stamp; a credential is one that needs no escapes (RFC 6750's b64token)."""
    named = b',"version":%d' % VERSION if isinstance(frame, Hello) else b',"instance":"%s"' % instance.encode()
    meant = b"" if to is None else b',"to":"%s"' % to.encode()
    proven = b"" if ticket is None else b',"ticket":"%s"' % ticket.encode()
    proof = b"" if credential is None else b',"credential":"%s"' % credential.encode()
    return b'%s%s,"seq":%d%s%s%s}' % (encode_frame(frame)[:-1], named, seq, meant, proven, proof)


def encode_will(instance: str, connection: int, *, ticket: str | None = None) -> bytes:
    """Encode the last will of a listener's connection: a `bye` that comes after all it says."""
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
