"""What the bridge is told of our room, and what it need not be told."""

from __future__ import annotations

from listeners.core.rumour import Rumour


def test_more_is_said_once_and_again_only_when_asked() -> None:
    """It stands until `room` or `started` has been said."""
    rumour = Rumour(4)
    assert rumour.more(again=False)
    assert not rumour.more(again=False)
    assert rumour.more(again=True)
    rumour.started()
    assert rumour.more(again=False)
    assert rumour.barred


def test_room_is_said_after_more_and_where_the_count_is_wrong() -> None:
    """A foreign queue's bridge needs no exact count, an own queue's does (O7)."""
    rumour = Rumour(4)
    assert not rumour.room(3, exact=False)
    assert rumour.room(3, exact=True)
    assert not rumour.room(3, exact=True)
    rumour.carried(2)
    assert rumour.free == 1
    assert rumour.room(3, exact=True)
    rumour.more(again=False)
    assert not rumour.room(0, exact=True)
    assert rumour.room(1, exact=False)
    assert not rumour.barred


def test_a_heartbeat_counts_as_either() -> None:
    """S2: levels heal: room in a heartbeat ends a bar, and none keeps it."""
    rumour = Rumour(4)
    rumour.more(again=False)
    rumour.beaten(0)
    assert rumour.barred
    rumour.beaten(2)
    assert not rumour.barred
    rumour.greeted(4)
    assert rumour.free == 4
