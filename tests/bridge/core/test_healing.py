"""What heals by repetition, and exactly when (S2); and who is told where own and foreign listeners share a queue."""

from __future__ import annotations

import pytest

from bridge.contract.wire import Bye, Cover, Hello, ListenerHeartbeat, QueueBeat, Started, Subscription
from bridge.core.commands import Reclaim
from bridge.observe.facts import Covered, SessionClosed
from tests.bridge.core.test_own import Walked, hand, message
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


@pytest.mark.parametrize(
    ("free", "gen", "receiving_ms", "handed_on"),
    [
        (0, 1, None, True),  # no slot, nothing on its way, and it knows of the wake: its `more` was lost
        (0, 2, None, True),
        (0, 0, None, False),  # it has not heard of the wake: that one is still on its way
        (0, None, None, False),
        (0, 1, 0, False),  # it receives: it will say what it found
        (1, 1, None, False),  # it has a slot: it will look
        (None, 1, None, False),
    ],
)
def test_s2_a_beat_heals_a_lost_more(
    free: int | None, gen: int | None, receiving_ms: int | None, handed_on: bool
) -> None:
    """An owner that is full and at rest gives the debt to the next, and is left alone until it has room."""
    rig, first, second = owned()
    rig.beat(first, free=free, gen=gen, receiving_ms=receiving_ms)
    assert asked(rig, first, second) == ([second] if handed_on else [])
    assert rig.debt().owner == (second if handed_on else first)
    if handed_on:
        assert rig.debt().reason == "more"
        rig.beat(first, free=0, gen=gen)
        assert rig.debt().owner == second, "said once more by somebody who owns nothing, it is no news"


def test_s2_a_wake_that_was_never_sent_can_be_no_lost_more() -> None:
    """An owner whose slot is written and not taken has been woken up to 0, and knows at least as much."""
    rig, first, second = owned()
    rig.deaf = {first}
    rig.cover(first, 1)
    rig.bell.dispatch.ledger.debts[QUEUE].seats.get(first).woken_gen = 0  # type: ignore[union-attr]
    rig.debt().seats.used(rig.debt().seats.get(second))
    rig.trigger()
    assert rig.debt().owner == first
    rig.beat(first, free=0)
    assert asked(rig, second) == [second]


@pytest.mark.parametrize(("covered", "settled"), [(None, False), (1, False), (2, True), (3, False)])
def test_s2_a_beat_heals_a_lost_cover(covered: int | None, settled: bool) -> None:
    """At the debt's generation, and not at one that is older or was never given."""
    rig, first, second = owned()
    rig.trigger()
    rig.started(first, 2)
    rig.facts.clear()
    rig.beat(first, covered=covered)
    assert rig.debt().dirty is not settled
    covers = [fact for fact in rig.facts if isinstance(fact, Covered)]
    assert covers == ([Covered(QUEUE, settled)] if covered is not None and covered >= 2 else [])
    rig.facts.clear()
    rig.beat(first, covered=2)
    rig.beat(first, covered=2)
    assert [fact for fact in rig.facts if isinstance(fact, Covered)] == ([] if settled else [Covered(QUEUE, True)])


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
    assert list(rig.debt().due) == leaves


def test_b8_a_wake_or_a_more_after_the_idle_beat_is_a_timer_again() -> None:
    """At V after the session is gone; each of them says that it may hold something."""
    for busy in (False, True):
        rig = Rig()
        number = rig.join(capacity=4, visibility_ms=8000)
        other = rig.join(capacity=4)
        rig.cover(number, 1)
        for _ in range(4):
            rig.wait(4.0)
            rig.beat(number, free=4, gen=1), rig.beat(other, free=4, gen=1)
        if busy:
            rig.more(number, unannounced=False)
        rig.lose(number)
        assert list(rig.debt().due) == (["lease"] if busy else [])
        rig.wait(7.9)
        rig.beat(other)
        assert asked(rig, other) == []
        rig.wait(0.2)
        assert asked(rig, other) == ([other] if busy else [])


def test_b8_leases_of_the_newest_beat_and_of_the_bye_are_those_that_count() -> None:
    """Told anew they replace what was told, none at all included; a lease that is over ends at once."""
    rig = Rig()
    number, other = rig.join(), rig.join()
    rig.cover(number, 1)
    seat = rig.debt().seats.get(number)
    rig.beat(number, leases=[4000, 8000])
    assert seat.leases == [104.0, 108.0]
    rig.wait(1.0)
    rig.beat(number, leases=[2000])
    assert seat.leases == [103.0]
    rig.beat(number)
    assert seat.leases == []
    rig.beat(number, leases=[2000])
    rig.say(number, Bye({QUEUE: [500, 6000], "a/never": [1000]}))
    heard = []
    for _ in range(4):
        rig.wait(2.0)
        rig.beat(other)
        heard += [(wake.reason, rig.now) for wake in rig.wakes(other)]
        rig.cover(other, rig.debt().gen)
    assert heard == [("lease", 103.0), ("lease", 109.0)], "and none at V: who says bye says all"


def test_b6_a_full_session_is_barred_until_its_own_count_says_otherwise() -> None:
    """A `more` takes all its slots, and what was known of being stuck or deaf is out of date."""
    rig, first, second = owned()
    seat = rig.debt().seats.get(first)
    seat.stuck = seat.deaf = True
    rig.more(first, depth=7)
    assert (seat.full, seat.free, seat.stuck, seat.deaf) == (True, 0, False, False)
    assert (rig.debt().owner, rig.debt().reason, rig.debt().seats.any_ready) == (second, "more", True)
    (wake,) = rig.wakes(second)
    assert (wake.reason, wake.size) == ("more", 7)
    rig.more(second, depth=0, unannounced=False)
    assert rig.debt().size == 1, "there is at least what is owed"
    assert not rig.debt().seats.any_ready
    rig.room(first, 0)
    assert asked(rig, first, second) == []
    rig.room(first, 2)
    assert (asked(rig, first, second), seat.free) == ([first], 2)


def test_b6_a_more_without_a_debt_tells_only_what_came_back() -> None:
    """Its depth is the size of the new mark; on top of a debt it counts nothing twice."""
    rig, first, second = owned()
    rig.cover(first, 1)
    rig.more(first, depth=5, unannounced=True)
    (wake,) = rig.wakes(second)
    assert (wake.reason, wake.size, wake.gen) == ("more", 5, 2)
    rig.more(second, depth=9, unannounced=True)
    assert (rig.debt().size, rig.debt().gen, rig.debt().owner) == (9, 3, None)
    rig.room(first, 1), rig.room(second, 1)
    rig.cover(first, 3)
    rig.more(first, unannounced=True)
    assert rig.debt().size == 1
    rig.cover(second, 4)
    rig.room(first, 1)
    rig.more(first, depth=3)
    assert rig.debt().gen == 5, "not said to be announced, it is taken to be news"
    rig.cover(second, 5)
    rig.more(first, depth=0)
    assert not rig.debt().dirty, "unless nothing was left"


def test_b6_an_own_queue_is_never_marked_by_a_more() -> None:
    """The store says what is visible; a `more` there only bars its sender."""
    rig = Rig()
    number = rig.join(own=True)
    rig.more(number, depth=5, unannounced=True)
    assert (rig.debt().dirty, rig.debt().gen, rig.debt().seats.get(number).full) == (False, 0, True)


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
    rig.more(first, unannounced=False), rig.more(second, unannounced=False)
    asked(rig, first, second)
    third = rig.join(capacity=0)
    assert rig.debt().owner is None
    rig.debt().seats.get(first).full = False
    rig.debt().seats.refresh(rig.debt().seats.get(first))
    rig.cover(third, 1)
    assert asked(rig, first, second) == [first], "an old cover of anybody finds an owner for a debt that has none"


def test_b7_covers_are_dated_by_when_their_receive_began() -> None:
    """The newest counts, in whatever order they come; that of another boot, or of a queue not listened to, does not."""
    rig, first, second = owned()
    rig.wait(4.0)
    rig.say(first, Cover(QUEUE, BOOT, 1, 1500))
    assert rig.debt().covered_at == 102.5
    rig.say(second, Cover(QUEUE, BOOT, 1, 2500))
    assert rig.debt().covered_at == 102.5
    rig.say(second, Cover(QUEUE, BOOT, 1, 250))
    assert rig.debt().covered_at == 103.75
    rig.say(second, Cover(QUEUE, "c" * 32, 1, 0))
    assert rig.debt().covered_at == 103.75
    rig.say(second, Cover("a/other", BOOT, 1, 0))
    assert rig.bell.ledger.find("a/other") is None


@pytest.mark.parametrize("gen", [0, 1, 2, 3, 4])
def test_b3_a_started_answers_what_its_sender_knew(gen: int) -> None:
    """Up to its generation; one that was never given answers nothing, and one of another boot neither."""
    rig, first, second = owned()
    rig.wait(0.5)
    rig.trigger()
    rig.wait(0.25)
    rig.trigger()
    rig.say(first, Started(QUEUE, "c" * 32, 3))
    assert rig.debt().unacked == ((1, 100.0), (3, 100.75))
    rig.started(first, gen)
    assert rig.debt().unacked == {0: ((1, 100.0), (3, 100.75)), 1: ((3, 100.75),), 2: ((3, 100.75),), 3: ()}.get(
        gen, ((1, 100.0), (3, 100.75))
    )
    due = rig.bell.dispatch.agenda.when(("start", QUEUE))
    assert due == {1: 102.75, 2: 102.75, 3: None}.get(gen, 102.0)
    assert rig.debt().started_at == (None if gen > 3 else 100.75)
    assert rig.bell.dispatch.agenda.when(("progress", QUEUE)) == (None if gen > 3 else 115.75)


def test_b4_whoever_was_quicker_owns_with_the_newest_generation_only() -> None:
    """An older one says nothing of what the owner still has to answer; a debt that nobody owns is whoever's began."""
    rig, first, second = owned()
    rig.trigger()
    rig.started(second, 1)
    assert rig.debt().owner == first
    rig.started(second, 2)
    assert (rig.debt().owner, rig.debt().unacked) == (second, ())
    rig.started(first, 2)
    assert rig.debt().owner == second, "the second of two that began changes nothing"
    rig.trigger()
    rig.more(first, unannounced=False), rig.more(second, unannounced=False)
    assert rig.debt().owner is None
    rig.wait(1.0)
    rig.started(first, 2)
    assert (rig.debt().owner, rig.debt().unacked) == (first, ((3, 101.0),)), "and owes the rest from now on"
    assert rig.bell.dispatch.agenda.when(("start", QUEUE)) == 103.0


MIXED = [("own",), ("foreign",), ("own", "foreign"), ()]


@pytest.mark.parametrize("listeners", MIXED, ids="+".join)
@pytest.mark.parametrize("stands", [False, True])
def test_who_is_woken_by_what_where_kinds_mix(stands: bool, listeners: tuple[str, ...]) -> None:
    """A trigger adds nothing only where all say own; a put wakes one of any kind; a gap and a sweep look elsewhere."""
    rig = Rig(sweep_s=60.0)
    if stands:
        rig.level(0)
    numbers = {kind: rig.join(own=kind == "own") for kind in listeners}
    if numbers:
        rig.cover(next(iter(numbers.values())), rig.bell.ledger.newest_gen)
        asked(rig, *numbers.values())
    elsewhere = "foreign" in listeners or (not stands and "own" not in listeners)
    if listeners or stands:
        assert rig.bell.gap(rig.now) == int("foreign" in listeners or (not stands and not listeners))
        rig.drive()
        for number in numbers.values():
            rig.cover(number, rig.bell.ledger.newest_gen)
        asked(rig, *numbers.values())
        swept = rig.bell.dispatch.agenda.when(("sweep", QUEUE)) is not None
        assert swept is (listeners == ("foreign",)), "O5: the level of the store is known without a look"
    rig.trigger()
    all_own = listeners == ("own",)
    assert rig.debt().dirty is not all_own
    assert len(asked(rig, *numbers.values())) == (1 if numbers and not all_own else 0)
    assert rig.debt().elsewhere is elsewhere
    for number in numbers.values():
        rig.cover(number, rig.debt().gen)
    if stands:
        rig.level(1, rose=True, put=1)
        assert rig.debt().dirty
        assert len(asked(rig, *numbers.values())) == (1 if numbers else 0)


def test_a_foreign_mark_on_an_own_queue_is_settled_by_a_cover_and_not_by_the_level() -> None:
    """The level settles what the level marked; the trigger meant the other store, which the cover of it settles."""
    rig = Rig()
    own, other = rig.join(own=True), rig.join()
    rig.cover(other, rig.debt().gen)
    rig.trigger()
    rig.level(0)
    assert (rig.debt().dirty, rig.debt().foreign) == (True, True)
    rig.cover(other, rig.debt().gen)
    assert (rig.debt().dirty, rig.debt().foreign) == (False, False)
    rig.level(2, rose=True, put=2)
    assert (rig.debt().dirty, rig.debt().foreign) == (True, False)
    rig.level(0)
    assert not rig.debt().dirty
    assert own


def test_o1_whoever_covers_visible_work_is_passed_and_the_rest_is_the_levels() -> None:
    """What was marked from elsewhere is settled by it, so that the level alone decides from then on."""
    rig = Rig()
    first, second, foreign = rig.join(own=True), rig.join(own=True), rig.join()
    rig.cover(foreign, rig.bell.ledger.newest_gen)
    rig.level(2, rose=True, put=2)
    rig.trigger()
    gen = rig.debt().gen
    owner = rig.debt().owner
    asked(rig, first, second, foreign)
    rig.facts.clear()
    rig.cover(owner, gen)
    assert (rig.debt().dirty, rig.debt().foreign) == (True, False)
    assert rig.debt().owner not in (owner, None)
    assert [fact for fact in rig.facts if isinstance(fact, Covered)] == [Covered(QUEUE, settled=False)]
    rig.level(0)
    assert not rig.debt().dirty


def test_a_listener_that_learns_its_queue_is_own_says_so_with_its_cover() -> None:
    """O0: from then on the level decides, no sweep is made, and its read was of the queue service."""
    rig = Rig(sweep_s=60.0)
    number = rig.join()
    assert rig.bell.dispatch.agenda.when(("sweep", QUEUE)) is not None
    rig.cover(number, 1)
    assert rig.debt().read_elsewhere
    rig.say(number, Cover(QUEUE, BOOT, 1, 0, next_visible_in_ms=5000, own=True))
    assert (rig.debt().seats.any_own, rig.debt().seats.any_foreign, rig.debt().read_elsewhere) == (True, False, False)
    assert rig.bell.dispatch.agenda.when(("sweep", QUEUE)) is None
    assert not rig.debt().due, "the store tells when the next one is visible"
    rig.lose(number)
    assert not rig.debt().due, "and of its leases as well"


def test_a_later_hello_keeps_what_is_known_of_a_queue_that_stays() -> None:
    """What it was told, what it reported and what is on its way to it; all but what it says anew."""
    rig = Rig()
    number = rig.join("a/x", QUEUE, own=True, accept=True, capacity=8, instance="1" * 32)
    rig.deaf = {number}
    rig.bell.own.grant(rig.now, QUEUE, 2)
    hand(rig, number, "m1", "m2")
    rig.beat(number, leases=[4000], failing_ms=500)
    seat = rig.debt().seats.get(number)
    seat.woken_gen, seat.woken_at, seat.reported_gen, seat.touched, seat.carried = 5, 99.0, 4, False, [(7, 2)]
    slot = seat.slot
    seat.granted = 1
    rig.say(number, Hello("1" * 32, "again", [Subscription(QUEUE, 6, visibility_ms=5000, own=True)], ["messages"]))
    rig.drive()
    kept = rig.debt().seats.get(number)
    assert kept is not seat
    assert (kept.slot, kept.woken_gen, kept.woken_at, kept.reported_gen) == (slot, 5, 99.0, 4)
    assert (kept.leases, kept.carried, kept.failing_since) == ([104.0], [(7, 2)], 99.5)
    assert (kept.granted, kept.touched, kept.capacity, kept.visibility_s) == (1, False, 6, 5.0)
    session = rig.bell.sessions.get(number)
    assert list(session.seats) == [QUEUE]
    assert list(session.unsent) == [QUEUE]
    rig.deaf = set()
    assert [wake.queue for wake in rig.bell.take(rig.now, number)] == [QUEUE]


def test_what_a_session_leaves_goes_to_others_at_once() -> None:
    """By a later hello or by its end: its debts, its unsent wakes, and what it was handed."""
    rig = Rig()
    first, second = rig.join("a/x", QUEUE, instance="1" * 32), rig.join("a/x", QUEUE)
    rig.deaf = {first}
    rig.trigger("a/x"), rig.trigger()
    asked(rig, first, second)
    rig.say(first, Hello("1" * 32, "less", [Subscription(QUEUE, 4)]))
    assert [wake.queue for wake in rig.wakes(second)] == ["a/x"]
    assert list(rig.bell.sessions.get(first).unsent) == [QUEUE]
    assert rig.debt("a/x").owner == second
    rig.say(first, ListenerHeartbeat(1, {"a/x": QueueBeat(1, free=0)}))
    assert rig.debt("a/x").owner == second
    rig.lose(first)
    assert [wake.queue for wake in rig.wakes(second)] == [QUEUE]
    assert SessionClosed(first, "less", "lost") in rig.facts


def test_a_hello_marks_a_queue_never_heard_of_and_no_other() -> None:
    """B10: neither one with a debt, nor one with something due; of an own one what is visible."""
    rig = Rig()
    rig.trigger("a/due", not_before_ms=60_000)
    rig.trigger("a/owed")
    rig.level(3, queue="a/own")
    rig.bell.dispatch.settle(rig.debt("a/own"))
    number = rig.join("a/due", "a/owed", "a/new")
    assert {wake.queue: (wake.reason, wake.size) for wake in rig.wakes(number)} == {
        "a/owed": ("trigger", 1), "a/new": ("resync", 1),
    }  # fmt: skip
    own = rig.join("a/own", own=True)
    assert [(wake.reason, wake.size) for wake in rig.wakes(own)] == [("resync", 3)]
    assert rig.debt("a/own").foreign is False
    assert rig.debt("a/new").foreign


def test_s2_a_beat_counts_its_free_slots_up_to_the_wake_it_knows() -> None:
    """S2, O7: what was carried before is in the listener's own count, and is not taken off a second time."""
    rig = Rig()
    number = rig.join(own=True, accept=True, capacity=4)
    rig.bell.own.grant(rig.now, QUEUE, 2)
    hand(rig, number, "m1", "m2")
    (gen,) = rig.gens(number)
    seat = rig.debt().seats.get(number)
    rig.beat(number, free=4, gen=gen - 1)
    assert seat.free == 2
    rig.beat(number, free=2, gen=gen)
    assert (seat.free, seat.carried) == (2, [])


def test_s2_each_instance_counts_its_receives_by_itself() -> None:
    """S2: levels of two listeners of one queue are two counts, however alike they look."""
    rig, first, second = owned()
    for number in (first, second):
        rig.say(number, ListenerHeartbeat(1, {QUEUE: QueueBeat(receives={"sweep": (1, 0)})}))
    assert rig.debt().wake_sources == {"sweep": 2}


def test_b6_a_more_from_elsewhere_is_no_matter_of_the_level() -> None:
    """B6, O1: where own and foreign listeners share a queue, the empty level says nothing of what came back there."""
    rig = Rig()
    own, other = rig.join(own=True), rig.join()
    rig.level(0)
    rig.cover(other, rig.bell.ledger.newest_gen)
    asked(rig, own, other)
    rig.more(other, unannounced=True)
    assert (rig.debt().dirty, rig.debt().foreign) == (True, True)
    rig.level(0, put=1)
    assert rig.debt().dirty
    rig.cover(own, rig.debt().gen)
    assert not rig.debt().dirty


def test_o1_who_covers_visible_work_alone_is_left_to_the_audit() -> None:
    """O1: asked again at once, an honest mistake would go round for ever between the two; H later it is asked."""
    rig = Rig()
    number = rig.join(own=True)
    rig.level(2, rose=True, put=2)
    (gen,) = rig.gens(number)
    rig.started(number, gen)
    rig.cover(number, gen)
    assert (rig.debt().dirty, rig.debt().owner) == (True, None)
    rig.wait(4.875)
    assert not rig.wakes(number)
    rig.wait(0.125)
    assert rig.gens(number) == [gen]


def test_o7_who_hears_again_is_handed_what_waited_for_it() -> None:
    """O7: a heartbeat, or the `started` of another wake, ends the bar of who did not take up, and finds it the debt."""
    for hears in ("beat", "started"):
        rig = Rig()
        number = rig.join(own=True, accept=True)
        hand(rig, number, "m1")
        rig.wait(1.0)
        hand(rig, number, "m2")
        gens = rig.gens(number)
        rig.wait(1.5)
        assert (rig.debt().seats.get(number).deaf, len(rig.reclaims)) == (True, 1)
        rig.level(1, rose=True)
        assert rig.debt().owner is None and not rig.wakes(number)
        if hears == "beat":
            rig.beat(number)
        else:
            rig.started(number, gens[1])
        assert rig.gens(number) == [rig.debt().gen]
        assert (rig.debt().owner, rig.debt().unacked) == (number, ((rig.debt().gen, rig.now),))
        assert not rig.debt().seats.get(number).deaf


def test_o7_who_leaves_a_queue_gives_back_what_it_was_handed_of_it() -> None:
    """O7: at once and uncounted, and nothing of the queues that it keeps."""
    rig = Rig()
    number = rig.join(QUEUE, "a/y", own=True, accept=True, instance="1" * 32)
    hand(rig, number, "m1")
    rig.bell.own.handed(rig.now, "a/y", number, 1, [message("m2")], 1)
    rig.drive()
    rig.say(number, Hello("1" * 32, "less", [Subscription("a/y", 32, own=True)], ["messages"]))
    assert rig.reclaims == [Reclaim(QUEUE, (("m1", "receipt of m1"),), uncount=True)]
    rig.lose(number)
    assert [reclaim.queue for reclaim in rig.reclaims] == [QUEUE, "a/y"]


def test_o7_the_end_of_a_session_costs_one_look_at_what_it_was_handed() -> None:
    """O7: thousands of messages of hundreds of queues are given back at one stroke."""
    rig = Rig()
    queues = [f"a/q{number}" for number in range(20)]
    number = rig.join(*queues, own=True, accept=True)
    for queue in queues:
        rig.bell.own.handed(rig.now, queue, number, 1, [message("m")], 1)
    held = rig.bell.own._handfuls[number].by_gen = Walked(rig.bell.own._handfuls[number].by_gen)
    rig.lose(number)
    assert [reclaim.queue for reclaim in rig.reclaims] == queues
    assert held.walks == 1


def test_b6_a_more_of_who_owns_nothing_changes_nothing_of_what_is_owed() -> None:
    """B6: the debt keeps the reason that it was marked for, and its owner hears that one again."""
    rig, first, second = owned()
    rig.trigger()
    rig.more(second, unannounced=False)
    assert (rig.debt().owner, rig.debt().reason) == (first, "trigger")
    asked(rig, first, second)
    rig.wait(2.0)
    assert [wake.reason for wake in rig.wakes(first)] == ["trigger"]


@pytest.mark.parametrize("level", ["room", "beat"])
def test_b6_who_has_no_room_hands_nothing_out(level: str) -> None:
    """B6, O1: a debt that was left to the audit is not found a taker by a level that tells of no slot."""
    rig = Rig()
    first, second = rig.join(own=True), rig.join(own=True)
    rig.more(second)
    rig.level(2, rose=True, put=2)
    rig.cover(first, rig.debt().gen)
    asked(rig, first, second)
    assert (rig.debt().dirty, rig.debt().owner) == (True, None)
    if level == "room":
        rig.room(second, 0)
    else:
        rig.beat(second, free=0)
    assert asked(rig, first, second) == []


def test_a_debt_that_is_settled_leaves_no_timer() -> None:
    """B4, B5: nobody is waited for any more, neither to begin nor to go on."""
    rig, first, second = owned()
    agenda = rig.bell.dispatch.agenda
    rig.trigger()
    rig.started(first, 1)
    assert None not in (agenda.when(("start", QUEUE)), agenda.when(("progress", QUEUE)))
    rig.cover(first, 2)
    assert (agenda.when(("start", QUEUE)), agenda.when(("progress", QUEUE))) == (None, None)


@pytest.mark.parametrize("kind", ["due", "sweep", "start", "progress", "reread"])
def test_b14_a_queue_that_is_forgotten_leaves_no_timer(kind: str) -> None:
    """B14: of what kind it may be; it would come to a namesake, and hurry an owner that has just been woken."""
    rig = Rig()
    rig.trigger()
    rig.bell.dispatch.agenda.set((kind, QUEUE), 500.0)
    assert rig.bell.forget(QUEUE)
    assert rig.bell.deadline() is None


def test_b8_an_owner_that_leaves_nobody_behind_leaves_no_timer_of_its_debt() -> None:
    """B4, B5: with the owner goes the wait for its `started` and for its progress."""
    rig = Rig()
    number = rig.join()
    rig.trigger()
    rig.started(number, 1)
    agenda = rig.bell.dispatch.agenda
    assert None not in (agenda.when(("start", QUEUE)), agenda.when(("progress", QUEUE)))
    rig.lose(number)
    assert (agenda.when(("start", QUEUE)), agenda.when(("progress", QUEUE))) == (None, None)


def test_b4_who_covered_visible_work_may_be_asked_again_while_the_owner_hangs() -> None:
    """B4, O1: it answered, and so it is among the further sessions of the next round."""
    rig = Rig()
    owner, other = rig.join(own=True), rig.join(own=True)
    rig.level(1, rose=True, put=1)
    rig.wait(2.0)
    assert asked(rig, owner, other) == [owner, other]
    rig.cover(other, rig.debt().gen)
    assert rig.debt().owner == owner
    rig.wait(2.0)
    assert asked(rig, owner, other) == [owner, other]
