"""The states and events of the wake machine, and what each event does in each state.

`TRANSITIONS` is the whole of it: which action of `listeners.core.controller.Controller` answers an event, and which
states that may lead to. A pair that is not listed cannot happen.

========  =========================================================================================
IDLE      nothing owed, no receive in flight, no timer but the dead-man's (L10) and known returns (L7)
DRAINING  receives in flight; a failed one may have left a timer beside them
FULL      a look is owed and no slot is free; `more` was said (L5); the next free slot looks
COOLING   a look is owed after an error (L11) or a limit (L8), or the pause between polls without a bridge (L9)
STOPPING  no new receives; those in flight are awaited (L12)
STOPPED   the end
========  =========================================================================================
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class State(enum.Enum):
    """Where the machine of one queue stands."""

    IDLE = "idle"
    DRAINING = "draining"
    FULL = "full"
    COOLING = "cooling"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Event(enum.Enum):
    """What can happen to it."""

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

    CONNECTING = "connecting"
    PUSH = "push"
    DEGRADED = "degraded"
    PULL = "pull-only"


class Transition(NamedTuple):
    """Which action answers an event, and the states it may lead to."""

    action: str
    leads_to: frozenset[State]


_I, _D, _F, _C, _S, _X = State.IDLE, State.DRAINING, State.FULL, State.COOLING, State.STOPPING, State.STOPPED


def _to(action: str, *states: State) -> Transition:
    return Transition(action, frozenset(states))


TRANSITIONS: Final[dict[tuple[State, Event], Transition]] = {
    # Nothing owed. A carried wake may need no look (O7); a tick may be a due return, the dead-man's, or too early.
    (_I, Event.WAKE): _to("woken", _D, _F, _I),
    (_I, Event.ROOM): _to("has_room", _I),
    (_I, Event.SETTLED): _to("ignores", _I),
    (_I, Event.TICK): _to("time_passed", _I, _D, _F),
    (_I, Event.WELCOMED): _to("found_bridge", _I),
    (_I, Event.LOST): _to("lost_bridge", _C),
    (_I, Event.STOP): _to("stops", _X),
    # Receives in flight. What an answer leads to depends on what it covers and on the slots left.
    (_D, Event.WAKE): _to("woken", _D),
    (_D, Event.RECEIVED): _to("answered", _I, _D, _F, _C),
    (_D, Event.FAILED): _to("broke", _D, _C),
    (_D, Event.ROOM): _to("has_room", _D),
    (_D, Event.SETTLED): _to("unblocks", _D),
    (_D, Event.TICK): _to("time_passed", _D),
    (_D, Event.WELCOMED): _to("found_bridge", _D),
    (_D, Event.LOST): _to("lost_bridge", _D),
    (_D, Event.STOP): _to("stops", _S),
    # A look owed and no slot for it: only room helps, and it always looks.
    (_F, Event.WAKE): _to("woken", _F, _D),
    (_F, Event.ROOM): _to("has_room", _D, _F),
    (_F, Event.SETTLED): _to("ignores", _F),
    (_F, Event.TICK): _to("time_passed", _F),
    (_F, Event.WELCOMED): _to("found_bridge", _F),
    (_F, Event.LOST): _to("lost_bridge", _F),
    (_F, Event.STOP): _to("stops", _X),
    # A timer stands. A wake does not wait for it: the store may be back.
    (_C, Event.WAKE): _to("woken", _D, _F, _C),
    (_C, Event.ROOM): _to("has_room", _C),
    (_C, Event.SETTLED): _to("unblocks", _C, _D, _F),
    (_C, Event.TICK): _to("time_passed", _C, _D, _F),
    (_C, Event.WELCOMED): _to("found_bridge", _I, _C),
    (_C, Event.LOST): _to("lost_bridge", _C),
    (_C, Event.STOP): _to("stops", _X),
    # The way out. A wake is handed back at once (L5, L12).
    (_S, Event.WAKE): _to("refuses", _S),
    (_S, Event.RECEIVED): _to("ends", _S, _X),
    (_S, Event.FAILED): _to("breaks_off", _S, _X),
    (_S, Event.ROOM): _to("ignores", _S),
    (_S, Event.SETTLED): _to("ignores", _S),
    (_S, Event.TICK): _to("ignores", _S),
    (_S, Event.WELCOMED): _to("ignores", _S),
    (_S, Event.LOST): _to("ignores", _S),
    (_S, Event.STOP): _to("ignores", _S),
    (_X, Event.WAKE): _to("refuses", _X),
    (_X, Event.ROOM): _to("ignores", _X),
    (_X, Event.SETTLED): _to("ignores", _X),
    (_X, Event.TICK): _to("ignores", _X),
    (_X, Event.WELCOMED): _to("ignores", _X),
    (_X, Event.LOST): _to("ignores", _X),
    (_X, Event.STOP): _to("ignores", _X),
}

IMPOSSIBLE: Final[frozenset[tuple[State, Event]]] = frozenset(
    (state, event) for state in (_I, _F, _C, _X) for event in (Event.RECEIVED, Event.FAILED)
)
"""An answer needs a receive in flight, which these states do not have (L11)."""


class ImpossibleEvent(RuntimeError):
    """An event came that the state rules out, or an action led where the table does not allow: a defect here."""
