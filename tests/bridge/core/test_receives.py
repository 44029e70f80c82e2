"""Receives by source, as listeners tell of them in heartbeats."""

from __future__ import annotations

from bridge.contract.wire import ListenerHeartbeat, QueueBeat, decode_up, encode_frame
from bridge.core.ledger import Debt
from bridge.core.receives import Receives
from bridge.core.routing import Seats
from bridge.core.settings import Periods, Tuning
from bridge.observe.facts import ReceivesTold

ME, YOU = "1" * 32, "2" * 32


def debt(queue: str = "a/b") -> Debt:
    return Debt(queue=queue, seats=Seats(), numbers=Tuning(Periods()).of(queue))


def test_only_what_is_new_in_a_level_is_counted() -> None:
    """Repeated, late and reordered heartbeats add nothing."""
    receives, queue = Receives(), debt()
    assert receives.told(ME, queue, {"sweep": (1, 4)}) == [ReceivesTold("a/b", "sweep", 1, 4)]
    assert receives.told(ME, queue, {"sweep": (1, 4)}) == []
    assert receives.told(ME, queue, {"sweep": (2, 4)}) == [ReceivesTold("a/b", "sweep", 1, 0)]
    assert receives.told(ME, queue, {"sweep": (1, 4)}) == []
    assert queue.wake_sources == {"sweep": 2}


def test_instances_and_queues_are_kept_apart() -> None:
    """A worker that is started again is a new instance and begins at zero; a session that came back goes on."""
    receives, queue, other = Receives(), debt(), debt("a/c")
    for instance in (ME, YOU, ME):
        receives.told(instance, queue, {"trigger": (3, 0)})
    receives.told(ME, other, {"trigger": (1, 0)})
    assert queue.wake_sources == {"trigger": 6}
    assert other.wake_sources == {"trigger": 1}


def test_words_of_a_newer_listener_are_ignored() -> None:
    """A label of the metric is never taken from outside."""
    receives, queue = Receives(), debt()
    assert receives.told(ME, queue, {"telepathy": (1, 0)}) == []
    assert queue.wake_sources == {}


def test_the_levels_survive_the_wire_and_absent_ones_cost_nothing() -> None:
    """Two numbers by source; a queue with nothing new has no such field."""
    told = ListenerHeartbeat(7, {"a/b": QueueBeat(1, 1, None, 4, {"sweep": (1, 4)}), "a/c": QueueBeat(1, 1, None, 4)})
    raw = encode_frame(told)
    assert decode_up(raw) == told
    assert raw.count(b"receives") == 1
