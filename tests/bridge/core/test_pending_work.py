"""The ledger at its limit: nobody's work is refused, the least needed names go, and looking for them costs no more."""

from __future__ import annotations

from queuebell.bridge.contract.wire import (
    Hello,
    ListenerHeartbeat,
    QueueBeat,
    StoreDepth,
    Subscription,
)
from queuebell.bridge.core.pending_work import Counted, PendingQueues
from queuebell.bridge.core.sessions import (
    QueueSessions,
    Session,
    Sessions,
    SessionTimeouts,
    session_queue,
)
from queuebell.bridge.core.settings import Periods, Tuning
from queuebell.bridge.observe.facts import (
    Fact,
    ReceivesTold,
    SessionClosed,
)
from queuebell.bridge.observe.slices import at_once
from queuebell.bridge.service.state.status import crowded, findings
from tests.support.bells import QUEUE, Rig


def test_who_comes_to_a_name_that_was_forgotten_is_asked_to_look() -> None:
    """The trigger was taken and its name did not fit: the first hello finds it dirty (B10)."""
    rig = Rig(queues_max=2)
    for name in ("a/1", "a/2", "a/3"):
        rig.trigger(name)
    assert rig.scheduler.pending.find("a/1") is None
    assert rig.wakes(rig.join("a/1"))


def test_nobody_who_listens_is_refused_or_forgotten() -> None:
    """With every known name needed, hellos and triggers go on: the one is let in, the other rings plain subscribers."""
    rig = Rig(queues_max=2)
    rig.scheduler.dispatch.announcing = True
    rig.join("a/1", "a/2", "a/3")
    rig.level(1, queue="a/own", put=1, rose=True)
    late = rig.join("a/late")
    assert rig.wakes(late)
    rig.announced.clear()
    rig.trigger("a/stranger")
    rig.trigger("a/stranger", not_before_ms=5000)
    assert rig.announced == ["trigger"]
    assert sorted(rig.scheduler.pending.by_queue) == ["a/1", "a/2", "a/3", "a/late", "a/own"]
    assert ("due", "a/stranger") not in rig.scheduler.dispatch.agenda
    assert rig.scheduler.pending.evicted_with_work == 2
    rig.wait(6.0)
    assert rig.wakes(rig.join("a/stranger"))


def test_a_hello_at_the_limit_seats_all_its_queues() -> None:
    """Opening one name takes no other of the same hello away, in a first hello and in a later one."""
    rig = Rig(queues_max=1)
    rig.trigger("a/other")
    number = rig.join("a/1", "a/2", instance="1" * 32)
    rig.say(number, Hello("1" * 32, "again", [Subscription(f"a/{name}", 4) for name in (2, 3, 4)]))
    assert sorted(rig.scheduler.pending.by_queue) == ["a/2", "a/3", "a/4"]
    assert [len(rig.work(f"a/{name}").sessions) for name in (2, 3, 4)] == [1, 1, 1]
    rig.bye(number)
    for stranger in range(4):
        rig.trigger(f"b/{stranger}")
    assert len(rig.scheduler.pending.by_queue) == 1, "what listeners left behind goes bit by bit"


def test_it_is_said_that_names_did_not_fit() -> None:
    """Only where one with work announced was not kept: a clean one that went is no news."""
    rig = Rig(queues_max=1)
    rig.trigger("a/1")
    assert crowded(rig.scheduler) is None
    rig.trigger("a/2")
    said = crowded(rig.scheduler)
    assert said is not None and "at most 1 names" in said
    assert at_once(findings(rig.scheduler, rig.now, stalled=(), notices_suspend=True)).crowded == said


def test_a_clean_name_goes_before_an_older_one_with_a_debt() -> None:
    """B10: also one that nobody ever came to, and that was never marked."""
    ledger = PendingQueues(2, Tuning(Periods()))
    ledger.request_wake(ledger.get_or_add("a/owed", 0.0), 0.0, "trigger", 1, foreign=True)
    ledger.get_or_add("a/clean", 0.0)
    ledger.get_or_add("a/new", 0.0)
    assert sorted(ledger.by_queue) == ["a/new", "a/owed"]


def test_one_of_two_who_read_elsewhere_leaves_and_the_other_counts() -> None:
    """Else a trigger beside an own queue of the same name would be nobody's."""
    entries = QueueSessions()
    for number in (1, 2):
        entries.add(session_queue(number, Subscription("a/b", 4), accepts=False))
    entries.remove(2)
    assert entries.any_foreign


def test_b8_a_session_that_ended_meanwhile_hides_nobody_who_is_dead() -> None:
    """B8: those that are looked up after it are judged all the same."""
    sessions = Sessions(10.0)
    silence = SessionTimeouts(sessions)
    one, two = (Session(id=number, kind="test", opened_at=0.0, last_heard=0.0) for number in (1, 2))
    for session in (one, two):
        sessions.open(session)
        silence.expect(session)
    sessions.remove(one)
    assert silence.dead(30.0) == [two]


def news(rig: Rig) -> list[Fact]:
    """Return and forget what was told."""
    told, rig.facts = rig.facts, []
    return told


def test_ends_of_sessions_that_do_not_say_bye() -> None:
    """Replaced, silent, lost and without a hello: each with its code and its reason, and told if it had a name."""
    rig = Rig()
    nameless = rig.scheduler.open(rig.now, "test")
    old = rig.join("a/x", instance="1" * 32)
    silent = rig.join("a/x")
    lost = rig.join("a/x")
    new = rig.join("a/x", instance="1" * 32)
    news(rig)
    assert rig.ended == {old: (1001, "replaced")}
    rig.lose(lost)
    assert news(rig) == [SessionClosed(lost, "listener 3", "lost")]
    rig.lose(lost)
    assert news(rig) == [], "once"
    rig.wait(4.875)
    assert nameless not in rig.ended
    rig.beat(new, "a/x")
    rig.wait(0.125)
    assert rig.ended[nameless] == (4408, "no hello within 5 s")
    assert rig.scheduler.sessions.get(nameless) is None
    for _ in range(2):
        rig.wait(4.875)
        rig.beat(new, "a/x")
    rig.wait(0.25)
    assert rig.ended[silent] == (1001, "silent")
    assert [fact for fact in news(rig) if isinstance(fact, SessionClosed)] == [
        SessionClosed(silent, "listener 2", "silent")
    ]
    assert new not in rig.ended


def test_a_beat_that_tells_of_receives_and_depth_is_counted() -> None:
    """Into the queue, as facts, and with the time at which the store was asked; a queue it does not have is passed."""
    rig = Rig()
    number = rig.join()
    news(rig)
    beats = {
        "a/other": QueueBeat(1, receives={"sweep": (9, 9)}),
        QUEUE: QueueBeat(receives={"sweep": (1, 2)}, depth=StoreDepth(5, 1, 500, at_least=True), failing_ms=2500),
    }
    rig.say(number, ListenerHeartbeat(1, beats))
    assert news(rig) == [ReceivesTold(QUEUE, "sweep", 1, 2)]
    assert rig.work().counted == Counted(5, 1, 99.5, at_least=True)
    assert rig.work().sessions.get(number).failing_since == 97.5
    assert rig.scheduler.pending.find("a/other") is None
    rig.beat(number)
    assert rig.work().sessions.get(number).failing_since is None


def test_a_name_takes_little_memory() -> None:
    """What most queues have none of is shared until it changes: a bridge may know 100,000 names."""
    ledger = PendingQueues(10, Tuning(Periods()))
    one, two = (ledger.open(name, 0.0) for name in ("a/b", "a/c"))
    for name in ("asked", "buses", "wakes", "wake_sources"):
        assert getattr(one, name) is getattr(two, name), name
    one.count_triggers(1.0, "http", 2)
    one.count_triggers(2.0, "http", 1)
    assert (dict(one.buses), dict(two.buses)) == ({"http": 3}, {})
