"""The figures of listeners, queues, pools and scalers, as `Listener.state()` and `Scaler.state()` return them."""

from __future__ import annotations

import msgspec


class QueueFigures(msgspec.Struct, frozen=True):
    """The figures of one queue: its depth, its active and total receives, and the outcomes of its messages.

    Counters run from the listener's start. ``depth`` is the last one known, None before; ``wake_sources`` counts the
    receives that found work by their cause; a wake that carried messages counts as one.
    """

    state: str
    depth: int | None
    active_receives: int
    total_receives: int
    empty_receives: int
    failed_receives: int
    carried: int
    active_handlers: int
    free: int
    held: int
    epoch: int
    covered: int
    gen: int
    handled: int
    retried: int
    buried: int
    given_back: int
    lost_leases: int
    too_short: int
    visibility_s: float
    wake_sources: dict[str, int]
    last_burial: str | None
    replayed: int = 0
    """Messages that a handler replayed (`listeners.Replay`)."""
    hung_handlers: int = 0
    """Slots held by calls that ran past ``handler_timeout`` and have not ended."""
    burials_bare: int = 0
    """Dead letters whose facts did not fit beside the body and are in the log only."""


class PlaceFigures(msgspec.Struct, frozen=True):
    """The figures of one queue in a pool: its share, the slots it uses, and whether it waits for more."""

    queue: str
    weight: int
    priority: int
    reserved: int
    limit: int | None
    running: int
    receiving: int
    waiting: bool


class PoolFigures(msgspec.Struct, frozen=True):
    """The figures of a pool of handler slots, with all queues of all listeners that share it."""

    size: int
    running: int
    receiving: int
    free: int
    places: list[PlaceFigures]


class ListenerFigures(msgspec.Struct, frozen=True):
    """The figures of a listener: ``mode`` is ``connecting``, ``push``, ``degraded`` or ``pull-only``.

    ``session`` is True while it has a session with the bridge, ``sessions`` how many the bridge serves, and ``bridge``
    the address of that bridge. A listener of more than about 200 queues has several sessions: ``mode`` is then the
    worst of theirs, ``session`` is True if all are open, and ``boot`` and ``bridge`` are the first's.
    """

    name: str
    instance: str
    mode: str
    session: bool
    sessions: int
    boot: str | None
    queues: dict[str, QueueFigures]
    pool: PoolFigures | None = None
    bridge: str | None = None


class ScalerFigures(msgspec.Struct, frozen=True):
    """The figures of the workers of a scaled queue: ``mode`` is as of a listener.

    ``wanted`` is for all machines, ``others`` the workers elsewhere that the bridge has reported; ``running`` counts
    those that start or end as well. ``failure`` is why the newest count, or else the newest worker, failed, and
    ``held`` why no more are started now. ``tally`` counts starts, failures and ends by reason since its start.
    """

    queue: str
    mode: str
    state: str
    wanted: int
    ready: int
    starting: int
    running: int
    others: int
    failure: str | None
    held: str | None = None
    tally: dict[str, int] = {}
