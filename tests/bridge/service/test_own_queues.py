"""What the own store tells reaches sessions with the numbers of the queue it is about."""

from __future__ import annotations

import pytest

from bridge.contract.wire import Hello, Subscription, Wake
from bridge.core.settings import Periods, QueueRule
from bridge.queues.base import NewMessage
from bridge.service.bridge import Bridge, BridgeSettings
from tests.support.ear import Ear
from tests.support.sim_loop import pass_time, simulated


@pytest.mark.parametrize(("queue", "lease_ms"), [("billing/orders", 2000), ("billing/slow", 500)])
@simulated
async def test_carried_messages_say_the_lease_that_their_queue_gives(queue: str, lease_ms: int) -> None:
    """O7: leased for A only, and A is the queue's own; in the frame as in the store."""
    periods = Periods(rules=(QueueRule(match="*/slow", start_ack_s=0.5),))
    ear = Ear()
    async with Bridge(settings=BridgeSettings(periods=periods)) as bridge:
        session = bridge.connect(ear)
        session.feed(Hello("1" * 32, "one", [Subscription(queue, 4, own=True)], ["messages"]))
        await bridge.store.put(queue, [NewMessage(b"x")])
        await pass_time(0.01)
        (wake,) = [frame for frame in ear.said if isinstance(frame, Wake)]
        assert wake.messages is not None
        assert [message.visible_in_ms for message in wake.messages] == [lease_ms]
