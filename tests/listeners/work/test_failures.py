"""What becomes of a message by the class of its handler's failure."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from listeners import Failure, Message, RetryPolicy, classify
from tests.listeners.rig import POISON, QUEUE, Store, listening, run_until
from tests.support.sim_loop import simulate

STEADY = RetryPolicy(jitter=0)


class Busy(Exception):
    """As a client tells that its server is throttling."""

    status = 503
    retry_after = 90


async def attempts(error: Exception, **options: Any) -> tuple[list[float], list[bytes]]:
    """Fail every attempt with ``error``; return the pauses between them, and what was buried."""
    store = Store()
    begun: list[float] = []

    async def handle(message: Message) -> None:
        begun.append(asyncio.get_running_loop().time())
        raise error

    await store.fill(b"x")
    await run_until(listening(store, handle, **options), 1, "buried")
    return [after - before for before, after in itertools.pairwise(begun)], await store.bodies(POISON)


@pytest.mark.parametrize("error", [RuntimeError("503 Server Busy"), RuntimeError("bug")])
def test_the_attempts_outlast_an_outage_of_minutes(error: Exception) -> None:
    """Whichever of the two classes it is, unless a policy says otherwise; then the message is buried."""
    pauses, buried = simulate(attempts(error, retry=STEADY))
    assert pauses == [pytest.approx(pause, abs=0.6) for pause in (0.5, 3, 18, 108)]
    assert buried == [b"x"]


def test_a_busy_server_is_left_alone_for_as_long_as_it_asks() -> None:
    """Its ``retry_after`` counts where it is longer than our own pause."""
    pauses, _ = simulate(attempts(Busy(), max_attempts=3))
    assert pauses == [pytest.approx(90, abs=1)] * 2


def test_a_permanent_failure_is_buried_at_once() -> None:
    """A rule of the host's names it; what it does not name stays with the default."""

    def rule(error: BaseException) -> Failure:
        return Failure.PERMANENT if isinstance(error, ValueError) else classify(error)

    pauses, buried = simulate(attempts(ValueError("no such customer"), failures=rule))
    assert (pauses, buried) == ([], [b"x"])
    pauses, _ = simulate(attempts(KeyError("x"), failures=rule, max_attempts=3))
    assert len(pauses) == 2


@pytest.mark.parametrize("answer", [None, "permanent", RuntimeError("broken rule")])
def test_a_rule_that_fails_buries_nothing_early(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Raising, or giving no class: the failure counts as unclear and has all its attempts."""

    def rule(error: BaseException) -> Failure:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    pauses, _ = simulate(attempts(ValueError("x"), failures=rule))
    assert len(pauses) == 4
    assert ("the rule that tells classes of failure failed" in caplog.text) == isinstance(answer, Exception)


def test_a_handler_out_of_time_is_a_transient_failure() -> None:
    """Whatever held it up may have passed by the next attempt."""

    async def story() -> list[float]:
        store = Store()
        begun: list[float] = []

        async def handle(message: Message) -> None:
            begun.append(asyncio.get_running_loop().time())
            await asyncio.get_running_loop().create_future()

        await store.fill(b"x")
        policy = RetryPolicy(attempts=1, transient=replace(STEADY, attempts=5, factor=4))
        await run_until(listening(store, handle, handler_timeout=1.0, retry=policy), 1, "buried", QUEUE)
        return [after - before - 1 for before, after in itertools.pairwise(begun)]

    assert simulate(story()) == [pytest.approx(pause, abs=0.6) for pause in (0.5, 2, 8, 32)]
