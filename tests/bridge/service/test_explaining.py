"""Who would get a trigger now, and why another would not: what is explained is what then happens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import ListenerHeartbeat, Processes, QueueBeat
from bridge.service import explaining
from bridge.service.state import Explained, ListenerState, Subject, Subscribed
from tests.support.bells import QUEUE, Rig
from tests.support.member import MemberRig


def explained(rig: Rig, **more: Any) -> Explained:
    found = explaining.explain(rig.bell, QUEUE, rig.now, **{"draining": False, **more})
    assert found is not None
    return found


def explain(rig: Rig, **more: Any) -> dict[str, Any]:
    """As it is read over HTTP."""
    return dict(msgspec.to_builtins(explained(rig, **more)))


def why(explained: dict[str, Any]) -> dict[str, str]:
    return {row["listener"]: row["why"] for row in explained["sessions"]}


def named(rig: Rig, number: int) -> str:
    session = rig.bell.sessions.get(number)
    return session.listener


def ready(rig: Rig, count: int, **options: Any) -> list[int]:
    """Have sessions come whose queue is clean."""
    numbers = [rig.join(**options) for _ in range(count)]
    if not options.get("own"):
        rig.settle_hello(numbers[0])
    return numbers


def foretold(rig: Rig, numbers: list[int], size: int = 1) -> None:
    """Compare what is explained with whom the next trigger wakes."""
    expected = {row["listener"] for row in explain(rig)["sessions"] if row["gets"]}
    for number in numbers:
        rig.wakes(number)
    rig.trigger(size=size)
    assert {named(rig, number) for number in numbers if rig.wakes(number)} == expected


def test_a_queue_never_heard_of_is_not_explained() -> None:
    """None, as for its state."""
    assert explaining.explain(Rig().bell, QUEUE, 0.0, draining=False) is None


def test_nobody_listens() -> None:
    """A trigger is kept for whoever comes."""
    rig = Rig()
    rig.trigger()
    found = explain(rig)
    assert (found["outcome"], found["sessions"], found["trigger_adds"]) == ("no_session", [], True)
    assert "nobody listens" in found["summary"]


def test_nobody_listens_here_and_somebody_at_another_bridge_of_the_cluster() -> None:
    """C3: who asks a bridge without listeners is told where they are, until they go."""
    rig = MemberRig()
    rig.trigger_all()
    assert explain(rig)["summary"].startswith("nobody listens; ")
    rig.peer()
    found = explain(rig)
    assert found["outcome"] == "no_session"
    assert found["summary"].startswith("nobody listens at this bridge; a trigger now is looked for by listeners at ")
    rig.able(room=None)
    assert explain(rig)["summary"].startswith("nobody listens; ")


def test_the_least_recently_used_with_room_is_woken() -> None:
    """And the others are told that it comes before them; asking changes nothing."""
    rig = Rig()
    numbers = ready(rig, 3)
    before = rig.debt().gen
    found = explain(rig)
    assert (found["outcome"], found["asked"]) == ("wakes", "trigger")
    assert found["summary"] == "a trigger now wakes 1 of 3 sessions"
    assert [row["why"] for row in found["sessions"]] == ["woken", "later", "later"]
    assert found == explain(rig)
    assert rig.debt().gen == before
    foretold(rig, numbers)


def test_who_took_it_on_hears_of_more() -> None:
    """While owned, a trigger goes to the owner alone."""
    rig = Rig()
    numbers = ready(rig, 3)
    foretold(rig, numbers)
    found = explain(rig)
    assert found["outcome"] == "joins"
    assert [row["why"] for row in found["sessions"]] == ["owner", "owned", "owned"]
    foretold(rig, numbers)


def test_each_reason_for_not_being_asked() -> None:
    """Capacity 0, full, stuck and deaf, each with its words; the one with room is woken."""
    rig = Rig()
    zero, full, stuck, deaf, able = numbers = [rig.join(capacity=0), *(rig.join() for _ in range(4))]
    rig.settle_hello(full)
    rig.room(full, 0)
    for number, reason in ((stuck, "stuck"), (deaf, "deaf")):
        seat = rig.debt().seats.get(number)
        setattr(seat, reason, True)
        rig.debt().seats.refresh(seat)
    found = explain(rig)
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


def test_a_scaler_is_told_of_in_its_own_words() -> None:
    """Asked where no worker has room; while it starts some it hears of more; with how its workers stand."""
    rig = Rig()
    scaler = rig.join(kind="scaler")
    rig.settle_hello(scaler)
    assert why(explain(rig)) == {named(rig, scaler): "woken"}
    foretold(rig, [scaler])
    rig.more(scaler)
    (row,) = explain(rig)["sessions"]
    assert (row["why"], row["processes"]) == ("full", None)
    told = Processes(2, 0, 2, held="starting")
    rig.say(scaler, ListenerHeartbeat(1, {QUEUE: QueueBeat(free=0, processes=told)}))
    worker = rig.join()
    found = explain(rig)
    assert why(found) == {named(rig, worker): "owner", named(rig, scaler): "hears"}
    assert found["sessions"][1]["processes"]["held"] == "starting"
    assert "processes" not in found["sessions"][0]
    foretold(rig, [scaler, worker])


def test_where_all_are_woken_a_scaler_is_not() -> None:
    """As the rules have it: those that receive come first."""
    rig = Rig(wake="all")
    worker, scaler = rig.join(), rig.join(kind="scaler")
    for number in (worker, scaler):
        rig.settle_hello(number)
    assert why(explain(rig)) == {named(rig, worker): "woken", named(rig, scaler): "later"}
    foretold(rig, [worker, scaler])
    assert why(explain(rig)) == {named(rig, worker): "owner", named(rig, scaler): "owned"}


def test_no_room_anywhere() -> None:
    """The debt waits for the first `room`."""
    rig = Rig()
    (number,) = ready(rig, 1)
    rig.more(number)
    assert explain(rig)["outcome"] == "waits"
    foretold(rig, [number])
    assert explain(rig)["outcome"] == "waits"


def test_a_size_that_needs_several() -> None:
    """What waits already counts: as many are woken as its size asks for."""
    rig = Rig()
    numbers = ready(rig, 3, capacity=1)
    for number in numbers:
        rig.more(number)
    rig.trigger(size=1)
    for number in numbers[:2]:
        seat = rig.debt().seats.get(number)
        seat.full, seat.free = False, 1
        rig.debt().seats.refresh(seat)
    found = explain(rig)
    assert [row["why"] for row in found["sessions"]] == ["woken", "woken", "full"]
    foretold(rig, numbers)


def test_wake_all() -> None:
    """Where the bridge is set to wake all, all with room are named."""
    rig = Rig(wake="all")
    numbers = ready(rig, 2)
    assert [row["gets"] for row in explain(rig)["sessions"]] == [True, True]
    foretold(rig, numbers)
    assert [row["gets"] for row in explain(rig)["sessions"]] == [True, True]
    foretold(rig, numbers)


def test_own_queues_are_explained_by_the_put() -> None:
    """With nothing visible a trigger adds nothing, and the next put goes to the first that takes messages."""
    rig = Rig()
    rig.level(0)
    plain, carrying = rig.join(own=True), rig.join(own=True, accept=True)
    found = explain(rig)
    assert (found["asked"], found["outcome"], found["trigger_adds"]) == ("put", "wakes", False)
    assert "a trigger that is no put adds nothing: nothing is visible" in found["summary"]
    assert [row["listener"] for row in found["sessions"] if row["gets"]] == [named(rig, carrying)]
    granted = rig.bell.own.grant(rig.now, QUEUE, 1)
    assert granted[0] == carrying
    rig.trigger()
    assert rig.wakes(plain) == rig.wakes(carrying) == []
    rig.level(1, rose=True, put=1)
    assert explain(rig)["outcome"] == "told"


def test_a_paused_queue_and_a_stopping_bridge() -> None:
    """Both wake nobody, for reasons of their own."""
    rig = Rig()
    rig.level(0)
    rig.join(own=True)
    rig.debt().paused = True
    assert explain(rig)["outcome"] == "paused"
    found = explain(rig, draining=True)
    assert (found["outcome"], found["trigger_adds"]) == ("draining", False)
    assert set(why(found).values()) == {"draining"}


def test_a_connection_that_is_behind() -> None:
    """Its wake merges until it takes more, and that is said."""
    rig = Rig()
    (number,) = ready(rig, 1)
    (row,) = explain(rig, stalled={number})["sessions"]
    assert row["gets"]
    assert row["delayed"]
    assert "takes nothing just now" in row["detail"]


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
    rows = explaining.plain(explained(rig), SUBSCRIBERS, SUBJECTS).subscribers
    assert [(row.listener, row.hears) for row in rows] == [
        ("event stream", True),
        ("https://a:443", True),
        ("https://b:443", False),
        ("nats", True),
        ("mqtt", False),
    ]
    assert rows[1].detail == "failing: x"
    assert [row.topic for row in rows[3:]] == ["queuebell.wake.billing.orders", "site7/wake/billing/orders"]


@pytest.mark.parametrize("visible", [0, 3])
def test_plain_subscribers_hear_a_put_that_wakes_nobody(visible: int) -> None:
    """As announced by the rules: a put on top of visible work is news to whoever has no session."""
    rig = Rig()
    rig.bell.dispatch.announcing = True
    rig.level(0)
    rig.join(own=True)
    if visible:
        rig.level(visible, rose=True, put=visible)
    hears = explaining.plain(explained(rig), SUBSCRIBERS[:1], []).subscribers
    rig.announced.clear()
    rig.level(visible + 1, rose=not visible, put=1)
    assert [row.hears for row in hears] == [bool(rig.announced)] == [True]


def test_a_trigger_of_an_event_is_what_is_explained() -> None:
    """The explanation holds for any bus."""
    rig = Rig()
    numbers = ready(rig, 2)
    expected = [row["listener"] for row in explain(rig)["sessions"] if row["gets"]]
    rig.bell.trigger(rig.now, CloudQueueWorkDetected("billing", "orders"), "mqtt")
    rig.drive()
    assert [named(rig, number) for number in numbers if rig.wakes(number)] == expected


def test_who_cannot_reach_its_store_is_not_said_to_be_full() -> None:
    """Its slots are free; that its receives fail is why it gets nothing, or what to know if it does."""
    rig = Rig()
    (number,) = ready(rig, 1)
    rig.beat(number, free=0, failing_ms=3000)
    (row,) = explain(rig)["sessions"]
    assert (row["why"], row["failing_s"]) == ("failing", 3.0)
    assert row["detail"] == "its receives fail; it is asked again when one was answered (for 3 s)"
    rig.beat(number, free=4, failing_ms=8000)
    (row,) = explain(rig)["sessions"]
    assert row["why"] == "woken" and row["detail"].endswith("; its receives have failed for 8 s")
    rig.beat(number, free=0)
    (row,) = explain(rig)["sessions"]
    assert (row["why"], row["failing_s"]) == ("full", None)
