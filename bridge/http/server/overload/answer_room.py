"""Room for answers that their clients have not taken yet: what is left unread stays in our memory.

Large answers are made while what is unread, of all connections of a server together, stays within a bound. Past it they
are refused, and those readers cut off that were too slow when there was no room. Small ones always go.

What answers are made of is counted too, from before it is read until it was written: large ones take turns for the same
room, since others' will soon be free, and only what peers do not read is a reason to refuse.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, Self, TypeVar

from bridge.queues.served import NoRoom

T = TypeVar("T")

UNREAD_BYTES: Final = 64 * 1024 * 1024
"""For all connections of a server together."""
SMALL_BYTES: Final = 64 * 1024
"""An answer up to this is never refused."""
SLOW_AFTER_S: Final = 2.0
SLOW_BYTES_S: Final = 64 * 1024
"""Who took less than this, for `SLOW_AFTER_S` or longer, is cut off where there is no room."""


WAIT_S: Final = 10.0
"""How long an answer waits for its turn to be made."""


class Reader(Protocol):
    """A connection whose peer has not taken all that was written."""

    def unread(self) -> int:
        """Return how many bytes it has not taken."""
        ...

    def cut_off(self) -> None:
        """End it at once, and free what it has not taken."""
        ...


class Share:
    """What one answer that is being made holds; a context manager, for as long as it does (`ReadRoom`).

    The store takes from it in its own thread. Once it is left there is nothing to take: nobody waits for it.
    """

    __slots__ = ("_room", "held", "left")

    def __init__(self, room: AnswerRoom) -> None:
        self._room = room
        self.held = 0
        self.left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give back what is held; may be called twice."""
        self._room._leave(self)

    def take(self, size: int) -> bool:
        """Hold so many bytes, or none where there is no room."""
        return self._room._take(self, size)

    def keep(self, size: int) -> None:
        """Give back all but so many bytes."""
        self._room._keep(self, size)

    async def reading(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what ``ask`` brings; where it finds no room, ask again when there is some.

        Raises `NoRoom` where too much is unread, or others take too long.
        """
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while True:
            try:
                return await ask()
            except NoRoom as error:
                size = error.size
            try:
                async with asyncio.timeout_at(deadline):
                    await self._room._turn(self, size)
            except TimeoutError:
                raise NoRoom(size) from None


class AnswerRoom:
    """So many bytes, by ``clock`` (seconds that do not go back); belongs to one event loop."""

    def __init__(self, clock: Callable[[], float], size: int = UNREAD_BYTES) -> None:
        self.size = size
        self.taken = 0
        """What is unread, as it was when each reader was looked at last."""
        self.making = 0
        """What answers hold that are being made."""
        self._clock = clock
        # Held by whoever changes `making`: the store's thread does too.
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Share, int, asyncio.Future[None]]] = deque()
        # Bytes that each had not taken when it was looked at, and when that was; in the order of looking.
        self._held: dict[Reader, tuple[int, float]] = {}

    def hold(self, reader: Reader, size: int) -> None:
        """Its peer did not take ``size`` bytes at once."""
        before, _ = self._held.pop(reader, (0, 0.0))
        self._held[reader] = (size, self._clock())
        # By the difference at once: what is not taken yet is nobody else's in between.
        self.taken += size - before
        self._give_out()

    def release(self, reader: Reader) -> None:
        """Its peer took all, or is gone."""
        held = self._held.pop(reader, None)
        if held is not None:
            self.taken -= held[0]
            self._give_out()

    def fits(self, size: int) -> bool:
        """Say whether an answer of ``size`` bytes may be written now; where it may not, slow readers are cut off.

        One that is larger than all there is finds room where nobody has any.
        """
        if size <= SMALL_BYTES or self.taken + size <= self.size:
            return True
        self._make_room(size)
        return self.taken + size <= self.size or not self.taken

    def share(self) -> Share:
        """Return what one answer will hold."""
        return Share(self)

    def _take(self, share: Share, size: int) -> bool:
        with self._lock:
            self.making -= share.held
            share.held = 0
            held = self.taken + self.making
            if share.left or not (size <= SMALL_BYTES or held + size <= self.size or not held):
                return False
            self.making += size
            share.held = size
            return True

    def _keep(self, share: Share, size: int) -> None:
        with self._lock:
            if share.left:
                # It was given back already, between the store's taking and keeping.
                return
            self.making -= share.held - size
            share.held = size

    def _leave(self, share: Share) -> None:
        with self._lock:
            self.making -= share.held
            share.held = 0
            share.left = True
        self._give_out()

    async def _turn(self, share: Share, size: int) -> None:
        """Wait until so many bytes are held; raises `NoRoom` where what is unread leaves too few."""
        if not self.fits(size):
            raise NoRoom(size)
        if not self._waiting and self._take(share, size):
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((share, size, future))
        try:
            await future
        except asyncio.CancelledError:
            # What it was given meanwhile goes with its share.
            self._give_out()
            raise

    def _give_out(self) -> None:
        waiting = self._waiting
        while waiting:
            share, size, future = waiting[0]
            if not future.done():
                if not self._take(share, size):
                    return
                future.set_result(None)
            waiting.popleft()

    def _make_room(self, size: int) -> None:
        now = self._clock()
        while self._held and self.taken + size > self.size:
            reader, (before, looked) = next(iter(self._held.items()))
            elapsed = now - looked
            if elapsed < SLOW_AFTER_S:
                # Looked at often enough; so were all that follow.
                return
            left = reader.unread()
            if before - left < elapsed * SLOW_BYTES_S:
                self.release(reader)
                reader.cut_off()
            else:
                self.hold(reader, left)
