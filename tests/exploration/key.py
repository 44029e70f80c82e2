"""When two moments are the same: all that can matter later, with times relative and generations renamed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

import msgspec

from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.core.agenda import Agenda, DueTimes
from queuebell.bridge.core.cluster.capacity import CapacityReports
from queuebell.bridge.core.cluster.coordinator import Coordinator, EmptyReceiveReport, _Queue
from queuebell.bridge.core.cluster.members import Members, Peer
from queuebell.bridge.core.cluster.wake_requests import WakeRequests
from queuebell.bridge.core.dispatch import Dispatch, Reminders
from queuebell.bridge.core.embedded_queues import CarriedBatch, CarriedBatches, EmbeddedQueues
from queuebell.bridge.core.pending_work import PendingQueues, PendingWork
from queuebell.bridge.core.sessions import QueueSessions, Session, SessionQueue, SessionTimeouts, WakeSlot
from queuebell.bridge.core.timers import Timers
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.producer.publication import Publication, _Merged
from queuebell.listeners.wake.controller import Controller, Receive
from queuebell.listeners.wake.timers import CheckTimers
from tests.exploration.node import Held, Node
from tests.exploration.store import Message, Request
from tests.exploration.world import World

# Private: `_buckets`, `_evidence`, `_when`: two states are equal only if all fields of the rules are.

TIME, GEN, GEN_TIME, GEN_COUNT, SKIP, HEAP, NAMES = "time", "gen", "gen, time", "gen, count", "skip", "heap", "names"

SPECS: dict[type, dict[str, str]] = {
    # What only feeds figures, facts and hints of latency is skipped.
    PendingWork: {
        "gen": GEN, "requested_at": SKIP, "unacked": GEN_TIME, "started_at": TIME, "visible_since": SKIP,
        "found_empty_at": SKIP, "born_at": SKIP, "triggers": SKIP, "receives": SKIP, "empty": SKIP, "wakes": SKIP,
        "wake_sources": SKIP, "work_reported_at": SKIP, "unannounced": SKIP, "traceparent": SKIP, "traces": SKIP,
        "reason": SKIP, "buses": SKIP, "numbers": SKIP,
    },
    SessionQueue: {
        "reported_gen": GEN, "carried": GEN_COUNT, "stuck_at": TIME, "woken_gen": GEN, "woken_at": TIME,
        "leases": TIME,
    },
    WakeSlot: {"gen": GEN, "requested_at": SKIP, "traceparent": SKIP, "traces": SKIP, "reason": SKIP},
    CarriedBatches: {"_waiting": SKIP, "_order": SKIP},
    CarriedBatch: {"gen": GEN, "handed_at": TIME, "due_at": SKIP},
    Session: {"opened_at": SKIP, "last_heard": TIME, "listener": SKIP, "queues": NAMES},
    PendingQueues: {
        "_gen": GEN, "limit": SKIP, "_lanes": SKIP, "_tuning": SKIP, "evicted_with_work": SKIP, "evicted_gen": SKIP,
    },
    SessionTimeouts: {"_sessions": SKIP, "_grace_until": SKIP},
    Controller: {
        "gen": GEN, "covered_gen": GEN, "_began_at": TIME, "_beat_at": TIME, "_draw": SKIP, "_scaling": SKIP,
        "_reason": SKIP, "_reported_empty": SKIP, "epoch": SKIP, "covered": SKIP, "_evidence": SKIP, "_rid": SKIP,
        "deadman": SKIP, "_recheck": SKIP, "capacity": SKIP, "batch": SKIP, "own": SKIP,
        "_learned_at": SKIP,
    },
    Receive: {"gen": GEN, "began_at": TIME, "source": SKIP, "epoch": SKIP, "after_s": SKIP},
    CheckTimers: {"retry": TIME, "poll": TIME, "_polls": SKIP, "_retries": SKIP, "_draw": SKIP, "_returns": HEAP},
    Message: {"until": TIME, "receipt": SKIP, "seen": SKIP},
    Request: {"id": SKIP, "began_at": TIME, "receipt": SKIP},
    Held: {"accept_at": TIME, "lease_ends": TIME, "receipt": SKIP},
    Node: {"beat_at": TIME, "plan": SKIP},
    WakeScheduler: {
        "_duplicates": SKIP, "_receives": SKIP, "periods": SKIP, "agenda": SKIP, "pending": SKIP, "sessions": SKIP,
        "coordinator": SKIP,
    },
    EmbeddedQueues: {"_d": SKIP},
    Reminders: {"_d": SKIP},
    QueueSessions: {"_ready": NAMES, "_queue": SKIP, "_changed": SKIP},
    Timers: {"_d": SKIP, "_own": SKIP},
    Dispatch: {"periods": SKIP, "tuning": SKIP},
    # What of several bridges is reckoned from numbers of words stands in tests/exploration/cluster/key.py.
    Coordinator: {
        "_d": SKIP, "_timers": SKIP, "_about": SKIP, "sent_at": SKIP, "due_at": SKIP, "settled_early": SKIP,
        "subscribers": SKIP,
    },
    CapacityReports: {"_d": SKIP, "_members": SKIP, "reported_at": SKIP, "full_since": SKIP},
    _Queue: {"full_at": SKIP, "reported_at": SKIP},
    EmptyReceiveReport: {"begun_at": SKIP, "visible_at": TIME},
    WakeRequests: {"named": SKIP, "unnamed": SKIP, "names": SKIP, "sent_generations": SKIP},
    Members: {
        "boot": SKIP, "refused": SKIP, "departed": SKIP, "_returned_seq": SKIP, "_duplicated_at": SKIP,
        "_seq": SKIP, "_sent": SKIP, "newest_returned": SKIP, "min_returned_seq": SKIP,
    },
    Peer: {"member": SKIP, "heard_at": TIME, "possible_leases": SKIP},
    CloudQueueWorkDetected: {"id": SKIP, "source": SKIP, "time": SKIP, "traceparent": SKIP, "traces": SKIP},
    Publication: {"_not_before": TIME, "_limit": SKIP, "_source": SKIP, "_new_id": SKIP},
    _Merged: {"id": SKIP, "traceparent": SKIP, "traces": SKIP},
    World: {
        "plan": SKIP, "now": SKIP, "serial": SKIP, "receives": SKIP, "wakes": SKIP, "messages": SKIP, "calm": SKIP,
    },
}  # fmt: skip

OLDEST_S = -30.0
FARTHEST_S = 200.0
"""What is due later is merely far: sessions are silenced for an exploration by periods of hours."""


class Keys:
    """Makes one key; the fields of a class are looked up once."""

    _fields: ClassVar[dict[type, list[tuple[str, str | None]]]] = {}

    def __init__(self, now: float, thing: Any) -> None:
        self._now = now
        self._out: list[Hashable] = []
        self._gens: list[int] = []
        self._walk(thing)

    def key(self) -> Hashable:
        out = self._out
        names = {gen: i for i, gen in enumerate(sorted({out[at] for at in self._gens}))}  # type: ignore[type-var]
        for at in self._gens:
            out[at] = names[out[at]]
        return tuple(out)

    def _time(self, at: float | None) -> None:
        self._out.append(None if at is None else min(FARTHEST_S, max(OLDEST_S, round(at - self._now, 3))))

    def _gen(self, gen: int) -> None:
        self._gens.append(len(self._out))
        self._out.append(gen)

    def _walk(self, thing: Any) -> None:
        out = self._out
        if thing is None or isinstance(thing, (str, int, float)):
            out.append(thing)
        elif isinstance(thing, (list, tuple)):
            out.append(len(thing))
            for part in thing:
                self._walk(part)
        elif isinstance(thing, dict):
            out.append(len(thing))
            for name, part in thing.items():
                self._walk(name)
                self._walk(part)
        elif isinstance(thing, (set, frozenset)):
            out.append(tuple(sorted(thing)))
        elif isinstance(thing, Agenda):
            for name, (when, *_) in sorted(thing._when.items(), key=lambda item: item[1][:2]):
                self._walk(name)
                self._time(when)
        elif isinstance(thing, DueTimes):
            for when in sorted(thing._buckets):
                self._time(when)
        elif callable(thing) or not hasattr(type(thing), "__module__"):
            return
        else:
            self._object(thing)

    def _object(self, thing: Any) -> None:
        if isinstance(thing, Controller):
            # Only differences of epochs matter.
            self._out.append(thing.epoch - thing.covered)
            self._out.append(thing._evidence.is_half_sure(thing.epoch))
            self._out.extend(max(-1, receive.epoch - thing.covered) for receive in thing.receives.values())
        for name, how in self._learned_fields(thing):
            value = getattr(thing, name)
            if how is None:
                self._walk(value)
            elif how == TIME:
                if isinstance(value, list):
                    self._out.append(len(value))
                    for at in value:
                        self._time(at)
                else:
                    self._time(value)
            elif how == GEN:
                self._gen(value)
            elif how == NAMES:
                self._out.append(tuple(value))
            elif how == HEAP:
                self._out.append(len(value))
                for at, _ in sorted(value):
                    self._time(at)
            else:
                self._out.append(len(value))
                for gen, other in value:
                    self._gen(gen)
                    if how == GEN_TIME:
                        self._time(other)
                    else:
                        self._out.append(other)

    @classmethod
    def _learned_fields(cls, thing: Any) -> list[tuple[str, str | None]]:
        fields = cls._fields.get(type(thing))
        return cls._learn(type(thing), thing) if fields is None else fields

    @classmethod
    def _learn(cls, kind: type, thing: Any) -> list[tuple[str, str | None]]:
        spec: dict[str, str] = {}
        for base in kind.__mro__:
            spec = {**SPECS.get(base, {}), **spec}
        if isinstance(thing, msgspec.Struct):
            names = list(type(thing).__struct_fields__)
            gens = {"gen": GEN, "covered": GEN} if kind.__module__.endswith("contract.wire") else {}
            spec = {**{name: how for name, how in gens.items() if name in names and _is_gen(kind, name)}, **spec}
            for name in (
                "age_ms", "after_ms", "receiving_ms", "stamp", "reason", "traceparent", "traces", "pop_receipt",
                "inserted_at",
            ):  # fmt: skip
                if kind.__module__.endswith("contract.wire"):
                    spec.setdefault(name, SKIP)
        elif hasattr(thing, "__dict__"):
            names = list(vars(thing))
        else:
            names = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
        fields = [(name, spec.get(name)) for name in names if spec.get(name) != SKIP]
        cls._fields[kind] = fields
        return fields


def _is_gen(kind: type, name: str) -> bool:
    # A room's or a beat's generation may be absent.
    return kind.__name__ in {"Wake", "Started", "EmptyReceive", "WelcomedQueue", "Seen"} and name == "gen"


def key(world: World) -> Hashable:
    return Keys(world.now, world).key()
