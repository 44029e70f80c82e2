"""How a bridge stands: B14 says where work waits and nobody looks, and which sessions are in trouble."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import msgspec
import pytest

from bridge.contract.wire import BuriedCount, Hello, ListenerHeartbeat, Processes, QueueBeat, Starved, Subscription
from bridge.core.ledger import Counted
from bridge.http.api.queues import QueueRoutes
from bridge.http.server.doorkeeper import Doorkeeper
from bridge.observe.slices import at_once
from bridge.queues.base import Capabilities, Counts, Depth
from bridge.service import explaining, overview
from bridge.service import status as standing
from bridge.service.state import QueueState
from bridge.service.trouble import Troubles
from tests.support.bells import QUEUE, Rig
from tests.support.member import MemberRig


def findings(rig: Rig, **more: Any) -> dict[str, Any]:
    found = at_once(standing.findings(rig.bell, rig.now, **{"stalled": (), "notices_suspend": True, **more}))
    return dict(msgspec.to_builtins(found))


def notice(rig: Rig) -> object:
    """Return what is said of the queue, the same everywhere."""
    described = standing.describe(rig.bell, QUEUE, 0.0)
    explained = explaining.explain(rig.bell, QUEUE, rig.now, draining=False)
    assert described is not None and explained is not None
    rows = {str(row["queue"]): row["detail"] for row in findings(rig)["unattended"]}
    assert described.unattended == explained.unattended == rows.get(QUEUE)
    return described.unattended


def test_a_dirty_queue_without_a_session_is_unattended() -> None:
    """Work was announced and nobody is there; the first listener ends it, the last one's leave brings it back."""
    rig = Rig()
    rig.trigger()
    assert notice(rig) == "no listener is subscribed; work was announced; nothing is received until one starts"
    number = rig.join()
    assert notice(rig) is None
    rig.lose(number)
    assert notice(rig) is not None


def test_bridges_on_one_engine_do_not_say_that_nobody_listens_anywhere() -> None:
    """B14: none of them knows of the sessions at the others."""
    rig = Rig()
    rig.bell._engine = lambda queue: "ab"
    rig.trigger()
    said = str(notice(rig))
    assert said.startswith("no listener is subscribed at this bridge; work was announced; nothing is received until")
    assert said.endswith("until one starts, here or at another bridge of this store")


def test_a_session_at_another_bridge_of_the_cluster_is_somebody() -> None:
    """B14, C3: also one without room, until it goes."""
    rig = MemberRig()
    rig.trigger_all()
    assert str(notice(rig)).startswith("no listener is subscribed at any bridge of the cluster that is heard; work was")
    rig.peer(room=False)
    assert notice(rig) is None
    rig.able(room=None)
    assert notice(rig) is not None


@pytest.mark.parametrize(("visible", "invisible"), [(3, 0), (0, 2), (3, 2)])
def test_messages_without_a_session_are_unattended(visible: int, invisible: int) -> None:
    """Those that are visible: what is delayed or leased is trouble only once it could be received."""
    rig = Rig()
    rig.level(visible, invisible=invisible, put=1)
    assert (f"; {visible} waiting;" in str(notice(rig))) == bool(visible)
    assert notice(rig) is None or visible
    row = at_once(overview.queues(rig.bell, rig.now, overview.Wanted(), lambda queue: True)).rows[0]
    assert (row.trouble is None, row.waiting_ms is None) == (not visible, not visible)
    rig.level(0)
    assert notice(rig) is None


def test_an_own_queue_that_is_known_to_be_empty_needs_nobody() -> None:
    """Whatever was announced: the queue service knows better, unless the queue is read elsewhere."""
    rig = Rig()
    rig.level(0)
    rig.trigger()
    assert rig.debt().dirty
    assert notice(rig) is None
    rig.level(1, put=1)
    assert "1 waiting" in str(notice(rig))
    rig.level(0)
    number = rig.join()
    rig.settle_hello(number)
    rig.bye(number)
    rig.trigger()
    assert "work was announced" in str(notice(rig))


def test_a_listener_that_left_before_it_looked_announced_nothing() -> None:
    """Nobody looks for it, and that is what is said."""
    rig = Rig()
    rig.lose(rig.join())
    assert notice(rig) == (
        "no listener is subscribed; its last listener left before it had received; nothing is received until one starts"
    )


def test_a_queue_that_only_a_gap_marked_has_no_work_announced() -> None:
    """It was triggered before and settled since: after a gap somebody should look, and nothing is known to wait."""
    rig = Rig()
    number = rig.join()
    rig.settle_hello(number)
    rig.trigger()
    rig.cover(number, rig.debt().gen)
    rig.bye(number)
    assert notice(rig) is None and rig.debt().triggers == 1
    for _ in range(2):
        rig.bell.gap(rig.now)
        assert notice(rig) == "triggers may have been missed; no listener is subscribed"
        assert [row["after_gap"] for row in findings(rig)["unattended"]] == [True]
    rig.trigger()
    rig.bell.gap(rig.now)
    assert "work was announced" in str(notice(rig)), "a real trigger stays one (B14)"
    assert [row["after_gap"] for row in findings(rig)["unattended"]] == [False]
    number = rig.join()
    rig.lose(number)
    assert "work was announced" in str(notice(rig))


def test_many_queues_after_a_gap_push_no_fault_out() -> None:
    """They come last, and those that find no room are not told as left out."""
    rig = Rig()
    for number in range(standing.ROWS_MAX + 3):
        rig.trigger(f"a/q{number}")
        debt = rig.bell.ledger.debts[f"a/q{number}"]
        rig.bell.ledger.settle(debt)
        rig.bell.ledger.mark(debt, rig.now, "resync", 1, foreign=True)
    rig.trigger("a/real")
    found = findings(rig)
    assert found["unattended"][0]["queue"] == "a/real"
    assert (len(found["unattended"]), found["left_out"]) == (standing.ROWS_MAX, 0)


def test_messages_beside_listeners_of_another_store_are_stranded() -> None:
    """Only once a listener has covered: before that, one over HTTP may not know its own store."""
    rig = Rig()
    number = rig.join()
    rig.level(2, put=2)
    assert notice(rig) is None
    rig.settle_hello(number)
    assert notice(rig) == "2 messages wait in the bridge's own queue, but the listeners of this name read another store"
    assert [row["stranded"] for row in findings(rig)["unattended"]] == [True]
    rig.join(own=True)
    assert notice(rig) is None
    rig.level(0)


@pytest.mark.parametrize("counted", [True, False])
def test_a_queue_that_is_read_elsewhere_shows_what_was_counted_there(counted: bool) -> None:
    """The queue service may hold one of the same name; its depth stands in only where no listener has told another."""
    rig = Rig()
    number = rig.join()
    rig.level(2, put=2)
    rig.settle_hello(number)
    if counted:
        rig.debt().counted = Counted(7, 1, rig.now - 3, at_least=False)
    rig.debt().read_elsewhere = True
    described = standing.describe(rig.bell, QUEUE, rig.now)
    assert described is not None
    shown = Depth(7, 1) if counted else Depth(2, 0)
    assert (described.depth, described.depth_age_ms) == (shown, 3000 if counted else None)

    async def depth(queue: str) -> Depth:
        return Depth(2, 0)

    async def counts(queue: str) -> Counts:
        return Counts(2, 0, oldest_ms=5)

    bridge: Any = types.SimpleNamespace(
        store=types.SimpleNamespace(depth=depth, counts=counts, capabilities=Capabilities(oldest_age=True)),
        bell=rig.bell,
        describe=lambda queue, sees: described,
        gate=None,
        own=True,
    )
    guard: Any = types.SimpleNamespace(limits_rates=False)
    room: Any = types.SimpleNamespace(fits=lambda *_: True)
    asked: Any = None
    answer: Any = asyncio.run(
        QueueRoutes(bridge, guard, Doorkeeper(None, lambda fact: None), room).describe(asked, QUEUE)
    )
    body = answer.whole(b"").partition(b"\r\n\r\n")[2]
    assert msgspec.json.decode(body, type=QueueState).depth == shown
    rig.join(own=True)
    assert standing.describe(rig.bell, QUEUE, rig.now).depth == Depth(2, 0)  # type: ignore[union-attr]


def test_a_paused_queue_is_left_alone_on_purpose() -> None:
    """Nobody is missed there."""
    rig = Rig()
    rig.level(3, put=1)
    rig.debt().paused = True
    assert notice(rig) is None


def test_a_clean_queue_elsewhere_needs_nobody() -> None:
    """Nothing is owed, nothing is said."""
    rig = Rig()
    number = rig.join()
    rig.settle_hello(number)
    rig.bye(number)
    assert notice(rig) is None


def test_what_was_buried_is_told_as_such_and_is_nobodys_fault() -> None:
    """The same words everywhere, counted or not; with a listener there it is a queue like others."""
    rig = Rig()
    grave, afar = QUEUE + "-poison", "a/afar-poison"

    def told(queue: str) -> object:
        explained = explaining.explain(rig.bell, queue, rig.now, draining=False)
        debt = rig.bell.ledger.debts[queue]
        troubles = Troubles.at(rig.bell, debt, rig.now)
        row = overview.row(rig.bell, debt, rig.now, troubles, lambda _: True)
        assert explained is not None
        assert (explained.unattended, row.trouble, findings(rig)["unattended"]) == (None, None, [])
        rows = {row["queue"]: row["detail"] for row in findings(rig)["buried"]}
        assert explained.waits_for_a_person == rows.get(queue)
        return explained.waits_for_a_person

    for count, words in ((1, "1 message was buried"), (2, "2 messages were buried"), (0, None)):
        rig.level(count, queue=grave)
        assert told(grave) == words
    rig.trigger(afar)
    assert told(afar) == "messages were buried in another store, where their number is not known"
    number = rig.join(afar)
    assert told(afar) is None
    rig.settle_hello(number, afar)
    rig.bye(number)
    rig.bell.gap(rig.now)
    assert (findings(rig)["buried"], findings(rig)["unattended"]) == ([], []), "nothing is known to lie there"


def test_a_scaler_whose_workers_fail_is_in_trouble() -> None:
    """Until one was ready, and with why; a count that fails is told by the word for it."""
    rig = Rig()
    number = rig.join(kind="scaler")
    for told, state in (
        (Processes(1, 1), None),
        (Processes(1, 0, failure="exit code 3", held="backoff", pause_ms=2000), "the last failed: exit code 3"),
        (Processes(1, 0, failure="no route", held="uncounted"), "the count failed: no route"),
    ):
        rig.say(number, ListenerHeartbeat(1, {QUEUE: QueueBeat(free=0, processes=told)}))
        rows = findings(rig)["sessions"]
        assert [(row["state"], row["queue"], row["detail"].partition(": ")[2]) for row in rows] == (
            [("workers", QUEUE, state)] if state else []
        )


def test_sessions_in_trouble_are_named() -> None:
    """Silent for two heartbeats, behind in reading, stuck in a receive: each with its own word."""
    rig = Rig()
    fine, owner = rig.join(), rig.join()
    rig.settle_hello(fine)
    rig.wakes(owner)
    rig.trigger()
    number = rig.debt().owner
    rig.started(number, rig.debt().gen)
    for _ in range(4):
        rig.wait(4.0)
        rig.beat(fine), rig.beat(owner)
    assert [row["state"] for row in findings(rig)["sessions"]] == ["stuck"]
    assert findings(rig)["sessions"][0]["queue"] == QUEUE
    rig.wait(10.5)
    states = [row["state"] for row in findings(rig, stalled={fine})["sessions"]]
    assert states.count("silent") == 2 and states.count("behind") == 1
    rig.beat(fine), rig.beat(owner)
    assert "silent" not in [row["state"] for row in findings(rig)["sessions"]]


def test_what_the_audit_repaired_is_counted() -> None:
    """Above zero is a bug, for `check` to say."""
    rig = Rig()
    number = rig.join(own=True)
    rig.level(1, rose=True, put=1)
    rig.wakes(number)
    assert findings(rig)["audit_found"] == 0
    rig.debt().owner = None
    rig.wait(5.1)
    assert findings(rig)["audit_found"] == 1


def test_one_answer_is_bounded() -> None:
    """A thousand rows of a kind, and how many more there are."""
    rig = Rig()
    for number in range(standing.ROWS_MAX + 7):
        rig.trigger(f"a/q{number}")
    found = findings(rig)
    assert (len(found["unattended"]), found["left_out"]) == (standing.ROWS_MAX, 7)


def test_the_bridge_tells_the_numbers_it_goes_by() -> None:
    """One row a rule, the common ones last: whoever checks from elsewhere has another configuration at hand."""
    rig = Rig()
    rig.trigger()
    (row,) = findings(rig)["numbers"]
    assert row == {"match": "*", **msgspec.structs.asdict(rig.debt().numbers)}


def test_slots_that_hung_handlers_hold_are_named_until_they_are_free() -> None:
    """In the findings, for the queue and for its listener; a later hello of the same session keeps the number."""
    rig = Rig()
    number = rig.join(capacity=4)
    rig.beat(number, free=4)
    assert findings(rig)["sessions"] == []
    rig.beat(number, free=1, hung=3)
    detail = "3 of its 4 handler slots are held by calls that ran past handler_timeout and do not return"
    (row,) = findings(rig)["sessions"]
    assert (row["state"], row["queue"], row["detail"]) == ("hung", QUEUE, detail)
    assert Troubles.at(rig.bell, rig.debt(), rig.now).of(rig.debt()) == f"listener 1: {detail}"
    (queue,) = standing.listeners(rig.bell, rig.now)[0].queues
    assert queue.hung == 3
    rig.say(number, Hello(f"{1:032x}", "listener 1", [Subscription(QUEUE, 4)]))
    assert len(findings(rig)["sessions"]) == 1
    rig.beat(number, free=4)
    assert (findings(rig)["sessions"], Troubles.at(rig.bell, rig.debt(), rig.now).of(rig.debt())) == ([], None)
    rig.beat(number, free=0, hung=1, starved=Starved(4, ["a/other", QUEUE]))
    rig.say(number, Hello(f"{1:032x}", "listener 1", [Subscription(QUEUE, 4)]))
    detail = f"no free slot: 4 of 4 held by timed-out handlers of queues a/other, {QUEUE}"
    assert [row["state"] for row in findings(rig)["sessions"]] == ["hung", "starved"]
    assert findings(rig)["sessions"][-1]["detail"] == detail
    assert Troubles.at(rig.bell, rig.debt(), rig.now).of(rig.debt()) == f"listener 1: {detail}"
    rig.beat(number, free=0, starved=Starved(4, ["a/other"]))
    assert [(row["state"], row["detail"]) for row in findings(rig)["sessions"]] == [
        ("starved", "no free slot: 4 of 4 held by timed-out handlers of queue a/other")
    ]


def test_receives_that_fail_are_told_for_as_long_as_they_do() -> None:
    """By the heartbeat; a later hello of the same session keeps it, and the next heartbeat without it ends it."""
    rig = Rig()
    number = rig.join()
    rig.beat(number, free=32)
    assert (standing.failing(rig.bell), findings(rig)["sessions"]) == (0, [])
    rig.beat(number, free=0, failing_ms=7000)
    rig.wait(2.0)
    (row,) = findings(rig)["sessions"]
    assert (row["state"], row["queue"], row["detail"]) == ("failing", QUEUE, "its receives have failed for 9 s")
    (queue,) = standing.listeners(rig.bell, rig.now)[0].queues
    assert queue.failing_s == 9.0
    rig.say(number, Hello(f"{1:032x}", "listener 1", [Subscription(QUEUE, 32)]))
    assert standing.failing(rig.bell) == 1
    rig.beat(number, free=32)
    assert (standing.failing(rig.bell), findings(rig)["sessions"]) == (0, [])


def test_it_is_told_whether_a_queue_stands_here() -> None:
    """The counts of a queue elsewhere are not known, which is not zero."""
    rig = Rig()
    rig.level(1, put=1)
    rig.trigger("a/elsewhere")
    assert {row["queue"]: row["exists"] for row in findings(rig)["unattended"]} == {QUEUE: True, "a/elsewhere": False}


def test_what_a_pause_holds_back_waits() -> None:
    """Its store counts it as invisible; a list that shows none waiting would say that the queue is empty."""
    rig = Rig()
    rig.level(0, put=3, invisible=5)
    rig.debt().paused, rig.debt().leased, rig.debt().delayed = True, 1, 1
    row = overview.row(rig.bell, rig.debt(), rig.now, Troubles.at(rig.bell, rig.debt(), rig.now), lambda _: True)
    assert (row.visible, row.invisible, row.leased, row.delayed) == (3, 2, 1, 1)
    everything = at_once(overview.queues(rig.bell, rig.now, overview.Wanted(), lambda _: True))
    assert everything.totals.visible == 3


def test_a_poison_queue_has_the_number_that_its_queue_shows() -> None:
    """A listener that buries counts it: "their number is not known" would stand above that number."""
    rig = Rig()
    number = rig.join()
    rig.settle_hello(number)
    rig.trigger(QUEUE + "-poison")
    for counted, words in (
        (3, "3 messages were buried"),
        (1, "1 message was buried"),
        (0, "messages were buried in another store, where their number is not known"),
    ):
        rig.say(number, ListenerHeartbeat(7, {QUEUE: QueueBeat(buried=BuriedCount(counted, 0))}))
        assert [row["detail"] for row in findings(rig)["buried"]] == [words]


def test_an_embedded_queue_before_its_first_put_is_empty() -> None:
    """Its listeners say that it is the bridge's own, and it does not exist there: nothing about it is not known."""
    rig = Rig()
    rig.join(own=True)
    described = standing.describe(rig.bell, QUEUE, rig.now)
    assert described is not None
    assert (described.exists, described.depth, described.leased, described.buried) == (False, Depth(0, 0), 0, 0)
    assert described.untold == {}
    rig.join()
    assert standing.describe(rig.bell, QUEUE, rig.now).depth is None  # type: ignore[union-attr]
