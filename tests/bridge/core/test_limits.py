"""Limits and orders of the larger rules: the ledger, own queues, timers, numbers, admission and counts."""

from __future__ import annotations

import pytest

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.wire import Wake
from queuebell.bridge.core.settings import (
    RULES_MAX,
    Periods,
    QueueRule,
    check_rules,
    check_slack,
    check_sweep,
)
from queuebell.bridge.observe.facts import (
    HandlerStarted,
    ReceivesTold,
    Woken,
)
from tests.bridge.core.test_embedded_queues import hand, message
from tests.support.bells import BOOT, QUEUE, Rig


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
    with pytest.raises(ConfigurationError, match=says):
        check()  # type: ignore[operator]


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
