"""The owner of a process's signals: whom it tells, from whom it takes them, and to whom it gives them back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from listeners.work.stop_signals import SIGNALS, StopSignals

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Yield what a program's own handler hears; it has no signal yet, and all stand afterwards as before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(TERM, signal.SIG_DFL)
    signal.signal(INT, signal.default_int_handler)
    yield []
    for number, handler in before.items():
        signal.signal(number, handler)


def own(heard: list[int]) -> Callable[[int, object], None]:
    """Return a handler of the program's own."""
    return lambda number, frame: heard.append(number)


async def told(count: list[int]) -> list[int]:
    """Return what a member has been told, once the loop had a turn."""
    await asyncio.sleep(0)
    return count


def test_all_members_are_told_and_a_late_one_at_once(heard: list[int]) -> None:
    """Both signals count together; after the last member they stand as before, and the program gets none twice."""
    one, two, late = list[int](), list[int](), list[int]()

    async def story() -> None:
        stood = [signal.getsignal(number) for number in SIGNALS]
        with StopSignals(one.append, take=None):
            with StopSignals(two.append, take=None):
                signal.raise_signal(TERM)
                assert (await told(one), await told(two)) == ([1], [1])
            signal.raise_signal(INT)
            assert (await told(one), two) == ([1, 2], [1])
            with StopSignals(late.append, take=None):
                assert await told(late) == [2]
            assert signal.getsignal(TERM) != stood[0]
        assert [signal.getsignal(number) for number in SIGNALS] == stood
        one.clear()
        with StopSignals(one.append, take=None):
            assert await told(one) == []
            signal.raise_signal(TERM)
            assert await told(one) == [1]

    asyncio.run(story())
    assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_DFL, signal.default_int_handler]


@pytest.mark.parametrize("taken", SIGNALS)
@pytest.mark.parametrize("take", [None, False, True])
def test_a_signal_of_somebody_else_is_taken_only_by_who_was_told_to(
    taken: signal.Signals, take: bool | None, heard: list[int]
) -> None:
    """Of both signals neither is taken where one is somebody's; given back it is theirs again."""
    mine = list[int]()

    async def story() -> None:
        signal.signal(taken, own(heard))
        with StopSignals(mine.append, take=take):
            with StopSignals(mine.append, take=take):
                signal.raise_signal(taken)
            await told(mine)
        signal.raise_signal(taken)

    asyncio.run(story())
    assert (mine, heard) == ([1, 1], [taken]) if take else ([], [taken, taken])


def test_who_took_a_signal_meanwhile_keeps_it(heard: list[int]) -> None:
    """Given back to nobody, it goes to whom it was of at first as soon as the next member comes, or takes it over."""
    mine = list[int]()

    async def story() -> None:
        with StopSignals(mine.append, take=None):
            ours = signal.signal(TERM, own(heard))
        signal.raise_signal(TERM)
        assert (await told(mine), heard) == ([], [TERM])
        signal.signal(TERM, ours)
        with StopSignals(mine.append, take=None):
            signal.raise_signal(TERM)
            assert await told(mine) == [1]
        assert signal.getsignal(TERM) is signal.SIG_DFL
        with StopSignals(mine.append, take=None):
            signal.signal(TERM, own(heard))
            with StopSignals(mine.append, take=None):
                signal.raise_signal(TERM)
            with StopSignals(mine.append, take=True):
                signal.raise_signal(TERM)
                assert await told(mine) == [1, 1, 1]
        signal.raise_signal(TERM)

    asyncio.run(story())
    assert heard == [TERM] * 3


@pytest.mark.parametrize("handled", [True, False])
def test_a_program_that_waits_for_no_listener_gets_the_signal_after_them(handled: bool, heard: list[int]) -> None:
    """Once the last of them has left; where they are waited for it has heard by their end."""
    mine = list[int]()

    async def listen() -> None:
        with StopSignals(mine.append, take=True):
            while not mine:
                await asyncio.sleep(0)

    async def story() -> None:
        signal.signal(INT, own(heard))
        listening = [asyncio.create_task(listen()) for _ in range(2)]
        await asyncio.sleep(0)
        if handled:
            gathered = asyncio.gather(*listening)
        signal.raise_signal(INT)
        while not all(task.done() for task in listening):
            await asyncio.sleep(0)
        if handled:
            await gathered
        await asyncio.sleep(0)

    asyncio.run(story())
    assert (mine, heard) == ([1, 1], [] if handled else [INT])


def test_a_loop_that_nobody_waits_for_takes_no_signal(heard: list[int]) -> None:
    """A notebook's runs for ever; told to, a listener has them there too."""
    loop = asyncio.new_event_loop()
    taken, members = list[bool](), list[Any]()

    def enter() -> None:
        for take in (None, True):
            members.append(StopSignals(int, take=take))
            members[-1].__enter__()
            taken.append(signal.getsignal(TERM) is not signal.SIG_DFL)
        loop.stop()

    loop.call_soon(enter)
    loop.run_forever()
    assert taken == [False, True]
    for member in members:
        member.__exit__(None, None, None)
    loop.close()
    assert signal.getsignal(TERM) is signal.SIG_DFL


@pytest.mark.parametrize("forked", [True, False])
def test_a_process_that_was_forked_off_and_a_loop_that_was_left_hear_nothing(
    forked: bool, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal goes to whom it was of before, and is theirs from then on."""
    mine, members = list[int](), list[Any]()
    signal.signal(TERM, own(heard))

    async def story() -> None:
        members.append(StopSignals(mine.append, take=True))
        members[0].__enter__()
        if forked:
            monkeypatch.setattr(os, "getpid", lambda: 1)
            signal.raise_signal(TERM)
            await asyncio.sleep(0)

    asyncio.run(story())
    if not forked:
        signal.raise_signal(TERM)
    assert (mine, heard) == ([], [TERM])
    signal.raise_signal(TERM)
    assert heard == [TERM, TERM]
    loop = asyncio.new_event_loop()
    loop.call_soon(members[0].__exit__, None, None, None)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
