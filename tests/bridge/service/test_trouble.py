"""What is said to be wrong with a queue, in the order of its gravity."""

from __future__ import annotations

import pytest

from bridge.contract.jobs import Jobs, Spread
from bridge.contract.wire import ListenerHeartbeat, Processes, QueueBeat, Running
from bridge.observe.slices import at_once
from bridge.service.explaining import explain
from bridge.service.status import findings, queues
from bridge.service.trouble import Troubles
from tests.support.bells import QUEUE, Rig


def said(rig: Rig) -> str | None:
    """Return what is said of the queue."""
    debt = rig.bell.ledger.debts[QUEUE]
    return Troubles.at(rig.bell, debt, rig.now).of(debt)


def at_work(rig: Rig, number: int, seconds: float, free: int = 4, message: str = "m7") -> None:
    """Have a session tell that a handler has run for so long."""
    beat = ListenerHeartbeat(7, {QUEUE: QueueBeat(free=free)}, running={QUEUE: Running(message, round(1000 * seconds))})
    rig.say(number, beat)


def took(seconds_bucket: int, count: int) -> dict[str, Jobs]:
    """Return what a worker tells of so many messages that all took as long."""
    return {"handle": Jobs(handling=Spread([0] * seconds_bucket + [count]))}


@pytest.mark.parametrize(
    ("ran_s", "jobs", "words"),
    [
        (599, None, None),
        (601, None, "has handled message m7 for 10 min: does it hang?"),
        (61, took(5, 20), "has handled message m7 for 61 s, where nearly all take at most 0.1 s: does it hang?"),
        (61, took(5, 19), None),
        (59, took(5, 20), None),
        (120, took(5, 20), "has handled message m7 for 2 min, where nearly all take at most 0.1 s: does it hang?"),
        (299, took(12, 50), None),
        (301, took(12, 50), "has handled message m7 for 5 min, where nearly all take at most 30 s: does it hang?"),
        (86_400, took(16, 50), None),
    ],
)
def test_long_is_what_is_long_for_its_queue(ran_s: float, jobs: dict[str, Jobs] | None, words: str | None) -> None:
    """By what nearly all messages take, once enough of them were handled; some jobs take hours."""
    rig = Rig()
    number = rig.join()
    debt = rig.bell.ledger.debts[QUEUE]
    rig.bell.ledger.settle(debt)
    debt.jobs = jobs
    at_work(rig, number, ran_s)
    told = said(rig)
    assert (told is None) == (words is None)
    assert words is None or str(told).endswith(words)


def test_how_long_the_longest_handler_runs() -> None:
    """In milliseconds, never less than none by a clock that steps back; None where no handler is known to run."""
    rig = Rig()
    number = rig.join()
    debt = rig.bell.ledger.debts[QUEUE]
    assert Troubles.at(rig.bell, debt, rig.now).running_ms(debt) is None
    at_work(rig, number, 61.5)
    assert Troubles.at(rig.bell, debt, rig.now).running_ms(debt) == 61_500
    assert Troubles.at(rig.bell, debt, rig.now - 100).running_ms(debt) == 0


def test_a_minute_is_long_where_all_wait_for_it() -> None:
    """Work waits and nobody has room: then the handler that has run longest is named, and no more once it is done."""
    rig = Rig()
    one, other = rig.join(), rig.join()
    rig.trigger()
    for number in (one, other):
        rig.more(number, depth=3)
    at_work(rig, one, 59, free=0)
    assert said(rig) is None
    at_work(rig, other, 61, free=0, message="m8")
    assert "message m8 for 61 s, work waits, and nobody has room: does it hang?" in str(said(rig))
    rig.say(other, ListenerHeartbeat(8, {QUEUE: QueueBeat(free=0)}))
    assert said(rig) is None


def test_a_queue_whose_pool_has_no_slot_names_the_handler_that_holds_it() -> None:
    """None of its own runs, its worker has no room, and a handler of another queue has run for a minute there."""
    rig = Rig()
    number = rig.join(QUEUE, "a/slow")
    rig.trigger()
    rig.more(number, depth=3)

    def beats(seconds: float) -> None:
        beats = {QUEUE: QueueBeat(free=0), "a/slow": QueueBeat(free=0)}
        rig.say(number, ListenerHeartbeat(7, beats, running={"a/slow": Running("m7", round(1000 * seconds))}))

    beats(59)
    assert said(rig) is None
    beats(61)
    assert said(rig) == "no free slot: listener 1 has handled message m7 of a/slow for 61 s: does it hang?"
    (seat,) = rig.bell.ledger.debts[QUEUE].seats
    seat.in_flight = {"handle": 1}
    assert said(rig) is None


def test_silence_alone_is_trouble() -> None:
    """Of a session that told of nothing wrong before."""
    rig = Rig()
    session = rig.bell.sessions.get(rig.join())
    rig.bell.ledger.settle(rig.bell.ledger.debts[QUEUE])
    assert session is not None and said(rig) is None
    session.last_heard = rig.now - 1000
    assert str(said(rig)).endswith("has been silent for 1000 s")


def test_a_worker_that_the_bridge_rejects_is_trouble() -> None:
    """Beside others that work, and with them gone; until it is accepted, or has not tried for ninety seconds."""
    rig = Rig()
    worker = rig.join(store="aa11")
    rig.cover(worker, rig.bell.ledger.debts[QUEUE].gen)
    assert said(rig) is None
    rig.join(store="bb22", instance="5" * 32)
    rejected = (
        "the bridge rejected listener 2 once, last 0 s ago: another listener of billing/orders uses a different store"
    )
    assert said(rig) == rejected
    explained = explain(rig.bell, QUEUE, rig.now, draining=False)
    assert explained is not None and [each.detail for each in explained.rejected] == [rejected]
    told = at_once(findings(rig.bell, rig.now, stalled=(), notices_suspend=True))
    assert [(each.queue, each.code, each.count) for each in told.rejected] == [(QUEUE, "store_mismatch", 1)]
    assert [[each.rejected for each in part] for part in queues(rig.bell, rig.now, ())] == [[1]]
    rig.lose(worker)
    rig.trigger()
    assert str(said(rig)).startswith("no listener is subscribed") and str(said(rig)).endswith(rejected)
    rig.join(store="bb22", instance="5" * 32)
    assert said(rig) is None
    assert [[each.rejected for each in part] for part in queues(rig.bell, rig.now, ())] == [[0]]


def test_what_stops_a_queue_comes_before_what_slows_it() -> None:
    """Receives that fail, no progress, deafness, silence, workers that do not start; and last a missing publish."""
    rig = Rig()
    number = rig.join()
    debt = rig.bell.ledger.debts[QUEUE]
    rig.bell.ledger.settle(debt)
    (seat,) = debt.seats
    debt.unannounced, debt.unannounced_at = 1, rig.now
    assert "work was found once that no trigger had told of" in str(said(rig))
    seat.processes = Processes(failure="no such file")
    assert said(rig) == "its workers do not start, or end as they should not: no such file"
    session = rig.bell.sessions.get(number)
    assert session is not None
    session.last_heard = rig.now - 1000
    assert str(said(rig)).endswith("has been silent for 1000 s")
    seat.deaf = True
    assert said(rig) == "a listener did not take up the messages that it was handed"
    seat.stuck = True
    assert said(rig) == "a listener said that a receive had begun, and showed no progress since"
    seat.failing_since = rig.now - 5
    assert said(rig) == "the receives of its only listener have failed for 5 s"
    rig.lose(number)
    rig.trigger()
    assert str(said(rig)).startswith("no listener is subscribed")
