"""The trace of a message on every store: in its headers where they are carried, by its trigger where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuebell.bridge import Bridge, Publisher, PublishingQueue, open_store
from tests.conformance.test_workers import Place, azure_endpoint, emulator, stores
from tests.services.test_traces import QUEUE, Work, listening, until
from tests.support.spans import links, parent, said, span_id, spans, traceparent


@stores()
async def test_the_handler_runs_in_the_trace_of_the_put(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put, publish, wake, receive, handle and delete: parents and links are alike wherever the queue is."""
    with spans() as made:
        work = Work(made)
        async with place(tmp_path, monkeypatch) as url:
            async with Bridge() as bridge, open_store(url) as store, Publisher(bridge) as publisher:
                async with listening(url, work.do, bridge=bridge, on_queue_empty=work.idle.set):
                    await until(work.idle)
                    await PublishingQueue(store, publisher).put(QUEUE, ["one"])
                    await until(work.done)
    send, process = made.one(f"send {QUEUE}"), made.one(f"process {QUEUE}")
    carried = place not in (azure_endpoint, emulator)
    assert work.seen[0].headers.get("traceparent") == (traceparent(send) if carried else None)
    assert (parent(process), links(process)) == (span_id(send), [traceparent(send)])
    assert [traceparent(send)] in [links(span) for span in made.of(f"route {QUEUE}")]
    found = [span for span in made.of(f"receive {QUEUE}") if said(span)["messaging.batch.message_count"] == 1]
    assert [links(span) for span in found] == [[traceparent(send)]]
    assert parent(made.of(f"settle {QUEUE}")[-1]) == span_id(send)
