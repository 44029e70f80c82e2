"""What a wake machine says and hears, frame by frame."""

from __future__ import annotations

import pytest

from bridge.contract.backoff import RandomExponential
from bridge.contract.wire import (
    BridgeHeartbeat,
    Cover,
    CoverAge,
    More,
    QueueBeat,
    Room,
    Seen,
    Started,
    Subscription,
    UpFrame,
    Welcome,
    WelcomedQueue,
)
from listeners.core.commands import (
    Command,
    SendCover,
    SendMore,
    SendRoom,
    SendStarted,
    StartReceive,
    TellEmpty,
    TellWork,
)
from listeners.core.controller import Controller
from listeners.core.frames import beat_of, covers, frame_of, subscription_of
from listeners.core.scaling import DepthScaling
from tests.listeners.core.world import BOOT

QUEUE = "billing/orders"


def machine(capacity: int = 4, *, own: bool = False) -> Controller:
    """Return a machine with batches of 4 that has met no bridge."""
    pauses = RandomExponential(1.0, 30.0, 1.0)
    return Controller(
        capacity, 4, scaling=DepthScaling(4, 1, 8), polls=pauses, retries=pauses, draw=lambda: 0.5, own=own
    )


@pytest.mark.parametrize(
    ("command", "frame"),
    [
        (SendStarted(BOOT, 7), Started(QUEUE, BOOT, 7)),
        (SendCover(BOOT, 7, 0.0124, None), Cover(QUEUE, BOOT, 7, 12, None)),
        (SendCover(BOOT, 7, 2.0, 9.0005), Cover(QUEUE, BOOT, 7, 2000, 9000)),
        (SendCover(BOOT, 7, -0.5, -2.0), Cover(QUEUE, BOOT, 7, 0, -2000)),
        (SendMore(3), More(QUEUE, 3, unannounced=False)),
        (SendMore(None, unannounced=True), More(QUEUE, None, unannounced=True)),
        (SendRoom(2, 7), Room(QUEUE, 2, 7)),
        (StartReceive(1, 4, "trigger"), None),
        (TellEmpty(), None),
        (TellWork("trigger"), None),
    ],
)
def test_a_command_is_said_in_one_frame_or_not_at_all(command: Command, frame: UpFrame | None) -> None:
    """Each word has its frame, seconds become milliseconds, and no age is negative."""
    assert frame_of(command, QUEUE, own=False) == frame


def test_a_cover_says_whether_the_queue_is_the_bridges_own() -> None:
    """O4: the bridge weighs covers of its own queues otherwise."""
    told = SendCover(BOOT, 7, 1.0, None)
    assert [frame_of(told, QUEUE, own=own) for own in (True, False)] == [
        Cover(QUEUE, BOOT, 7, 1000, None, own=True),
        Cover(QUEUE, BOOT, 7, 1000, None, own=False),
    ]


def test_a_heartbeat_tells_the_levels_and_since_when_receives_fail() -> None:
    """S2: generations learned and covered, the age of the receive under way, free slots, and the failure's age."""
    controller = machine()
    controller.welcomed(1.0, BOOT, 4)
    assert beat_of(controller, 1.5) == QueueBeat(4, 0, None, 4)
    controller.wake(2.0, BOOT, 5, "trigger")
    controller.received(2.1, 1, 1, visible=0)
    controller.wake(2.2, BOOT, 6, "trigger")
    assert beat_of(controller, 2.25) == QueueBeat(6, 5, 50, controller.available)
    assert beat_of(controller, 3.0, 2.5) == QueueBeat(6, 5, 800, controller.available, failing_ms=500)
    # A clock read a moment earlier than what it is compared with makes no negative age.
    assert beat_of(controller, 2.0, 2.5) == QueueBeat(6, 5, 0, controller.available, failing_ms=0)


def test_a_hello_tells_what_was_seen_and_room_only_of_the_busy() -> None:
    """A first hello names the queue; a later one also the newest generation, and the free slots where some are not."""
    controller = machine(own=True)
    assert subscription_of(controller, QUEUE, 4, 30.0) == Subscription(QUEUE, 4, 30_000, None, True, None, None)
    controller.welcomed(1.0, BOOT, 5)
    controller.room(1.0, 3)
    assert subscription_of(controller, QUEUE, 4, 0.0001, store="abc") == Subscription(
        QUEUE, 4, 1, "abc", True, Seen(BOOT, 5), None
    )
    assert subscription_of(machine(), QUEUE, 4, 1.2345, busy=True) == Subscription(QUEUE, 4, 1234, None, False, None, 4)
    controller.room(1.0, 0)
    assert subscription_of(controller, QUEUE, 4, 30.0, busy=True).free == 0
    controller.room(1.0, -2)
    assert subscription_of(controller, QUEUE, 4, 30.0, busy=True).free == 0


def test_covers_of_others_are_dated_by_when_the_question_left() -> None:
    """L10: the age is taken from the moment at which the listener spoke; what nobody covered is absent."""
    heartbeat = BridgeHeartbeat(BOOT, 1, 0, 2, {QUEUE: CoverAge(5, 1500), "a/none": CoverAge(1, None)})
    assert covers(heartbeat, 10.0) == {QUEUE: 8.5}
    welcome = Welcome(
        BOOT,
        1000,
        60_000,
        2,
        [
            WelcomedQueue(QUEUE, 5, True, 250),
            WelcomedQueue("a/none", 5, True, None),
            WelcomedQueue("a/now", 5, True, 0),
        ],
    )
    assert covers(welcome, 10.0) == {QUEUE: 9.75, "a/now": 10.0}
