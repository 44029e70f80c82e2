"""The rows of a commit are written many at a time; what stands in the table is what each put was answered."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from bridge.queues.base import NewMessage
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.file import open_memory


@pytest.fixture
def one() -> Iterator[Engine]:
    """An engine in memory whose time stands still."""
    numbers = itertools.count(7)
    with contextlib.closing(open_memory()) as connection:
        yield Engine(
            connection, clock=lambda: 0.0, wall=lambda: 1_700_000_000.0, receipts=lambda: next(numbers), boot="b" * 32
        )


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6, 19, 20, 21, 99, 100, 101, 126, 137, 225, 300])
def test_rows_of_a_commit_are_all_there_in_order(one: Engine, count: int) -> None:
    """Whatever number of rows one commit has: one each, with its own body, delay, life, receipt and number."""
    messages = [
        NewMessage(b"%d" % number, 1000 * (number % 3), 60 if number % 7 == 0 else -1) for number in range(count)
    ]
    receipts = []
    for begun in range(0, count, 32):
        receipts += one.put("billing/orders", messages[begun : begun + 32], None)
    one.state.commit()
    rows = one.state.execute("SELECT seq, q, vis, exp, n, rcpt, ins, body FROM messages ORDER BY seq").fetchall()
    now = 1_700_000_000_000
    assert [(f"{row[0]:016x}", f"{row[5]:016x}", row[2] - now) for row in rows] == [
        (receipt.id, receipt.pop_receipt, receipt.visible_in_ms) for receipt in receipts
    ]
    assert [(row[7], row[2] - now, row[3]) for row in rows] == [
        (message.body, message.visible_after_ms, None if message.ttl_s < 0 else now + 60_000) for message in messages
    ]
    assert {(row[1], row[4], row[6]) for row in rows} == {(1, 0, now)}
    counted = one.depth("billing/orders")
    assert (counted.visible, counted.visible + counted.invisible) == (len(range(0, count, 3)), count)


def test_ids_go_on_over_the_places_where_more_digits_change(one: Engine) -> None:
    """The number of a message is told in sixteen digits, also where a batch crosses a multiple of 256."""
    told = []
    for size in itertools.cycle((32, 31, 1, 7)):
        told += [receipt.id for receipt in one.put("billing/orders", [NewMessage(b"")] * size, None)]
        if len(told) > 1200:
            break
    assert told == [f"{number:016x}" for number in range(1, len(told) + 1)]


def test_rows_of_a_commit_that_is_taken_back_are_not_written_later(one: Engine) -> None:
    """What waited for one statement goes with its commit."""
    one.put("billing/orders", [NewMessage(b"lost")] * 12, None)
    one.state.rollback()
    (receipt,) = one.put("billing/orders", [NewMessage(b"kept")], None)
    one.state.commit()
    rows = one.state.execute("SELECT seq, body FROM messages").fetchall()
    assert [(f"{seq:016x}", body) for seq, body in rows] == [(receipt.id, b"kept")]
