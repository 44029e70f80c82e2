"""What is told of a failed attempt: its reason whatever the exception is like, and what follows."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest

from bridge.contract.errors import named, said
from bridge.observe.logs import configure
from listeners import Bury, Failure, Ledger, Message, Retry, batch, classify
from listeners.core.failure import retry_after
from tests.listeners.rig import QUEUE, Store, listening, run_until, settled
from tests.support.sim_loop import pass_time, simulated


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


class MuteSocket(OSError):
    def __str__(self) -> str:
        raise ValueError("no text either")


class Grumbling(Exception):
    """One whose attributes cannot be had."""

    @property
    def status(self) -> int:
        raise RuntimeError("no status")

    @property
    def retry_after(self) -> int:
        raise RuntimeError("no time")


class NoStock(Bury):
    """One that forgot the constructor of ours."""

    def __init__(self, sku: str) -> None:
        self.sku = sku


class Later(Retry):
    def __init__(self) -> None: ...


MUTED = "(its text cannot be made: KeyError)"
RAISED: list[tuple[BaseException, str]] = [
    (Mute(), f"attempt 2 of 2: Mute: {MUTED}"),
    (MuteSocket(), "attempt 2 of 2: MuteSocket: (its text cannot be made: ValueError)"),
    (Grumbling("no"), "attempt 2 of 2: Grumbling: no"),
    (ExceptionGroup("both", [Mute(), Grumbling()]), "attempt 2 of 2: ExceptionGroup: both (2 sub-exceptions)"),
    (Bury(ValueError("no customer")), "ValueError: no customer"),
    (Bury(Mute()), f"Mute: {MUTED}"),
    (NoStock("17"), "no reason given"),
    (Later(), "attempt 2 of 2: asked for another attempt"),
    (ValueError("not printable\x1b[2J"), r"attempt 2 of 2: ValueError: not printable\x1b[2J"),
]


@pytest.mark.parametrize("in_batch", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize("error, reason", RAISED, ids=range(len(RAISED)))
@simulated
async def test_a_burial_has_its_reason_whatever_was_raised(error: BaseException, reason: str, in_batch: bool) -> None:
    """The message is buried after its attempts, not after its leases, and the facts say why."""
    store = Store()

    async def one(message: Message) -> None:
        raise error

    @batch
    async def many(messages: list[Message]) -> None:
        raise error

    await store.fill(b"x")
    async with listening(store, many if in_batch else one, max_attempts=2) as listener:
        await settled(listener, 1, "buried")
        assert listener.state().queues[QUEUE].retried == (not isinstance(error, Bury))
    (burial,) = await store.burials()
    assert burial.reason == reason


@pytest.mark.parametrize("form", ["plain", "json"])
def test_a_line_of_the_log_is_kept_although_an_argument_has_no_text(form: Any) -> None:
    """With its words as they stand, and what else is known."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        configure(form, stream=stream)
        logging.getLogger("queuebell.listener").warning("it failed: %s", Mute(), extra={"cause": "disk"})
        if form == "plain":
            logging.getLogger("queuebell.listener").warning("it failed too", extra={"cause": Mute()})
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert "it failed: %s (the rest cannot be told: KeyError)" in stream.getvalue()
    assert "disk" in stream.getvalue()
    if form == "plain":
        assert f"cause={MUTED}" in stream.getvalue()


@simulated
async def test_the_key_of_a_ledger_that_fails_without_text_is_a_failed_attempt() -> None:
    """The rule of keys is the user's as the handler is."""
    store = Store()

    def key(message: Message) -> str:
        raise Mute

    async def handle(message: Message) -> None: ...

    await store.fill(b"x")
    await run_until(listening(store, handle, ledger=Ledger("memory:mute", key=key), max_attempts=1), 1, "buried")
    (burial,) = await store.burials()
    assert f"Mute: {MUTED}" in burial.reason


def test_a_foreign_exception_is_read_safely() -> None:
    """Text, class and the time it asks for."""
    assert (said(Mute()), named(Mute())) == (MUTED, f"Mute: {MUTED}")
    assert (said(ValueError()), named(ValueError())) == ("", "ValueError")
    assert classify(Mute()) is Failure.UNCLEAR
    assert classify(Grumbling()) is Failure.UNCLEAR
    assert retry_after(Grumbling()) is None


@pytest.mark.parametrize("queue, end", [(QUEUE, "buried after attempt 5"), (f"{QUEUE}-poison", "until it succeeds")])
@simulated
async def test_the_line_of_the_first_failure_says_what_follows(
    queue: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever reads the first failure knows when all attempts are over; a later one tells of the next attempt alone."""
    caplog.set_level(logging.WARNING)
    store = Store()

    async def handle(message: Message) -> None:
        raise ValueError("no")

    await store.fill(b"x", queue=queue)
    async with listening(store, handle, queue):
        await pass_time(1.2)
    lines = [record.getMessage() for record in caplog.records if "the handler failed" in record.getMessage()]
    assert "attempt 1: the handler failed; next in about 0.5 s, then 3, 18, 108 s" in lines[0]
    assert end in lines[0]
    assert lines[1].partition("attempt 2: the handler failed; ")[2].startswith("next in about 3 s, as attempt 3")
    assert end not in lines[1]
