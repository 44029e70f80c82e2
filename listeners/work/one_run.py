"""One run of a listener or a scaler: asked to stop it ends in order, asked twice at once, and what broke is raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


class OneRun:
    """Who asks may come before it runs, and then it ends as it begins. ``what`` runs, and is called ``name``."""

    def __init__(self, what: str, name: str, log: logging.Logger) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        self._what, self._name, self._log = what, name, log
        self._defect: Exception | None = None
        self._ended: asyncio.Future[None] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run, from here to the end of the block; then raise what broke. Raises `RuntimeError` the second time."""
        if self._ended is not None:
            raise RuntimeError(f"a {self._what} runs once")
        self._ended = asyncio.get_running_loop().create_future()
        try:
            yield
            if self._defect is not None:
                raise self._defect
        finally:
            self._ended.set_result(None)

    @property
    def over(self) -> bool:
        """Whether it ran and has ended."""
        return self._ended is not None and self._ended.done()

    async def ended(self) -> None:
        """Wait until it has ended; not where it has not begun."""
        if self._ended is not None and not self._ended.done():
            await asyncio.wait([self._ended])

    def signalled(self, count: int, says: str) -> None:
        """Hear that so many signals told the process to stop, and say so once while it runs."""
        if self._ended is not None and not self.asked.is_set():
            self._log.info("%s: %s", self._name, says)
        self.asked.set()
        if count > 1 and self._ended is not None:
            self.at_once.set()

    def broke(self, error: Exception) -> None:
        """Stop, and raise this error in the end: who sleeps past its wakes is worse than one that ends."""
        self._defect = self._defect or error
        self.asked.set()

    async def until_asked(self, holding: asyncio.Task[None] | None) -> None:
        """Wait until somebody asks; ``holding`` runs for ever, and raises what broke it if it ends."""
        asked = asyncio.create_task(self.asked.wait(), name="stop-asked")
        waiting: set[asyncio.Task[Any]] = {asked} if holding is None else {asked, holding}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if holding is not None and holding in done:
            holding.result()

    async def unless_at_once(self, work: Coroutine[Any, Any, None], name: str, says: str) -> None:
        """Do what is still to be done, and cancel it, saying so, where it is to end at once."""
        working = asyncio.create_task(work, name=name)
        aborting = asyncio.create_task(self.at_once.wait(), name="abort-asked")
        try:
            await asyncio.wait([working, aborting], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                self._log.warning("%s: %s", self._name, says)
        finally:
            aborting.cancel()
            working.cancel()
            await asyncio.wait([working, aborting])
