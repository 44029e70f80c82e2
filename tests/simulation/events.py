"""What happened in a run, as its checkers and its trace hear it.

``at`` is virtual seconds since the run's beginning, true time: the clock of a suspended process lags behind it. A
message is named by its producer's number and its own, counted from 0 per producer. Events marked *truth* are seen by
the simulated world; no process knows them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Found = Literal["found", "empty", "unknown", "failed"]
"""What a receive came to for the one who asked: ``unknown`` may have taken messages, ``failed`` has not."""


class Event(msgspec.Struct, frozen=True):
    """Anything that happened."""

    at: float


class Put(Event, frozen=True):
    """What became of messages ``first`` to ``first + count - 1`` of a producer."""

    producer: int
    queue: str
    first: int
    count: int


class PutAttempted(Put, frozen=True):
    """A producer begins to put them, visible ``delay_s`` later."""

    delay_s: float


class PutAcknowledged(Put, frozen=True):
    """The producer was told that they stand."""


class PutUnknown(Put, frozen=True):
    """The producer cannot know; also of every put under way in a producer that is killed."""


class PutFailed(Put, frozen=True):
    """The put was not carried out."""


class Published(Event, frozen=True):
    """A producer handed a trigger to its publisher."""

    producer: int
    queue: str
    size: int


class Triggered(Event, frozen=True):
    """The bridge took a trigger; ``gen_before`` and ``gen`` are the queue's, ``merged`` one that was a copy (I8)."""

    queue: str
    gen_before: int
    gen: int
    merged: bool


class ReceiveBegan(Event, frozen=True):
    """A worker handed a receive to its transport; ``call`` is unique in the run."""

    worker: str
    queue: str
    call: int
    limit: int


class ReceiveAnswered(Event, frozen=True):
    """What became of it; ``source`` says what woke the worker last: a wake's reason, ``timer``, or ``none``."""

    worker: str
    queue: str
    call: int
    began: float
    outcome: Found
    count: int
    source: str


class StoreReceived(Event, frozen=True):
    """*Truth*: the store carried out a receive and leased ``count`` messages."""

    queue: str
    call: int
    count: int


class HandlerBegan(Event, frozen=True):
    """A handler got a message."""

    worker: str
    queue: str
    producer: int
    number: int
    attempt: int


class HandlerEnded(Event, frozen=True):
    """Its handler ended: ``done``, ``failed`` or ``cancelled``; a killed worker's handlers end without a word."""

    worker: str
    queue: str
    producer: int
    number: int
    outcome: Literal["done", "failed", "cancelled"]


class Deleted(Event, frozen=True):
    """*Truth*: the store deleted messages."""

    queue: str
    count: int


class LevelChanged(Event, frozen=True):
    """*Truth*: now ``visible`` messages of a queue can be received."""

    queue: str
    visible: int


class BecameVisible(LevelChanged, frozen=True):
    """That is more than before."""


class BecameInvisible(LevelChanged, frozen=True):
    """That is fewer than before."""


class ProcessUp(Event, frozen=True):
    """A process began; ``role`` is worker, producer, bridge or store."""

    process: str
    role: str


class ProcessDown(Event, frozen=True):
    """A process is gone: ``killed``, ``stopped`` or ``failed``."""

    process: str
    role: str
    why: str


class ProcessPaused(Event, frozen=True):
    """A process does nothing from now on; ``suspended`` where its clock stands still as well."""

    process: str
    suspended: bool


class ProcessResumed(Event, frozen=True):
    """It goes on."""

    process: str


class ListenerRoom(Event, frozen=True):
    """How a worker stands with a queue, told whenever it changes.

    ``live``: it runs and is not asked to stop. ``subscribed``: it serves the queue. ``free``: handler slots free.
    ``reaches_store``: the store answers receives as it should, and the way to it and back is open.
    """

    worker: str
    queue: str
    live: bool
    subscribed: bool
    free: int
    reaches_store: bool


class ListenerIdle(Event, frozen=True):
    """A worker stands idle with a queue: no look is owed (I4).

    ``newest_wake`` is when its newest wake came, ``newest_empty`` when its newest receive that left nothing began; None
    where there was none.
    """

    worker: str
    queue: str
    newest_wake: float | None
    newest_empty: float | None


class CountBegan(Event, frozen=True):
    """A scaler asked the store how much there is."""

    scaler: str
    queue: str


class ScalerRoom(Event, frozen=True):
    """How a scaler stands with its queue, told whenever it changes.

    ``live``: it runs and is not asked to stop. ``free``: processes it may still start, 0 while some are ``coming`` or a
    start has failed just now (Z3). ``reaches_store``: as of a `ListenerRoom`.
    """

    scaler: str
    queue: str
    live: bool
    free: int
    coming: int
    reaches_store: bool


class EndAsked(Event, frozen=True):
    """A scaler told a worker to end; ``all`` where it stops itself.

    ``busy_since`` is when the oldest of the handlers that run there began, None where none runs. *Truth*.
    """

    scaler: str
    worker: str
    all: bool
    busy_since: float | None


class Calm(Event, frozen=True):
    """*Truth*: there has been no work for so long that only those listeners are left which scalers keep."""


class StoreUp(Event, frozen=True):
    """The store answers (again)."""


class StoreDown(Event, frozen=True):
    """The store does not answer, or wrongly, from now on."""

    why: str


class BridgeUp(Event, frozen=True):
    """A bridge began."""

    boot: str


class BridgeDown(Event, frozen=True):
    """The bridge is gone."""

    boot: str


class Marked(Event, frozen=True):
    """The debt of a queue changed at the bridge: ``dirty`` at ``gen`` (I3)."""

    queue: str
    gen: int
    dirty: bool


class CoverHeard(Event, frozen=True):
    """The bridge heard a cover frame, of whatever boot (I3)."""

    queue: str
    boot: str
    gen: int


class MarkedBy(Marked, frozen=True):
    """The same of one of several bridges; ``forgiven`` where a peer's word paid it (C4)."""

    boot: str
    settled_by_peer: bool


class WordSaid(Event, frozen=True):
    """A bridge said something to the others: ``member``, ``able`` or ``covered``."""

    kind: str


class SessionMoved(Event, frozen=True):
    """One of several bridges ended a session whose listener, over a broker, is with another bridge."""

    listener: str


class MarkForgiven(Event, frozen=True):
    """A bridge forgave a mark on a peer's word (C4), or took the peer's receive as one of the queue (C5, by ``time``).

    ``requested_at`` is when that mark was made, by a name where it was made first at the peer, ``time`` for C5 the
    moment that was taken for the receive's beginning; ``emptied_at`` when the newest receive began that came back
    empty, of all that were answered. Both are true time, and *truth*.
    """

    queue: str
    boot: str
    by: Literal["name", "time", "cover"]
    requested_at: float
    emptied_at: float


class Held(Event, frozen=True):
    """The most that the bridge held for one session in the run, of one kind, and what it may hold (I5).

    ``what``: ``wakes`` taken at once, ``carried`` messages of one queue that wait in a slot, or ``frames`` on their way
    to a session that has a connection of its own.
    """

    what: str
    most: int
    allowed: int


class Audited(Event, frozen=True):
    """The bridge's audit found visible work that nobody had been told of (O4)."""

    queue: str
    visible: int


class Judged(Event, frozen=True):
    """*Truth*: the bridge let somebody do something, or did not; ``may`` is what its access file says, since when.

    Told of sessions that begin, of whatever is refused, and of all that is let in against the file.
    """

    who: str
    verb: str
    queue: str
    let_in: bool
    may: bool
    since: float


class FaultBegan(Event, frozen=True):
    """A fault of the plan began."""

    kind: str
    target: str
    value: float


class FaultEnded(Event, frozen=True):
    """It was mended."""

    kind: str
    target: str


class Phase(Event, frozen=True):
    """The run entered a phase."""

    name: Literal["faults", "healed", "restart", "quiet", "end"]
