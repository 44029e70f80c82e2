"""What heals by repetition, and exactly when (S2); and who is told where own and foreign listeners share a queue."""

from __future__ import annotations

import pytest

from queuebell.bridge.contract.wire import EmptyReceive, Hello, Subscription
from queuebell.bridge.core.commands import Reclaim
from queuebell.bridge.observe.facts import Covered, Suspended
from queuebell.bridge.service.clocks import SuspendWatch
from tests.bridge.core.test_embedded_queues import hand, message
from tests.support.bells import BOOT, QUEUE, Rig


def asked(rig: Rig, *sessions: int) -> list[int]:
    """Return which of these sessions were woken since they were asked about last."""
    return [number for number in sessions if rig.wakes(number)]


def owned() -> tuple[Rig, int, int]:
    """Return a rig, the owner of its debt that has heard its wake, and another session."""
    rig = Rig()
    first, second = rig.join(), rig.join()
    assert asked(rig, first, second) == [first]
    return rig, first, second


@pytest.mark.parametrize(("covered", "settled"), [(None, False), (1, False), (2, True), (3, False)])
def test_s2_a_beat_heals_a_lost_cover(covered: int | None, settled: bool) -> None:
    """At the debt's generation, and not at one that is older or was never given."""
    rig, first, second = owned()
    rig.trigger()
    rig.started(first, 2)
    rig.facts.clear()
    rig.beat(first, covered=covered)
    assert rig.work().dirty is not settled
    covers = [fact for fact in rig.facts if isinstance(fact, Covered)]
    assert covers == ([Covered(QUEUE, settled)] if covered is not None and covered >= 2 else [])
    rig.facts.clear()
    rig.beat(first, covered=2)
    rig.beat(first, covered=2)
    assert [fact for fact in rig.facts if isinstance(fact, Covered)] == ([] if settled else [Covered(QUEUE, True)])


def test_b7_a_cover_that_is_too_old_is_answered_by_the_wake_again() -> None:
    """Where the owner knew no better; while a wake to it is unanswered, that one is still on its way."""
    rig, first, second = owned()
    rig.trigger()
    assert rig.gens(first) == [2]
    rig.cover(first, 1)
    assert asked(rig, first, second) == [], "unanswered"
    rig.started(first, 2)
    rig.cover(first, 1)
    assert rig.gens(first) == [2]
    rig.wait(1.875)
    assert asked(rig, first, second) == []
    rig.wait(0.125)
    assert asked(rig, first, second) == [first, second], "and `started` is waited for again"


def test_a_listener_that_learns_its_queue_is_own_says_so_with_its_cover() -> None:
    """O0: from then on the level decides, no sweep is made, and its read was of the queue service."""
    rig = Rig(sweep_s=60.0)
    number = rig.join()
    assert rig.scheduler.dispatch.agenda.when(("sweep", QUEUE)) is not None
    rig.cover(number, 1)
    assert rig.work().last_empty_external
    rig.say(number, EmptyReceive(QUEUE, BOOT, 1, 0, next_visible_in_ms=5000, own=True))
    assert (rig.work().sessions.any_own, rig.work().sessions.any_foreign, rig.work().last_empty_external) == (
        True,
        False,
        False,
    )
    assert rig.scheduler.dispatch.agenda.when(("sweep", QUEUE)) is None
    assert not rig.work().due, "the store tells when the next one is visible"
    rig.lose(number)
    assert not rig.work().due, "and of its leases as well"


def test_o7_who_leaves_a_queue_gives_back_what_it_was_handed_of_it() -> None:
    """O7: at once and uncounted, and nothing of the queues that it keeps."""
    rig = Rig()
    number = rig.join(QUEUE, "a/y", own=True, accept=True, instance="1" * 32)
    hand(rig, number, "m1")
    rig.scheduler.embedded.handed(rig.now, "a/y", number, 1, [message("m2")], 1)
    rig.drive()
    rig.say(number, Hello("1" * 32, "less", [Subscription("a/y", 32, own=True)], ["messages"]))
    assert rig.reclaims == [Reclaim(QUEUE, (("m1", "receipt of m1"),), uncount=True)]
    rig.lose(number)
    assert [reclaim.queue for reclaim in rig.reclaims] == [QUEUE, "a/y"]


HOUR = 3600.0


def test_lag_is_no_gap() -> None:
    """An hour between two looks, with both clocks running, is a busy machine."""
    watch = SuspendWatch()
    watch.observe(0.0, 50.0, 5.0)
    assert watch.observe(HOUR, HOUR + 50.0, 5.0) == 0.0


def test_a_clock_that_comes_closer_is_taken_as_it_is() -> None:
    """A reading that was off by a little must not hide, or invent, what comes after."""
    watch = SuspendWatch()
    watch.observe(0.0, 50.0, 5.0)
    assert watch.observe(1.0, 50.5, 5.0) == 0.0
    assert watch.observe(2.0, 57.0, 5.0) == 5.5


def suspend(rig: Rig, seconds: float) -> int:
    """Have the machine sleep: the rig's clock stands still."""
    marked = rig.scheduler.suspended(rig.now, seconds)
    rig.drive()
    return marked


def test_every_queue_elsewhere_is_looked_at_once_and_own_ones_are_not() -> None:
    """Whatever bus feeds them; the own store slept as well and missed nothing."""
    rig = Rig()
    number = rig.join("a/nats", "a/none")
    own = rig.join("a/own", own=True)
    rig.trigger("a/nats", bus="nats")
    for queue in ("a/nats", "a/none"):
        rig.cover(number, rig.work(queue).gen, queue)
    rig.wakes(number)
    assert suspend(rig, HOUR) == 2
    heard = []
    for _ in range(11):
        rig.wait(1.0)
        rig.beat(number, "a/none"), rig.beat(own, "a/own")
        for wake in rig.wakes(number):
            heard.append((wake.queue, wake.reason))
            rig.cover(number, wake.gen, wake.queue)
    assert sorted(heard) == [("a/nats", "resync"), ("a/none", "resync")]
    assert not rig.wakes(own)
    assert [fact for fact in rig.facts if isinstance(fact, Suspended)] == [Suspended(HOUR, 2)]


def test_nobody_dies_at_the_moment_of_resume() -> None:
    """Heartbeats that wait in our sockets get the time to be read; who sends none in that time is dead at its end."""
    rig = Rig()
    alive, dead = rig.join(), rig.join()
    rig.wait(4.0)
    rig.beat(alive), rig.beat(dead)
    suspend(rig, HOUR)
    rig.wait(7.4)
    assert not rig.ended
    rig.beat(alive)
    rig.wait(0.2)
    assert set(rig.ended) == {dead}
    rig.wait(10.0)
    assert set(rig.ended) == {dead}


def reasons(rig: Rig, number: int, seconds: int) -> list[tuple[str, int]]:
    """Return what a session that covers at once is woken for, and after how many seconds."""
    found: list[tuple[str, int]] = []
    start = rig.now
    for _ in range(seconds):
        rig.wait(1.0)
        rig.beat(number)
        for wake in rig.wakes(number):
            found.append((wake.reason, round(rig.now - start)))
            rig.cover(number, wake.gen)
    return found


def restarted() -> tuple[Rig, int, int]:
    """Return a new boot with two listeners of the old one, whose queue has been looked at."""
    rig = Rig()
    first, second = rig.join(), rig.join(visibility_ms=600_000)
    rig.settle_hello(first)
    return rig, first, second


def test_leases_from_before_the_restart_get_timers_when_their_holder_dies() -> None:
    """B8: the second was never woken by this boot; its heartbeat says which leases it holds."""
    rig, first, second = restarted()
    rig.beat(second, leases=[7000, 21_000], free=30)
    rig.lose(second)
    assert reasons(rig, first, 40) == [("lease", 8), ("lease", 22)]


def test_a_holder_that_says_bye_names_its_leases() -> None:
    rig, first, second = restarted()
    rig.bye(second)
    assert reasons(rig, first, 700) == []


def test_a_lost_cover_is_healed_by_a_heartbeat() -> None:
    """S2: the generation that was covered is repeated."""
    rig, first, _ = restarted()
    rig.trigger()
    gen = rig.work().gen
    rig.beat(first, covered=gen - 1, gen=gen)
    assert rig.work().dirty
    rig.beat(first, covered=gen, gen=gen)
    assert not rig.work().dirty


@pytest.mark.parametrize("level", ["room", "beat"])
def test_b6_who_has_no_room_hands_nothing_out(level: str) -> None:
    """B6, O1: a debt that was left to the audit is not found a taker by a level that tells of no slot."""
    rig = Rig()
    first, second = rig.join(own=True), rig.join(own=True)
    rig.more(second)
    rig.level(2, rose=True, put=2)
    rig.cover(first, rig.work().gen)
    asked(rig, first, second)
    assert (rig.work().dirty, rig.work().owner) == (True, None)
    if level == "room":
        rig.room(second, 0)
    else:
        rig.beat(second, free=0)
    assert asked(rig, first, second) == []


@pytest.mark.parametrize(
    ("age_s", "free", "gen", "receiving_ms", "lease", "leaves"),
    [
        (15.0, 4, 1, None, False, []),
        (14.875, 4, 1, None, False, ["lease"]),  # the wake may still be on its way
        (15.0, 3, 1, None, False, ["lease"]),
        (15.0, 4, 0, None, False, ["lease"]),
        (15.0, 4, None, None, False, ["lease"]),
        (15.0, 4, 1, 0, False, ["lease"]),
        (15.0, 4, 1, None, True, ["lease"]),
        (15.0, None, 1, None, False, ["lease"]),
    ],
)
def test_b8_an_idle_beat_lets_a_session_go_without_a_timer(
    age_s: float, free: int | None, gen: int | None, receiving_ms: int | None, lease: bool, leaves: list[str]
) -> None:
    """All slots free, nothing held, no receive under way, and D after a wake that it knows of; all of it or none."""
    rig = Rig()
    number = rig.join(capacity=4)
    rig.cover(number, 1)
    while rig.now + 4.0 < 100.0 + age_s:
        rig.wait(4.0)
        rig.beat(number)
    rig.wait(100.0 + age_s - rig.now)
    rig.beat(number, free=free, gen=gen, receiving_ms=receiving_ms, leases=[60_000] if lease else None)
    rig.lose(number)
    assert list(rig.work().due) == leaves
