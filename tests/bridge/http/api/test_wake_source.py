"""Why a client looks: the optional field of a receive, and where it is counted."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.contract.sources import WAKE_SOURCES
from bridge.queues.http import HttpStore
from tests.support.web import Served, serving

QUEUE = "/v1/queues/billing/orders"


async def test_receives_are_counted_by_what_they_say(served: Served) -> None:
    """Found and empty, by each word there is; who says nothing is unreported."""
    for source in WAKE_SOURCES:
        await served.call("messages", {"messages": [{"body": "x"}]})
        for _ in range(2):
            assert (await served.call("receive", {"max": 32, "wake_source": source})).status == 200
    await served.call("receive", {})
    value = served.bridge.metrics.registry.get_sample_value
    for source in WAKE_SOURCES:
        for result in ("found", "empty"):
            assert value("queuebell_receives_total", {"result": result, "wake_source": source}) == 1
    assert value("queuebell_receives_total", {"result": "empty", "wake_source": "unreported"}) == 1
    state = (await served.ask("GET", QUEUE)).json
    assert state["wake_sources"] == dict.fromkeys(WAKE_SOURCES, 1)
    assert state["receives"] == {"total": 17, "empty": 9}


@pytest.mark.parametrize("word", ["unreported", "", "Trigger", "x" * 1000, 7, True, ["trigger"]])
async def test_an_unknown_word_is_refused(word: Any, served: Served) -> None:
    """With its code, before the queue is looked for, and without a word of it in the answer."""
    reply = await served.call("receive", {"wake_source": word})
    assert (reply.status, reply.json["code"]) == (400, "bad_parameter")
    assert "xxx" not in reply.json["detail"]


async def test_the_http_store_passes_it_on() -> None:
    """A worker in another process is counted like one in this."""
    async with serving() as served, HttpStore(f"http://127.0.0.1:{served.server.port}") as store:
        await store.create("billing/orders")
        await store.receive("billing/orders", source="poll")
        value = served.bridge.metrics.registry.get_sample_value
        assert value("queuebell_receives_total", {"result": "empty", "wake_source": "poll"}) == 1
