"""The store that bills each call."""

from __future__ import annotations

from bench.cost.store import Store


def test_every_call_is_counted() -> None:
    """One put and one delete for each message, one receive whatever it brings."""
    store = Store(30.0)
    assert store.receive(0.0, 32) == []
    assert store.put(1.0, 3) == 0
    assert store.receive(1.0, 2) == [0, 1]
    assert store.receive(1.0, 2) == [2]
    assert store.receive(1.0, 2) == []
    assert [store.delete(2.0, message) for message in (0, 1, 2)] == [True, True, True]
    assert store.receive(3.0, 1) == []
    assert (store.puts, store.hits, store.misses, store.deletes) == (3, 2, 3, 3)
    assert store.misses_at_rest == 2, "the second of the three came while messages were leased"
    assert store.at_rest


def test_a_lease_that_ends_gives_its_message_back() -> None:
    """To the moment, behind what was visible already, and a late delete changes nothing."""
    store = Store(30.0)
    store.put(0.0, 2)
    assert store.receive(1.0, 1) == [0]
    assert store.next_visible() == 31.0
    assert store.receive(30.0, 1) == [1]
    store.rose = False
    assert store.receive(30.999, 1) == []
    assert store.receive(31.0, 1) == [0]
    assert store.rose
    assert store.visible_at[0] == 31.0
    assert store.delete(60.0, 1) is False
    assert store.delete(60.5, 0) is True
    assert (store.visible, store.leased) == (1, 0)


def test_the_next_lease_to_end_is_one_that_stands() -> None:
    """What was deleted meanwhile is nobody's next."""
    store = Store(30.0)
    store.put(0.0, 2)
    store.receive(1.0, 1)
    store.receive(2.0, 1)
    store.delete(3.0, 0)
    assert store.next_visible() == 32.0
    store.delete(3.0, 1)
    assert store.next_visible() is None
