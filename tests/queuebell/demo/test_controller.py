"""The process controller's account: each item once."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from queuebell.demo.analysis import FileFacts
from queuebell.demo.controller import Account, Controller
from queuebell.demo.work import FileAnalysed, ProbeSeen


def result(number: int, *, worker: int = 1, attempt: int = 1, lines: int = 1) -> FileAnalysed:
    """Make a result of a file item."""
    return FileAnalysed(number, worker, attempt, put_ns=10, started_ns=30, facts=FileFacts(lines, lines))


def test_each_item_once() -> None:
    """A result that comes twice counts once; the first one stands."""
    account = Account()
    assert account.enter(result(1, lines=5))
    assert not account.enter(result(1, worker=2, attempt=2, lines=7))
    assert account.enter(result(2))
    assert account.facts[1].lines == 5
    assert (account.items, account.results, account.duplicates, account.later_attempts) == (2, 3, 1, 1)
    assert account.last_worker == 1


def test_probe_once() -> None:
    """A probe's latency is from put to handler, and is measured once."""
    account = Account()
    for _ in range(2):
        account.enter(ProbeSeen(3, worker=2, attempt=1, put_ns=100, started_ns=350))
    assert account.probe_latencies_ns == [250]
    assert (account.items, account.duplicates) == (1, 1)


def test_order_plays_no_part() -> None:
    """In whatever order three results and a repeat come, the account is the same."""
    for order in itertools.permutations([result(1), result(1), result(2), result(3)]):
        account = Account()
        for each in order:
            account.enter(each)
        assert (account.items, account.duplicates, sorted(account.facts)) == (3, 1, [1, 2, 3])


async def test_wait_for_items() -> None:
    """Waiting ends with the last item that was missing, not with a repeat of an earlier one."""
    controller = Controller(lambda account: None)
    waiting = asyncio.create_task(controller.has(2, patience=30), name="test: waiting")
    controller.enter(result(1))
    controller.enter(result(1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    controller.enter(result(2))
    await waiting


async def test_lose_patience() -> None:
    """Silence for as long as the patience lasts ends the waiting."""
    controller = Controller(lambda account: None)
    with pytest.raises(TimeoutError):
        await controller.has(1, patience=0.01)
