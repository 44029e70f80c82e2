"""What is remembered of workers that come and go: their sums are exact, and their number costs no memory."""

from __future__ import annotations

import tracemalloc

import pytest

from bridge.contract.jobs import Jobs, Spread
from bridge.contract.wire import ListenerHeartbeat, QueueBeat
from bridge.core import levels as levels_module
from bridge.core.levels import Levels
from tests.support.bells import QUEUE, Rig


def test_a_lost_instance_goes_on_where_it_stood() -> None:
    """Its levels come back as they were, under each of their keys; after a bye nothing is left of them."""
    known: Levels[tuple[str, str], Jobs] = Levels(dict[tuple[str, str], Jobs], 10)
    level = Jobs({"done": 2}, {"E": 1}, 0, 1, Spread([1, 0, 2], 17))
    for key in (("a/b", "m:f"), ("a/c", "m:f")):
        assert known.get("i", key) is None
        known.keep("i", key, level)
    known.lost("i")
    assert known.get("i", ("a/c", "m:f")) == known.get("i", ("a/b", "m:f")) == level
    assert known.get("i", ("a/b", "m:g")) is None
    known.lost("i"), known.ended("i"), known.lost("j")
    assert known.get("i", ("a/b", "m:f")) is None
    assert not known.forgot
    assert (known._count, known._bytes) == (0, 0)


def test_the_lost_are_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes; one that comes back and is lost once more is the newest."""
    monkeypatch.setattr(levels_module, "PACKED_MAX", 10)
    known: Levels[str, int] = Levels(dict[str, int], 10)
    for name in ("a", "b", "c"):  # four bytes each
        known.keep(name, "q", 1)
    known.lost("a"), known.lost("b")
    assert known.get("a", "q") == 1
    known.lost("a"), known.lost("c")
    assert [known.get(name, "q") for name in ("a", "b", "c")] == [1, None, 1]
    assert known.forgot


def worker(rig: Rig, done: int, *, bye: bool) -> None:
    """Have a worker come, tell what it handled, and go."""
    number = rig.join(QUEUE)
    jobs = {"m:f": Jobs({"done": done}, handling=Spread([done], done))}
    rig.say(number, ListenerHeartbeat(1, {QUEUE: QueueBeat(receives={"trigger": (done, 0)}, jobs=jobs)}))
    rig.bye(number) if bye else rig.lose(number)
    for seen in (rig.frames, rig.ended, rig.facts, rig.rung, rig.announced):
        seen.clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("bye", "each"), [(True, 60), (False, 700)])
def test_workers_that_are_gone_cost_next_to_nothing(bye: bool, each: int) -> None:
    """Bytes for each of 1,000 that came and went, in order or killed; and the sums count every one of them."""
    rig = Rig()
    for _ in range(100):
        worker(rig, 2, bye=bye)
    tracemalloc.start()
    try:
        for _ in range(1000):
            worker(rig, 2, bye=bye)
        taken = tracemalloc.get_traced_memory()[0] / 1000
    finally:
        tracemalloc.stop()
    jobs = rig.debt().jobs
    assert jobs is not None
    assert jobs["m:f"].outcomes == {"done": 2200}
    assert rig.debt().wake_sources == {"trigger": 2200}
    assert taken < each
