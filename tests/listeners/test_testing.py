"""`listeners.testing`: what a listener would do with a message, without one."""

from __future__ import annotations

import msgspec

from listeners import Bury, Done, Failure, Message, Replay, Retry, RetryPolicy
from listeners.testing import run_once


class Order(msgspec.Struct):
    number: int


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
    last = await run_once(handle, b"fail", attempt=10)
    assert isinstance(last, Bury)
    assert "ValueError: broken" in last.reason


async def test_a_retry_policy_can_be_tried() -> None:
    """The pause it gives, and the attempt at which it buries."""

    def handle(message: Message) -> None:
        raise ValueError("broken")

    policy = RetryPolicy(attempts=3, first_s=2, factor=5)
    again = await run_once(handle, b"x", attempt=2, retry=policy)
    assert isinstance(again, Retry)
    assert again.after == 10
    assert isinstance(await run_once(handle, b"x", attempt=3, retry=policy), Bury)


async def test_plain_batch_and_typed_handlers_run_too() -> None:
    """As a listener would call them."""

    def plain(message: Message) -> None:
        assert message.value == Order(7)

    async def many(messages: list[Message]) -> list[Retry]:
        return [Retry(1) for _ in messages]

    assert await run_once(plain, b'{"number": 7}', payload=Order) == Done()
    assert isinstance(await run_once(plain, b"{", payload=Order), Bury)
    assert isinstance(await run_once(many, b"x"), Retry)


async def test_a_handler_with_checkpoints_runs_without_a_ledger() -> None:
    """It finds the progress that the test gives, and its checkpoints are checked and forgotten."""

    async def resume(message: Message) -> None:
        assert message.progress == b"3"
        await message.checkpoint("4")

    def too_large(message: Message) -> None:
        message.checkpoint_from_thread(b"x" * 32_769)

    assert await run_once(resume, b"x", progress=b"3") == Done()
    refused = await run_once(too_large, b"x", max_attempts=1)
    assert isinstance(refused, Bury)
    assert "32768" in refused.reason


async def test_a_rule_for_classes_of_failure_can_be_tried() -> None:
    """What it calls permanent is buried at the first attempt."""

    async def handle(message: Message) -> None:
        raise ValueError("no such customer")

    permanent = await run_once(handle, b"x", failures=lambda error: Failure.PERMANENT)
    assert isinstance(permanent, Bury)


async def test_a_poison_queue_buries_nothing() -> None:
    """What fails there is tried for ever, and what its handler buries is left alone for half a minute."""

    def handle(message: Message) -> None:
        raise Bury("no") if message.body == b"bury" else ValueError("broken")

    for body, after in ((b"fail", 120), (b"bury", 30)):
        outcome = await run_once(handle, body, attempt=10, retry=RetryPolicy(jitter=0), queue="billing/orders-poison")
        assert isinstance(outcome, Retry)
        assert outcome.after == after


async def test_an_outcome_that_is_printed_says_what_it_is() -> None:
    """As it would be written in a handler, not as the bare words of an exception."""

    def later(message: Message) -> None:
        raise Retry(after=60)

    def broken(message: Message) -> None:
        raise ValueError("no such customer")

    def back(message: Message) -> None:
        raise Replay(after=5)

    assert str(await run_once(later, b"x")) == "Retry(after=60)"
    assert str(await run_once(broken, b"x", retry=RetryPolicy(jitter=0))) == "Retry(after=0.5)"
    buried = await run_once(broken, b"x", max_attempts=1)
    assert repr(buried) == str(buried) == "Bury('attempt 1 of 1: ValueError: no such customer')"
    assert str(await run_once(back, b"x", queue="a/b-poison")) == "Replay(after=5, queue='a/b')"
    assert str(await run_once(lambda message: None, b"x")) == "Done()"
