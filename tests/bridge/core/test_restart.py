"""A bridge that restarted knows only what living listeners say again: what a heartbeat can heal, it heals."""

from __future__ import annotations

from bridge.contract.wire import Bye, Hello, ListenerHeartbeat, QueueBeat, Subscription
from tests.support.bells import BOOT, QUEUE, Rig

OTHER = "billing/refunds"


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


def test_leases_are_levels_the_newest_heartbeat_counts() -> None:
    """A lease that was renewed is due later, one that was settled not at all."""
    rig, first, second = restarted()
    rig.beat(second, leases=[7000, 21_000], free=30)
    rig.beat(second, leases=[31_000], free=31)
    rig.lose(second)
    assert reasons(rig, first, 60) == [("lease", 32)]


def test_leases_that_a_heartbeat_names_no_more_are_over() -> None:
    """A heartbeat without any lease is a level too: nothing of the holder can re-appear."""
    rig, first, second = restarted()
    rig.beat(second, leases=[7000, 21_000], free=30)
    rig.beat(second, free=32, gen=rig.debt().gen)
    rig.lose(second)
    assert reasons(rig, first, 700) == []


def test_a_holder_that_dies_before_its_first_heartbeat_may_hold_anything() -> None:
    """B8: nothing is known of it, so a look is due when its longest lease must be over."""
    rig, first, second = restarted()
    rig.lose(second)
    (look,) = reasons(rig, first, 700)
    assert look[0] == "lease" and 600 <= look[1] <= 602


def test_a_holder_that_said_it_is_idle_leaves_nothing() -> None:
    """An all-idle heartbeat ends what might be."""
    rig, first, second = restarted()
    rig.beat(second, free=32, gen=rig.debt().gen)
    rig.lose(second)
    assert reasons(rig, first, 700) == []


def test_a_holder_that_says_bye_names_its_leases() -> None:
    """What a bye does not name is not held."""
    rig, first, second = restarted()
    rig.bye(second)
    assert reasons(rig, first, 700) == []


def test_room_is_healed_by_a_heartbeat() -> None:
    """A hello tells capacity; how much of it is taken, the first heartbeat tells."""
    rig, first, second = restarted()
    rig.beat(second, free=0, gen=0)
    for _ in range(3):
        rig.trigger()
        rig.cover(first, rig.debt().gen)
    assert not rig.wakes(second)
    rig.beat(second, free=1, gen=0)
    rig.trigger()
    rig.cover(first, rig.debt().gen)
    rig.trigger()
    assert rig.wakes(second)


def test_a_lost_cover_is_healed_by_a_heartbeat() -> None:
    """S2: the generation that was covered is repeated."""
    rig, first, _ = restarted()
    rig.trigger()
    gen = rig.debt().gen
    rig.beat(first, covered=gen - 1, gen=gen)
    assert rig.debt().dirty
    rig.beat(first, covered=gen, gen=gen)
    assert not rig.debt().dirty


def test_a_receive_from_before_the_restart_proves_nothing() -> None:
    """B10: the queue is born dirty in the new boot, and only a cover of this boot settles it (I3)."""
    rig = Rig()
    number = rig.join()
    (wake,) = rig.wakes(number)
    rig.cover(number, wake.gen, boot="c" * 32)
    rig.cover(number, wake.gen + 40)
    rig.say(number, ListenerHeartbeat(1, {QUEUE: QueueBeat(gen=wake.gen + 40, covered=wake.gen + 40)}))
    assert rig.debt().dirty
    rig.cover(number, wake.gen)
    assert not rig.debt().dirty


def test_one_look_per_queue_and_not_per_listener() -> None:
    """I6: fifty listeners that come back cost one receive for each of their two queues."""
    rig = Rig()
    numbers = [rig.join(QUEUE, OTHER) for _ in range(50)]
    heard = 0
    for _ in range(10):
        for number in numbers:
            for wake in rig.wakes(number):
                heard += 1
                rig.started(number, wake.gen, wake.queue)
                rig.cover(number, wake.gen, wake.queue)
        rig.wait(1.0)
        for number in numbers:
            rig.say(number, ListenerHeartbeat(1, {QUEUE: QueueBeat(free=32), OTHER: QueueBeat(free=32)}))
    assert heard == 2


def test_a_hello_again_keeps_what_a_heartbeat_told() -> None:
    """A later hello of the same session changes its subscriptions and forgets no lease."""
    rig, first, second = restarted()
    rig.beat(second, leases=[7000], free=31)
    rig.say(second, Hello(f"{2:032x}", "again", [Subscription(QUEUE, 32, visibility_ms=600_000)]))
    assert rig.bell.boot == BOOT
    rig.lose(second)
    assert reasons(rig, first, 40) == [("lease", 8)]


def test_leases_that_a_bye_names_become_timers() -> None:
    """B8, L12: what a listener leaves behind is looked at when it ends, and nobody else tells of it."""
    rig, first, second = restarted()
    rig.say(second, Bye({QUEUE: [5000, 9000], OTHER: [1000]}))
    assert reasons(rig, first, 700) == [("lease", 6), ("lease", 10)]
