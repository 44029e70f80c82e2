"""Small days, counted by hand."""

from __future__ import annotations

import random

import pytest

from bench.cost.bridged import BridgedFleet
from bench.cost.clockwork import CALL_S, PATH_S
from bench.cost.crew import fleet_of, play
from bench.cost.day import Burst, Day, draw_day
from bench.cost.fleet import Fleet
from bench.cost.outcome import Outcome
from bench.cost.policy import POLICIES
from bridge.core.bell import Bell
from bridge.core.settings import Periods
from listeners.core.controller import Controller

HOUR = Day(3600.0)
SMALL = Day(900.0, 2.0, (Burst(100.0, 100), Burst(500.0, 30)))


def fleet(name: str, day: Day, threads: int, seed: int = 1) -> Fleet:
    policy = POLICIES[name]
    return fleet_of(policy)(policy, day, threads, random.Random(seed).random)


def test_an_hour_of_polling() -> None:
    """A thread that polls each second makes 3,600 receives in an idle hour, and nothing else."""
    hour = play("polling", HOUR, 1, 1)
    assert (hour.misses, hour.hits, hour.puts, hour.deletes) == (3600, 0, 0, 0)
    assert hour.at_rest_s == 3600.0


def test_the_white_papers_idle_day() -> None:
    """22 idle hours of one thread are 79,200 empty receives."""
    assert play("polling", Day(22 * 3600.0), 1, 5).misses == 79_200


def test_an_hour_of_the_capped_exponential() -> None:
    """1, 2, 4, 8, 16, 32 s and then 60 s, each after a call that takes its time."""
    at, count, pauses = 0.0, 0, iter([1, 2, 4, 8, 16, 32])
    while at + CALL_S < 3600 - 1:  # whenever within the first second it began
        count += 1
        at += CALL_S + next(pauses, 60)
    assert play("capped", HOUR, 1, 1).misses in {count, count + 1}


@pytest.mark.parametrize("threads", [1, 7, 40])
def test_an_idle_hour_of_push(threads: int) -> None:
    """A queue elsewhere costs the whole fleet at most 67 receives, however many they are, and a queue's birth (I2)."""
    hour = play("push", HOUR, threads, 1)
    assert 54 <= hour.misses <= 67
    assert hour.wakes["resync"] == 1
    assert hour.misses == sum(hour.wakes.values())


def test_an_idle_hour_of_an_own_queue() -> None:
    """An own queue costs nothing (O5)."""
    hour = play("own", HOUR, 20, 1)
    assert (hour.transactions, hour.wakes) == (0, {})


@pytest.mark.parametrize("name", POLICIES)
def test_all_work_is_done_once(name: str) -> None:
    """Every message is put, received and deleted once, by so many slots as were asked for, under every policy."""
    done = play(name, SMALL, 10, 3)
    assert done.puts == done.deletes == done.latency.count == 130
    assert done.hits <= 130
    assert done.listeners == (1 if POLICIES[name].slots > 1 else 10)
    assert done.first.count == 2
    assert done.latency.max_s >= 100 * 1.0 / 10, "ten slots cannot have been at it faster"
    assert done == play(name, SMALL, 10, 3), "the same seed, the same day"
    assert done.first != play(name, SMALL, 10, 4).first or POLICIES[name].bell != "none"


def test_who_is_woken_waits_for_the_way_and_the_call() -> None:
    """The first message after a rest: a trigger, a wake and a receive; an own queue's put is its own trigger."""
    assert play("push", SMALL, 10, 1).first.max_s == 2 * PATH_S + CALL_S
    assert play("own", SMALL, 10, 1).first.max_s == PATH_S + CALL_S
    assert play("push", SMALL, 10, 1).first.max_s < play("polling", SMALL, 10, 1).first.max_s


def test_batches() -> None:
    """Slots that are free together take what lies there together."""
    assert POLICIES["push-32"].capacities(70) == [32, 32, 6]
    assert POLICIES["push"].capacities(3) == [1, 1, 1]
    one = play("polling-32", Day(100.0, 2.0, (Burst(50.0, 32),)), 32, 1)
    assert (one.hits, one.latency.count) == (1, 32)


@pytest.mark.parametrize(
    ("name", "seed"),
    [("polling", 1), ("capped", 1), *(pytest.param("polling", seed, marks=pytest.mark.rest) for seed in (2, 3))],
)
def test_playing_one_after_the_other_changes_nothing(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the queue rests each listener is played by itself; event by event comes to the very same."""
    # So many that some receives are under way whenever a rest begins.
    day = Day(120.0, 0.5, (Burst(30.0, 150), Burst(80.0, 40)))
    quick = play(name, day, 150, seed)
    monkeypatch.setattr(Fleet, "_rest", lambda self, now, until: self._timer(now))
    assert play(name, day, 150, seed) == quick


def test_the_machines_are_the_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the wake machine shows in the bill: one that forgets a wake is found by nothing but the sweep."""
    real = Controller.wake

    def deaf(self: Controller, now: float, boot: str | None, gen: int, reason: str, *rest: int) -> object:
        return [] if reason == "trigger" else real(self, now, boot, gen, reason, *rest)

    monkeypatch.setattr(Controller, "wake", deaf)
    # The bridge asks others, in vain, until its sweep asks for another reason.
    assert play("push", SMALL, 10, 1).first.max_s > 1.0


def test_the_bridge_is_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the bridge's rules shows in the bill: triggers that mark nothing leave the work to the sweep."""
    monkeypatch.setattr(Bell, "trigger", lambda self, *args, **named: None)
    lost = play("push", SMALL, 10, 1)
    assert lost.first.max_s > 1.0
    assert lost.deletes == 130


def test_without_bridge_sweeps_the_dead_man_looks() -> None:
    """Sessions, heartbeats and dead-man timers take part: with sweeps off each listener looks by itself (L10)."""
    bare = BridgedFleet(POLICIES["push"], HOUR, 3, random.Random(1).random, Periods(sweep_s=0.0))
    hour = bare.run()
    assert hour.wakes == {"resync": 1}
    assert hour.misses > 60, "every listener's timer, as nobody's sweep moves it"


def test_the_share_told_grows_to_the_end() -> None:
    """Whoever waits for the day hears how much of it is over."""
    shares: list[float] = []
    fleet("polling", SMALL, 5).run(shares.append)
    assert shares == sorted(shares)
    assert shares[0] >= 0.0
    assert 0.4 < shares[-1] <= 1.0


def test_a_drawn_day_is_busy_for_as_long_as_asked() -> None:
    """Push is at work for the busy hours and at rest for the others, but for the last messages of each burst."""
    day = draw_day(
        length_s=14_400, busy_s=1200, bursts=3, items_min=300, items_max=900, threads=10, draw=random.Random(5).random
    )
    played: Outcome = play("push", day, 10, 1)
    assert played.at_rest_s == pytest.approx(14_400 - 1200, abs=3 * 2 * day.handler_s)
