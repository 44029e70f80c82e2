"""The bridge's rules B1 to B13, asked one by one."""

from __future__ import annotations

import tracemalloc

import pytest

from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.jobs import Jobs, Spread
from queuebell.bridge.contract.wire import (
    Bye,
    EmptyReceive,
    ErrorFrame,
    Hello,
    ListenerHeartbeat,
    QueueBeat,
    Started,
    Subscription,
)
from queuebell.bridge.core.settings import QueueRule
from queuebell.bridge.observe.facts import DuplicateDropped, OwnerStuck, StartMissed
from tests.support.bells import BOOT, QUEUE, Rig


def two(**options: int) -> tuple[Rig, int, int]:
    """Return a rig with two sessions of one clean queue."""
    rig = Rig()
    first, second = rig.join(**options), rig.join(**options)  # type: ignore[arg-type]
    rig.settle_hello(first)
    rig.wakes(second)
    # The second is the next to be woken.
    rig.work().sessions.used(rig.work().sessions.get(first))
    return rig, first, second


def test_b1_the_generation_is_one_counter_for_all_queues() -> None:
    """A mark of any queue takes the next number, so that no cover of an old namesake can fit."""
    rig = Rig()
    rig.trigger("a/x")
    rig.trigger("a/y")
    rig.trigger("a/x")
    assert (rig.work("a/x").gen, rig.work("a/y").gen) == (3, 2)


def test_b3_the_least_recently_used_session_owns() -> None:
    rig, first, second = two()
    rig.trigger()
    assert len(rig.wakes(second)) == 1 and not rig.wakes(first)
    rig.cover(second, rig.work().gen)
    rig.trigger()
    assert len(rig.wakes(first)) == 1 and not rig.wakes(second)


def test_b3_unsent_wakes_merge_and_sent_ones_do_not() -> None:
    """A session that does not read is owed one wake with the newest generation."""
    rig, first, second = two()
    rig.deaf = {first, second}
    for _ in range(5):
        rig.trigger()
    rig.deaf = set()
    rig.frames[second].extend(rig.scheduler.take(rig.now, second))
    (wake,) = rig.wakes(second)
    assert wake.gen == rig.work().gen and wake.size == 5
    rig.trigger()
    assert rig.gens(second) == [rig.work().gen]


def test_b3_started_acknowledges_only_up_to_its_generation() -> None:
    """A mark after the wake keeps A running although the older wake was answered."""
    rig, first, second = two()
    rig.trigger()
    old = rig.work().gen
    rig.trigger()
    rig.wakes(second)
    rig.started(second, old)
    rig.wait(2.1)
    assert rig.gens(second) == [rig.work().gen] and rig.gens(first) == [rig.work().gen]


def test_b4_marks_do_not_put_off_the_question_to_others() -> None:
    """Triggers that come faster than A do not save an owner that hangs."""
    rig, first, second = two()
    for _ in range(25):
        rig.trigger()
        rig.wait(0.1)
    assert rig.wakes(second) and rig.wakes(first)
    assert any(isinstance(fact, StartMissed) for fact in rig.facts)


def test_b4_asks_two_four_eight_further_sessions() -> None:
    """Every A without a `started` doubles how many further sessions hear the wake."""
    rig = Rig()
    numbers = [rig.join() for _ in range(20)]
    for number in numbers:
        for gen in rig.gens(number):
            rig.cover(number, gen)
    rig.trigger()
    heard = [sum(bool(rig.wakes(number)) for number in numbers)]
    for _ in range(4):
        rig.wait(2.0)
        heard.append(sum(bool(rig.wakes(number)) for number in numbers))
    # The owner itself hears it again every time.
    assert heard == [1, 3, 5, 9, 6]


def test_b5_a_started_without_progress_is_handed_on() -> None:
    """After R + H without a newer receive the next session is woken, and the stuck one is barred."""
    rig, first, second = two()
    rig.trigger()
    rig.started(second, rig.work().gen)
    for _ in range(4):
        rig.wait(4.0)
        rig.beat(first), rig.beat(second, receiving_ms=None)
    assert any(isinstance(fact, OwnerStuck) and fact.session == second for fact in rig.facts)
    assert rig.gens(first) == [rig.work().gen]
    rig.cover(first, rig.work().gen)
    rig.trigger(), rig.cover(first, rig.work().gen)
    rig.wakes(second)
    rig.trigger()
    assert not rig.wakes(second)
    rig.room(second, 32)
    rig.cover(first, rig.work().gen)
    rig.trigger()
    rig.cover(first, rig.work().gen)
    rig.trigger()
    assert rig.wakes(second)


def test_b5_the_same_receive_named_again_does_not_renew() -> None:
    """A receive that hangs is one receive however often it is reported, and however much the reports jitter."""
    rig, first, second = two()
    rig.trigger()
    rig.started(second, rig.work().gen)
    begun = rig.now
    for beat in range(4):
        rig.wait(4.0)
        rig.beat(first), rig.beat(second, receiving_ms=round((rig.now - begun) * 1000) - 40 * beat)
    assert rig.gens(first)


def test_b6_more_wakes_the_next_and_bars_the_sender() -> None:
    """The cascade: whoever is full hands on, and is left alone until it says room."""
    rig, first, second = two()
    rig.trigger(size=64)
    rig.wakes(first), rig.wakes(second)
    rig.more(second)
    rig.more(first)
    assert rig.work().owner is None and rig.work().dirty
    rig.wakes(first), rig.wakes(second)
    rig.wait(10)
    rig.beat(first), rig.beat(second)
    assert not rig.wakes(first) and not rig.wakes(second)
    rig.room(first, 3)
    assert rig.wakes(first) and not rig.wakes(second)


def test_b7_a_cover_from_any_session_counts() -> None:
    """An empty receive is a fact, whoever made it."""
    rig, first, second = two()
    rig.trigger()
    rig.cover(first, rig.work().gen)
    assert not rig.work().dirty


def test_b7_an_older_cover_settles_nothing() -> None:
    """I3: a look that began before a mark was known says nothing about that mark."""
    rig, first, second = two()
    rig.trigger()
    old = rig.work().gen
    rig.trigger()
    rig.cover(second, old)
    assert rig.work().dirty
    rig.cover(second, rig.work().gen)
    assert not rig.work().dirty


def test_b7_a_cover_of_another_boot_settles_nothing() -> None:
    rig, first, second = two()
    rig.trigger()
    rig.cover(second, rig.work().gen + 5, boot="c" * 32)
    assert rig.work().dirty


def test_b7_next_visible_arms_a_timer_that_no_cover_cancels() -> None:
    """A cover says when the next message appears; a later cover does not settle that."""
    rig, first, second = two()
    rig.trigger()
    rig.cover(second, rig.work().gen, next_ms=3000)
    rig.trigger()
    rig.cover(first, rig.work().gen)
    rig.wakes(first), rig.wakes(second)
    rig.wait(2.99)
    assert not rig.wakes(first) and not rig.wakes(second)
    rig.wait(0.1)
    (wake,) = rig.wakes(first) + rig.wakes(second)
    assert wake.reason == "due"


def test_b2_not_before_is_a_timer_and_never_early() -> None:
    """A delayed trigger marks once its time has come, with every due time kept."""
    rig, first, second = two()
    for ms in (1000, 2000, 2000, 500_000):
        rig.trigger(not_before_ms=ms)
    assert not rig.work().dirty
    fired = []
    began = rig.now
    for _ in range(600):
        rig.wait(1.0)
        for wake in rig.wakes(first) + rig.wakes(second):
            fired.append((round(rig.now - began), wake.size))
            rig.cover(first, wake.gen)
        rig.beat(first), rig.beat(second)
    assert fired == [(2, 1), (3, 2), (501, 1)]


def test_b8_a_lost_owner_is_replaced_and_its_leases_get_timers() -> None:
    """What a dead session held re-appears unannounced: a mark at each lease's end, and one at now + V."""
    rig, first, second = two(visibility_ms=30_000)
    rig.trigger()
    rig.started(second, rig.work().gen)
    rig.beat(second, leases=[5000], free=31)
    rig.lose(second)
    assert rig.gens(first) == [rig.work().gen]
    rig.cover(first, rig.work().gen)
    reasons = []
    for _ in range(40):
        rig.wait(1.0)
        rig.beat(first)
        for wake in rig.wakes(first):
            reasons.append((wake.reason, round(rig.now)))
            rig.cover(first, wake.gen)
    assert reasons == [("lease", 106), ("lease", 131)]


def test_b8_a_silent_session_dies_after_three_heartbeats() -> None:
    """D = 3 H without any frame ends a session, and any frame proves it alive."""
    rig, first, second = two()
    for _ in range(4):
        rig.wait(4.0)
        rig.beat(first)
    assert second in rig.ended and first not in rig.ended


def test_b8_a_hello_of_the_same_instance_replaces_the_session() -> None:
    """A listener that reconnects before its old connection is known dead has one session."""
    rig = Rig()
    old = rig.join(instance="a" * 32)
    rig.settle_hello(old)
    rig.trigger()
    new = rig.join(instance="a" * 32)
    assert rig.ended[old][1] == "replaced"
    assert rig.gens(new) == [rig.work().gen]
    # V17: a `started` of the old one is nobody's.
    rig.say(old, Started(QUEUE, BOOT, rig.work().gen))
    rig.wait(2.1)
    assert rig.wakes(new)


def test_b10_a_hello_marks_only_a_queue_never_heard_of() -> None:
    """The first session looks once; the second is told that the queue is clean and does nothing."""
    rig = Rig()
    first = rig.join()
    assert not rig.welcome(first).queues[0].clean and rig.gens(first)
    rig.cover(first, rig.work().gen)
    gen = rig.work().gen
    second = rig.join()
    state = rig.welcome(second).queues[0]
    assert state.clean and state.covered_age_ms == 0 and not rig.wakes(second) and rig.work().gen == gen


def test_b10_dirty_and_owned_by_another_gives_only_the_welcome() -> None:
    """A newcomer is not woken for what somebody else took on."""
    rig = Rig()
    first = rig.join()
    second = rig.join()
    assert rig.wakes(first) and not rig.wakes(second) and not rig.welcome(second).queues[0].clean


def test_b11_a_different_store_is_refused() -> None:
    """A staging worker must not settle production's debts."""
    rig = Rig()
    first = rig.join(store="aa11")
    stranger = rig.join(store="bb22")
    error = rig.frames[stranger][-1]
    assert isinstance(error, ErrorFrame) and error.code == "store_mismatch" and rig.ended[stranger][0] == 1008
    assert "another worker of billing/orders" in error.message
    rig.lose(first)
    assert rig.welcome(rig.join(store="bb22"))


def test_a_frame_before_hello_is_refused() -> None:
    """Bad order is a fault of the sender, said before the session ends."""
    rig = Rig()
    number = rig.scheduler.open(rig.now, "test")
    rig.frames[number] = []
    rig.started(number, 1)
    assert isinstance(rig.frames[number][0], ErrorFrame) and rig.ended[number][0] == 1008


def test_b13_a_copy_on_another_bus_is_one_mark() -> None:
    """Same source and id by HTTP and NATS: one generation; the same bus again is a re-send and marks."""
    rig, first, second = two()
    rig.trigger(source="p", id="1", bus="http")
    gen = rig.work().gen
    rig.trigger(source="p", id="1", bus="nats")
    assert rig.work().gen == gen and any(isinstance(fact, DuplicateDropped) for fact in rig.facts)
    rig.trigger(source="p", id="1", bus="http")
    rig.trigger("a/x", source="p", id="1", bus="nats")
    rig.trigger(source="p", id="2", bus="nats")
    rig.trigger(id="1", bus="nats")
    assert rig.work().gen == gen + 4
    for source, id_ in (("p", None), (None, "1"), ("", "1"), ("p", ""), ("", "")):
        for bus in ("http", "nats"):
            before = rig.work().gen
            rig.trigger(source=source, id=id_, bus=bus)
            assert rig.work().gen == before + 1, "half a name is none"


def test_b13_forgets_after_five_minutes() -> None:
    """A copy that comes later than anything could delay it is marked again."""
    rig, first, second = two()
    rig.trigger(source="p", id="1")
    gen = rig.work().gen
    rig.now += 301
    rig.trigger(source="p", id="1", bus="nats")
    assert rig.work().gen == gen + 1


def test_b9_a_sweep_comes_a_period_after_the_last_cover() -> None:
    """Nobody asked, nobody covered: one look for the whole fleet, counted from the cover."""
    rig = Rig(sweep_s=60.0)
    numbers = [rig.join() for _ in range(3)]
    rig.settle_hello(numbers[0])
    looks = []
    for _ in range(900):
        rig.wait(4.0)
        for number in numbers:
            for wake in rig.wakes(number):
                looks.append(wake.reason)
                rig.started(number, wake.gen)
                rig.cover(number, wake.gen)
        for number in numbers:
            rig.beat(number)
    assert set(looks) == {"sweep"} and 55 <= len(looks) <= 67


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_b9_the_sweep_is_due_to_the_second(draw: float) -> None:
    """T after the last empty receive, less or more by a tenth of it."""
    rig = Rig(sweep_s=60.0)
    rig.scheduler.dispatch.draw = lambda: draw
    number = rig.join()
    rig.settle_hello(number)
    rig.wakes(number)
    due_at = rig.now + 54.0 + 12.0 * draw
    while rig.now < due_at - 0.01:
        rig.wait(min(4.0, due_at - 0.01 - rig.now))
        rig.beat(number)
        assert rig.wakes(number) == []
    rig.wait(0.02)
    assert [wake.reason for wake in rig.wakes(number)] == ["sweep"]


def test_i5_a_reader_that_is_stuck_costs_one_slot() -> None:
    """100,000 triggers for a session that does not read are one slot per queue."""
    rig, first, second = two()
    rig.deaf = {first, second}
    event = CloudQueueWorkDetected("billing", "orders")
    for _ in range(100_000):
        rig.scheduler.trigger(rig.now, event, "http")
        rig.scheduler.commands(), rig.scheduler.facts()
    session = rig.scheduler.sessions.get(second)
    assert session is not None and len(session.unsent) == 1
    assert len(rig.scheduler.dispatch.agenda) < 10


def test_b12_plain_subscribers_hear_of_work_and_of_looks_only_where_nobody_else_is() -> None:
    """`trigger`, `due` and `lease` are announced; `sweep`, `more` and `resync` only without a session."""
    rig = Rig()
    rig.scheduler.dispatch.announcing = True
    rig.trigger()
    assert rig.announced == ["trigger"]
    number = rig.join()
    rig.scheduler.gap(rig.now)
    rig.drive()
    assert rig.announced == ["trigger"]
    rig.cover(number, rig.work().gen)
    rig.bye(number)
    rig.scheduler.gap(rig.now)
    rig.drive()
    assert rig.announced == ["trigger", "resync"]


def test_more_on_a_clean_queue_says_that_something_came_back() -> None:
    """L6, L7: a lease of nobody ended where there is no slot to look with; another session is woken."""
    rig, first, second = two()
    rig.more(second)
    assert rig.gens(first) == [rig.work().gen]
    rig.cover(first, rig.work().gen)
    rig.more(second, depth=0)
    assert not rig.wakes(first)


def test_b11_a_cover_of_another_store_says_why_it_is_refused() -> None:
    """B11: a sentence for whoever reads the listener's log."""
    rig = Rig()
    rig.join(store="aa11")
    stranger = rig.join()
    rig.say(stranger, EmptyReceive(QUEUE, BOOT, 1, 0, store="bb22"))
    error = rig.frames[stranger][-1]
    assert isinstance(error, ErrorFrame) and error.code == "store_mismatch"
    assert "different store" in error.message


def test_o4_the_audit_goes_on_whoever_comes_while_nobody_else_is_there() -> None:
    """O4: also where the last session left, and the next one has connected but not said hello, when an audit is due."""
    rig = Rig()
    rig.bye(rig.join(own=True))
    rig.wait(4.5)
    number = rig.scheduler.open(rig.now, "test")
    rig.frames[number] = []
    rig.wait(1.0)
    rig.say(number, Hello("2" * 32, "late", [Subscription(QUEUE, 4, own=True)]))
    rig.level(1, rose=True, put=1)
    rig.wakes(number)
    rig.scheduler.dispatch.settle(rig.work())
    rig.wait(4.875)
    assert not rig.wakes(number)
    rig.join("a/x"), rig.join("a/x")
    rig.wait(0.125)
    assert len(rig.wakes(number)) == 1 and rig.scheduler.embedded.audit_found == 1
    rig.scheduler.dispatch.settle(rig.work())
    rig.beat(number), rig.wait(4.875)
    assert rig.scheduler.embedded.audit_found == 1, "once every H, however many come meanwhile"
    rig.wait(0.125)
    assert rig.scheduler.embedded.audit_found == 2


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
    jobs = rig.work().jobs
    assert jobs is not None
    assert jobs["m:f"].outcomes == {"done": 2200}
    assert rig.work().wake_sources == {"trigger": 2200}
    assert taken < each


OTHER = "billing/slow"


def rig(**numbers: float | str) -> Rig:
    """Return a rig where one queue has numbers of its own."""
    return Rig(rules=(QueueRule(match=OTHER, **numbers),))  # type: ignore[arg-type]


def test_a_welcome_tells_what_differs_and_nothing_else() -> None:
    """The listener's dead-man timer and time-outs follow the queue's numbers."""
    one = rig(sweep_s=10.0, slack_s=3.0, spread_s=1.0, store_call_s=4.0)
    number = one.join(QUEUE, OTHER)
    plain, tuned = one.welcome(number).queues
    assert (plain.sweep_ms, plain.slack_ms, plain.spread_ms, plain.store_call_ms) == (None,) * 4
    assert (tuned.sweep_ms, tuned.slack_ms, tuned.spread_ms) == (10_000, 3000, 1000)
    assert tuned.store_call_ms == 4000


def owned(rig: Rig) -> tuple[int, int, int]:
    """Trigger a queue of two sessions; return the one that has its wake, the other, and the generation."""
    first, second = rig.join(), rig.join()
    rig.settle_hello(first)
    rig.wakes(second)
    rig.trigger()
    owner = rig.work().owner
    assert owner is not None
    (gen,) = rig.gens(owner)
    return owner, second if owner == first else first, gen


def test_a_cover_begun_before_a_release_does_not_settle_it() -> None:
    """L7: the owner's empty receive is older than the other's release; its cover must not end the debt."""
    rig = Rig()
    owner, other, gen = owned(rig)
    rig.started(owner, gen)
    rig.more(other, depth=1)
    rig.cover(owner, gen)
    assert rig.work().dirty
    assert rig.gens(owner), "the owner is asked to look again"


def test_a_more_for_a_wake_that_met_no_slot_marks_nothing() -> None:
    """I2: what is owed stays owed at its own generation, and a queue that was covered meanwhile stays clean."""
    rig = Rig()
    owner, other, gen = owned(rig)
    rig.more(owner, unannounced=False)
    assert rig.work().gen == gen
    assert rig.gens(other) == [gen]
    rig.started(other, gen)
    rig.cover(other, gen)
    rig.more(owner, unannounced=False)
    assert not rig.work().dirty
    assert rig.work().gen == gen


def test_who_comes_to_a_forgotten_queue_is_asked_to_look() -> None:
    rig = Rig()
    rig.settle_hello(rig.join())
    rig.lose(next(iter(rig.frames)))
    rig.trigger()
    assert rig.scheduler.forget(QUEUE)
    assert rig.wakes(rig.join())


def test_a_queue_with_a_listener_or_in_the_service_is_not_forgotten() -> None:
    """Who is there settles what is owed; what stands is deleted instead."""
    rig = Rig()
    number = rig.join()
    assert not rig.scheduler.forget(QUEUE)
    rig.bye(number)
    rig.level(0)
    assert not rig.scheduler.forget(QUEUE)
    assert rig.work().dirty


def _settled(rig: Rig) -> int:
    session = rig.join(capacity=1)
    rig.settle_hello(session)
    return session


@pytest.mark.parametrize("busy", [False, True])
def test_b5_a_barred_session_that_is_seen_idle_is_asked_again(busy: bool) -> None:
    """Its cover was lost and it has nothing to report; only while it still receives does the bar stand."""
    rig = Rig()
    session = _settled(rig)
    rig.trigger()
    gen = rig.work().gen
    rig.wakes(session)
    rig.started(session, gen)
    began = rig.now
    while not rig.work().sessions.get(session).stuck:  # type: ignore[union-attr]
        rig.wait(1.0)
        rig.beat(session, receiving_ms=round((rig.now - began) * 1000))
    rig.beat(session, free=1, gen=gen, receiving_ms=round((rig.now - began) * 1000) if busy else None)
    rig.drive()
    assert bool(rig.gens(session)) is not busy


def swept(sessions: int) -> tuple[Rig, list[int], int]:
    """Return a rig right after a sweep, its sessions, and the owner that heard of it; overdue is 4 s later."""
    rig = Rig(sweep_s=16.0)
    numbers = [rig.join() for _ in range(sessions)]
    rig.settle_hello(numbers[0])
    rig.wait(10.0)
    for number in numbers:
        rig.beat(number)
    while not rig.work().dirty:
        rig.wait(0.1)
    (owner,) = [number for number in numbers if [wake.reason for wake in rig.wakes(number)] == ["sweep"]]
    return rig, numbers, owner


def test_an_owner_that_began_and_does_not_end_is_passed() -> None:
    """Long before B5 gives it up, the next one looks, and may settle it."""
    rig, numbers, owner = swept(2)
    (other,) = [number for number in numbers if number != owner]
    gen = rig.work().gen
    rig.started(owner, gen)
    rig.wait(3.8)
    assert not rig.wakes(other)
    rig.wait(0.4)
    assert rig.gens(other) == [gen] and not rig.wakes(owner)
    assert rig.work().owner == other
    rig.cover(other, gen)
    assert not rig.work().dirty


def test_b8_bye_ends_a_session_in_peace() -> None:
    """A bye is confirmed, and leaves timers only for the leases it names."""
    rig, first, second = two()
    rig.trigger()
    rig.bye(second)
    assert isinstance(rig.frames[second][-1], Bye) and rig.ended[second] == (1000, "bye")
    assert rig.gens(first) == [rig.work().gen]
    rig.cover(first, rig.work().gen)
    assert not rig.work().due


def test_where_there_is_nobody_else_the_owner_is_asked_again() -> None:
    """A debt without an owner would wait for somebody's room, and nobody needs to gain any."""
    rig, _, owner = swept(1)
    gen = rig.work().gen
    rig.started(owner, gen)
    rig.wait(4.2)
    assert rig.gens(owner) == [gen]
    assert rig.work().owner == owner


def test_s31_a_session_speaks_of_its_own_queues_alone() -> None:
    """Whatever it says of another's: what is owed there stays owed, nobody is woken for it, and no timer is set."""
    rig = Rig()
    stranger = rig.join("a/mine")
    rig.trigger()
    owed = rig.work().gen
    rig.cover(stranger, owed, next_ms=1)
    rig.started(stranger, owed)
    rig.more(stranger, depth=9)
    rig.room(stranger, 9, gen=owed)
    rig.beat(stranger, QUEUE, [1], covered=owed, free=9, gen=owed)
    rig.say(stranger, Bye(leases={QUEUE: [1]}))
    assert rig.work().dirty and rig.work().gen == owed
    assert {wake.queue for wake in rig.wakes(stranger)} == {"a/mine"}
    owner = rig.join()
    assert rig.gens(owner) == [owed], "who may take it is asked all the same"
