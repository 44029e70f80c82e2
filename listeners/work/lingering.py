"""Calls that run on after the time of their attempt, and the messages that wait for them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from listeners.work.held import Held


class Lingering:
    """The calls of one queue that ran out of time; each keeps its handler slot until it ends.

    A call is a thread, or a task that outlived its cancellation. A message is *parked* while its call runs on: it stays
    leased for the pause of its retry policy and takes no further slot. ``changed`` is called when a call is added or
    ends. ``over(held)`` is called when a pause has passed and the call still runs, ``ended(held, seconds)`` when it
    ended with so many seconds of the pause left.
    """

    def __init__(
        self, *, changed: Callable[[], None], over: Callable[[Held], None], ended: Callable[[Held, float], None]
    ) -> None:
        self.calls: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._over = over
        self._ended = ended
        self._by_message: dict[str, asyncio.Future[None]] = {}
        self._parked: dict[int, tuple[Held, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self.calls)

    def __contains__(self, message: str) -> bool:
        return message in self._by_message

    def add(self, call: concurrent.futures.Future[Any] | asyncio.Task[Any], messages: Sequence[str]) -> None:
        """Keep a slot taken until this call ends, and start no second one for these messages until then."""
        gone: asyncio.Future[None] = self._loop.create_future()
        self.calls.add(gone)
        self._by_message.update(dict.fromkeys(messages, gone))

        def ended(_: object) -> None:
            # The loop may be closed: handlers in threads outlive a loop whose listener has stopped.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended_late, gone)

        call.add_done_callback(ended)
        self._changed()

    def park(self, held: Held, seconds: float) -> None:
        """Keep a message leased for the pause of its retry policy."""
        timer = self._loop.call_later(seconds, self._passed, held)
        self._parked[held.number] = held, timer

    def forget(self, held: Held) -> None:
        """Drop a message whose lease was lost."""
        if held.number in self._parked:
            self._parked.pop(held.number)[1].cancel()

    def close(self) -> None:
        """Release all that is parked: the listener stops."""
        for held, _ in [*self._parked.values()]:
            self._release(held)

    def _passed(self, held: Held) -> None:
        del self._parked[held.number]
        self._over(held)

    def _ended_late(self, gone: asyncio.Future[None]) -> None:
        self.calls.discard(gone)
        if not gone.done():
            gone.set_result(None)
        self._by_message = {message: of for message, of in self._by_message.items() if of is not gone}
        for held, _ in [*self._parked.values()]:
            if held.stored.id not in self._by_message:
                self._release(held)
        self._changed()

    def _release(self, held: Held) -> None:
        _, timer = self._parked.pop(held.number)
        timer.cancel()
        self._ended(held, max(0.0, timer.when() - self._loop.time()))
