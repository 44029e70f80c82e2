"""The event loop of ``serve``: it never reads from more than so many connections before it goes on with other work.

asyncio takes all that is ready in one turn. With thousands of clients those are thousands of requests, and what was let
in before them, commits and their answers too, waits until each of them was read and answered. With short turns it waits
for a few. What is not read stays with the kernel in the order in which it came (epoll tells of files in turn), and how
long it may have stayed there is known to the gate of the puts, which lets in fewer then.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
import time
from collections.abc import Callable
from typing import Any, Final, cast

TURN: Final = 128
"""Connections read from, or written to, in one turn: a few milliseconds of requests."""
_BLOCKED_S: Final = 0.001


class BoundedSelector(selectors.EpollSelector):
    """Tells of ``most`` files at once; those ready beyond that are told of first the next time."""

    def __init__(self, most: int = TURN, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        # What the standard library keeps to itself: epoll, and the key of each file.
        inside = cast(Any, self)
        self._epoll, self._keys = inside._selector, inside._fd_to_key
        self.most = most
        self._clock = clock
        self._caught_up = self._since = clock()

    def since(self) -> float:
        """Return when what is being read now can have come at the earliest, by the loop's clock."""
        return self._since

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until a file is ready, ``timeout`` seconds at most, for ever where it is None."""
        # What the standard library does, but for the number and the clock.
        # epoll counts in milliseconds; rounded up, so that no timer comes early.
        wait = -1.0 if timeout is None else math.ceil(timeout * 1e3) * 1e-3 if timeout > 0 else 0.0
        asked = self._clock()
        try:
            told = self._epoll.poll(wait, self.most)
        except InterruptedError:
            return []
        now = self._clock()
        # Where it had to wait nothing was ready before; otherwise it came after all was told of last.
        self._since = now if wait and now - asked > _BLOCKED_S else self._caught_up
        if len(told) < self.most:
            self._caught_up = now
        ready = []
        for file, event in told:
            key = self._keys.get(file)
            if key is not None:
                events = (selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0) | (
                    selectors.EVENT_READ if event & ~select.EPOLLOUT else 0
                )
                ready.append((key, events & key.events))
        return ready


def loop_of(turns: BoundedSelector) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes a loop with these turns."""
    return lambda: asyncio.SelectorEventLoop(turns)
