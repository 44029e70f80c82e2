"""An event loop whose time is virtual: it jumps from timer to timer, and says so when nothing can ever happen again."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SimDeadlock(RuntimeError):
    """Nothing is runnable and no timer stands."""


class SimLoop(asyncio.BaseEventLoop):
    """A loop without sockets, threads or waiting; real I/O fails at once, which is what is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        # Not finer than the float's own resolution at large times, or a due timer never fires.
        self._clock_resolution = 1e-6
        self._selector = self

    def time(self) -> float:
        return self._now

    def late(self, seconds: float) -> None:
        """Let time pass within the turn of the loop that is under way, as one that does not end would."""
        self._now += seconds

    def select(self, timeout: float | None) -> tuple[()]:
        if timeout is None:
            raise SimDeadlock("nothing runnable and no timer")
        if timeout > 0:
            self._now += timeout
        return ()

    def _process_events(self, events: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()
        future.set_result(function(*arguments))
        return future


async def elapse(seconds: float) -> None:
    """Let virtual time pass, which takes none; refused on a loop that would really wait."""
    assert isinstance(asyncio.get_running_loop(), SimLoop)
    await asyncio.sleep(seconds)


async def pass_time(seconds: float) -> None:
    """Let virtual time pass; fails on any other loop, where it would be a test that sleeps."""
    assert isinstance(asyncio.get_running_loop(), SimLoop), "time passes by itself only in a simulation"
    await asyncio.sleep(seconds)


def simulate(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time; fail if a task is left over."""

    async def checked() -> T:
        result = await work
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            await asyncio.wait([task], timeout=2.0)
        still = sorted(task.get_name() for task in left if not task.done())
        assert not still, f"tasks left running: {still}"
        return result

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(checked())


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test in virtual time, and fail it if a task is left over."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        simulate(test(*arguments, **fixtures))

    return run
