"""Names of partitions, the written form, and which partition a key belongs to."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter

import pytest

from bridge.contract.errors import BadInput, BadQueueReference
from bridge.contract.names import poison_reference
from bridge.contract.partitioning import (
    NAME_MAX,
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
from bridge.queues.azure.account import VARIABLE
from bridge.queues.azure.address import AzureAddress
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "partitions.md"
KEYS = [f"customer-{number}" for number in range(20_000)]

_row = re.compile(r"^\| `(b?\"[^`]+\")` \| `([0-9a-f]{16})` \| (.+) \|$", re.MULTILINE)


def test_names() -> None:
    """Four partitions and one poison queue, as every store takes them."""
    orders = Partitions("billing/orders", 4)
    assert orders.references == tuple(f"billing/orders-p{number}" for number in range(4))
    assert orders.poison == "billing/orders-poison"
    assert str(orders) == "billing/orders:4"
    assert parse_partitions(str(orders)) == orders
    assert {logical_reference(queue) for queue in orders.references} == {"billing/orders"}


@pytest.mark.parametrize("count", [1, 10, 11, PARTITIONS_MAX])
def test_the_longest_name_fits_every_store(count: int) -> None:
    """The longest name that is taken has room for a partition's poison queue in 63; one more letter is refused."""
    length = NAME_MAX - len(f"-p{count - 1}-poison")
    whole = Partitions(f"billing/{'a' * length}", count)
    names = [name for queue in whole.references for name in (queue, poison_reference(queue))] + [whole.poison]
    azure = AzureAddress("azure:?account=billing", {VARIABLE: "UseDevelopmentStorage=true"})
    assert max(len(azure.name(name)) for name in names) == NAME_MAX
    with pytest.raises(BadQueueReference, match=f"3 to {length}"):
        Partitions(f"billing/{'a' * (length + 1)}", count)


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


@pytest.mark.parametrize(
    "text",
    [
        "sales/goods:", "sales/goods:0", "sales/goods:08", "sales/goods:+8", "sales/goods: 8",
        "sales/goods:8 ", "sales/goods:8\n", "sales/goods:8:8", "sales/goods:-8", "sales/goods:8.0",
        "sales/goods:101", "sales/goods:1000", "sales/goods:\u0668", "sales:8", "sales/goods*8",
        "sales/goods[8]", "sales/goods/8", ":8", "", "sales/Goods:8", "b/c/orders:8",
    ],
)  # fmt: skip
def test_near_misses_are_refused(text: str) -> None:
    """There is one written form, and what comes near it is no queue of another kind."""
    with pytest.raises(BadInput) as caught:
        parse_queue(text)
    assert not text or text not in str(caught.value), "nothing of the input is echoed"


@pytest.mark.parametrize("text", [None, 8, b"sales/goods:8", ("sales/goods", 8)])
def test_what_is_no_text_is_refused(text: object) -> None:
    """Neither a reference nor a partitioned queue."""
    with pytest.raises(BadQueueReference):
        parse_queue(text)
    with pytest.raises(BadQueueReference):
        parse_partitions(text)


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


def test_the_vectors_of_the_page() -> None:
    """Other languages are told by them: the page says what the code does, and what it always will."""
    head = re.search(r"^\| key \| SHA-256, first 8 bytes \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    counts = [int(cell) for cell in re.findall(r"n = (\d+)", head[1])]
    rows = _row.findall(PAGE.read_text("utf-8"))
    assert len(counts) == 6
    assert len(rows) == 8
    for key, _, cells in rows:
        given: str | bytes = ast.literal_eval(key)
        assert [partition(given, count) for count in counts] == [int(cell) for cell in cells.split(" | ")], key


def test_the_hash_is_fixed() -> None:
    """Figures of the published function, made by its C code: a change would lose the partition of every key."""
    given = [(0, 1), (0, 100), (1, 100), (0xDEAD10CC, 1), (0xDEAD10CC, 666), (256, 1024), (2**64 - 1, 100)]
    assert [jump(number, count) for number, count in given] == [0, 0, 55, 0, 361, 520, 92]


def test_the_hash_divides_as_the_paper_does() -> None:
    """Where the quotient is whole, one more or less below the line would be another bucket."""
    backwards = pow(2862933555777941757, -1, 1 << 64)
    for divisor, bucket in ((1 << 30, 0), ((1 << 30) + 1, 1)):
        number = ((divisor - 1 << 33) - 1) * backwards % (1 << 64)
        assert jump(number, 2) == bucket


def test_text_and_its_bytes_are_one_key() -> None:
    """A producer that has bytes and one that has text agree."""
    assert all(partition(key, 8) == partition(key.encode(), 8) for key in (*KEYS[:100], "é", "\u65e5"))


@pytest.mark.parametrize("key", ["", b"", None, 17, "\ud800", bytearray(b"x")])
def test_a_key_that_is_none_is_refused(key: object) -> None:
    """An id that is missing would bring all its work to one partition."""
    with pytest.raises(BadInput, match="key"):
        partition(key, 8)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [2, 3, 8, 16, 100])
def test_keys_spread_evenly(count: int) -> None:
    """Chi-square of 20,000 fixed keys: within what chance itself would give in 999 of 1,000 cases."""
    found = Counter(partition(key, count) for key in KEYS)
    expected = len(KEYS) / count
    chi_square = sum((found[number] - expected) ** 2 / expected for number in range(count))
    freedom = count - 1
    # Wilson and Hilferty's approximation of the quantile; 3.09 is that of the normal distribution.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert chi_square < limit


@pytest.mark.parametrize("count", [1, 2, 7, 8, 31, 99])
def test_growing_moves_only_the_needed_share_and_only_to_the_new_partition(count: int) -> None:
    """From n to n + 1 about one key in n + 1 moves, and none between old partitions."""
    moved = 0
    for key in KEYS:
        before, after = partition(key, count), partition(key, count + 1)
        assert after in (before, count)
        moved += before != after
    share = len(KEYS) / (count + 1)
    assert abs(moved - share) < 5 * share**0.5


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


@pytest.mark.parametrize(
    ("name", "logical"),
    [("a/x-p0", "a/x"), ("a/x-p9", "a/x"), ("a/x-p99", "a/x"), ("a/x-p0-p1", "a/x-p0"), ("a/x-p00", None)],
)
def test_a_partition_is_known_by_its_name(name: str, logical: str | None) -> None:
    """The last number counts."""
    assert logical_reference(name) == logical


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
