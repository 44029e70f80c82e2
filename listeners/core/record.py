"""What a ledger's entity says of one message, and what it allows the next who comes with the same key."""

from __future__ import annotations

import enum

import msgspec


class Standing(enum.Enum):
    """How far the work on a key has come."""

    BEGUN = "begun"
    """Somebody works on it, or died doing so."""
    OPEN = "open"
    """An attempt failed: whoever comes next may begin."""
    DONE = "done"


class Record(msgspec.Struct, frozen=True):
    """An entry of the ledger.

    ``holder`` names one attempt and none other, ``message`` (its queue, its id, the moment it was inserted) and
    ``attempt`` what it was handed; ``lease_s`` is how old the entity must be before another message of this key may
    take over; ``progress`` is the last checkpoint.
    """

    key: str
    standing: Standing
    holder: str
    message: str
    attempt: int
    lease_s: float
    progress: bytes | None = None


class Begin(msgspec.Struct, frozen=True):
    """Write this record, in place of the one that was read if there was one, and begin."""

    record: Record


class AlreadyDone(msgspec.Struct, frozen=True):
    """The effect happened: delete the message unhandled."""


class Wait(msgspec.Struct, frozen=True):
    """Somebody else works on this key; look again in so many seconds at the latest."""

    seconds: float


def begin(found: Record | None, age_s: float, wanted: Record) -> Begin | AlreadyDone | Wait:
    """Decide what an attempt may do that found this record, written ``age_s`` ago.

    An attempt takes over, with the progress made, from one that failed; from one whose message is the same and was
    handed out anew, for then the store has ended the earlier lease; and from one that has not renewed its entry within
    its lease. Two live attempts cannot both go on writing: each write names the ETag of the one before it.

    Where a store has lost count of its hand-outs (it crashed after a receive that was not on its disk), the attempt is
    no higher, and it waits for the lease. Another receipt would tell it from the earlier hand-out, but not which of the
    two is the newer, nor that the earlier worker died with the store: as a rule it lives, and is at work.
    """
    if found is None:
        return Begin(wanted)
    if found.standing is Standing.DONE:
        return AlreadyDone()
    again = found.message == wanted.message and wanted.attempt > found.attempt
    if found.holder == wanted.holder or found.standing is Standing.OPEN or again or age_s > found.lease_s:
        return Begin(msgspec.structs.replace(wanted, progress=found.progress))
    return Wait(max(0.0, found.lease_s - age_s))
