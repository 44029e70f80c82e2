"""Several listeners as one program: they start, hear the signals and end together."""

from __future__ import annotations

import asyncio

from listeners.listener import Listener
from listeners.work.stop_signals import StopSignals


def run(listener: Listener, *others: Listener) -> None:
    """Run listeners in an event loop of their own, until SIGTERM or Ctrl-C has them all stop; a second one at once.

    Where one breaks the others stop in order, and its error is raised.
    """
    asyncio.run(_together((listener, *others)))


async def _together(listeners: tuple[Listener, ...]) -> None:
    def signalled(count: int) -> None:
        for each in listeners:
            each.signalled(count)

    with StopSignals(signalled, take=True):
        tasks = [asyncio.create_task(each.run(), name=f"listener[{each.name}]") for each in listeners]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await asyncio.gather(*(each.stop() for each in listeners))
            await asyncio.wait(tasks)
    for task in tasks:
        task.result()
