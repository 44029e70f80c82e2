"""What is said of a queue that was to be there: which names are near, and what when they cannot be had."""

from __future__ import annotations

import pytest

from bridge.contract.errors import StoreUnavailable
from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.missing import LISTED_MAX, missing, missing_from, near


@pytest.mark.parametrize(
    ("given", "names", "found"),
    [
        ("billing/order", ["billing/orders", "billing/invoices"], ["billing/orders"]),
        ("billing/odrers", ["billing/orders"], ["billing/orders"]),
        ("biling/orders", ["billing/orders", "other/x"], ["billing/orders"]),
        ("billing/orders", [], []),
        ("billing/orders", ["shop/parcels"], []),
        ("a/q0", ["a/q1", "a/q2", "a/q3", "a/q4"], []),
        ("a/queue-0", ["a/queue-1", "a/queue-2", "a/queue-3", "a/queue-4"], ["a/queue-4", "a/queue-3", "a/queue-2"]),
    ],
)
def test_near_names(given: str, names: list[str], found: list[str]) -> None:
    """At most three, the nearest first, and none that is another word; of short names one letter is a lot."""
    assert sorted(near(given, names)) == sorted(found)


def test_the_error_says_what_to_do() -> None:
    """With and without a name that may be meant."""
    plain = str(missing("a/q", []))
    assert plain == (
        "there is no queue a/q, and nothing was put. Make it (queuebell queue create), or let the put make it (without "
        "create=False, without --existing)"
    )
    assert "nothing was put. Did you mean a/orders or a/order? Make it" in str(
        missing("a/orderz", ["a/order", "a/orders"])
    ).replace("a/order or a/orders", "a/orders or a/order")
    assert missing("a/q", []).code == "queue_not_found"


class Listing(MemoryStore):
    """Remembers what is listed, and fails where it is told to."""

    def __init__(self) -> None:
        super().__init__("listing")
        self.asked: list[tuple[str, str, int]] = []
        self.away = False

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        self.asked.append((prefix, after, limit))
        if self.away:
            raise StoreUnavailable("away")
        return await super().queues(prefix, after, limit)


async def test_names_are_looked_for_in_the_account_and_then_everywhere() -> None:
    """Two listings at most; where they fail, the refusal stands all the same."""
    async with Listing() as store:
        await store.create("billing/orders")
        assert "billing/orders" in str(await missing_from(store, "billing/order"))
        assert store.asked == [("billing/", "", LISTED_MAX)]
        assert "billing/orders" in str(await missing_from(store, "biling/orders"))
        assert store.asked[1:] == [("biling/", "", LISTED_MAX), ("", "", LISTED_MAX)]
        store.away = True
        assert "Did you mean" not in str(await missing_from(store, "billing/order"))
        assert LISTED_MAX == 1000
