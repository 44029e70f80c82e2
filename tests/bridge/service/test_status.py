"""How a bridge stands: B14 says where work waits and nobody looks, and which sessions are in trouble."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from queuebell.bridge import Bridge
from queuebell.bridge.contract.errors import Unsupported
from queuebell.bridge.contract.jobs import Jobs, Spread
from queuebell.bridge.contract.wire import (
    BuriedCount,
    Hello,
    ListenerHeartbeat,
    Processes,
    QueueBeat,
    Running,
    Starved,
    StoreDepth,
    Subscription,
)
from queuebell.bridge.core.pending_work import CountedBuried
from queuebell.bridge.observe.families import QueueCounts, QueueWorkers
from queuebell.bridge.observe.metrics import Metrics
from queuebell.bridge.observe.slices import at_once
from queuebell.bridge.queues.base import Claim, Settlement
from queuebell.bridge.queues.served import ServedStore
from queuebell.bridge.service.shared_store import NoStore
from queuebell.bridge.service.state import content, explain, overview, status
from queuebell.bridge.service.state.answers import ListenerState, QueueState, Subscribed
from queuebell.bridge.service.state.trouble import Troubles
from tests.support.bells import QUEUE, Rig
from tests.support.member import MemberRig


def findings(rig: Rig, **more: Any) -> dict[str, Any]:
    found = at_once(status.findings(rig.scheduler, rig.now, **{"stalled": (), "notices_suspend": True, **more}))
    return dict(msgspec.to_builtins(found))


def notice(rig: Rig) -> object:
    """Return what is said of the queue, the same everywhere."""
    described = status.describe(rig.scheduler, QUEUE, 0.0)
    explained = explain.explain(rig.scheduler, QUEUE, rig.now, draining=False)
    assert described is not None and explained is not None
    rows = {str(row["queue"]): row["detail"] for row in findings(rig)["unattended"]}
    assert described.unattended == explained.unattended == rows.get(QUEUE)
    return described.unattended


def test_a_dirty_queue_without_a_session_is_unattended() -> None:
    """Work was announced and nobody is there; the first listener ends it, the last one's leave brings it back."""
    rig = Rig()
    rig.trigger()
    assert notice(rig) == "no worker is connected; announced work is waiting for one"
    number = rig.join()
    assert notice(rig) is None
    rig.lose(number)
    assert notice(rig) is not None


def test_a_session_at_another_bridge_of_the_cluster_is_somebody() -> None:
    """B14, C3: also one without room, until it goes."""
    rig = MemberRig()
    rig.trigger_all()
    assert str(notice(rig)).startswith("no worker is connected to any reachable bridge of the cluster; announced")
    rig.peer(room=False)
    assert notice(rig) is None
    rig.able(room=None)
    assert notice(rig) is not None


@pytest.mark.parametrize(("visible", "invisible"), [(3, 0), (0, 2), (3, 2)])
def test_messages_without_a_session_are_unattended(visible: int, invisible: int) -> None:
    """Those that are visible: what is delayed or leased is trouble only once it could be received."""
    rig = Rig()
    rig.level(visible, invisible=invisible, put=1)
    assert (f"; {visible} messages are waiting " in str(notice(rig))) == bool(visible)
    assert notice(rig) is None or visible
    row = at_once(overview.queues(rig.scheduler, rig.now, overview.Wanted(), lambda queue: True)).rows[0]
    assert (row.trouble is None, row.waiting_ms is None) == (not visible, not visible)
    rig.level(0)
    assert notice(rig) is None


def test_an_own_queue_that_is_known_to_be_empty_needs_nobody() -> None:
    """Whatever was announced: the queue service knows better, unless the queue is read elsewhere."""
    rig = Rig()
    rig.level(0)
    rig.trigger()
    assert rig.work().dirty
    assert notice(rig) is None
    rig.level(1, put=1)
    assert "1 message is waiting" in str(notice(rig))
    rig.level(0)
    number = rig.join()
    rig.settle_hello(number)
    rig.bye(number)
    rig.trigger()
    assert "announced work is waiting" in str(notice(rig))


def test_many_queues_after_a_gap_push_no_fault_out() -> None:
    """They come last, and those that find no room are not told as left out."""
    rig = Rig()
    for number in range(status.ROWS_MAX + 3):
        rig.trigger(f"a/q{number}")
        work = rig.scheduler.pending.by_queue[f"a/q{number}"]
        rig.scheduler.pending.settle(work)
        rig.scheduler.pending.request_wake(work, rig.now, "resync", 1, foreign=True)
    rig.trigger("a/real")
    found = findings(rig)
    assert found["unattended"][0]["queue"] == "a/real"
    assert (len(found["unattended"]), found["left_out"]) == (status.ROWS_MAX, 0)


def test_messages_beside_listeners_of_another_store_are_stranded() -> None:
    """Only once a listener has covered: before that, one over HTTP may not know its own store."""
    rig = Rig()
    number = rig.join()
    rig.level(2, put=2)
    assert notice(rig) is None
    rig.settle_hello(number)
    assert notice(rig) == "2 messages wait in this bridge's store, but the workers of this queue use a different store"
    (row,) = findings(rig)["unattended"]
    assert (row["stranded"], row["visible"], row["invisible"]) == (True, 2, 0)
    rig.join(own=True)
    assert notice(rig) is None
    rig.level(0)


def test_what_was_buried_is_told_as_such_and_is_nobodys_fault() -> None:
    """The same words everywhere, counted or not; with a listener there it is a queue like others."""
    rig = Rig()
    grave, afar = QUEUE + "-poison", "a/afar-poison"

    def told(queue: str) -> object:
        explained = explain.explain(rig.scheduler, queue, rig.now, draining=False)
        work = rig.scheduler.pending.by_queue[queue]
        troubles = Troubles.at(rig.scheduler, work, rig.now)
        row = overview.row(rig.scheduler, work, rig.now, troubles, lambda _: True)
        assert explained is not None
        assert (explained.unattended, row.trouble, findings(rig)["unattended"]) == (None, None, [])
        rows = {row["queue"]: row["detail"] for row in findings(rig)["buried"]}
        assert explained.waits_for_a_person == rows.get(queue)
        return explained.waits_for_a_person

    for count, words in ((1, "1 message is dead-lettered"), (2, "2 messages are dead-lettered"), (0, None)):
        rig.level(count, queue=grave)
        assert told(grave) == words
    rig.trigger(afar)
    assert told(afar) == "messages are dead-lettered in an external store; their number is unknown"
    number = rig.join(afar)
    assert told(afar) is None
    rig.settle_hello(number, afar)
    rig.bye(number)
    rig.scheduler.gap(rig.now)
    assert (findings(rig)["buried"], findings(rig)["unattended"]) == ([], []), "nothing is known to lie there"


def test_sessions_in_trouble_are_named() -> None:
    """Silent for two heartbeats, behind in reading, stuck in a receive: each with its own word."""
    rig = Rig()
    fine, owner = rig.join(), rig.join()
    rig.settle_hello(fine)
    rig.wakes(owner)
    rig.trigger()
    number = rig.work().owner
    rig.started(number, rig.work().gen)
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
    assert Troubles.at(rig.scheduler, rig.work(), rig.now).of(rig.work()) == f"listener 1: {detail}"
    (queue,) = status.listeners(rig.scheduler, rig.now)[0].queues
    assert queue.hung == 3
    rig.say(number, Hello(f"{1:032x}", "listener 1", [Subscription(QUEUE, 4)]))
    assert len(findings(rig)["sessions"]) == 1
    rig.beat(number, free=4)
    assert (findings(rig)["sessions"], Troubles.at(rig.scheduler, rig.work(), rig.now).of(rig.work())) == ([], None)
    rig.beat(number, free=0, hung=1, starved=Starved(4, ["a/other", QUEUE]))
    rig.say(number, Hello(f"{1:032x}", "listener 1", [Subscription(QUEUE, 4)]))
    detail = f"no free slot: 4 of 4 held by timed-out handlers of queues a/other, {QUEUE}"
    assert [row["state"] for row in findings(rig)["sessions"]] == ["hung", "starved"]
    assert findings(rig)["sessions"][-1]["detail"] == detail
    assert Troubles.at(rig.scheduler, rig.work(), rig.now).of(rig.work()) == f"listener 1: {detail}"
    rig.beat(number, free=0, starved=Starved(4, ["a/other"]))
    assert [(row["state"], row["detail"]) for row in findings(rig)["sessions"]] == [
        ("starved", "no free slot: 4 of 4 held by timed-out handlers of queue a/other")
    ]


SCALED, PAUSED = "billing/scaled", "billing/paused"
INSTANCE = f"{1:032x}"
WORKS = "m:works"
CONTENT = {
    "exists": True, "depth": {"visible": 7, "invisible": 3}, "depth_age_ms": 750, "depth_at_least": True,
    "oldest_ms": 5750, "leased": 2, "delayed": None,
}  # fmt: skip
UNTOLD_HERE = {"delayed": content.NOT_THIS_TIME}
JOBS = Jobs({"done": 6, "failed": 2, "buried": 1}, {"OSError": 3}, 2, 1, Spread([9], 90), Spread([8], 80))
WORKERS = Processes(3, 1, 1, failure="exit code 3", held="backoff", pause_ms=2000, running=4)


def sees(queue: str) -> bool:
    return True


def shown(found: object) -> Any:
    """As it is read over HTTP."""
    return msgspec.to_builtins(found)


def busy() -> tuple[Rig, int]:
    """A worker of a queue elsewhere with all that a worker can say, a scaler in trouble, and a paused queue."""
    rig = Rig()
    number = rig.join(capacity=4)
    rig.settle_hello(number)
    rig.say(number, Hello(INSTANCE, "listener 1", [Subscription(QUEUE, 4)], store="postgres"))
    rig.trigger(size=2)
    rig.trigger(bus="nats")
    rig.wait(1.5)
    rig.started(number, rig.wakes(number)[-1].gen)
    beat = QueueBeat(
        free=1, receives={"trigger": (5, 2)}, failing_ms=2000, buried=BuriedCount(4, 1000), hung=2,
        depth=StoreDepth(7, 3, 500, at_least=True, leased=2, oldest_ms=5000), jobs={WORKS: JOBS},
    )  # fmt: skip
    rig.say(number, ListenerHeartbeat(7, {QUEUE: beat}, {}, {QUEUE: Running("m1", 2500, 3)}))
    scaler = rig.join(SCALED, kind="scaler", capacity=9)
    rig.say(scaler, ListenerHeartbeat(8, {SCALED: QueueBeat(free=5, processes=WORKERS)}))
    rig.scheduler.rejections.add(rig.now, [SCALED], "bad", "bad_version", "it is too old", instance="i")
    rig.wait(0.25)
    rig.scheduler.embedded.on_commit(
        rig.now, PAUSED, exists=True, visible=0, invisible=5, rose=True, put=6, receives=4, empty=3,
        next_visible_s=None, leased=1, delayed=2,
    )  # fmt: skip
    rig.work(PAUSED).paused = True
    return rig, number


def test_a_queue() -> None:
    """Its state, and how many messages it holds as metrics have it."""
    rig, _ = busy()
    state = shown(status.describe(rig.scheduler, QUEUE, rig.now))
    assert state == {
        **CONTENT, "buried": 4, "buried_age_ms": 1250, "buried_in": None, "untold": UNTOLD_HERE,
        "queue": QUEUE, "paused": False, "gen": 3, "dirty": True, "sessions": 1, "unattended": None,
        "wakes": {"resync": 1, "trigger": 2}, "receives": {"total": 7, "empty": 2}, "wake_sources": {"trigger": 5},
        "triggers": 2, "jobs": {WORKS: shown(JOBS)}, "unannounced": 0,
    }  # fmt: skip
    rig.work().buried = CountedBuried("a/graves", 4, rig.now)
    assert status.describe(rig.scheduler, QUEUE, rig.now).buried_in == "a/graves"
    rig.work().buried = CountedBuried(f"{QUEUE}-poison", 4, rig.now)
    assert [list(part) for part in (status.in_flight(rig.scheduler), status.scaled(rig.scheduler))] == [
        [(QUEUE, WORKS, 2)], [(SCALED, WORKERS)],
    ]  # fmt: skip
    assert list(content.held(rig.scheduler, rig.now)) == [
        [QueueCounts(QUEUE, 7, 3, 2, 4, 5.75), QueueCounts(PAUSED, 0, 5, 1, 0, 0.0)]
    ]
    assert list(status.queues(rig.scheduler, rig.now, ())) == [
        [
            QueueWorkers(QUEUE, 1, False, 2.25),
            QueueWorkers(SCALED, 1, False, 0.0, 1),
            QueueWorkers(PAUSED, 0, False, 0.0),
        ]
    ]


def test_the_list_of_queues() -> None:
    """A row of each, the sums of all, and the message that is handled longest."""
    rig, _ = busy()
    found = at_once(overview.queues(rig.scheduler, rig.now, overview.Wanted(sort="name"), sees))
    failing = "the receives of its only worker have failed for 2 s"
    scaled = "its workers fail to start, or exit unexpectedly: exit code 3"
    assert [row.queue for row in found.rows] == [QUEUE, PAUSED, SCALED]
    assert shown(found.rows[0]) == {
        "queue": QUEUE, "visible": 7, "invisible": 3, "leased": 2, "delayed": None, "oldest_ms": 5750,
        "counted_ms": 750, "at_least": True, "waiting_ms": 5750, "buried": 4, "buried_ms": 1250, "untold": UNTOLD_HERE,
        "running_ms": 2750, "listeners": 1, "paused": False, "dirty": True, "triggers": 2, "receives": 7, "empty": 2,
        "handled": 9, "failed": 3, "failed_5m": None, "trouble": failing,
    }  # fmt: skip
    assert shown(found.rows[1]) == {
        "queue": PAUSED, "visible": 2, "invisible": 3, "leased": 1, "delayed": 2, "oldest_ms": None,
        "counted_ms": None, "at_least": False, "waiting_ms": None, "buried": 0, "buried_ms": None, "untold": {},
        "running_ms": None, "listeners": 0, "paused": True, "dirty": False, "triggers": 1, "receives": 4, "empty": 3,
        "handled": 0, "failed": 0, "failed_5m": None, "trouble": None,
    }  # fmt: skip
    assert (found.rows[2].trouble, found.rows[2].untold["leased"]) == (scaled, content.NOBODY_COUNTED)
    for only, queues in (("all", [QUEUE, PAUSED, SCALED]), ("trouble", [QUEUE, SCALED]), ("paused", [PAUSED])):
        wanted = overview.Wanted(sort="name", only=only)
        some = at_once(overview.queues(rig.scheduler, rig.now, wanted, sees))
        assert [row.queue for row in some.rows] == queues and some.totals == found.totals
    wanted = overview.Wanted(only="buried")
    assert [row.queue for row in at_once(overview.queues(rig.scheduler, rig.now, wanted, sees)).rows] == [QUEUE]
    assert shown(found.totals) == {
        "queues": 3, "visible": 9, "oldest_ms": 5750,
        "leased": 3, "buried": 4, "troubled": 2, "triggers": 3, "receives": 11, "empty": 5,
    }  # fmt: skip
    assert shown(overview.running(rig.scheduler, QUEUE, rig.now)) == [
        {"listener": "listener 1", "instance": INSTANCE, "id": "m1", "attempt": 3, "ms": 2750}
    ]
    assert overview.running(rig.scheduler, "never/heard", rig.now) == []


def test_the_list_of_listeners() -> None:
    """A worker, a scaler with its workers, and a subscriber that has no session."""
    rig, _ = busy()
    hook = ListenerState(listener="hook", channel="webhook", queues=[Subscribed(queue="a/b")] * (overview.ROWS + 1))
    found = at_once(overview.listeners(rig.scheduler, rig.now, [hook], overview.Wanted()))
    assert (found.found, found.first) == (3, 0)
    assert [len(row.queues) for row in found.rows if row.channel == "webhook"] == [overview.ROWS]
    rows = {row["listener"]: row for row in shown(found.rows)}
    assert rows["listener 1"] == {
        "listener": "listener 1", "channel": "test", "kind": "listener", "instance": INSTANCE,
        "connected_s": 1.75, "silent_s": 0.25,
        "queues": [
            {
                "queue": QUEUE, "capacity": 4, "free": 1, "has_room": True, "owns": True, "failing_s": 2.25, "hung": 2,
            }
        ],
    }  # fmt: skip
    assert rows["listener 2"] == {
        "listener": "listener 2", "channel": "test", "kind": "scaler", "instance": f"{2:032x}",
        "connected_s": 0.25, "silent_s": 0.25,
        "queues": [
            {
                "queue": SCALED, "capacity": 9, "free": 5, "has_room": True, "owns": True, "hung": 0,
                "failing_s": None, "processes": shown(WORKERS),
            }
        ],
    }  # fmt: skip
    rig.now += 1 / 3000
    (row,) = [row for row in status.listeners(rig.scheduler, rig.now) if row.listener == "listener 1"]
    assert (row.connected_s, row.silent_s, row.queues[0].failing_s) == (1.75, 0.25, 2.25), "to the millisecond"


def test_what_a_person_should_know() -> None:
    rig, number = busy()
    found = shown(at_once(status.findings(rig.scheduler, rig.now, stalled={number}, notices_suspend=False)))
    numbers = found.pop("numbers")
    assert [each["match"] for each in numbers] == ["*"]
    one = {"listener": "listener 1", "instance": INSTANCE, "channel": "test"}
    held = "2 of its 4 handler slots are held by calls that ran past handler_timeout and do not return"
    failed = "its workers fail to start, or exit unexpectedly: the last worker failed: exit code 3"
    assert found == {
        "unattended": [], "buried": [], "audit_found": 0, "notices_suspend": False, "crowded": None, "left_out": 0,
        "sessions": [
            {**one, "state": "behind", "detail": "its connection accepts no data right now", "queue": None},
            {**one, "state": "hung", "detail": held, "queue": QUEUE},
            {**one, "state": "failing", "detail": "its receives have failed for 2 s", "queue": QUEUE},
            {
                "listener": "listener 2", "instance": f"{2:032x}", "channel": "test", "state": "workers",
                "detail": failed, "queue": SCALED,
            },
        ],
        "rejected": [
            {
                "queue": SCALED, "listener": "bad", "code": "bad_version", "count": 1, "first_ms": 250, "last_ms": 250,
                "detail": "the bridge rejected bad once, last 0 s ago: it is too old",
            }
        ],
    }  # fmt: skip
    words = "3 workers wanted, 1 ready, 1 starting, 2 ending; no start for another 2 s, because of a failure; "
    assert status.workers(WORKERS) == words + "the last worker failed: exit code 3"
    assert status.workers(Processes(1, 1, held="strange", running=1)) == (
        "1 worker wanted, 1 ready, 0 starting; strange"
    )


POISON = QUEUE + "-poison"


def state(rig: Rig, queue: str = QUEUE) -> QueueState:
    """Return how a queue stands."""
    found = status.describe(rig.scheduler, queue, rig.now)
    assert found is not None
    return found


def joined(rig: Rig, store: str = "") -> int:
    """Return the number of a session whose store is of this kind, and whose first look found nothing."""
    number = rig.join()
    hello = Hello("a" * 32, "one", [Subscription(QUEUE, 32)], store=store)
    rig.say(number, hello)
    rig.settle_hello(number)
    return number


def told(rig: Rig, number: int, depth: StoreDepth | None = None, buried: BuriedCount | None = None) -> None:
    """Have a session tell counts."""
    rig.say(number, ListenerHeartbeat(7, {QUEUE: QueueBeat(depth=depth, buried=buried)}))


def metrics(rig: Rig) -> dict[str, str]:
    """Return what is exported of queues, by name and labels."""
    counted = Metrics()
    counted.watch_counts(lambda: content.held(rig.scheduler, rig.now))
    lines = counted.render().decode().splitlines()
    found = (re.fullmatch(r"queuebell_queue_(\w+)(\{.*\}) (.*)", line) for line in lines)
    return {f"{one[1]}{one[2]}": one[3] for one in found if one}


def test_the_newest_count_of_the_poison_queue_is_shown() -> None:
    """Told of the queue, or of the poison queue itself, which a supervisor listens to; with its age."""
    rig = Rig()
    number = joined(rig)
    told(rig, number, buried=BuriedCount(4, 1000))
    rig.wait(2.0)
    told(rig, number, buried=BuriedCount(2, 9000))
    shown = state(rig)
    assert (shown.buried, shown.buried_age_ms, "buried" in shown.untold) == (4, 3000, False)
    assert metrics(rig)[f'buried{{queue="{QUEUE}"}}'] == "4.0"
    supervisor = rig.join(POISON)
    rig.settle_hello(supervisor, POISON)
    rig.say(supervisor, ListenerHeartbeat(7, {POISON: QueueBeat(depth=StoreDepth(1, 0, 0))}))
    assert (state(rig).buried, state(rig).buried_age_ms) == (1, 0)
    assert (state(rig, POISON).buried, "buried" in state(rig, POISON).untold) == (None, False)
    other = rig.join("billing/zebras")
    rig.settle_hello(other, "billing/zebras")
    rig.say(other, ListenerHeartbeat(7, {"billing/zebras": QueueBeat(buried=BuriedCount(3, 0))}))
    view = at_once(overview.queues(rig.scheduler, rig.now, overview.Wanted(sort="buried"), lambda queue: True))
    assert (view.totals.buried, [row.buried for row in view.rows[:2]]) == (4, [3, 1])


QUEUE_NOWHERE = "billing/orders"
CLAIM = Claim("1", "1")
REFUSED: dict[str, Callable[[ServedStore], Awaitable[object]]] = {
    "put": lambda store: store.put(QUEUE_NOWHERE, [b"x"]),
    "put_once": lambda store: store.put_once(QUEUE_NOWHERE, "key", b"x"),
    "receive": lambda store: store.receive(QUEUE_NOWHERE),
    "settle": lambda store: store.settle(QUEUE_NOWHERE, Settlement(delete=(CLAIM,))),
    "update": lambda store: store.update(QUEUE_NOWHERE, CLAIM, 5.0),
    "peek": lambda store: store.peek(QUEUE_NOWHERE),
    "depth": lambda store: store.depth(QUEUE_NOWHERE),
    "oldest_ms": lambda store: store.oldest_ms(QUEUE_NOWHERE),
    "clear": lambda store: store.clear(QUEUE_NOWHERE),
    "pause": lambda store: store.pause(QUEUE_NOWHERE),
    "resume": lambda store: store.pause(QUEUE_NOWHERE, False),
    "create": lambda store: store.create(QUEUE_NOWHERE),
    "create_alike": lambda store: store.create_alike(QUEUE_NOWHERE, {}),
    "delete": lambda store: store.delete(QUEUE_NOWHERE),
    "listing": lambda store: store.listing(),
}


@pytest.mark.parametrize("call", [call for call in REFUSED if call not in ("create_alike", "listing")])
async def test_whatever_would_touch_a_message_is_refused_with_the_way_out(call: str) -> None:
    async with Bridge(store=NoStore()) as bridge:
        with pytest.raises(Unsupported, match="start every bridge of the cluster with the same --store URL") as refused:
            await REFUSED[call](bridge.store)
        assert refused.value.code == "unsupported"
        assert refused.value.status == 501
        assert bridge.scheduler.pending.find(QUEUE_NOWHERE) is None


@pytest.mark.parametrize("call", ["create_alike", "listing"])
async def test_what_only_the_azure_endpoint_asks_is_refused(call: str) -> None:
    async with Bridge(store=NoStore()) as bridge:
        with pytest.raises(Unsupported):
            await REFUSED[call](bridge.store)


async def test_there_is_nothing_to_list_and_the_bridge_is_ready() -> None:
    async with Bridge(store=NoStore()) as bridge:
        assert await bridge.store.queues() == []
        assert not await bridge.store.exists(QUEUE_NOWHERE)
        assert str(bridge.store) == "no store"
        assert not bridge.keeps_queues
        assert bridge.own is None
        readiness = bridge.readiness()
        assert readiness.ready
        assert readiness.checks["store"].detail == "none: this bridge serves queues in external stores only"
