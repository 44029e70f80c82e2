"""What the bridge is told of our room, and what it need not be told."""

from __future__ import annotations

from listeners.core.advertised_room import AdvertisedRoom


def test_before_any_frame_the_bridge_counts_the_capacity() -> None:
    """That is what a hello tells: no bar, and nothing to correct."""
    advertised_room = AdvertisedRoom(4)
    assert (advertised_room.free, advertised_room.barred) == (4, False)
    assert not advertised_room.room(4, exact=True)
    assert AdvertisedRoom(4).barred is False


def test_more_is_said_once_and_again_only_when_asked() -> None:
    """It stands until `room` or `started` has been said."""
    advertised_room = AdvertisedRoom(4)
    assert advertised_room.more(again=False)
    assert not advertised_room.more(again=False)
    assert advertised_room.more(again=True)
    advertised_room.started()
    assert advertised_room.more(again=False)
    assert advertised_room.barred


def test_room_is_said_after_more_and_where_the_count_is_wrong() -> None:
    """A foreign queue's bridge needs no exact count, an own queue's does (O7)."""
    advertised_room = AdvertisedRoom(4)
    assert not advertised_room.room(3, exact=False)
    assert advertised_room.room(3, exact=True)
    assert not advertised_room.room(3, exact=True)
    advertised_room.carried(2)
    assert advertised_room.free == 1
    assert advertised_room.room(3, exact=True)
    advertised_room.more(again=False)
    assert not advertised_room.room(0, exact=True)
    assert advertised_room.room(1, exact=False)
    assert not advertised_room.barred


def test_a_heartbeat_counts_as_either() -> None:
    """S2: levels heal: room in a heartbeat ends a bar, and none keeps it."""
    advertised_room = AdvertisedRoom(4)
    advertised_room.more(again=False)
    advertised_room.beaten(0)
    assert advertised_room.barred
    advertised_room.beaten(1)
    assert (advertised_room.barred, advertised_room.free) == (False, 1)
    advertised_room.greeted(4)
    assert advertised_room.free == 4


def test_an_exact_count_is_told_again_after_a_look() -> None:
    """O7: the bridge stops handing out messages at `started`, until `room` or a heartbeat counts anew."""
    advertised_room = AdvertisedRoom(4)
    advertised_room.started()
    assert advertised_room.room(4, exact=True)
    advertised_room.started()
    advertised_room.beaten(4)
    assert not advertised_room.room(4, exact=True)
    advertised_room.started()
    advertised_room.greeted(4)
    assert not advertised_room.room(4, exact=True)


def test_more_says_that_there_is_no_slot() -> None:
    """And what was carried beyond the count leaves none, not fewer."""
    advertised_room = AdvertisedRoom(4)
    advertised_room.more(again=False)
    assert advertised_room.free == 0
    advertised_room.greeted(2)
    advertised_room.carried(3)
    assert advertised_room.free == 0


def test_a_room_ends_what_more_said() -> None:
    """So that the next `more` is news."""
    advertised_room = AdvertisedRoom(4)
    assert advertised_room.more(again=False)
    assert advertised_room.room(2, exact=False)
    assert (advertised_room.free, advertised_room.barred) == (2, False)
    assert not advertised_room.room(2, exact=False)
    assert advertised_room.more(again=False)
    advertised_room.greeted(4)
    assert not advertised_room.barred
    assert advertised_room.more(again=False)
