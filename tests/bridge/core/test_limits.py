"""Limits and orders of the larger rules: the ledger, own queues, timers, numbers, admission and counts."""

from __future__ import annotations

import pytest

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.wire import ListenerHeartbeat, Wake
from queuebell.bridge.core.commands import Reclaim
from queuebell.bridge.core.embedded_queues import CARRY_BYTES_MAX
from queuebell.bridge.core.settings import (
    RULES_MAX,
    Numbers,
    Patterns,
    Periods,
    QueueRule,
    Tuning,
    check_rules,
    check_slack,
    check_sweep,
)
from queuebell.bridge.observe.facts import (
    AuditFound,
    HandedBack,
    HandlerStarted,
    QueueMoved,
    ReceivesTold,
    Triggered,
    Woken,
)
from tests.bridge.core.test_embedded_queues import hand, message
from tests.support.bells import BOOT, QUEUE, Rig


def test_a_commit_is_told_and_counted_whole() -> None:
    """Levels, puts, receives and their sources; twice the same commit is twice the work."""
    rig = Rig()
    rig.scheduler.embedded.on_commit(
        rig.now, QUEUE, exists=True, visible=3, invisible=2, rose=True, put=5, receives=4, empty=1, next_visible_s=7.5,
        paused=False, sources={"sweep": (2, 1), "poll": (0, 3)},
    )  # fmt: skip
    work = rig.work()
    assert rig.scheduler.facts() == [
        Triggered(QUEUE, "store", 5),
        QueueMoved(QUEUE, 3, 2, 5, 4, 1, {"sweep": (2, 1), "poll": (0, 3)}),
    ]
    assert (work.visible, work.invisible, work.receives, work.empty, work.triggers) == (3, 2, 4, 1, 1)
    assert (work.wake_sources, work.exists, work.paused, work.visible_since) == ({"sweep": 2}, True, False, 100.0)
    assert (work.dirty, work.reason, work.size, work.foreign) == (True, "trigger", 3, False)
    assert rig.scheduler.dispatch.agenda.when(("reread", QUEUE)) == 107.5
    rig.wait(1.0)
    rig.scheduler.embedded.on_commit(
        rig.now, QUEUE, exists=True, visible=1, invisible=0, rose=False, put=0, receives=1, empty=2,
        next_visible_s=None, paused=True, sources={"sweep": (1, 0)},
    )  # fmt: skip
    assert rig.scheduler.facts() == [QueueMoved(QUEUE, 1, 0, 0, 1, 2, {"sweep": (1, 0)})]
    assert (work.visible, work.invisible, work.receives, work.empty, work.triggers) == (1, 0, 5, 3, 1)
    assert (work.wake_sources, work.paused, work.visible_since, work.gen) == ({"sweep": 3}, True, 100.0, 1)
    assert rig.scheduler.dispatch.agenda.when(("reread", QUEUE)) is None
    rig.level(0), rig.wait(1.0), rig.level(1)
    assert (work.visible_since, work.gen, work.reason) == (102.0, 2, "due"), "visible anew, whatever it is called"


def test_a_put_to_listeners_of_another_store_is_a_trigger_and_what_is_paused_is_none() -> None:
    """They would find nothing in a paused queue; what rises there they are told as due."""
    rig = Rig()
    number = rig.join()
    rig.cover(number, 1), rig.wakes(number)

    def put(count: int, visible: int, *, rose: bool = False, paused: bool = False) -> list[tuple[str, int, bool]]:
        rig.scheduler.embedded.on_commit(
            rig.now, QUEUE, exists=True, visible=visible, invisible=0, rose=rose, put=count, receives=0, empty=0,
            next_visible_s=None, paused=paused,
        )  # fmt: skip
        rig.drive()
        woken = [(wake.reason, wake.size, rig.work().foreign) for wake in rig.wakes(number)]
        rig.cover(number, rig.work().gen)
        return woken

    assert put(3, 3, rose=True) == [("trigger", 3, True)]
    assert put(2, 5) == [("trigger", 2, True)], "each put, and not only the rise"
    assert put(2, 0, paused=True) == []
    assert put(0, 9) == []
    assert put(0, 9, rose=True) == [("due", 9, True)]
    assert put(0, 0, rose=True) == []


def test_a_wake_that_carries_is_told_with_all_that_it_carries() -> None:
    """Its size is what was visible with them; its slots are taken off; its lease is what `started` is waited for."""
    rig = Rig()
    number = rig.join(own=True, accept=True, capacity=8)
    rig.scheduler.embedded.grant(rig.now, QUEUE, 3)
    rig.wait(0.5)
    hand(rig, number, "m1", "m2", granted=3, visible=5)
    entry = rig.work().sessions.get(number)
    assert rig.wakes(number) == [Wake(QUEUE, BOOT, 1, "trigger", 5, 0, None, [message("m1"), message("m2")])]
    assert (entry.free, entry.granted, entry.carried, entry.receive_due) == (6, 0, [(1, 2)], True)
    assert Woken(QUEUE, number, "trigger", 0.0, 2) in rig.facts
    assert (rig.work().gen, rig.work().dirty) == (1, False)
    assert rig.scheduler.dispatch.agenda.when(("batch", number)) == 102.5
    rig.facts.clear()
    rig.wait(0.75)
    rig.started(number, 1)
    assert rig.facts == [HandlerStarted(QUEUE, 0.75), ReceivesTold(QUEUE, "trigger", 1, 0)]
    assert rig.work().wake_sources == {"trigger": 1}
    rig.facts.clear()
    rig.started(number, 1)
    assert rig.facts == [], "said twice, it is taken up once"


def test_what_is_not_taken_up_goes_back_and_is_told() -> None:
    """With its count of messages; a session that left one queue keeps what it was handed of another."""
    rig = Rig()
    number = rig.join(QUEUE, "a/y", own=True, accept=True)
    hand(rig, number, "m1", "m2")
    rig.wait(0.5)
    rig.scheduler.embedded.handed(rig.now, "a/y", number, 1, [message("m3")], 1)
    rig.drive()
    rig.facts.clear()
    rig.scheduler.embedded.session_lost(number, QUEUE)
    rig.drive()
    assert rig.facts == [HandedBack(QUEUE, 2)]
    assert rig.scheduler.dispatch.agenda.when(("batch", number)) is not None
    rig.wait(2.0)
    assert [fact for fact in rig.facts if isinstance(fact, HandedBack)] == [HandedBack(QUEUE, 2), HandedBack("a/y", 1)]
    assert (rig.work("a/y").sessions.get(number).unresponsive, rig.work().sessions.get(number).unresponsive) == (
        True,
        False,
    )
    assert not rig.work("a/y").sessions.any_ready
    assert rig.scheduler.dispatch.agenda.when(("batch", number)) is None
    rig.scheduler.embedded.session_lost(number), rig.scheduler.embedded.batches_due(number, rig.now)
    hand(rig, number, "m4")
    rig.lose(number)
    assert rig.scheduler.dispatch.agenda.when(("batch", number)) is None


@pytest.mark.parametrize("dirty", [True, False])
@pytest.mark.parametrize("found", ["work", "nothing visible", "an owner", "nobody with room", "listeners elsewhere"])
def test_o4_what_the_audit_takes_for_a_bug(found: str, dirty: bool) -> None:
    """Visible, nobody on it, and somebody with room; repaired at once, told and counted."""
    rig = Rig()
    number = rig.join(own=found != "listeners elsewhere", capacity=4)
    rig.cover(number, rig.scheduler.pending.newest_gen)
    rig.level(3, rose=True, put=3)
    rig.wakes(number), rig.facts.clear()
    work = rig.work()
    if found != "an owner":
        rig.scheduler.dispatch.settle(work)
        work.dirty = dirty
    if found == "nothing visible":
        rig.level(0)
    if found == "nobody with room":
        work.sessions.get(number).full = True
        work.sessions.refresh(work.sessions.get(number))
    rig.facts.clear()
    rig.scheduler.embedded.audit(rig.now)
    rig.drive()
    bug = found == "work"
    assert [fact for fact in rig.facts if isinstance(fact, AuditFound)] == [AuditFound(QUEUE, 3)] * bug
    assert rig.scheduler.embedded.audit_found == int(bug)
    woken = [(wake.reason, wake.size) for wake in rig.wakes(number)]
    assert woken == ([("trigger" if dirty else "due", 3)] if bug else [])
    if bug:
        rig.scheduler.embedded.audit(rig.now)
        assert rig.scheduler.embedded.audit_found == 1, "repaired"


def test_all_are_woken_for_work_and_the_owner_is_used_once() -> None:
    """A mark on top of one that is owned: the owner's slot is written once, so that the order stays."""
    rig = Rig(wake="all")
    numbers = [rig.join() for _ in range(3)]
    for number in numbers:
        rig.wakes(number)
    rig.trigger()
    assert rig.work().owner == numbers[0]
    assert [entry.session for entry in rig.work().sessions.pick(9)] == [1, 2, 3]
    assert [len(rig.wakes(number)) for number in numbers] == [1, 1, 1]
    rig.more(numbers[0], unannounced=False)
    assert rig.work().owner == numbers[1]


def test_reminders_are_asked_about_four_times_a_period() -> None:
    """At the very period since the last that was told, with the level or the debt, and since when that stands."""
    rig = Rig(again_s=40.0)
    rig.scheduler.reminders.announcing(rig.now, True)
    rig.scheduler.reminders.announcing(rig.now + 5.0, True)
    assert rig.scheduler.deadline() == 110.0, "said again, it begins no new round"
    rig.level(2, rose=True, put=2, queue="a/own")
    rig.level(3, put=1, queue="a/own")
    rig.level(1, rose=True, put=1, queue="a/single")
    number = rig.join(capacity=0)
    rig.trigger(size=5)
    rig.rung.clear()
    for _ in range(3):
        rig.wait(10.0)
        rig.scheduler.frame(rig.now, number, ListenerHeartbeat(1))
        rig.drive()
    assert rig.rung == []
    rig.wait(10.0)
    assert [(ring.queue, ring.reason, ring.size, ring.requested_at, ring.shared) for ring in rig.rung] == [
        ("a/own", "resync", 3, 100.0, True), ("a/single", "resync", 1, 100.0, True), (QUEUE, "resync", 6, 100.0, True),
    ]  # fmt: skip


def test_common_numbers_are_the_periods() -> None:
    """None is mixed up with another, and a rule of its own changes that one only."""
    values = {"heartbeat_s": 1.0, "start_ack_s": 2.0, "store_call_s": 3.0, "sweep_s": 4.0, "slack_s": 5.0,
              "spread_s": 6.0}  # fmt: skip
    rules = (QueueRule(match="a/b", start_ack_s=9.0), QueueRule(match="*", slack_s=8.0))
    tuning = Tuning(Periods(wake="all", rules=rules, **values))  # type: ignore[arg-type]
    assert tuning.common == Numbers(wake="all", **values)  # type: ignore[arg-type]
    assert tuning.of("a/b") == Numbers(wake="all", **{**values, "start_ack_s": 9.0})  # type: ignore[arg-type]
    assert tuning.of("a/c").slack_s == 8.0
    assert tuning.each() == [("a/b", tuning.of("a/b")), ("*", tuning.of("a/c"))]
    assert Patterns([]).first("a/b") is None
    assert Patterns(["a/b", "*"]).first("*") == 1


@pytest.mark.parametrize(
    ("says", "check"),
    [
        ("at most 1000 tables", lambda: check_rules([QueueRule(match=f"a/q{n}") for n in range(RULES_MAX + 1)])),
        (r"queue 2: match: must be", lambda: check_rules([QueueRule(match="a/b"), QueueRule(match="a")])),
        (r"queue 2: sweep_s: ", lambda: check_rules([QueueRule(match="a/b"), QueueRule(match="a/c", sweep_s=0.05)])),
        (r"queue 3: match: 'a/c' never applies: queue 2 \('a/\*'\)",
         lambda: check_rules([QueueRule(match="a/b"), QueueRule(match="a/*"), QueueRule(match="a/c")])),
        (r"queue 2: match: 'a/b' never applies: queue 1", lambda: check_rules([QueueRule(match="a/b")] * 2)),
        (r"^key: must be 0 \(off\) or at least 0.1 s", lambda: check_sweep(0.0999, "key")),
        (r"^slack_s: must be at least 12 s, twice heartbeat_s \(6 s\)",
         lambda: check_slack(Periods(heartbeat_s=6.0, slack_s=11.9))),
        (r"^queue 1: slack_s: must be at least 10 s",
         lambda: check_slack(Periods(rules=(QueueRule(match="*", slack_s=0.0),)))),
    ],
)  # fmt: skip
def test_each_refusal_names_its_table_and_its_key(says: str, check: object) -> None:
    """And what the least is."""
    with pytest.raises(ConfigurationError, match=says):
        check()  # type: ignore[operator]


def test_o7_what_did_not_fit_weighs_nothing() -> None:
    """O7: what is left of a frame is filled by the next put, to the very byte."""
    rig = Rig()
    number = rig.join(own=True, accept=True)
    rig.deaf = {number}
    messages = [message(name) for name in ("m1", "m2", "m3")]
    rig.scheduler.embedded.handed(rig.now, QUEUE, number, 3, messages, 3, [20_000] * 3)
    assert rig.work().sessions.get(number).slot.weight == 40_000
    rig.scheduler.embedded.handed(rig.now, QUEUE, number, 1, [message("m4")], 1, [CARRY_BYTES_MAX - 40_000])
    rig.drive()
    (wake,) = rig.scheduler.take(rig.now, number)
    assert [one.id for one in wake.messages or ()] == ["m1", "m2", "m4"]


def test_a_look_for_a_gap_is_spread_and_comes_as_a_mark() -> None:
    """The first at once; the others within ten seconds, or a quarter of T; own ones not."""
    rig = Rig(rules=(QueueRule(match="a/quick", sweep_s=8.0),))  # type: ignore[arg-type]
    for queue in ("a/first", "a/quick", "a/late"):
        rig.trigger(queue, bus="nats")
        rig.scheduler.dispatch.settle(rig.work(queue))
    rig.level(0, queue="a/own")
    rig.level(0, queue="a/both"), rig.join("a/both"), rig.join("a/both", own=True)
    assert rig.scheduler.gap(rig.now) == 4
    assert rig.work("a/first").dirty
    assert (rig.work("a/first").reason, rig.work("a/first").size, rig.work("a/first").foreign) == ("resync", 1, True)
    when = {queue: rig.scheduler.dispatch.agenda.when(("due", queue)) for queue in ("a/quick", "a/late", "a/both")}
    assert when["a/quick"] == pytest.approx(101.0, abs=0.02)
    assert when["a/late"] == when["a/both"] == pytest.approx(105.0, abs=0.02)
    rig.wait(1.1)
    assert (rig.work("a/quick").dirty, rig.work("a/quick").due, rig.work("a/late").dirty) == (True, {}, False)


def test_b3_a_mark_keeps_what_is_unsent_with_its_messages_its_size_and_its_age() -> None:
    """B3, O7: the wake that is written again carries the same, and still fits a frame with what comes after it."""
    rig = Rig()
    number = rig.join(own=True, accept=True)
    rig.deaf = {number}
    weigh = [20_000]
    rig.scheduler.embedded.handed(rig.now, QUEUE, number, 1, [message("m1")], 1, weigh)
    rig.wait(1.0)
    rig.level(2, rose=True, put=2)
    slot = rig.work().sessions.get(number).slot
    assert (slot.gen, slot.size, slot.requested_at, slot.weight) == (rig.work().gen, 3, 100.0, 20_000)
    rig.wait(0.5)
    rig.scheduler.embedded.handed(rig.now, QUEUE, number, 2, [message("m2"), message("m3")], 2, weigh * 2)
    rig.drive()
    assert rig.reclaims == [Reclaim(QUEUE, (("m3", "receipt of m3"),), uncount=True)]
    (wake,) = rig.scheduler.take(rig.now, number)
    assert [one.id for one in wake.messages or ()] == ["m1", "m2"]
    assert wake.age_ms == 1500


def test_b12_plain_subscribers_are_reminded_from_when_they_were_told_last() -> None:
    """B12: also where it was the store that told of what came back, or a wake that carries."""
    rig = Rig()
    rig.scheduler.reminders.announcing(rig.now, True)
    rig.level(1, rose=True, put=1)
    rig.wait(50.0)
    rig.level(2)
    assert (rig.announced, rig.work().notified_at) == (["trigger", "due"], 150.0)
    rig.wait(59.0)
    assert rig.announced[2:] == []
    rig.wait(16.0)
    assert rig.announced[2:] == ["resync"]
    number = rig.join("a/y", own=True, accept=True)
    rig.scheduler.embedded.handed(rig.now, "a/y", number, 1, [message("m1")], 1)
    assert rig.work("a/y").notified_at == rig.now


def test_a_look_is_on_its_way_from_its_wake_until_it_is_counted() -> None:
    """O7: from the wake that asks for one; `started` for an older generation, or of no look, is not its beginning."""
    rig = Rig()
    number = rig.join(own=True, capacity=8)
    entry = rig.work().sessions.get(number)
    rig.level(1, rose=True, put=1)
    assert (entry.receive_due, entry.began) == (True, False)
    rig.started(number, 0)
    assert entry.began is False
    rig.started(number, 1)
    assert entry.began is True
    rig.started(number, 0)
    assert entry.began is True
    rig.beat(number, free=7, gen=1)
    assert (entry.receive_due, entry.began) == (False, False)
    rig.started(number, 1)
    assert entry.began is False
    rig.level(0), rig.level(1, rose=True, put=1)
    for seconds, looking in ((14.875, True), (15.0, False)):
        entry.woken_at = rig.now - seconds
        rig.beat(number, free=7, gen=1)
        assert entry.receive_due is looking, "after D its wake, or its `started`, was lost"
    foreign = rig.join("a/x", capacity=8)
    assert rig.work("a/x").sessions.get(foreign).receive_due is False, "only own queues are handed messages"


def test_b15_what_is_known_ages_by_the_sleep_and_what_is_due_comes_nearer() -> None:
    """By all of it, or by a tenth of a second less where it must not be early; own queues slept as well."""
    rig = Rig()
    number, mine = rig.join(visibility_ms=9000), rig.join("a/own", own=True)
    rig.cover(number, 1)
    rig.trigger(not_before_ms=50_000), rig.trigger("a/unheard", not_before_ms=1000)
    rig.level(1, queue="a/own", put=1, rose=True)
    rig.beat(number, leases=[60_000]), rig.beat(mine, "a/own", leases=[60_000])
    before = {queue: work.due["due"].next() for queue, work in rig.scheduler.pending.by_queue.items() if work.due}
    rig.scheduler.suspended(rig.now, 20.5)
    work, own_debt = rig.work(), rig.work("a/own")
    assert (work.found_empty_at, work.born_at, rig.work("a/unheard").found_empty_at) == (79.5, 79.5, None)
    assert (own_debt.visible_since, own_debt.born_at) == (79.5, 79.5)
    assert work.sessions.get(number).leases == [pytest.approx(160.0 - 20.4)]
    assert own_debt.sessions.get(mine).leases == [160.0]
    assert work.due["due"].next() == pytest.approx(before[QUEUE] - 20.4)
    assert rig.scheduler.dispatch.agenda.when(("due", QUEUE)) == work.due["due"].next()
    assert rig.scheduler.dispatch.agenda.when(("due", "a/unheard")) == 100.0, "over, and looked at now"
    rig.scheduler.suspended(rig.now, 0.05)
    assert work.sessions.get(number).leases == [pytest.approx(160.0 - 20.4)], "too short to bring anything nearer"


def test_o7_nothing_is_carried_past_a_backlog() -> None:
    """O7: a put's messages go with the wake only where nothing else waits."""
    rig = Rig()
    number = rig.join(own=True, accept=True)
    assert rig.scheduler.embedded.grant(rig.now, QUEUE, 1) == (number, 1, 2.0)
    rig.level(1, rose=True, put=1)
    rig.cover(number, rig.work().gen)
    assert rig.work().visible and rig.scheduler.embedded.grant(rig.now, QUEUE, 1) is None
    rig = Rig()
    rig.join(own=True, accept=True)
    rig.scheduler.dispatch.request_wake(rig.work(), rig.now, "more", foreign=True)
    assert rig.work().dirty and not rig.work().visible
    assert rig.scheduler.embedded.grant(rig.now, QUEUE, 1) is None


@pytest.mark.parametrize(("own", "foreign", "checked"), [(True, False, 0), (True, True, 1), (False, True, 1)])
def test_b15_a_suspend_checks_what_an_external_store_holds(own: bool, foreign: bool, checked: int) -> None:
    """B15: also where workers of both stores listen to one name; an embedded queue slept as well."""
    rig = Rig()
    numbers = [rig.join(own=mine) for mine, there in ((True, own), (False, foreign)) if there]
    for number in numbers:
        rig.cover(number, rig.work().gen), rig.wakes(number)
    rig.scheduler.dispatch.settle(rig.work())
    assert rig.scheduler.suspended(rig.now, 20.0) == checked
    assert rig.work().dirty is bool(checked)
