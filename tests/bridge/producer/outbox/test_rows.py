"""Messages as rows of an outbox, and rows as messages."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import (
    BadInput,
    BadQueueReference,
    Closed,
    ConfigurationError,
    NotPrepared,
    Overloaded,
    QueueNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from bridge.contract.partitioning import Partitions
from bridge.producer.outbox.rows import OutboxRow, by_queue, is_final, message_of, new_rows
from bridge.queues.base import NEVER, Body, NewMessage


def made(queue: str | Partitions, bodies: list[Body], draw: float = 0.5, **options: object) -> list[OutboxRow]:
    numbers = itertools.count(1)
    given = {"key": None, "visible_after_ms": 0, "ttl_s": NEVER, **options}
    return new_rows(queue, bodies, now_ms=1000, name=lambda: f"k{next(numbers)}", draw=lambda: draw, **given)  # type: ignore[arg-type]


def test_a_put_as_rows() -> None:
    """Each has a key of its own; options hold for bodies that are no `NewMessage`."""
    rows = made("a/q", ["x", b"y", NewMessage("z", 5, 7)], visible_after_ms=9, ttl_s=3)
    assert rows == [
        OutboxRow("k1", "a/q", b"x", 1000, 9, 3),
        OutboxRow("k2", "a/q", b"y", 1000, 9, 3),
        OutboxRow("k3", "a/q", b"z", 1000, 5, 7),
    ]
    assert by_queue([*rows[:2], OutboxRow("k4", "a/other", b"", 0), rows[2]]) == {
        "a/q": rows,
        "a/other": [OutboxRow("k4", "a/other", b"", 0)],
    }


@given(st.text(min_size=1).filter(lambda text: text.isascii()), st.integers(1, 100))
def test_a_key_chooses_the_partition_that_it_chooses_everywhere(key: str, count: int) -> None:
    """As for a put to the partitioned queue itself."""
    partitions = Partitions("billing/orders", count)
    for queue in (partitions, str(partitions)):
        assert [row.queue for row in made(queue, ["a", "b"], key=key)] == [partitions.of(key)] * 2


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 100))
def test_without_a_key_a_partition_is_drawn(draw: float, count: int) -> None:
    """One that exists, and the same for all of a put."""
    partitions = Partitions("billing/orders", count)
    first, second = made(partitions, ["a", "b"], draw)
    assert first.queue == second.queue and first.queue in partitions.references
    assert made(partitions, ["a"], 0.0)[0].queue == "billing/orders-p0"
    assert made(partitions, ["a"], 1 - 2**-53)[0].queue == f"billing/orders-p{count - 1}"


@pytest.mark.parametrize(
    ("queue", "bodies", "options", "code"),
    [
        ("a", ["x"], {}, "bad_queue_reference"),
        ("a/q:0", ["x"], {}, "bad_queue_reference"),
        ("a/q", [], {}, "bad_parameter"),
        ("a/q", "x", {}, "bad_parameter"),
        ("a/q", ["x"] * 10_001, {}, "too_many_items"),
        ("a/q", ["x" * 65_537], {}, "message_too_large"),
        ("a/q", ["x"], {"visible_after_ms": 604_800_001}, "bad_parameter"),
        ("a/q", ["x"], {"ttl_s": 0}, "bad_parameter"),
        ("a/q", ["x"], {"key": "k"}, "bad_parameter"),
        ("a/queue:2", ["x"], {"key": ""}, "bad_parameter"),
    ],
)
def test_what_no_store_takes_is_refused(queue: str, bodies: list[Body], options: dict[str, object], code: str) -> None:
    """Before it is written."""
    with pytest.raises(BadInput) as failure:
        made(queue, bodies, **options)
    assert failure.value.code == code
    assert "key" not in options or str(failure.value).startswith("key: ")
    assert len(made("a/q", ["x"] * 10_000)) == 10_000


@given(st.integers(0, 10**15), st.integers(0, 604_800_000), st.integers(-(10**10), 10**10))
def test_what_is_left_of_a_delay(written: int, delay: int, later: int) -> None:
    """Never more than was asked, also where a clock went back; nothing once it is over; to the millisecond between."""
    left = message_of(OutboxRow("k", "a/q", b"x", written, delay, 7), written + later)
    assert left == NewMessage(b"x", left.visible_after_ms, 7)
    assert 0 <= left.visible_after_ms <= delay
    if 0 <= later <= delay:
        assert left.visible_after_ms == delay - later


def test_a_row_of_this_very_moment_waits_for_its_whole_delay() -> None:
    """Not a millisecond less, as one that was written a millisecond ago does."""
    row = OutboxRow("k", "a/q", b"x", 1000, 50, 7)
    assert [message_of(row, now).visible_after_ms for now in (999, 1000, 1001)] == [50, 50, 49]


@pytest.mark.parametrize(
    "headers", ["", "{", '{"a": 1}', '["a"]', "null", '{"a": "b", "A": "c"}', '{"nats-x": "y"}', "\ud800"]
)
def test_damaged_headers_refuse_the_row(headers: str) -> None:
    """A message never goes out with fewer headers than it was written with."""
    with pytest.raises(BadInput, match="the row is damaged: its headers"):
        message_of(OutboxRow("k", "a/q", b"x", 0, headers=headers), 0)
    assert message_of(OutboxRow("k", "a/q", b"x", 0, headers='{"a": "b"}'), 0).headers == {"a": "b"}


@pytest.mark.parametrize("damage", [{"body": "x"}, {"body": None}, {"written_ms": "x"}, {"ttl_s": 1.5}, {"headers": 5}])
def test_a_row_with_a_value_of_another_kind_is_refused(damage: dict[str, object]) -> None:
    """SQLite keeps any kind in any column: it is the row's fault for good, and no error that may pass."""
    with pytest.raises(BadInput, match="the row is damaged"):
        message_of(msgspec.structs.replace(OutboxRow("k", "a/q", b"x", 0), **damage), 0)


def test_what_is_refused_for_good() -> None:
    """What the caller did wrong, and what the store cannot do; never what may pass, nor what is wrong with us."""
    for final in (BadInput("x", "y"), BadQueueReference("x"), Unsupported("x")):
        assert is_final(final)
    passing = (
        StoreUnavailable, UnknownOutcome, Overloaded, StoreFull, StoreError, QueueNotFound, Closed, ConfigurationError,
        NotPrepared, RuntimeError, TimeoutError,
    )  # fmt: skip
    for error in passing:
        assert not is_final(error("x"))
