"""Receives by source, as listeners tell of them in heartbeats."""

from __future__ import annotations

import pytest

from bridge.contract.errors import BadInput
from bridge.contract.wire import ListenerHeartbeat, QueueBeat, StoreDepth, decode_up, encode_frame
from bridge.core.ledger import Counted, Debt
from bridge.core.receives import STEP_MAX, Receives, count_depth
from bridge.core.routing import Seats
from bridge.core.settings import Periods, Tuning
from bridge.observe.facts import ReceivesTold, Unannounced

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


def test_work_that_nobody_announced_is_counted_once() -> None:
    """By its level, apart from the receives by source, and not where work was announced meanwhile."""
    receives, queue = Receives(), debt()
    levels = {"sweep": (2, 1), "unannounced": (1, 0)}
    told = [ReceivesTold("a/b", "sweep", 2, 1), Unannounced("a/b", 1)]
    assert receives.told(ME, queue, levels) == receives.told(YOU, queue, levels) == told
    assert receives.told(ME, queue, levels) == []
    assert (queue.unannounced, queue.receives, queue.wake_sources) == (2, 6, {"sweep": 4})
    assert receives.told(ME, queue, {"unannounced": (2, 0)}, announced=True) == []
    receives.told(ME, queue, {"unannounced": (4, 0)})
    assert queue.unannounced == 4, "of what was announced nothing is counted later either"


def test_the_newest_count_of_a_store_is_kept() -> None:
    """Of two listeners the one that looked later is believed, whenever it says so; of equal ones the last."""
    queue = debt()
    count_depth(queue, StoreDepth(5, 1, 2_000), 100.0)
    count_depth(queue, StoreDepth(9, 9, 3_000), 100.5)
    assert queue.counted == Counted(5, 1, 98.0, False)
    count_depth(queue, StoreDepth(7, 0, 3_000, at_least=True), 101.0)
    assert queue.counted == Counted(7, 0, 98.0, True)


def test_told_receives_are_counted_into_the_queue() -> None:
    """Its state tells how often the fleet looked, and how often in vain."""
    receives, queue = Receives(), debt()
    receives.told(ME, queue, {"sweep": (1, 4), "trigger": (2, 0)})
    receives.told(YOU, queue, {"sweep": (0, 1)})
    assert (queue.receives, queue.empty) == (8, 5)


@pytest.mark.parametrize("wrong", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (10**16, 0, 0)])
def test_absurd_counts_are_refused(wrong: tuple[int, int, int]) -> None:
    """A number out of its range is the sender's fault, as anywhere in a frame."""
    beat = ListenerHeartbeat(7, {"a/b": QueueBeat(depth=StoreDepth(*wrong))})
    with pytest.raises(BadInput, match="depth"):
        decode_up(encode_frame(beat))
    for number in (-1, 10**16):
        with pytest.raises(BadInput, match="unannounced"):
            decode_up(encode_frame(ListenerHeartbeat(7, {"a/b": QueueBeat(receives={}, unannounced=number)})))


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


def test_a_pair_that_was_forgotten_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more tellers than are remembered, each heartbeat would otherwise count all of its levels once more."""
    monkeypatch.setattr("bridge.core.receives.TELLERS_MAX", 2)
    receives, queue = Receives(), debt()
    instances = [f"{number:032x}" for number in range(3)]
    for _ in range(5):
        for instance in instances:
            receives.told(instance, queue, {"sweep": (4, 1)})
    assert queue.wake_sources == {"sweep": 12}
    assert receives.told(instances[-1], queue, {"sweep": (6, 1)}) == [ReceivesTold("a/b", "sweep", 2, 0)]


def test_no_heartbeat_adds_more_than_a_listener_can_have_done() -> None:
    """An absurd level is taken as where its counts stand, not as work that was found."""
    receives, queue = Receives(), debt()
    huge = 315_360_000_000
    assert receives.told(ME, queue, {"sweep": (huge, huge)}) == [ReceivesTold("a/b", "sweep", STEP_MAX, STEP_MAX)]
    assert receives.told(ME, queue, {"sweep": (huge, huge)}) == []
    assert receives.told(ME, queue, {"sweep": (huge + 2, huge)}) == [ReceivesTold("a/b", "sweep", 2, 0)]
    assert queue.wake_sources == {"sweep": STEP_MAX + 2}
