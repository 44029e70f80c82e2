"""The open-loop client charges the server with all of its time, also with that in which nothing could be sent."""

from __future__ import annotations

import time
from typing import cast

from bench.openloop import Schedule, Wire


class Sent:
    """Stands for a connection: what it was given to send, and when that was due."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, float]] = []

    def ask(self, request: bytes, due: float) -> None:
        """Take a request."""
        self.asked.append((request, due))


def schedule(count: int, wires: list[Sent]) -> Schedule:
    """Return a run of ten requests a second that began at 100."""
    made = Schedule([b"<", b">"], 5, 10.0, count)
    made.begun = 100.0
    made.free.extend(cast(Wire, wire) for wire in wires)
    return made


async def test_requests_keep_the_time_at_which_they_were_due() -> None:
    """A request that no connection was free for is sent late, and its wait counts from its own time."""
    first, second = Sent(), Sent()
    run = schedule(4, [first, second])
    assert run.send_due(100.0)
    assert run.send_due(100.35)
    assert [wire.asked for wire in (first, second)] == [
        [(b"<0000000000000005>", 100.0)],
        [(b"<0000000000000006>", 100.1)],
    ]
    run.free.append(cast(Wire, first))
    assert run.send_due(101.0)
    run.free.append(cast(Wire, second))
    assert not run.send_due(101.0)
    assert [first.asked[1], second.asked[1]] == [(b"<0000000000000007>", 100.2), (b"<0000000000000008>", 100.3)]


async def test_answers_are_counted_by_status_until_all_are_there() -> None:
    """Latency is from when the request was due; the run ends with the last answer and not before."""
    run = schedule(2, [Sent()])
    run.answer(b"201", time.monotonic() - 2.0, False)
    assert not run.done.is_set()
    run.answer(b"429", time.monotonic(), True)
    assert run.done.is_set()
    assert (len(run.latencies[b"201"]), len(run.latencies[b"429"]), run.begged) == (1, 1, 1)
    assert run.latencies[b"201"][0] >= 2.0
    run.fail(b"closed afterwards")
    assert run.wrong is None
