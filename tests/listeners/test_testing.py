"""`listeners.testing`: what a listener would do with a message, without one."""

from __future__ import annotations

import msgspec
import pytest

from listeners import Bury, Done, Message, Retry
from listeners.testing import run_once


class Order(msgspec.Struct):
    number: int


@pytest.mark.asyncio
async def test_every_outcome_can_be_had() -> None:
    """Done, Retry with its delay, Bury by word, by attempts and by an undecodable body."""

    async def handle(message: Message) -> None:
        assert message.queue == "test/queue"
        if message.body == b"retry":
            raise Retry(7)
        if message.body == b"bury":
            raise Bury("no")
        if message.body == b"fail":
            raise ValueError("broken")

    assert await run_once(handle, b"fine") == Done()
    retry = await run_once(handle, "retry")
    assert isinstance(retry, Retry)
    assert retry.after == 7
    bury = await run_once(handle, b"bury")
    assert isinstance(bury, Bury)
    assert bury.reason == "no"
    assert isinstance(await run_once(handle, b"fail"), Retry)
    last = await run_once(handle, b"fail", attempt=5)
    assert isinstance(last, Bury)
    assert "ValueError: broken" in last.reason


@pytest.mark.asyncio
async def test_plain_batch_and_typed_handlers_run_too() -> None:
    """As a listener would call them."""

    def plain(message: Message) -> None:
        assert message.value == Order(7)

    async def many(messages: list[Message]) -> list[Retry]:
        return [Retry(1) for _ in messages]

    assert await run_once(plain, b'{"number": 7}', payload=Order) == Done()
    assert isinstance(await run_once(plain, b"{", payload=Order), Bury)
    assert isinstance(await run_once(many, b"x"), Retry)
