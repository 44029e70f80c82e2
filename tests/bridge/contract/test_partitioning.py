"""Names of partitions, the written form, and which partition a key belongs to."""

from __future__ import annotations

import hashlib

import pytest

from bridge.contract.errors import BadInput, BadQueueReference
from bridge.contract.partitioning import (
    PARTITIONS_MAX,
    Partitions,
    expand,
    jump,
    logical_reference,
    parse_partitions,
    parse_physical,
    parse_queue,
    partition,
)

KEYS = [f"customer-{number}" for number in range(20_000)]


def test_names() -> None:
    """Four partitions and one poison queue, as every store takes them."""
    orders = Partitions("billing/orders", 4)
    assert orders.references == tuple(f"billing/orders-p{number}" for number in range(4))
    assert orders.poison == "billing/orders-poison"
    assert str(orders) == "billing/orders:4"
    assert parse_partitions(str(orders)) == orders
    assert {logical_reference(queue) for queue in orders.references} == {"billing/orders"}


@pytest.mark.parametrize("name", ["Orders", "or_ders", "or--ders", "orders-", "ab", "orders-poison", "", "a/b"])
def test_a_name_that_some_store_refuses_is_refused_at_once(name: str) -> None:
    """Not at the first burial, at night."""
    with pytest.raises(BadQueueReference):
        Partitions(f"billing/{name}", 4)


@pytest.mark.parametrize("count", [0, -1, PARTITIONS_MAX + 1, True, 4.0, "4", None])
def test_a_number_of_partitions_out_of_range_is_refused(count: object) -> None:
    """One to a hundred, a whole number."""
    with pytest.raises(BadInput, match="from 1 to 100"):
        Partitions("billing/orders", count)  # type: ignore[arg-type]


def test_expand() -> None:
    """References and partitioned queues side by side, in order; none twice, and none at all is a mistake."""
    whole = Partitions("sales/goods", 2)
    assert expand(["a/b", "sales/goods:2"]) == {
        "a/b": None,
        "sales/goods-p0": whole,
        "sales/goods-p1": whole,
    }
    assert list(expand([whole])) == list(whole.references)
    for twice in (["a/b", "a/b"], [whole, "sales/goods-p1"], ["sales/goods:2", "sales/goods:3"], []):
        with pytest.raises(BadInput, match="none twice"):
            expand(twice)


@pytest.mark.parametrize(
    "name", ["a/orders", "a/orders-p", "a/orders-p01", "a/orders-p100", "a/orders-px", "a/orders-poison", "a/p0"]
)
def test_what_is_no_partition_by_its_name(name: str) -> None:
    """Only -p and a number as it is written."""
    assert logical_reference(name) is None


@pytest.mark.parametrize("key", ["", b"", None, 17, "\ud800", bytearray(b"x")])
def test_a_key_that_is_none_is_refused(key: object) -> None:
    """An id that is missing would bring all its work to one partition."""
    with pytest.raises(BadInput, match="key"):
        partition(key, 8)  # type: ignore[arg-type]


def test_the_most_partitions_and_the_shortest_name() -> None:
    """Three letters, one to a hundred partitions; a digit may begin, and single hyphens stand within."""
    assert Partitions("a/abc", 1).references == ("a/abc-p0",)
    assert Partitions("a/0-1-2", 100).references[99] == "a/0-1-2-p99"
    assert parse_partitions("a/abc:100") == Partitions("a/abc", 100)
    assert parse_partitions("a/abc:1") == Partitions("a/abc", 1)
    for name in ("a--b", "ab-", "aBc", "ab"):
        with pytest.raises(BadQueueReference, match="2 partitions is 3 to 53 ") as refused:
            Partitions(f"a/{name}", 2)
        assert refused.value.__notes__ == [f"given: 'a/{name}'"]
    for text in ("a/abc", "a/abc:1:2", "a/abc:0", None):
        with pytest.raises(BadQueueReference, match=r"^a partitioned queue is 'account/queue:count' with"):
            parse_partitions(text)
    with pytest.raises(BadQueueReference, match=r"^an address stands where the name of a queue belongs") as swapped:
        parse_queue("http://me:hush@127.0.0.1:8470")
    assert swapped.value.__notes__ == ["given: '127.0.0.1:8470'"]
    with pytest.raises(BadQueueReference, match="not partitioned"):
        Partitions("a/orders-poison", 2)
    with pytest.raises(BadInput, match=r"number is from 1 to 100$") as refusal:
        Partitions("a/abc", 101)
    assert refusal.value.code == "bad_parameter"


def test_one_queue_is_asked_for_by_a_partition() -> None:
    """Where a partitioned queue cannot be meant, the error names what can."""
    whole = Partitions("a/abc", 3)
    assert parse_physical("a/abc") == "a/abc"
    for given in (whole, "a/abc:3"):
        with pytest.raises(BadQueueReference, match=r"name a partition, as in a/abc-p0$"):
            parse_physical(given)
        assert parse_queue(given) == whole


def test_a_key_is_put_to_its_partition() -> None:
    """By the bytes of its SHA-256, the highest first."""
    whole = Partitions("a/abc", 7)
    for key in KEYS[:50]:
        number = jump(int(hashlib.sha256(key.encode()).hexdigest()[:16], 16), 7)
        assert partition(key, 7) == number
        assert whole.of(key) == whole.of(key.encode()) == f"a/abc-p{number}"


def test_refusals_of_expand_have_their_code() -> None:
    """A mistake of the caller's, the same for one that comes twice and for none."""
    for queues in ([], ["a/b", "a/b"]):
        with pytest.raises(BadInput) as refusal:
            expand(queues)
        assert refusal.value.code == "bad_parameter"
        assert str(refusal.value) == "queue: at least one reference, and none twice"
    with pytest.raises(BadInput) as refusal:
        partition("", 3)
    assert refusal.value.code == "bad_parameter"
