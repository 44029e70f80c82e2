"""More queues than one session can name: parted into sessions, each with its own life; nothing of few is different.

| the listener has | over | its last queue is woken | after the bridge's restart |
|---|---|---|---|
| 3,000 queues | WebSocket, the process, a broker | yes | all queues are subscribed again |
"""

from __future__ import annotations

import asyncio

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.contract.wire import FRAME_BYTES_MAX, Hello, Subscription, encode_frame
from listeners import Listener, Message
from listeners.session.channels.base import Link
from listeners.session.sessions import shares
from tests.listeners.rig import QUEUE, Store

TWO = [f"account/queue-{number}" for number in range(300)]
"""Of two sessions."""


async def nothing(message: Message) -> None: ...


@pytest.mark.parametrize("length", [10, 40, 80])
def test_a_share_is_what_one_frame_can_name(length: int) -> None:
    """All queues, each once and in order; a share is full before the next begins, and its hello fits."""
    queues = [f"a/{number:0{length - 2}d}" for number in range(900)]
    parted = shares(queues)
    assert [queue for share in parted for queue in share] == queues
    assert {len(share) for share in parted[:-1]} <= {len(parted[0])}
    for share in parted:
        subscriptions = [Subscription(queue, 1_000_000, store="f" * 128, own=True) for queue in share]
        assert len(encode_frame(Hello("a" * 32, "n" * 256, subscriptions))) < FRAME_BYTES_MAX


async def test_what_breaks_one_session_ends_the_listener() -> None:
    """With its own error, and nothing is left running."""

    class Wrong:
        async def connect(self) -> Link:
            raise ConfigurationError("no such client")

        async def close(self) -> None: ...

    before = asyncio.all_tasks()
    with pytest.raises(ConfigurationError, match="no such client"):
        await Listener(Store(), [*TWO, QUEUE], nothing, bridge=Wrong(), handle_signals=False).run()
    assert asyncio.all_tasks() <= before
