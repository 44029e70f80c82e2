"""All that is shown of one bridge, whole: no two numbers are alike, so that none can stand for its neighbour."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bridge.contract.cluster import Ability, Able, Member
from bridge.contract.jobs import Jobs, Spread
from bridge.contract.wire import (
    BuriedCount,
    Hello,
    ListenerHeartbeat,
    Processes,
    QueueBeat,
    Running,
    StoreDepth,
    Subscription,
)
from bridge.observe.count_families import Held
from bridge.observe.metrics import Metrics
from bridge.observe.queue_families import Standing
from bridge.observe.slices import at_once
from bridge.service import content, explaining, gauges, overview
from bridge.service import status as standing
from bridge.service.state import ListenerState, Subscribed
from tests.support.bells import BOOT, QUEUE, Rig
from tests.support.member import FIRST, LAST, MemberRig

SCALED, PAUSED = "billing/scaled", "billing/paused"
INSTANCE = f"{1:032x}"
WORKS = "m:works"
UNKNOWN = dict.fromkeys(("depth", "oldest_ms", "leased", "delayed"), content.NOBODY_COUNTED)
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
    rig.bell.rejections.add(rig.now, [SCALED], "bad", "bad_version", "it is too old", instance="i")
    rig.wait(0.25)
    rig.bell.own.level(
        rig.now, PAUSED, exists=True, visible=0, invisible=5, rose=True, put=6, receives=4, empty=3,
        next_visible_s=None, leased=1, delayed=2,
    )  # fmt: skip
    rig.debt(PAUSED).paused = True
    return rig, number


def test_a_queue() -> None:
    """Its state, and how many messages it holds as metrics have it."""
    rig, _ = busy()
    state = shown(standing.describe(rig.bell, QUEUE, rig.now))
    assert state == {
        **CONTENT, "buried": 4, "buried_age_ms": 1250, "untold": UNTOLD_HERE,
        "queue": QUEUE, "paused": False, "gen": 3, "dirty": True, "sessions": 1, "unattended": None,
        "wakes": {"resync": 1, "trigger": 2}, "receives": {"total": 7, "empty": 2}, "wake_sources": {"trigger": 5},
        "triggers": 2, "jobs": {WORKS: shown(JOBS)}, "unannounced": 0,
    }  # fmt: skip
    assert [list(part) for part in (standing.in_flight(rig.bell), standing.scaled(rig.bell))] == [
        [(QUEUE, WORKS, 2)], [(SCALED, WORKERS)],
    ]  # fmt: skip
    assert list(content.held(rig.bell, rig.now)) == [[Held(QUEUE, 7, 3, 2, 4, 5.75), Held(PAUSED, 0, 5, 1, 0, 0.0)]]
    assert list(standing.queues(rig.bell, rig.now, ())) == [
        [Standing(QUEUE, 1, False, 2.25), Standing(SCALED, 1, False, 0.0, 1), Standing(PAUSED, 0, False, 0.0)]
    ]


def test_the_list_of_queues() -> None:
    """A row of each, the sums of all, and the message that is handled longest."""
    rig, _ = busy()
    found = at_once(overview.queues(rig.bell, rig.now, overview.Wanted(sort="name"), sees))
    failing = "the receives of its only listener have failed for 2 s"
    scaled = "its workers do not start, or end as they should not: exit code 3"
    assert [row.queue for row in found.rows] == [QUEUE, PAUSED, SCALED]
    assert shown(found.rows[0]) == {
        "queue": QUEUE, "visible": 7, "invisible": 3, "leased": 2, "delayed": None, "oldest_ms": 5750,
        "counted_ms": 750, "at_least": True, "waiting_ms": 5750, "buried": 4, "buried_ms": 1250, "untold": UNTOLD_HERE,
        "running_ms": 2750, "listeners": 1, "paused": False, "dirty": True, "triggers": 2, "receives": 7, "empty": 2,
        "handled": 9, "failed": 3, "trouble": failing,
    }  # fmt: skip
    assert shown(found.rows[1]) == {
        "queue": PAUSED, "visible": 2, "invisible": 3, "leased": 1, "delayed": 2, "oldest_ms": None,
        "counted_ms": None, "at_least": False, "waiting_ms": None, "buried": 0, "buried_ms": None, "untold": {},
        "running_ms": None, "listeners": 0, "paused": True, "dirty": False, "triggers": 1, "receives": 4, "empty": 3,
        "handled": 0, "failed": 0, "trouble": None,
    }  # fmt: skip
    assert (found.rows[2].trouble, found.rows[2].untold["leased"]) == (scaled, content.NOBODY_COUNTED)
    assert shown(found.totals) == {
        "queues": 3, "visible": 9, "leased": 3, "buried": 4, "troubled": 2, "triggers": 3, "receives": 11, "empty": 5,
    }  # fmt: skip
    assert shown(overview.running(rig.bell, QUEUE, rig.now)) == [
        {"listener": "listener 1", "instance": INSTANCE, "id": "m1", "attempt": 3, "ms": 2750}
    ]
    assert overview.running(rig.bell, "never/heard", rig.now) == []


def test_the_list_of_listeners() -> None:
    """A worker, a scaler with its workers, and a subscriber that has no session."""
    rig, _ = busy()
    hook = ListenerState(listener="hook", channel="webhook", queues=[Subscribed(queue="a/b")] * (overview.ROWS + 1))
    found = at_once(overview.listeners(rig.bell, rig.now, [hook], overview.Wanted()))
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
    (row,) = [row for row in standing.listeners(rig.bell, rig.now) if row.listener == "listener 1"]
    assert (row.connected_s, row.silent_s, row.queues[0].failing_s) == (1.75, 0.25, 2.25), "to the millisecond"


def test_what_a_person_should_know() -> None:
    """Each session in trouble with all that it is known by, and who is rejected."""
    rig, number = busy()
    found = shown(at_once(standing.findings(rig.bell, rig.now, stalled={number}, notices_suspend=False)))
    numbers = found.pop("numbers")
    assert [each["match"] for each in numbers] == ["*"]
    one = {"listener": "listener 1", "instance": INSTANCE, "channel": "test"}
    held = "2 of its 4 handler slots are held by calls that ran past handler_timeout and do not return"
    failed = "its workers do not start, or end as they should not: the last failed: exit code 3"
    assert found == {
        "unattended": [], "buried": [], "audit_found": 0, "notices_suspend": False, "crowded": None, "left_out": 0,
        "sessions": [
            {**one, "state": "behind", "detail": "its connection takes nothing just now", "queue": None},
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
    words = "3 workers wanted, 1 ready, 1 starting, 2 ending; none for another 2 s, because of a failure; "
    assert standing.workers(WORKERS) == words + "the last failed: exit code 3"
    assert standing.workers(Processes(1, 1, held="strange", running=1)) == (
        "1 worker wanted, 1 ready, 0 starting; strange"
    )


@pytest.mark.parametrize(
    ("seat", "state", "detail"),
    [
        ("stuck", "stuck", "said that a receive had begun and showed no progress since"),
        ("deaf", "deaf", "did not take up the messages that it was handed"),
    ],
)
def test_a_session_that_does_not_do_what_it_said(seat: str, state: str, detail: str) -> None:
    """By its own word, beside the queue."""
    rig = Rig()
    number = rig.join()
    setattr(rig.bell.sessions.get(number).seats[QUEUE], seat, True)
    (row,) = at_once(standing.findings(rig.bell, rig.now, stalled=(), notices_suspend=True)).sessions
    assert (row.state, row.queue, row.detail) == (state, QUEUE, detail)


def test_an_explanation() -> None:
    """All of it: what was buried explains no trigger, and is left out."""
    rig, number = busy()
    found = explaining.explain(rig.bell, QUEUE, rig.now, draining=False, stalled={number})
    why = "took the work on already; it hears of more; its connection takes nothing just now; its receives have failed"
    assert shown(found) == {
        **CONTENT, "buried": None, "buried_age_ms": None, "untold": UNTOLD_HERE, "queue": QUEUE,
        "asked": "trigger", "outcome": "joins", "summary": "a trigger now goes to who took the work on already",
        "paused": False, "dirty": True, "gen": 3, "unattended": None, "trigger_adds": True, "subscribers": [],
        "waits_for_a_person": None, "rejected": [],
        "sessions": [
            {
                "listener": "listener 1", "instance": INSTANCE, "channel": "test", "gets": True, "why": "owner",
                "detail": f"{why} for 2 s", "free": 1, "capacity": 4, "owns": True, "delayed": True, "failing_s": 2.25,
            }
        ],
    }  # fmt: skip
    scaled = shown(explaining.explain(rig.bell, SCALED, rig.now, draining=False))
    assert [row["code"] for row in scaled["rejected"]] == ["bad_version"]
    assert [row["processes"] for row in scaled["sessions"]] == [shown(WORKERS)]
    assert (scaled["untold"], scaled["depth"]) == (UNKNOWN, None)


def test_a_cluster() -> None:
    """Its members, who is refused and why, which queues wait, and the gauges of all this."""
    rig, metrics = MemberRig(name="shop"), Metrics()
    rig.join("a/mine")
    gauges.watch_cluster(metrics, rig.turns, lambda: rig.now)
    rig.hear(Member(boot=FIRST, seq=1, version="1.1", address="there", cluster="shop"))
    rig.hear(Able(boot=FIRST, seq=1, queues={QUEUE: Ability(True, 30_000), "a/full": Ability(False, 30_000)}))
    rig.hear(Member(boot=LAST, seq=1, version="1.2", address="elsewhere", cluster="other"))
    rig.trigger_all()
    rig.wait(0.25)
    assert shown(standing.cluster(rig.bell, rig.turns, rig.now)) == {
        "name": "shop", "alone": False, "went": {}, "left_out": 0,
        "members": [
            {
                "boot": BOOT, "address": "here", "version": "1.0", "me": True, "leaving": False, "silent_ms": 0,
                "queues": 1, "able": 1,
            },
            {
                "boot": FIRST, "address": "there", "version": "1.1", "me": False, "leaving": False, "silent_ms": 250,
                "queues": 2, "able": 1,
            },
        ],
        "refused": [
            {"boot": LAST, "address": "elsewhere", "why": "its cluster has another name, on the same subjects"}
        ],
        "deferred": [{"queue": QUEUE, "acts_in_ms": 2000}],
    }  # fmt: skip
    text = metrics.render().decode()
    for name, value in (("members", 2), ("alone", 0), ("refused", 1), ("deferred", 1)):
        assert f"\nqueuebell_cluster_{name} {value}.0" in text
    rig.hear(Member(boot=FIRST, seq=2, version="1.1", address="there", cluster="shop", leaving=True))
    members = standing.cluster(rig.bell, rig.turns, rig.now).members
    assert [(each.leaving, each.silent_ms) for each in members] == [(False, 0), (True, 0)]
