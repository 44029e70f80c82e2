"""The wake machine's states, events and commands (`listeners.wake.controller.Controller`), and which event leads where.

`LEADS_TO` lists the states that an event may lead to in each state. A pair that is not listed cannot happen.

========  =========================================================================================
IDLE      nothing pending, no receive in flight, no timer but the dead-man's (L10) and known returns (L7)
DRAINING  receives in flight; a failed one may have left a timer beside them
FULL      a check is pending and no slot is free: `more` was sent, or its turn in the pool is near (L5)
COOLING   a check is pending after an error (L11) or a limit (L8), or the pause between polls without a bridge (L9)
STOPPING  no new receives; those in flight are awaited (L12)
STOPPED   the end
========  =========================================================================================
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class State(enum.Enum):
    """The state of one queue's machine."""

    __hash__ = object.__hash__  # Enum's own costs a Python call per lookup

    IDLE = "idle"
    DRAINING = "draining"
    FULL = "full"
    COOLING = "cooling"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Event(enum.Enum):
    """What can happen to it."""

    __hash__ = object.__hash__  # Enum's own costs a Python call per lookup

    WAKE = "wake"
    RECEIVED = "received"
    FAILED = "failed"
    ROOM = "room"
    SETTLED = "settled"
    TICK = "tick"
    WELCOMED = "welcomed"
    LOST = "lost"
    STOP = "stop"


class Mode(enum.Enum):
    """How wakes come."""

    __hash__ = object.__hash__  # Enum's own costs a Python call per lookup

    CONNECTING = "connecting"
    PUSH = "push"
    DEGRADED = "degraded"
    PULL = "pull-only"


_I, _D, _F, _C, _S, _X = State.IDLE, State.DRAINING, State.FULL, State.COOLING, State.STOPPING, State.STOPPED

HEARD_WHILE_STOPPING: Final = frozenset({Event.WAKE, Event.RECEIVED, Event.FAILED})
"""What a machine that stops still acts on: a wake is handed back at once (L5), and answers are awaited (L12)."""

LEADS_TO: Final[dict[State, dict[Event, frozenset[State]]]] = {
    # Nothing pending. A carried wake may need no receive (O7); a tick may be a return, the dead-man's, or early.
    _I: {
        Event.WAKE: frozenset({_I, _D, _F}),
        Event.ROOM: frozenset({_I}),
        Event.SETTLED: frozenset({_I}),
        Event.TICK: frozenset({_I, _D, _F}),
        Event.WELCOMED: frozenset({_I}),
        Event.LOST: frozenset({_C}),
        Event.STOP: frozenset({_X}),
    },
    # Receives in flight. What an answer leads to depends on what it covers and on the slots left.
    _D: {
        **dict.fromkeys(Event, frozenset({_D})),
        Event.RECEIVED: frozenset({_I, _D, _F, _C}),
        Event.FAILED: frozenset({_D, _C}),
        Event.STOP: frozenset({_S}),
    },
    # A check is pending without a slot. Room starts it if the pool grants a slot; a wake may report room.
    _F: {
        Event.WAKE: frozenset({_F, _D}),
        Event.ROOM: frozenset({_D, _F}),
        Event.SETTLED: frozenset({_F}),
        Event.TICK: frozenset({_F}),
        Event.WELCOMED: frozenset({_F}),
        Event.LOST: frozenset({_F}),
        Event.STOP: frozenset({_X}),
    },
    # A timer is set. A wake does not wait for it: the store may be back.
    _C: {
        Event.WAKE: frozenset({_D, _F, _C}),
        Event.ROOM: frozenset({_C}),
        Event.SETTLED: frozenset({_C, _D, _F}),
        Event.TICK: frozenset({_C, _D, _F}),
        Event.WELCOMED: frozenset({_I, _C}),
        Event.LOST: frozenset({_C}),
        Event.STOP: frozenset({_X}),
    },
    # The way out, which nothing but the last answer ends.
    _S: {
        **dict.fromkeys(Event, frozenset({_S})),
        Event.RECEIVED: frozenset({_S, _X}),
        Event.FAILED: frozenset({_S, _X}),
    },
    # An answer needs a receive in flight (L11), as everywhere but in DRAINING and STOPPING.
    _X: {event: frozenset({_X}) for event in Event if event not in (Event.RECEIVED, Event.FAILED)},
}


class ImpossibleEvent(RuntimeError):
    """An event came that the state rules out, or an action led where the table does not allow: a defect here."""


class StartReceive(msgspec.Struct, frozen=True):
    """Begin a receive of up to ``limit`` messages; ``source`` is the reason of the wake it answers."""

    rid: int
    limit: int
    source: str


class SendStarted(msgspec.Struct, frozen=True):
    """Report to the bridge that a receive begins which knows of ``gen`` (L4)."""

    boot: str
    gen: int


class SendEmptyReceive(msgspec.Struct, frozen=True):
    """Report an empty receive that began ``age_s`` ago knowing of ``gen`` (B7)."""

    boot: str
    gen: int
    age_s: float
    next_visible_s: float | None
    after_s: float = 0.0
    """How long it knew of ``gen`` when that receive began (C4)."""


class SendMore(msgspec.Struct, frozen=True):
    """Ask the bridge to wake another worker (L5).

    ``unannounced`` where the reason is not one of the bridge's wakes, and was not reported in this session (L6, L7).
    """

    depth: int | None
    unannounced: bool = False


class SendRoom(msgspec.Struct, frozen=True):
    """Report how many slots are free; wakes up to ``gen`` are counted in it."""

    free: int
    gen: int


class NotifyEmpty(msgspec.Struct, frozen=True):
    """Call the host's hook: the queue has run empty."""


class NotifyWork(msgspec.Struct, frozen=True):
    """Call the host's hook: there is work; ``source`` is why."""

    source: str


Command = StartReceive | SendStarted | SendEmptyReceive | SendMore | SendRoom | NotifyEmpty | NotifyWork
