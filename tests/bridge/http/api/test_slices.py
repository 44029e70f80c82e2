"""What is asked about all queues is gathered in slices: no turn of the loop walks over all of them."""

from __future__ import annotations

import pytest

from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import Hello, Subscription
from bridge.http.page import feed
from bridge.observe.slices import SLICE, at_once, between_others, of, sliced
from tests.bridge.http.page.test_feed import watching
from tests.support.growth import Work, counted
from tests.support.web import Served, serving

PATHS = ["/metrics", "/v1/findings", "/v1/watch", "/v1/watch?sort=name&first=400", "/v1/watch/listeners"]


async def crowd(served: Served, names: int) -> None:
    """Have so many queues with work, and a tenth as many listeners."""
    bridge = served.bridge
    bridge.trigger([CloudQueueWorkDetected("many", f"q{number}") for number in range(names)], bus="local")
    for number in range(names // 10):
        link = await bridge.local_channel().connect()
        link.send(Hello(f"{number:032x}", "one", [Subscription(f"many/q{number}", 1)]))


async def work_of(path: str, names: int) -> Work:
    """Return what one answer took with so many queues."""
    async with serving() as served:
        await crowd(served, names)
        with counted() as work:
            if "watch" in path:
                async with watching(served, path) as view:
                    assert (await view.next())["found"] == (names // 10 if "listeners" in path else names)
            else:
                assert (await served.ask("GET", path)).status == 200
    return work


@pytest.mark.parametrize("path", PATHS)
async def test_no_turn_of_the_loop_walks_over_all_queues(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest turn is as long for 6,000 queues as for 3,000, and each queue costs the same."""
    monkeypatch.setattr(feed, "AT_ONCE_S", 0.0)
    monkeypatch.setattr("bridge.observe.metrics.QUEUE_LABELS_MAX", 50)
    few, many = [await work_of(path, names) for names in (3000, 6000)]
    assert many.longest < 1.2 * few.longest
    assert many.steps < 2.4 * few.steps


async def test_a_walk_lets_others_run_and_returns_what_it_found() -> None:
    """Slice by slice; one that takes no more than a slice ends at once."""
    assert [len(part) for part in sliced(range(2 * SLICE + 1))] == [SLICE, SLICE, 1]
    assert at_once(of(7)) == await between_others(of(8)) - 1 == 7
