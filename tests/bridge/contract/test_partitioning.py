"""Names of partitions, the written form, and which partition a key belongs to."""

from __future__ import annotations

import pytest

from queuebell.bridge.contract.errors import BadInput, BadQueueReference
from queuebell.bridge.contract.partitioning import (
    PARTITIONS_MAX,
    Partitions,
    expand,
    logical_reference,
    partition,
)


@pytest.mark.parametrize("name", ["Orders", "or_ders", "or--ders", "orders-", "ab", "orders-poison", "", "a/b"])
def test_a_name_that_some_store_refuses_is_refused_at_once(name: str) -> None:
    with pytest.raises(BadQueueReference):
        Partitions(f"billing/{name}", 4)


@pytest.mark.parametrize("count", [0, -1, PARTITIONS_MAX + 1, True, 4.0, "4", None])
def test_a_number_of_partitions_out_of_range_is_refused(count: object) -> None:
    with pytest.raises(BadInput, match="from 1 to 100"):
        Partitions("billing/orders", count)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["a/orders", "a/orders-p", "a/orders-p01", "a/orders-p100", "a/orders-px", "a/orders-poison", "a/p0"]
)
def test_what_is_no_partition_by_its_name(name: str) -> None:
    assert logical_reference(name) is None


@pytest.mark.parametrize("key", ["", b"", None, 17, "\ud800", bytearray(b"x")])
def test_a_key_that_is_none_is_refused(key: object) -> None:
    """An id that is missing would bring all its work to one partition."""
    with pytest.raises(BadInput, match="key"):
        partition(key, 8)  # type: ignore[arg-type]


def test_refusals_of_expand_have_their_code() -> None:
    """A mistake of the caller's, the same for one that comes twice and for none."""
    for queues in ([], ["a/b", "a/b"]):
        with pytest.raises(BadInput) as refusal:
            expand(queues)
        assert refusal.value.code == "bad_parameter"
        assert str(refusal.value) == "queue: at least one reference, and no duplicates"
    with pytest.raises(BadInput) as refusal:
        partition("", 3)
    assert refusal.value.code == "bad_parameter"
