"""What listeners tell beside the levels: in frames that always fit, in turn, and at last before they leave."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from queuebell.bridge.contract.jobs import BOUNDS_S, CLASSES_MAX, OUTCOMES, Jobs
from queuebell.bridge.contract.wire import FRAME_BYTES_MAX, ListenerHeartbeat, QueueBeat, decode_up, encode_frame
from queuebell.listeners.session.session import FRAME_EXTRA_BYTES, LEASES_MAX, SUBSCRIPTION_BYTES, Session
from queuebell.listeners.work.counts import JobCounts
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import simulated

# Private: `_add_reports`: tested to the byte; a whole session would take hours.


def session_of(ports: dict[str, Any]) -> Session:
    """A session with these queues, over a channel that is not asked for."""
    return Session(
        FakeBridge(),
        "i" * 32,
        "label",
        ports,
        accepts=bool,
        welcomed=lambda boot: None,
        draw=lambda: 0.5,  # type: ignore[arg-type]
    )


class Port:
    """A queue whose handler has had every outcome, every class of failure and every duration there can be."""

    def __init__(self) -> None:
        self.counts = JobCounts("x" * 200)
        self.counts.greeted("b" * 32)
        for number in range(CLASSES_MAX):
            self.counts.failed(f"{number:0100}")
        for outcome in OUTCOMES:
            self.counts.concluded(outcome)
        for bound in (*BOUNDS_S, 1e9):
            self.counts.began(1, [bound])
            self.counts.ended(1, bound)

    def report_bytes(self) -> int:
        return self.counts.report_bytes() if self.counts.changed else 0

    def report(self, stamp: int, beat: QueueBeat) -> QueueBeat:
        return msgspec.structs.replace(beat, jobs=self.counts.report(stamp))


def names(size: int, most: int | None = None) -> list[str]:
    """As many queues of names of that size as a listener takes, or so many."""
    count = FRAME_BYTES_MAX // (2 * size + SUBSCRIPTION_BYTES) if most is None else most
    return [f"{'a' * (size // 2)}/{number:0{size - size // 2 - 1}}" for number in range(count)]


@pytest.mark.parametrize("queues", [names(7), names(127), names(8, 1000)], ids=["short", "long", "thousand"])
@simulated
async def test_whatever_there_is_to_tell_fits_its_frames_and_arrives(queues: list[str]) -> None:
    """No frame is larger than one may be, each queue has its turn while all go on working, and all is told once."""
    ports = {queue: Port() for queue in queues}
    session = session_of(ports)
    heard: dict[str, Jobs] = {}
    levels = (10**6, 10**6, None, 30) if len(queues) == 1000 else (10**10, 10**10, 10**6, 10**6)
    leases: list[int] = [] if len(queues) == 1000 else [604_800_000] * max(1, LEASES_MAX // len(queues))
    for stamp in range(len(queues)):
        frame = ListenerHeartbeat(
            stamp, {queue: QueueBeat(*levels) for queue in ports}, {q: leases for q in queues if leases}
        )
        assert session._add_reports(frame) >= 1
        raw = encode_frame(frame)
        assert len(raw) + FRAME_EXTRA_BYTES <= FRAME_BYTES_MAX
        assert decode_up(raw) == frame
        for queue, beat in frame.queues.items():
            if beat.jobs is not None:
                (heard[queue],) = beat.jobs.values()
                ports[queue].counts.echoed(stamp)
                ports[queue].counts.concluded("done")  # and so it owes again
        if len(heard) == len(queues):
            break
    assert len(heard) == len(queues)
    assert {jobs.outcomes["done"] for jobs in heard.values()} <= {1, 2}
