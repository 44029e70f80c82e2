"""Sessions that start workers instead of handling messages: whom a debt reaches, and what they are told (Z5)."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.jobs import COUNT_MAX, Jobs, Spread
from queuebell.bridge.contract.wire import (
    Hello,
    ListenerHeartbeat,
    More,
    Processes,
    QueueBeat,
    Reason,
    Subscription,
    Wake,
)
from queuebell.bridge.core import listener_counts
from queuebell.bridge.core.listener_counts import JobCounts
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.sessions import QueueSessions
from queuebell.bridge.core.settings import Periods, QueueRule, Tuning, check_rules, check_slack, check_sweep
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.facts import BusDown, BusUp, JobsTold, WorkersTallied
from queuebell.bridge.triggers.supervisor import RETRY_CAP_S, ConnectionRules, State
from tests.support.bells import QUEUE, Rig


def join_scaler(rig: Rig, capacity: int = 8) -> int:
    """Open a scaler's session and say hello; return its number."""
    number = rig.scheduler.open(rig.now, "test")
    rig.frames[number] = []
    rig.say(number, Hello(f"5ca1e{number:027x}", "scaler", [Subscription(QUEUE, capacity)], kind="scaler"))
    return number


def newest(rig: Rig, number: int) -> Wake:
    """Return the wake that a session got last."""
    return [frame for frame in rig.frames[number] if isinstance(frame, Wake)][-1]


def quiet(rig: Rig, *numbers: int) -> None:
    """Have the debt of the first hello settled, and forget what was sent."""
    owner = rig.work().owner
    assert owner is not None
    rig.cover(owner, rig.work().gen)
    for number in numbers:
        rig.frames[number].clear()


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
    assert rig.work().owner == worker
    rig.scheduler.dispatch.request_wake(rig.work(), rig.now, reason, foreign=True)
    rig.drive()
    assert rig.work().owner == worker
    assert newest(rig, scaler).gen == rig.work().gen
    assert newest(rig, scaler).workers == 1
    rig.frames[scaler].clear()
    rig.say(scaler, More(QUEUE, 1, False, 2))
    assert not rig.gens(scaler)
    assert rig.work().owner == worker


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
    again = rig.scheduler.open(rig.now, "test")
    rig.frames[again] = []
    rig.say(again, hello)
    assert tallied(again, started=4, idle=0) == [("started", 1)]
    assert tallied(again, idle=2) == [("idle", 1)]
    other = join_scaler(rig)
    assert tallied(other, failed=5_000_000) == [("failed", listener_counts.TALLY_STEP_MAX)], (
        "whoever claims more is broken"
    )
    worker = rig.join(QUEUE)
    assert tallied(worker, started=1) == [], "it says so of itself and is none"


def most() -> float:
    """The longest draw there is."""
    return 0.999999


def supervision(now: float = 100.0) -> ConnectionRules:
    return ConnectionRules("nats", "nats://here:4222", now)


def up(rules: ConnectionRules, now: float) -> ConnectionRules:
    rules.connecting()
    rules.connected(now)
    return rules


def test_messages_dropped_by_the_client_are_a_gap_once_for_each_increase() -> None:
    """The count is of the connection: a new one starts at 0."""
    rules = up(supervision(), 100)
    rules.take_gap()
    gaps = []
    for number, dropped in enumerate((0, 3, 3, 4)):
        rules.probed(105 + 5 * number, dropped)
        gaps.append(rules.take_gap())
    assert gaps == [False, True, False, True]
    rules.broken(130, "reset", most)
    up(rules, 131)
    rules.take_gap()
    rules.probed(136, 1)
    assert rules.take_gap()


def test_one_fact_for_each_change_of_state() -> None:
    """However many tries fail in between, whatever is told twice."""
    rules, now = supervision(), 100.0
    facts = []
    for _ in range(20):
        rules.connecting()
        rules.failed(now, "refused", most)
        now = rules.due_at
        facts += rules.facts()
    up(rules, now)
    facts += rules.facts()
    rules.probe_lost(now + 7, "silence", most)
    rules.probe_lost(now + 9, "silence", most)
    rules.broken(now + 9, "closed", most)
    rules.connecting()
    rules.failed(now + 10, "refused", most)
    facts += rules.facts()
    assert [type(fact) for fact in facts] == [BusDown, BusUp, BusDown]
    assert facts[2] == BusDown("nats", "nats://here:4222", "silence")


def test_a_hopeless_refusal_is_tried_again_slowly() -> None:
    """A wrong password may be set right at the broker, and no restart is needed then."""
    rules = supervision()
    rules.connecting()
    rules.failed(100, "not authorized", most, hopeless=True)
    assert rules.due_at == 105


def test_no_order_of_events_breaks_it() -> None:
    """Every sequence of five things that can happen: the state is one of three and the next act has a time."""
    for events in itertools.product("cfbplx", repeat=5):
        rules, now = supervision(), 100.0
        downs = ups = 0
        for event in events:
            now += 1
            if event in "cf" and rules.state is State.DOWN:
                rules.connecting()
                if event == "c":
                    rules.connected(now)
                else:
                    rules.failed(now, "refused", most)
            elif event == "b":
                rules.broken(now, "reset", most)
            elif event == "p":
                rules.probed(now, 0)
            elif event == "l":
                rules.probe_lost(now, "silence", most)
            elif event == "x":
                rules.ready(now)
                rules.detail(now)
            for fact in rules.facts():
                ups += isinstance(fact, BusUp)
                downs += isinstance(fact, BusDown)
            assert rules.state in (State.DOWN, State.UP)
            assert now <= rules.due_at <= now + 5 or rules.due_at <= now
            assert downs - ups in (0, 1) or ups - downs in (0, 1), "they alternate"
            assert rules.take_gap() is (event == "c" and rules.state is State.UP and rules.due_at == now + 5)


# -- what is told, exactly ---------------------------------------------------------------------------------------------
def test_two_lost_probes_end_it_and_the_time_counts_from_the_first() -> None:
    """A fresh connection has lost none; an ended one says nothing to a late loss."""
    rules = up(supervision(100.0), 100.0)
    rules.probe_lost(110.0, "no answer", most)
    assert rules.state is State.UP
    rules.probe_lost(112.0, "no answer", most)
    assert rules.state is State.DOWN
    rules.probe_lost(112.0, "late", most)
    assert rules.detail(113.0) == "nats://here:4222: no answer, for 3 s"


TOKEN = st.text("ab1", min_size=1, max_size=3)
PATTERN = st.builds(lambda token, star: token + "*" * star, TOKEN, st.booleans()) | st.just("*")
MATCH = st.builds("{}/{}".format, PATTERN, PATTERN) | st.just("*")
QUEUE_SETTINGS = st.builds("{}/{}".format, TOKEN, TOKEN)


@given(before=MATCH, after=MATCH, queue=QUEUE_SETTINGS)
def test_only_rules_that_can_never_apply_are_refused(before: str, after: str, queue: str) -> None:
    """A refused second rule matches nothing that the first one leaves."""
    try:
        check_rules([QueueRule(match=before), QueueRule(match=after)])
    except ConfigurationError:
        assert QueueRule(match=before).matches(queue) or not QueueRule(match=after).matches(queue)


def test_a_sweep_is_off_or_one_that_listeners_can_be_told_of() -> None:
    """Periods travel in whole milliseconds, and 0 of them would mean that sweeps are off."""
    check_sweep(0.0, "sweep_s")
    check_sweep(0.1, "sweep_s")
    with pytest.raises(ConfigurationError, match="sweep_s: must be 0"):
        check_sweep(1e-6, "sweep_s")
    with pytest.raises(ConfigurationError, match="queue 1: sweep_s"):
        check_rules([QueueRule(match="a/b", sweep_s=1e-320)])


def test_a_slack_is_two_heartbeats_at_least() -> None:
    """Else every listener looks by itself before it hears that another one has, and the printed cost is not true."""
    check_slack(Periods(slack_s=10.0, heartbeat_s=5.0, rules=(QueueRule(match="a/b", slack_s=10.0),)))
    check_slack(Periods(slack_s=0.4, heartbeat_s=0.2))
    with pytest.raises(ConfigurationError, match=r"^slack_s: must be at least 10 s"):
        check_slack(Periods(slack_s=9.9))
    with pytest.raises(ConfigurationError, match=r"^slack_s: must be at least 40 s"):
        check_slack(Periods(heartbeat_s=20.0))
    with pytest.raises(ConfigurationError, match=r"^queue 2: slack_s"):
        check_slack(Periods(rules=(QueueRule(match="a/b"), QueueRule(match="a/c", slack_s=0.1))))


ME, YOU = "1" * 32, "2" * 32


def work(queue: str = "a/b") -> PendingWork:
    return PendingWork(queue=queue, sessions=QueueSessions(), numbers=Tuning(Periods()).of(queue))


def test_no_heartbeat_adds_more_than_a_listener_can_have_done() -> None:
    """An absurd level is taken as where its counts stand, not as work that was done."""
    counts, queue = JobCounts(), work()
    absurd = Jobs({"done": COUNT_MAX}, {"E": COUNT_MAX}, 0, COUNT_MAX, Spread([COUNT_MAX], COUNT_MAX))
    counts.record(ME, queue, {"m:f": absurd})
    counts.record(ME, queue, {"m:f": absurd})
    step = listener_counts.JOB_STEP_MAX
    most = Jobs({"done": step}, {"E": step}, 0, step, Spread([step], 1000 * step))
    assert queue.jobs == {"m:f": most}


def test_who_was_forgotten_says_that_it_was_heard_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its levels are not counted again, while one that was never heard counts from its first word on."""
    monkeypatch.setattr("queuebell.bridge.core.listener_counts.REPORTERS_MAX", 2)
    counts, queue = JobCounts(), work()
    instances = [f"{number:032x}" for number in range(3)]
    for round_ in range(5):
        for instance in instances:
            counts.record(instance, queue, {"m:f": Jobs({"done": 4}, resumed=round_ > 0)})
    assert queue.jobs == {"m:f": Jobs({"done": 12})}
    assert counts.record(instances[-1], queue, {"m:f": Jobs({"done": 6}, resumed=True)}) == [
        JobsTold("a/b", "m:f", Jobs({"done": 2}))
    ]


QUEUE_GROWTH = "billing/orders"


def hello(scheduler: WakeScheduler, now: float, number: int, store: str = "s") -> int:
    """Begin a session of the queue."""
    session = scheduler.open(now, "test")
    scheduler.frame(now, session, Hello(f"{number:032x}", "worker", [Subscription(QUEUE_GROWTH, 4, store=store)], []))
    return session


def test_a_scaler_is_asked_only_where_no_worker_has_room() -> None:
    """However much longer ago it was used; and told how many workers there are."""
    rig = Rig()
    scaler, worker = join_scaler(rig), rig.join(QUEUE, capacity=1)
    quiet(rig, scaler, worker)
    for _ in range(3):
        rig.trigger()
        assert rig.work().owner == worker
        assert not rig.gens(scaler)
        rig.cover(worker, rig.work().gen)
    rig.trigger()
    rig.say(worker, More(QUEUE, 5, False))
    assert rig.work().owner == scaler
    assert newest(rig, scaler).workers == 1


def test_it_tries_at_once_and_then_for_ever_with_full_jitter_up_to_five_seconds() -> None:
    """Never silent for longer than the cap, never in step, and never at an end."""
    for chance in (0.0, 0.5, 0.999999):
        rules, now = supervision(), 100.0
        assert rules.due_at == now
        pauses = []
        for _ in range(200):
            rules.connecting()
            rules.failed(now, "refused", partial(float, chance))
            pauses.append(rules.due_at - now)
            now = rules.due_at
        bounds = [min(RETRY_CAP_S, 0.1 * 2**n) for n in range(200)]
        assert pauses == pytest.approx([bound * chance for bound in bounds])


def test_a_killed_broker_that_is_back_within_two_seconds_is_not_told_to_the_probe() -> None:
    """A restart is no outage; what stays away for longer is."""
    rules = up(supervision(), 100)
    rules.broken(110, "reset", most)
    assert rules.ready(111.9)
    assert not rules.ready(112)
    up(rules, 113)
    assert rules.ready(113)
