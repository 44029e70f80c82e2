"""Bounds on memory: bodies that are being read, and answers that clients have not read.

Each server has one `BodyMemory` and one `AnswerMemory`, which all its connections share. All limits are listed in
docs/how-to/take-work-in.md.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, Self, TypeVar

from queuebell.bridge.queues.served import NoRoom

T = TypeVar("T")

ROOM_BYTES: Final = 64 * 1024 * 1024
"""Of bodies, and of unread answers, for all connections of a server together."""
SMALL_BYTES: Final = 64 * 1024
"""A body up to this never waits for room, and an answer up to this is never refused."""
SLOW_AFTER_S: Final = 2.0
SLOW_BYTES_S: Final = 64 * 1024
"""A peer that reads less than this, for `SLOW_AFTER_S` or longer, is cut off if room is needed."""
WAIT_S: Final = 10.0
"""How long an answer waits for its turn to be made."""


class Reader(Protocol):
    """A connection whose peer has not read everything."""

    def unread(self) -> int:
        """Return how many bytes it has not read."""
        ...

    def cut_off(self) -> None:
        """Abort it, and free what it has not read."""
        ...


class AnswerReservation:
    """Room that one answer holds while it is made; a context manager.

    The store takes from it in its own thread. After `leave` it gives nothing.
    """

    __slots__ = ("_room", "held", "left")

    def __init__(self, room: AnswerMemory) -> None:
        self._room = room
        self.held = 0
        self.left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Release the room; may be called twice."""
        self._room._leave(self)

    def take(self, size: int) -> bool:
        """Hold ``size`` bytes instead; False and nothing held if there is no room."""
        return self._room._take(self, size)

    def shrink(self, size: int) -> None:
        """Release all but ``size`` bytes."""
        self._room._shrink(self, size)

    async def reading(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``ask``; if it finds no room, call it again when there is some.

        Raises `NoRoom` if too much is unread, or after `WAIT_S`.
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


class AnswerMemory:
    """Bounds the bytes of answers: unread ones of all connections of a server, and those being made.

    Past the bound large answers are refused, and readers that were too slow are cut off. Small answers always go.
    Answers count from before they are read from the store until they are written: large ones take turns, because room
    that others use for that is soon free again; only unread bytes are a reason to refuse. ``clock`` is monotonic.
    Belongs to one event loop.
    """

    def __init__(self, clock: Callable[[], float], size: int = ROOM_BYTES) -> None:
        self.size = size
        self.taken = 0
        """Unread bytes, as of the last check of each reader."""
        self.making = 0
        """Bytes of answers that are being made."""
        self._clock = clock
        # Guards `making`, which the store's thread changes too.
        self._lock = threading.Lock()
        self._waiting: deque[tuple[AnswerReservation, int, asyncio.Future[None]]] = deque()
        # Unread bytes of each reader at its last check, and when that was; the oldest check first.
        self._held: dict[Reader, tuple[int, float]] = {}

    def hold(self, reader: Reader, size: int) -> None:
        """Record that the peer has not read ``size`` bytes."""
        before, _ = self._held.pop(reader, (0, 0.0))
        self._held[reader] = (size, self._clock())
        self.taken += size - before
        self._give_out()

    def release(self, reader: Reader) -> None:
        """Record that the peer has read everything, or is gone."""
        held = self._held.pop(reader, None)
        if held is not None:
            self.taken -= held[0]
            self._give_out()

    def fits(self, size: int) -> bool:
        """Return whether an answer of ``size`` bytes may be written now, after cutting off slow readers.

        An answer above the bound fits if nothing else is unread.
        """
        if size <= SMALL_BYTES or self.taken + size <= self.size:
            return True
        self._make_room(size)
        return self.taken + size <= self.size or not self.taken

    def share(self) -> AnswerReservation:
        """Return a share for one answer."""
        return AnswerReservation(self)

    def _take(self, share: AnswerReservation, size: int) -> bool:
        with self._lock:
            self.making -= share.held
            share.held = 0
            held = self.taken + self.making
            if share.left or not (size <= SMALL_BYTES or held + size <= self.size or not held):
                return False
            self.making += size
            share.held = size
            return True

    def _shrink(self, share: AnswerReservation, size: int) -> None:
        with self._lock:
            if share.left:
                # It was released between `take` and `keep`.
                return
            self.making -= share.held - size
            share.held = size

    def _leave(self, share: AnswerReservation) -> None:
        with self._lock:
            self.making -= share.held
            share.held = 0
            share.left = True
        self._give_out()

    async def _turn(self, share: AnswerReservation, size: int) -> None:
        """Wait until so many bytes are held; raises `NoRoom` if too much is unread."""
        if not self.fits(size):
            raise NoRoom(size)
        if not self._waiting and self._take(share, size):
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((share, size, future))
        try:
            await future
        except asyncio.CancelledError:
            # Room given to it meanwhile is released with its share.
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
                # Checked recently, as were all that follow.
                return
            left = reader.unread()
            if before - left < elapsed * SLOW_BYTES_S:
                self.release(reader)
                reader.cut_off()
            else:
                self.hold(reader, left)


class BodyMemory:
    """Bounds the bytes of large bodies without a put's ticket: settlements, triggers, and bodies to any other route.

    A body takes its announced size before it is read. It waits for that in order of arrival, and its bytes stay in the
    socket meanwhile. Belongs to one event loop.
    """

    def __init__(self, size: int = ROOM_BYTES) -> None:
        self.size = size
        self.free = size
        """Free bytes."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """How many bodies wait for room."""
        return sum(not future.done() for _, future in self._waiting)

    async def take(self, size: int) -> int:
        """Wait for ``size`` bytes, at most all there are, and return how many to give back.

        A caller that is cancelled has taken nothing.
        """
        size = min(size, self.size)
        if not self._waiting and size <= self.free:
            self.free -= size
            return size
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                # It was granted in the same turn of the loop.
                self.free += size
            self._give_out()
            raise
        return size

    def give_back(self, size: int) -> None:
        """Release bytes that were taken."""
        self.free += size
        self._give_out()

    def _give_out(self) -> None:
        waiting = self._waiting
        while waiting:
            size, future = waiting[0]
            if not future.cancelled():
                if size > self.free:
                    return
                self.free -= size
                future.set_result(None)
            waiting.popleft()
