"""Sessions that start workers instead of handling messages: whom a debt reaches, and what they are told (Z5)."""

from __future__ import annotations

import msgspec
import pytest

from bridge.contract.errors import BadInput
from bridge.contract.wire import (
    BridgeHeartbeat,
    CoverAge,
    Hello,
    ListenerHeartbeat,
    More,
    Processes,
    QueueBeat,
    Reason,
    Room,
    Subscription,
    Wake,
    decode_up,
    encode_frame,
)
from bridge.core.tallies import STEP_MAX, Tallies
from bridge.observe.facts import WorkersTallied
from bridge.observe.metrics import Metrics
from bridge.service.status import listeners, scaled, workers
from tests.support.bells import QUEUE, Rig


def join_scaler(rig: Rig, capacity: int = 8) -> int:
    """Open a scaler's session and say hello; return its number."""
    number = rig.bell.open(rig.now, "test")
    rig.frames[number] = []
    rig.say(number, Hello(f"5ca1e{number:027x}", "scaler", [Subscription(QUEUE, capacity)], kind="scaler"))
    return number


def newest(rig: Rig, number: int) -> Wake:
    """Return the wake that a session got last."""
    return [frame for frame in rig.frames[number] if isinstance(frame, Wake)][-1]


def quiet(rig: Rig, *numbers: int) -> None:
    """Have the debt of the first hello settled, and forget what was sent."""
    owner = rig.debt().owner
    assert owner is not None
    rig.cover(owner, rig.debt().gen)
    for number in numbers:
        rig.frames[number].clear()


def test_a_scaler_is_asked_only_where_no_worker_has_room() -> None:
    """However much longer ago it was used; and told how many workers there are."""
    rig = Rig()
    scaler, worker = join_scaler(rig), rig.join(QUEUE, capacity=1)
    quiet(rig, scaler, worker)
    for _ in range(3):
        rig.trigger()
        assert rig.debt().owner == worker
        assert not rig.gens(scaler)
        rig.cover(worker, rig.debt().gen)
    rig.trigger()
    rig.say(worker, More(QUEUE, 5, False))
    assert rig.debt().owner == scaler
    assert newest(rig, scaler).workers == 1


def test_of_several_scalers_one_is_asked_and_the_next_takes_off_what_it_starts() -> None:
    """A large depth reaches no second one, for each would start what is missing."""
    rig = Rig()
    first, second = join_scaler(rig, 1), join_scaler(rig, 1)
    quiet(rig, first, second)
    rig.trigger(size=1000)
    owner = rig.debt().owner
    assert owner in (first, second)
    other = second if owner == first else first
    assert not rig.gens(other)
    rig.say(owner, More(QUEUE, 1000, False, 4))
    assert rig.debt().owner == other
    assert newest(rig, other).workers == 4
    rig.say(owner, ListenerHeartbeat(1, {QUEUE: QueueBeat(free=0, processes=Processes(9, 3, 1))}))
    rig.say(other, More(QUEUE, 1000, False, 0))
    rig.say(other, Room(QUEUE, 1))
    assert newest(rig, other).workers == 1


def test_a_worker_that_stops_is_none() -> None:
    """Its hello of capacity 0 says that it takes nothing any more (L12)."""
    rig = Rig()
    worker, scaler = rig.join(QUEUE, capacity=0), join_scaler(rig)
    quiet(rig, worker, scaler)
    rig.trigger()
    assert newest(rig, scaler).workers == 0


def test_where_all_are_to_be_woken_a_scaler_is_not() -> None:
    """`wake = "all"` means those that receive."""
    rig = Rig(wake="all")
    workers, scaler = [rig.join(QUEUE), rig.join(QUEUE)], join_scaler(rig)
    quiet(rig, *workers, scaler)
    rig.trigger()
    assert all(rig.gens(worker) for worker in workers)
    assert not rig.gens(scaler)


def test_the_first_worker_takes_the_debt_that_a_scaler_handed_back() -> None:
    """By its hello, and without another mark (B10)."""
    rig = Rig()
    scaler = join_scaler(rig)
    quiet(rig, scaler)
    rig.trigger()
    rig.say(scaler, More(QUEUE, 1, False, 1))
    gen = rig.debt().gen
    assert rig.debt().owner is None
    worker = rig.join(QUEUE)
    assert rig.debt().owner == worker
    assert rig.gens(worker) == [gen]


def starts(rig: Rig, scaler: int, count: int) -> None:
    """Have a scaler hand the debt back because it starts workers."""
    rig.say(scaler, More(QUEUE, count, False, count))
    rig.frames[scaler].clear()


@pytest.mark.parametrize("reason", ["trigger", "due", "lease"])
def test_one_that_starts_workers_hears_of_more_work(reason: Reason) -> None:
    """For those may be too few by now, and who runs be busy (Z5); it owns nothing by that, and its answer is none."""
    rig = Rig()
    scaler = join_scaler(rig)
    quiet(rig, scaler)
    rig.trigger()
    starts(rig, scaler, 1)
    worker = rig.join(QUEUE)
    assert rig.debt().owner == worker
    rig.bell.dispatch.mark(rig.debt(), rig.now, reason, foreign=True)
    rig.drive()
    assert rig.debt().owner == worker
    assert newest(rig, scaler).gen == rig.debt().gen
    assert newest(rig, scaler).workers == 1
    rig.frames[scaler].clear()
    rig.say(scaler, More(QUEUE, 1, False, 2))
    assert not rig.gens(scaler)
    assert rig.debt().owner == worker


@pytest.mark.parametrize("reason", ["sweep", "resync", "more"])
def test_of_what_only_makes_sure_it_does_not_hear(reason: Reason) -> None:
    """As plain subscribers do not (B12)."""
    rig = Rig()
    scaler = join_scaler(rig)
    quiet(rig, scaler)
    rig.trigger()
    starts(rig, scaler, 1)
    rig.bell.dispatch.mark(rig.debt(), rig.now, reason, foreign=True)
    rig.drive()
    assert not rig.gens(scaler)


def test_own_queues_tell_it_of_each_put() -> None:
    """Not only of the rise from empty (O1)."""
    rig = Rig()
    scaler = rig.join(QUEUE, own=True, kind="scaler")
    rig.level(1, put=1, rose=True)
    starts(rig, scaler, 1)
    rig.level(40, put=39)
    assert [wake.size for wake in rig.frames[scaler] if isinstance(wake, Wake)] == [40]


def test_of_several_one_hears_and_none_where_one_has_room_or_can_start_nobody() -> None:
    """Two would both start what is missing; and whoever is in a back-off, or stops, could not."""
    rig = Rig()
    first, second, third = join_scaler(rig), join_scaler(rig), join_scaler(rig)
    quiet(rig, first, second, third)
    rig.trigger()
    for scaler, count in ((first, 0), (second, 2)):
        starts(rig, scaler, count)
    assert rig.debt().owner == third
    rig.trigger()
    assert not rig.gens(first) and not rig.gens(second)
    starts(rig, third, 1)
    rig.trigger()
    assert [bool(rig.gens(each)) for each in (first, second, third)] == [False, True, False]
    rig.say(second, Hello(f"5ca1e{second:027x}", "scaler", [Subscription(QUEUE, 0)], kind="scaler"))
    rig.lose(third)
    rig.frames[second].clear()
    rig.trigger()
    assert not rig.gens(second)


def test_room_says_that_nobody_starts_any_more() -> None:
    """Else others would take off for a heartbeat what has a session, and is counted by it."""
    rig = Rig()
    first, second = join_scaler(rig), join_scaler(rig)
    quiet(rig, first, second)
    rig.trigger()
    starts(rig, rig.debt().owner or 0, 3)
    assert newest(rig, second).workers == 3
    rig.say(first, Room(QUEUE, 0))
    rig.trigger()
    assert newest(rig, second).workers == 3
    rig.say(first, Room(QUEUE, 5))
    rig.trigger()
    assert newest(rig, second).workers == 0


def test_a_heartbeat_tells_it_of_workers_and_of_what_is_due() -> None:
    """Whatever keeps the moment: a trigger, a lease, or the bridge's own queue (Z2, Z5); others do not hear of it."""
    rig = Rig()
    scaler, worker = join_scaler(rig), rig.join(QUEUE)

    def beaten(session: int) -> CoverAge:
        rig.beat(session)
        (*_, answer) = (frame for frame in rig.frames[session] if isinstance(frame, BridgeHeartbeat))
        return answer.queues[QUEUE]

    assert (beaten(scaler).workers, beaten(scaler).due_ms) == (1, None)
    rig.trigger(not_before_ms=9000)
    due_ms = beaten(scaler).due_ms
    assert due_ms is not None and 9000 <= due_ms <= 9100
    assert (beaten(worker).workers, beaten(worker).due_ms) == (None, None)
    rig.bell.dispatch.agenda.set(("reread", QUEUE), rig.now + 3.0)
    assert beaten(scaler).due_ms == 3000
    rig.now += 4.0
    assert beaten(scaler).due_ms == 0, "it is due and not looked at yet"


def test_the_state_tells_a_scaler_from_a_listener() -> None:
    """With what it last said of its workers."""
    rig = Rig()
    scaler = join_scaler(rig)
    rig.join(QUEUE)
    told = Processes(2, 1, 1, "exit code 1")
    rig.say(scaler, ListenerHeartbeat(1, {QUEUE: QueueBeat(free=0, processes=told)}))
    rows = listeners(rig.bell, rig.now)
    assert [row.kind for row in rows] == ["scaler", "listener"]
    assert rows[0].queues[0].processes == told
    assert not isinstance(rows[1].queues[0].processes, Processes)


def test_what_is_tallied_is_counted_once() -> None:
    """Levels are repeated, and come again with another session of the same scaler; unknown words are ignored."""
    rig = Rig()
    scaler = join_scaler(rig)
    rig.facts.clear()
    hello = Hello(f"5ca1e{scaler:027x}", "scaler", [Subscription(QUEUE, 8)], kind="scaler")

    def tallied(number: int, **levels: int) -> list[tuple[str, int]]:
        rig.say(number, ListenerHeartbeat(1, {QUEUE: QueueBeat(processes=Processes(tally=levels))}))
        news = [fact for fact in rig.facts if isinstance(fact, WorkersTallied)]
        rig.facts.clear()
        assert {fact.queue for fact in news} <= {QUEUE}
        return [(fact.what, fact.count) for fact in news]

    assert tallied(scaler, started=3, idle=1, unheard_of=9) == [("started", 3), ("idle", 1)]
    assert tallied(scaler, started=3, idle=1) == []
    rig.lose(scaler)
    again = rig.bell.open(rig.now, "test")
    rig.frames[again] = []
    rig.say(again, hello)
    assert tallied(again, started=4, idle=0) == [("started", 1)]
    assert tallied(again, idle=2) == [("idle", 1)]
    other = join_scaler(rig)
    assert tallied(other, failed=5_000_000) == [("failed", STEP_MAX)], "whoever claims more is broken"
    worker = rig.join(QUEUE)
    assert tallied(worker, started=1) == [], "it says so of itself and is none"


def test_so_many_tellers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was silent longest is forgotten first, and counted anew should it come back."""
    monkeypatch.setattr("bridge.core.tallies.TELLERS_MAX", 2)
    tallies = Tallies()
    for instance in ("a", "b", "a", "c"):
        tallies.told(instance, QUEUE, {"started": 1})
    assert not tallies.told("a", QUEUE, {"started": 1})
    assert not tallies.told("c", QUEUE, {"started": 1})
    assert tallies.told("b", QUEUE, {"started": 1})


def test_metrics_show_workers_as_they_stand_and_what_became_of_them() -> None:
    """Of several scalers of a queue the numbers add up, but for what is wanted of all; those that left are gone."""
    rig, metrics = Rig(), Metrics()
    metrics.watch_workers(lambda: scaled(rig.bell))
    first, second = join_scaler(rig), join_scaler(rig)
    for number, told in ((first, Processes(5, 2, 1, running=4)), (second, Processes(4, 1, 0, running=1))):
        tally = {"started": 3, "failed": 1, "idle": 1}
        beat = QueueBeat(processes=msgspec.structs.replace(told, tally=tally))
        rig.say(number, ListenerHeartbeat(1, {QUEUE: beat}))
    for fact in rig.facts:
        metrics(fact)

    def shown() -> set[str]:
        return {line for line in metrics.render().decode().splitlines() if line.startswith("queuebell_worker")}

    gauges = {
        f'queuebell_workers{{queue="{QUEUE}",state="{state}"}} {number}.0'
        for state, number in (("wanted", 5), ("ready", 3), ("starting", 1), ("running", 5))
    }
    counts = {
        f'queuebell_worker_starts_total{{queue="{QUEUE}"}} 6.0',
        f'queuebell_worker_failures_total{{queue="{QUEUE}"}} 2.0',
        f'queuebell_worker_ends_total{{queue="{QUEUE}",reason="idle"}} 2.0',
    }
    assert gauges | counts <= shown()
    rig.lose(first)
    rig.lose(second)
    assert counts <= shown() and not gauges & shown()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Processes(2, 2, 0, running=2), "2 workers wanted, 2 ready, 0 starting"),
        (Processes(3, 1, 1, running=3, held="starting"), "1 starting, 1 ending; no more before those are ready"),
        (
            Processes(1, 0, 0, "exit code 1: no database", held="backoff", pause_ms=7600),
            "none for another 8 s, because of a failure; the last failed: exit code 1: no database",
        ),
        (
            Processes(1, 1, 0, "'look' is not granted on billing/orders", held="uncounted", running=1),
            (
                "cannot be counted, and none ends for want of work; "
                "the count failed: 'look' is not granted on billing/orders"
            ),
        ),
        (Processes(1, 1, running=1), "1 worker wanted, 1 ready, 0 starting"),
        (Processes(1, held="news of a later version"), "0 starting; news of a later version"),
    ],
)
def test_how_workers_stand_in_words(told: Processes, words: str) -> None:
    """As `queuebell status` and `queuebell explain` say it."""
    assert words in workers(told)


@pytest.mark.parametrize(
    "frame",
    [
        More(QUEUE, starting=-1),
        ListenerHeartbeat(1, {QUEUE: QueueBeat(processes=Processes(running=-1))}),
        ListenerHeartbeat(1, {QUEUE: QueueBeat(processes=Processes(pause_ms=-1))}),
        ListenerHeartbeat(1, {QUEUE: QueueBeat(processes=Processes(held="x" * 41))}),
        ListenerHeartbeat(1, {QUEUE: QueueBeat(processes=Processes(tally={"started": -1}))}),
        ListenerHeartbeat(1, {QUEUE: QueueBeat(processes=Processes(-1))}),
        ListenerHeartbeat(1, {QUEUE: QueueBeat(processes=Processes(1, 2, 2_000_000))}),
        ListenerHeartbeat(1, {QUEUE: QueueBeat(processes=Processes(failure="x" * 1001))}),
    ],
)
def test_numbers_that_cannot_be_are_refused(frame: More | ListenerHeartbeat) -> None:
    """As those of any other frame."""
    with pytest.raises(BadInput):
        decode_up(encode_frame(frame))
