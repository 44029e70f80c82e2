"""What is judged to be wrong with a bridge, and that each judgement says what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from queuebell.bridge.contract.jobs import Jobs, Spread
from queuebell.bridge.contract.wire import ListenerHeartbeat, Processes, QueueBeat, Running
from queuebell.bridge.observe.slices import at_once
from queuebell.bridge.queues.checked import similar_names
from queuebell.bridge.service.state import check, explain
from queuebell.bridge.service.state.answers import (
    Cluster,
    ClusterMember,
    Explained,
    Findings,
    ListenerState,
    QueueState,
    Readiness,
    Subject,
    Subscribed,
)
from queuebell.bridge.service.state.check import Problem
from queuebell.bridge.service.state.status import findings, queues
from queuebell.bridge.service.state.trouble import Troubles
from tests.support.bells import QUEUE, Rig

QUEUES = ["billing/orders", "billing/orders-poison", "shop/cart", "shop/parts-p1", "shop/parts-p2"]


WELL: dict[str, Any] = {"ready": True, "checks": {"store": {"ok": True, "detail": "writable"}}}


def judge(readiness: object, findings: object, queues: list[Any]) -> list[Problem]:
    """Judge what a bridge answered, as it came."""
    return check.judge(
        msgspec.convert(readiness, Readiness),
        msgspec.convert(findings, Findings),
        msgspec.convert(queues, list[QueueState]),
    )


@pytest.mark.parametrize(
    ("code", "readiness", "findings", "queues"),
    [
        ("not_ready", {"ready": False, "checks": {"nats": {"ok": False, "detail": "down"}}}, {}, []),
        ("not_ready", {"ready": False, "checks": {}}, {}, []),
        ("audit", WELL, {"audit_found": 2}, []),
        ("unattended", WELL, {"unattended": [{"queue": "a/b", "visible": 3, "detail": "nobody"}]}, []),
        ("stranded", WELL, {"unattended": [{"queue": "a/b", "visible": 3, "detail": "3", "stranded": True}]}, []),
        ("buried", WELL, {"buried": [{"queue": "a/b-poison", "visible": 3, "detail": "3 were"}]}, []),
        ("session", WELL, {"sessions": [{"listener": "w", "queue": None, "state": "silent", "detail": "silent"}]}, []),
        ("session", WELL, {"sessions": [{"listener": "w", "queue": "a/b", "state": "new", "detail": "odd"}]}, []),
        ("session", WELL, {"sessions": [{"listener": "w", "queue": "a/b", "state": "failing", "detail": "9 s"}]}, []),
        ("unattended", WELL, {"left_out": 4}, []),
        ("crowded", WELL, {"crowded": "100000 names are known"}, []),
        ("unasked", WELL, {}, [{"queue": "a/b", "wake_sources": {"trigger": 9, "sweep": 1}}]),
        ("unasked", WELL, {}, [{"queue": "a/b", "wake_sources": {"deadman": 1}}]),
    ],
)
def test_each_problem_has_a_code_a_subject_and_advice(
    code: str, readiness: dict[str, Any], findings: dict[str, Any], queues: list[dict[str, Any]]
) -> None:
    (problem,) = judge(readiness, findings, queues)
    assert problem.code == code
    assert problem.subject and problem.what and problem.advice


def problem_of(findings: dict[str, Any]) -> Problem:
    (problem,) = judge(WELL, findings, [])
    return problem


def test_every_subject_can_be_looked_for() -> None:
    (unready,) = judge({"ready": False}, {}, [])
    assert unready.subject == "bridge"
    audit = problem_of({"audit_found": 3})
    assert audit.subject == "embedded queues" and "3 times" in audit.what
    left_out = problem_of({"left_out": 4})
    assert left_out.subject == "others" and left_out.what.startswith("4 ")
    elsewhere = problem_of({"buried": [{"queue": "a/b-poison", "detail": "some"}]})
    assert (elsewhere.subject, elsewhere.what) == ("a/b-poison", "some")
    older = problem_of({"unattended": [{"queue": "a/b-poison", "detail": "nobody", "visible": 2}]})
    assert (older.code, older.what) == ("buried", "nobody"), "a bridge of an older version says so in one list"
    told = check.untold("/v1/findings", 500)
    assert (told.code, told.subject) == ("untold", "/v1/findings") and "500" in told.what
    assert told.advice.startswith("try again")


@pytest.mark.parametrize(
    ("alone", "versions", "found"),
    [
        (True, ["1"], ["alone: it receives no messages from other bridges"]),
        (False, ["1"], ["alone: it receives no messages from other bridges"]),
        (
            True,
            ["1", "1"],
            ["unheard: it receives other bridges' messages but not its own"],
        ),
        (False, ["1", "1", "1"], []),
        (False, ["1", "2", ""], ["versions: it includes bridges of other versions: unknown, 2"]),
    ],
)
def test_a_cluster_of_one_and_one_of_several_versions(alone: bool, versions: list[str], found: list[str]) -> None:
    """Both go on without loss; somebody should know."""
    members = [
        ClusterMember(
            boot=f"{number:032x}", address=None, version=version, me=not number, leaving=False, silent_ms=0, queues=0,
            able=0,
        )
        for number, version in enumerate(versions)
    ]  # fmt: skip
    problems = check.in_turns(Cluster(name="shop", alone=alone, members=members))
    assert [f"{each.code}: {each.what}".partition(", so the others")[0] for each in problems] == found
    assert all(each.subject == "cluster shop" and "nothing is lost" in each.advice for each in problems)
    assert check.in_turns(Cluster()) == []


def explained(rig: Rig, **more: Any) -> Explained:
    found = explain.explain(rig.scheduler, QUEUE, rig.now, **{"draining": False, **more})
    assert found is not None
    return found


def as_read(rig: Rig, **more: Any) -> dict[str, Any]:
    """As it is read over HTTP."""
    return dict(msgspec.to_builtins(explained(rig, **more)))


def why(explained: dict[str, Any]) -> dict[str, str]:
    return {row["listener"]: row["why"] for row in explained["sessions"]}


def named(rig: Rig, number: int) -> str:
    session = rig.scheduler.sessions.get(number)
    return session.listener


def ready(rig: Rig, count: int, **options: Any) -> list[int]:
    """Have sessions come whose queue is clean."""
    numbers = [rig.join(**options) for _ in range(count)]
    if not options.get("own"):
        rig.settle_hello(numbers[0])
    return numbers


def foretold(rig: Rig, numbers: list[int], size: int = 1) -> None:
    """Compare what is explained with whom the next trigger wakes."""
    expected = {row["listener"] for row in as_read(rig)["sessions"] if row["gets"]}
    for number in numbers:
        rig.wakes(number)
    rig.trigger(size=size)
    assert {named(rig, number) for number in numbers if rig.wakes(number)} == expected


def test_each_reason_for_not_being_asked() -> None:
    """Capacity 0, full, stuck and deaf, each with its words; the one with room is woken."""
    rig = Rig()
    zero, full, stuck, deaf, able = numbers = [rig.join(capacity=0), *(rig.join() for _ in range(4))]
    rig.settle_hello(full)
    rig.room(full, 0)
    for number, reason in ((stuck, "stuck"), (deaf, "deaf")):
        seat = rig.work().sessions.get(number)
        setattr(seat, {"deaf": "unresponsive"}.get(reason, reason), True)
        rig.work().sessions.refresh(seat)
    found = as_read(rig)
    assert why(found) == {
        named(rig, able): "woken",
        named(rig, zero): "capacity_0",
        named(rig, full): "full",
        named(rig, stuck): "stuck",
        named(rig, deaf): "deaf",
    }
    assert found["sessions"][0]["gets"]
    assert len({row["detail"] for row in found["sessions"]}) == 5
    foretold(rig, numbers)
    work = rig.work()
    work.numbers = msgspec.structs.replace(work.numbers, wake="all")
    assert as_read(rig)["outcome"] == "joins"


def test_own_queues_are_explained_by_the_put() -> None:
    """With nothing visible a trigger adds nothing, and the next put goes to the first that takes messages."""
    rig = Rig()
    rig.level(0)
    plain, carrying = rig.join(own=True), rig.join(own=True, accept=True)
    found = as_read(rig)
    assert (found["asked"], found["outcome"], found["trigger_adds"]) == ("put", "wakes", False)
    assert "a trigger without a put does nothing: no message is visible" in found["summary"]
    assert [row["listener"] for row in found["sessions"] if row["gets"]] == [named(rig, carrying)]
    granted = rig.scheduler.embedded.grant(rig.now, QUEUE, 1)
    assert granted[0] == carrying
    rig.trigger()
    assert rig.wakes(plain) == rig.wakes(carrying) == []
    rig.level(1, rose=True, put=1)
    assert as_read(rig)["outcome"] == "told"


def test_a_paused_queue_and_a_stopping_bridge() -> None:
    """Both wake nobody, for reasons of their own."""
    rig = Rig()
    rig.level(0)
    rig.work().paused = True
    assert as_read(rig)["outcome"] == "paused"  # without a worker, too
    rig.join(own=True)
    assert as_read(rig)["outcome"] == "paused"
    found = as_read(rig, draining=True)
    assert (found["outcome"], found["trigger_adds"]) == ("draining", False)
    assert set(why(found).values()) == {"draining"}


HERE = [Subscribed(queue=QUEUE)]
SUBSCRIBERS = [
    ListenerState(listener="event stream", channel="sse", queues=HERE),
    ListenerState(listener="other", channel="sse", queues=[Subscribed(queue="billing/other")]),
    ListenerState(listener="https://a:443", channel="webhook", queues=HERE, state="failing", detail="x"),
    ListenerState(listener="https://b:443", channel="webhook", queues=HERE, state="disabled"),
]
SUBJECTS = [Subject("nats", "nats", "queuebell", True), Subject("mqtt", "mqtt", "site7", False)]


def test_plain_subscribers_hear_what_wakes() -> None:
    """Streams and webhooks of this queue, and the subjects of each bus."""
    rig = Rig()
    ready(rig, 1)
    rows = explain.plain(explained(rig), SUBSCRIBERS, SUBJECTS).subscribers
    assert [(row.listener, row.hears) for row in rows] == [
        ("event stream", True),
        ("https://a:443", True),
        ("https://b:443", False),
        ("nats", True),
        ("mqtt", False),
    ]
    assert rows[1].detail == "failing: x"
    assert [row.topic for row in rows[3:]] == ["queuebell.wake.billing.orders", "site7/wake/billing/orders"]


def test_who_cannot_reach_its_store_is_not_said_to_be_full() -> None:
    """Its slots are free; that its receives fail is why it gets nothing, or what to know if it does."""
    rig = Rig()
    (number,) = ready(rig, 1)
    rig.beat(number, free=0, failing_ms=3000)
    (row,) = as_read(rig)["sessions"]
    assert (row["why"], row["failing_s"]) == ("failing", 3.0)
    assert row["detail"] == "its receives fail; it is woken again once one succeeds (for 3 s)"
    rig.beat(number, free=4, failing_ms=8000)
    (row,) = as_read(rig)["sessions"]
    assert row["why"] == "woken" and row["detail"].endswith("; its receives have failed for 8 s")
    rig.beat(number, free=0)
    (row,) = as_read(rig)["sessions"]
    assert (row["why"], row["failing_s"]) == ("full", None)


def said(rig: Rig) -> str | None:
    """Return what is said of the queue."""
    work = rig.scheduler.pending.by_queue[QUEUE]
    return Troubles.at(rig.scheduler, work, rig.now).of(work)


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
        (601, None, "has been handling message m7 for 10 min: does it hang?"),
        (
            61,
            took(5, 20),
            "has been handling message m7 for 61 s, although nearly all others take at most 0.1 s: does it hang?",
        ),
        (61, took(5, 19), None),
        (59, took(5, 20), None),
        (
            120,
            took(5, 20),
            "has been handling message m7 for 2 min, although nearly all others take at most 0.1 s: does it hang?",
        ),
        (299, took(12, 50), None),
        (
            301,
            took(12, 50),
            "has been handling message m7 for 5 min, although nearly all others take at most 30 s: does it hang?",
        ),
        (86_400, took(16, 50), None),
    ],
)
def test_long_is_what_is_long_for_its_queue(ran_s: float, jobs: dict[str, Jobs] | None, words: str | None) -> None:
    """By what nearly all messages take, once enough of them were handled; some jobs take hours."""
    rig = Rig()
    number = rig.join()
    work = rig.scheduler.pending.by_queue[QUEUE]
    rig.scheduler.pending.settle(work)
    work.jobs = jobs
    at_work(rig, number, ran_s)
    told = said(rig)
    assert (told is None) == (words is None)
    assert words is None or str(told).endswith(words)


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
    assert said(rig) == "no free slot: listener 1 has been handling message m7 of a/slow for 61 s: does it hang?"
    (seat,) = rig.scheduler.pending.by_queue[QUEUE].sessions
    seat.in_flight = {"handle": 1}
    assert said(rig) is None


def test_a_worker_that_the_bridge_rejects_is_trouble() -> None:
    """Beside others that work, and with them gone; until it is accepted, or has not tried for ninety seconds."""
    rig = Rig()
    worker = rig.join(store="aa11")
    rig.cover(worker, rig.scheduler.pending.by_queue[QUEUE].gen)
    assert said(rig) is None
    rig.join(store="bb22", instance="5" * 32)
    rejected = (
        "the bridge rejected listener 2 once, last 0 s ago: another worker of billing/orders uses a different store"
    )
    assert said(rig) == rejected
    explained = explain.explain(rig.scheduler, QUEUE, rig.now, draining=False)
    assert explained is not None and [each.detail for each in explained.rejected] == [rejected]
    told = at_once(findings(rig.scheduler, rig.now, stalled=(), notices_suspend=True))
    assert [(each.queue, each.code, each.count) for each in told.rejected] == [(QUEUE, "store_mismatch", 1)]
    assert [[each.rejected for each in part] for part in queues(rig.scheduler, rig.now, ())] == [[1]]
    rig.lose(worker)
    rig.trigger()
    assert str(said(rig)).startswith("no worker is connected") and str(said(rig)).endswith(rejected)
    rig.join(store="bb22", instance="5" * 32)
    assert said(rig) is None
    assert [[each.rejected for each in part] for part in queues(rig.scheduler, rig.now, ())] == [[0]]


def test_what_stops_a_queue_comes_before_what_slows_it() -> None:
    """Receives that fail, no progress, deafness, silence, workers that do not start; and last a missing publish."""
    rig = Rig()
    number = rig.join()
    work = rig.scheduler.pending.by_queue[QUEUE]
    rig.scheduler.pending.settle(work)
    (seat,) = work.sessions
    work.unannounced, work.unannounced_at = 1, rig.now
    assert "work without a trigger was found once" in str(said(rig))
    seat.processes = Processes(failure="no such file")
    assert said(rig) == "its workers fail to start, or exit unexpectedly: no such file"
    session = rig.scheduler.sessions.get(number)
    assert session is not None
    session.last_heard = rig.now - 1000
    assert str(said(rig)).endswith("has been silent for 1000 s")
    seat.unresponsive = True
    assert said(rig) == "a worker did not accept the messages sent to it"
    seat.stuck = True
    assert said(rig) == "a worker reported a start but made no progress since"
    seat.failing_since = rig.now - 5
    assert said(rig) == "the receives of its only worker have failed for 5 s"
    rig.lose(number)
    rig.trigger()
    assert str(said(rig)).startswith("no worker is connected")


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("billling/*", "did you mean billing/*?"),
        ("biling/orders", "did you mean billing/orders?"),
        ("billing/oders", "did you mean billing/orders"),
        ("shop/carts", "did you mean shop/cart?"),
        ("shop/part:2", "shop/parts-p1"),
        ("*", ""),
        ("billing/*", ""),
        ("billing/orders", ""),
        ("shop/parts:2", ""),
        ("warehouse/*", ""),
        ("billing/refunds", ""),
    ],
)
def test_a_pattern_that_covers_nothing_is_warned_of(pattern: str, meant: str) -> None:
    """With the names that may be meant; one that is like no other is for queues to come (S37)."""
    found = check.doubtful_grants({"worker": {"take": ["shop/*", pattern]}}, QUEUES, similar_names)
    assert bool(found) == bool(meant)
    for each in found:
        assert (each.code, each.subject) == ("grant", "worker")
        assert each.what.startswith(f"take={pattern} matches no queue") and meant in each.what
        assert "queuebell key change worker" in each.advice
    assert check.doubtful_grants({"worker": {"take": [pattern]}}, [], similar_names) == []


@pytest.mark.parametrize(
    ("theirs", "asked", "told", "said"),
    [
        (7200.0, 3600.0, 3600.1, "3600 s ahead of the local clock"),
        (0.0, 3600.0, 3600.1, "3599 s behind the local clock"),
        (3631.0, 3600.0, 3600.0, "31 s ahead"),
        (3630.0, 3600.0, 3600.0, ""),
        (3569.0, 3600.0, 3600.0, ""),
        (3568.0, 3600.0, 3600.0, "31 s behind"),
        # The answer was slow: nobody can tell when within that time the bridge looked at its clock.
        (3600.0, 3600.0, 3700.0, ""),
        (3700.0, 3600.0, 3700.0, ""),
        (None, 3600.0, 3600.0, ""),
    ],
)
def test_clocks_that_differ_are_warned_of(theirs: float | None, asked: float, told: float, said: str) -> None:
    """Above half a minute, whichever way (S40)."""
    found = check.clocks_apart(theirs, asked, told)
    assert [each.code for each in found] == (["clock"] if said else [])
    assert all(said in each.what and "correct the wrong clock" in each.advice for each in found)


def test_a_bridge_that_is_well_has_no_problems() -> None:
    queue = {"queue": "a/b", "wake_sources": {"trigger": 5, "due": 2}}
    assert judge(WELL, {"unattended": [], "sessions": [], "audit_found": 0, "left_out": 0}, [queue]) == []
    assert judge(WELL, {}, []) == []


@pytest.mark.parametrize("hears", [False, True])
def test_puts_that_a_database_tells_of_and_nobody_hears(hears: bool) -> None:
    """A bridge that listens to no database cannot see the tables; the option that is missing is named."""
    checks = {"postgres": {"ok": True, "detail": "up"}, "postgres puts": {"ok": True, "detail": "they notify"}}
    readiness = {"ready": True, "checks": checks if hears else {}}
    (problem,) = judge(readiness, {}, [{"queue": "a/b", "wake_sources": {"sweep": 1}}])
    assert ("--postgres URL" in problem.advice) is not hears


def test_a_bus_that_is_not_required_and_down_is_still_a_problem() -> None:
    """A site may go on without it; a person wants to know."""
    readiness = {"ready": True, "checks": {"mqtt": {"ok": False, "detail": "down (not required)"}}}
    assert [problem.subject for problem in judge(readiness, {}, [])] == ["mqtt"]


@pytest.mark.parametrize("told", [{"exists": False}, {}])
def test_messages_buried_elsewhere_are_not_counted_and_the_commands_name_their_store(told: dict[str, bool]) -> None:
    """Their number is not known here, and without --store the commands would ask the wrong store."""
    (problem,) = judge(WELL, {"buried": [{"queue": "a/b-poison", "visible": 0, "detail": "some", **told}]}, [])
    assert problem.code == "buried"
    for command in ("replay --dry-run a/b-poison", "replay a/b-poison", "clear a/b-poison"):
        assert f"queuebell queue {command} --store URL" in problem.advice
    assert "--bridge" in problem.advice and "NATS and SQS" in problem.advice
    assert "queuebell queue forget a/b-poison" in problem.advice


def test_a_queue_that_only_a_gap_marked_is_no_fault() -> None:
    """Nothing is known to wait there, whatever its name."""
    rows = [{"queue": queue, "detail": "to be looked at", "after_gap": True} for queue in ("a/b", "a/b-poison")]
    assert judge(WELL, {"unattended": rows}, []) == []


def test_each_trouble_has_its_own_advice() -> None:
    """Not that for a state which nobody knows; who has no name is called a worker."""
    known = ["silent", "behind", "failing", "workers", "hung", "starved", "stuck", "deaf", "unreached", "disabled"]
    states = [*known, "new"]
    problems = judge(WELL, {"sessions": [{"state": each, "detail": "so and so"} for each in states]}, [])
    assert len({problem.advice for problem in problems}) == len(states)
    assert {problem.subject for problem in problems} == {"a worker"}


@pytest.mark.parametrize(("exists", "command"), [(True, "delete"), (False, "forget")])
def test_a_mistaken_name_can_be_got_rid_of(exists: bool, command: str) -> None:
    """The way depends on whether the queue stands here."""
    (problem,) = judge(WELL, {"unattended": [{"queue": "a/b", "detail": "nobody", "exists": exists}]}, [])
    assert f"queuebell queue {command} a/b" in problem.advice


def test_what_is_wrong_among_equal_bridges() -> None:
    """Who is gone, who holds queues of its own beside another that does, and who cannot hear of the others' work."""
    on = {"a": ["store", "nats"], "b": ["store", "mqtt-2"], "c": ["postgres", "postgres puts"]}
    assert check.among({}, {}, on) == check.among({}, {"a": "1"}, on) == []
    # Two addresses of one.
    assert check.among({}, {"a": "1", "b": "1"}, on) == []
    found = check.among({"d": "refused"}, {"a": "1", "b": "2"}, {**on, "e": ["store"]})
    assert [(each.code, each.subject) for each in found] == [("gone", "d"), ("apart", "a and b"), ("disconnected", "e")]
    assert found[0].what == "refused" and all(each.advice for each in found)


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
    assert "message m8 for 61 s, work waits, and no worker has room: does it hang?" in str(said(rig))
    rig.say(other, ListenerHeartbeat(8, {QUEUE: QueueBeat(free=0)}))
    assert said(rig) is None
