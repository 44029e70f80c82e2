"""The store elsewhere: what a queue promises, how vague it can be told to be, and what of that is the truth."""

from __future__ import annotations

import random

import pytest

from bridge.contract.errors import BadInput, QueueNotFound
from bridge.queue import Capabilities, Claim, Depth, Extend, NewMessage, Release, Settlement
from bridge.queues.sqlite_engine import Engine
from bridge.queues.sqlite_file import open_memory
from listeners.simulation.backlog import Backlog, Moved

Q = "a/q"


def filled(*delays_ms: int, capabilities: Capabilities | None = None) -> Backlog:
    """A store with one message for each delay, put at 10 s."""
    backlog = Backlog(capabilities)
    backlog.put(10.0, Q, [NewMessage(b"%d" % number, delay) for number, delay in enumerate(delays_ms)])
    return backlog


def bodies(backlog: Backlog, now: float, limit: int = 32, visibility_s: float = 30.0) -> list[bytes]:
    return [message.body for message in backlog.receive(now, Q, limit, visibility_s).messages]


def test_longest_visible_comes_first() -> None:
    """What became visible earlier is taken earlier, whatever the order of the puts."""
    backlog = filled(2000, 1000, 0)
    assert bodies(backlog, 13.0) == [b"2", b"1", b"0"]


def test_a_delay_and_a_lease_end_to_the_millisecond() -> None:
    """Nothing is visible before its time, and everything at it."""
    backlog = filled(1000)
    assert bodies(backlog, 10.999) == []
    assert backlog.next_change(10.999) == 11.0
    assert bodies(backlog, 11.0, visibility_s=2.5) == [b"0"]
    assert bodies(backlog, 13.499) == []
    assert bodies(backlog, 13.5) == [b"0"]


def test_a_receive_counts_attempts_and_changes_the_receipt() -> None:
    """An older receipt settles nothing any more."""
    backlog = filled(0)
    first = backlog.receive(10.0, Q, 1, 1.0).messages[0]
    second = backlog.receive(12.0, Q, 1, 1.0).messages[0]
    assert (first.dequeue_count, second.dequeue_count) == (1, 2)
    late = backlog.settle(12.0, Q, Settlement(delete=[Claim(first.id, first.pop_receipt)]))
    assert late.delete[0].code == "pop_receipt_mismatch"
    assert backlog.settle(12.0, Q, Settlement(delete=[Claim(second.id, second.pop_receipt)])).delete[0].ok
    gone = backlog.settle(12.0, Q, Settlement(delete=[Claim(second.id, second.pop_receipt)]))
    assert gone.delete[0].code == "message_not_found"
    assert backlog.depth(12.0, Q) == Depth(0, 0)


def test_release_and_extend_move_the_visibility() -> None:
    """A release makes visible at once or later, an extension later, each under a new receipt."""
    backlog = filled(0, 0)
    one, two = backlog.receive(10.0, Q, 2, 5.0).messages
    answer = backlog.settle(
        11.0,
        Q,
        Settlement(release=[Release(one.id, one.pop_receipt)], extend=[Extend(two.id, two.pop_receipt, 20.0, b"new")]),
    )
    assert answer.release[0].ok and answer.extend[0].pop_receipt != two.pop_receipt
    assert bodies(backlog, 11.0, visibility_s=100.0) == [b"0"]
    assert bodies(backlog, 30.9) == []
    assert bodies(backlog, 31.0) == [b"new"]


def test_what_expired_is_never_visible() -> None:
    """A time to live ends also what would become visible in the same moment."""
    backlog = Backlog()
    backlog.put(0.0, Q, [NewMessage(b"x", 1000, 1), NewMessage(b"y", 0, 5)])
    assert backlog.next_change(0.0) == 1.0
    assert bodies(backlog, 1.0) == [b"y"]
    assert backlog.total(Q) == 1
    backlog.advance(5.0)
    assert backlog.total(Q) == 0
    assert backlog.next_change(5.0) is None


def test_an_unknown_queue_and_bad_arguments_are_refused() -> None:
    """As every store refuses them."""
    backlog = Backlog()
    for call in (lambda: backlog.receive(0.0, Q), lambda: backlog.peek(0.0, Q), lambda: backlog.clear(0.0, Q)):
        with pytest.raises(QueueNotFound):
            call()
    assert backlog.depth(0.0, Q) is None
    with pytest.raises(BadInput):
        backlog.receive(0.0, Q, 33)
    with pytest.raises(BadInput):
        backlog.put(0.0, Q, [])


def test_peek_takes_nothing_and_clear_takes_all() -> None:
    """A look shows what is visible; clearing removes leased messages too."""
    backlog = filled(0, 5000)
    assert [message.body for message in backlog.peek(10.0, Q)] == [b"0"]
    assert bodies(backlog, 10.0) == [b"0"]
    backlog.clear(10.0, Q)
    assert backlog.total(Q) == 0 and bodies(backlog, 100.0) == []


def test_an_approximate_store_counts_what_is_leased() -> None:
    """Its depth tells nothing apart, and it keeps the next due time to itself."""
    backlog = filled(0, capabilities=Capabilities(exact_depth=False, next_visible=False))
    assert bodies(backlog, 10.0) == [b"0"]
    answer = backlog.receive(10.0, Q)
    assert answer.messages == [] and answer.depth == Depth(1, 0) and answer.next_visible_in_ms is None


def test_a_blind_receive_finds_nothing_and_changes_nothing() -> None:
    """A false empty is drawn only where there is something to miss."""
    draws = iter([0.4, 0.6])
    backlog = Backlog(draw=lambda: next(draws))
    backlog.false_empty = 0.5
    backlog.put(0.0, Q, [NewMessage(b"x")])
    blind = backlog.receive(0.0, Q)
    assert blind.messages == [] and blind.depth is None and backlog.visible(Q) == 1
    assert bodies(backlog, 0.0) == [b"x"]
    assert bodies(backlog, 0.0) == []  # a third draw would fail


def test_a_coarse_store_is_late_and_never_early() -> None:
    """Due times round up to its tick."""
    backlog = filled(300, capabilities=Capabilities(resolution_ms=1000))
    assert bodies(backlog, 10.999) == []
    assert bodies(backlog, 11.0) == [b"0"]


def test_the_truth_is_told_at_the_time_it_became_true() -> None:
    """Levels that changed between two calls are told with their own times."""
    backlog = filled(1000, 2000)
    backlog.advance(20.0)
    assert backlog.take_moves() == [Moved(11.0, Q, 1), Moved(12.0, Q, 2)]
    assert bodies(backlog, 20.0) == [b"0", b"1"]
    assert backlog.take_moves() == [Moved(20.0, Q, 0)]
    assert backlog.take_moves() == []


def test_time_that_goes_back_stands_still() -> None:
    """A call with an older time sees what the newest saw."""
    backlog = filled(1000)
    backlog.advance(11.0)
    assert bodies(backlog, 5.0) == [b"0"]


def test_renewed_leases_do_not_pile_up() -> None:
    """A lease renewed ten thousand times costs no more memory than one."""
    backlog = filled(0)
    message = backlog.receive(10.0, Q, 1, 1000.0).messages[0]
    receipt = message.pop_receipt
    for number in range(10_000):
        extend = Settlement(extend=[Extend(message.id, receipt, 1000.0 + number)])
        receipt = backlog.settle(10.0, Q, extend).extend[0].pop_receipt or ""
    assert len(backlog._queues[Q].waiting) < 200


@pytest.mark.parametrize("seed", range(20))
def test_it_does_what_the_own_queue_does(seed: int) -> None:
    """Both stores give the same messages, counts and due times in a long random story."""
    chance = random.Random(seed)
    now = [0.0]
    numbers = iter(range(10**6))
    engine = Engine(
        open_memory(), clock=lambda: now[0], wall=lambda: 0.0, receipts=lambda: next(numbers), boot="b" * 32
    )
    backlog = Backlog()
    held: list[tuple[tuple[str, str], tuple[str, str]]] = []
    for number in range(300):
        now[0] += chance.choice((0.0, 0.001, 0.5, 3.0))
        engine.tick()
        what = chance.random()
        if what < 0.35 or not number:
            new = [NewMessage(b"%d" % number, chance.choice((0, 0, 700, 2500)), chance.choice((-1, -1, 4)))]
            engine.put(Q, new, None)
            backlog.put(now[0], Q, new)
        elif what < 0.7:
            limit, lease = chance.randint(1, 3), chance.choice((1, 4))
            theirs, ours = engine.receive(Q, limit, lease * 1000), backlog.receive(now[0], Q, limit, lease)
            assert [m.body for m in theirs.messages] == [m.body for m in ours.messages]
            assert theirs.depth == ours.depth
            assert theirs.next_visible_in_ms == ours.next_visible_in_ms
            held += [
                ((a.id, a.pop_receipt), (b.id, b.pop_receipt))
                for a, b in zip(theirs.messages, ours.messages, strict=True)
            ]
        elif held:
            theirs_held, ours_held = held.pop(chance.randrange(len(held)))
            kind = chance.choice(("delete", "release", "extend"))
            item = {"delete": Claim, "release": Release, "extend": lambda *a: Extend(*a, 2)}[kind]
            theirs_said = engine.settle(Q, Settlement(**{kind: [item(*theirs_held)]}))
            ours_said = backlog.settle(now[0], Q, Settlement(**{kind: [item(*ours_held)]}))
            assert [r.code for r in getattr(theirs_said, kind)] == [r.code for r in getattr(ours_said, kind)]
        engine.commit()
    engine.connection.close()
