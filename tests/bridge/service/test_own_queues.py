"""What the own store tells reaches sessions with the numbers of the queue it is about."""

from __future__ import annotations

import pytest

from bridge.contract.headers import HEADERS_BYTES_MAX
from bridge.contract.times import from_rfc3339
from bridge.contract.wire import FRAME_BYTES_MAX, Hello, Subscription, Wake, encode_frame
from bridge.core.settings import Periods, QueueRule
from bridge.queues.base import Claim, NewMessage, Settlement
from bridge.service.bridge import Bridge, BridgeSettings
from tests.conformance.headers import HOSTILE, LARGEST
from tests.support.ear import Ear
from tests.support.sim_loop import pass_time, simulated

QUEUE = "billing/orders"


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


@pytest.mark.parametrize(
    ("body", "least", "most"),
    [(b"\0" * 1500, 2, 6), (b"x" * 1500, 20, 32), ("é" * 750, 15, 32), (b"\xff" * 1500, 15, 24), (b"\n" * 100, 32, 32)],
)
@simulated
async def test_a_wake_carries_what_fits_a_frame(body: bytes, least: int, most: int) -> None:
    """Few messages where JSON makes six bytes of one, and not fewer where it does not."""
    ear = Ear()
    async with Bridge() as bridge:
        session = bridge.connect(ear)
        session.feed(Hello("1" * 32, "one", [Subscription(QUEUE, 32, own=True)], ["messages"]))
        await bridge.store.put(QUEUE, [NewMessage(body)] * 32)
        await pass_time(0.01)
        (wake,) = [frame for frame in ear.said if isinstance(frame, Wake) and frame.messages]
        assert least <= len(wake.messages or ()) <= most
        assert len(encode_frame(wake)) <= FRAME_BYTES_MAX


@simulated
async def test_a_carried_message_says_all_that_a_receive_would() -> None:
    """But for its body, which is base64 where it is no text."""
    ear = Ear()
    async with Bridge() as bridge:
        session = bridge.connect(ear)
        session.feed(Hello("1" * 32, "one", [Subscription(QUEUE, 32, own=True)], ["messages"]))
        puts = await bridge.store.put(QUEUE, [NewMessage("é"), NewMessage(b"\xff", ttl_s=60, headers={"a": "b"})])
        await bridge.store.put_once(QUEUE, "key", NewMessage(b"z"))
        await pass_time(0.01)
        found = [each for frame in ear.said if isinstance(frame, Wake) for each in frame.messages or ()]
        assert [each.id for each in found[:2]] == [put.id for put in puts]
        assert [(each.body, each.body_base64, each.key, each.headers) for each in found] == [
            ("é", None, None, {}), (None, "/w==", None, {"a": "b"}), ("z", None, "key", {}),
        ]  # fmt: skip
        assert [each.dequeue_count for each in found] == [1, 1, 1]
        assert [each.expires_at is None for each in found] == [True, False, True]
        began, ends = from_rfc3339(found[1].inserted_at), from_rfc3339(found[1].expires_at or "")
        assert 59.9 < (ends - began).total_seconds() < 60.1
        claims = tuple(Claim(each.id, each.pop_receipt) for each in found)
        settling = await bridge.store.settle(QUEUE, Settlement(delete=claims))
        assert [each.ok for each in settling.delete] == [True] * 3


@simulated
async def test_carried_messages_have_their_headers() -> None:
    """As many as fit a frame with them; the others come by a receive."""
    ear = Ear()
    async with Bridge() as bridge:
        session = bridge.connect(ear)
        session.feed(Hello("1" * 32, "one", [Subscription(QUEUE, 32, own=True)], ["messages"]))
        await bridge.store.put(QUEUE, [NewMessage("x", headers=HOSTILE)])
        await pass_time(0.01)
        (wake,) = [frame for frame in ear.said if isinstance(frame, Wake)]
        assert [message.headers for message in wake.messages or ()] == [HOSTILE]
        ear.said.clear()
        quotes = {"quotes": '"' * (HEADERS_BYTES_MAX - len("quotes"))}
        await bridge.store.put(QUEUE, [NewMessage(b"\xff" * 100, headers=each) for each in (*LARGEST, quotes) * 3])
        await pass_time(0.01)
        (wake,) = [frame for frame in ear.said if isinstance(frame, Wake) and frame.messages]
        carried = wake.messages or []
        assert 1 < len(carried) < 12
        assert len(encode_frame(wake)) <= FRAME_BYTES_MAX
        left = (await bridge.store.receive(QUEUE, 32)).messages
        assert [each.headers for each in (*carried, *left)] == [*LARGEST, quotes] * 3
