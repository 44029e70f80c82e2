"""What was put, what came out and when: Jepsen's numbers of a total queue, and the longest anybody waited."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

PATIENCE_S = 40.0


class TotalQueue(NamedTuple):
    """The six numbers after a full drain.

    ``lost`` was acknowledged and never handled; ``duplicated`` counts handlings beyond the first; ``recovered`` was
    never acknowledged and came out all the same; ``unexpected`` came out though nobody put it.
    """

    attempted: int
    acknowledged: int
    lost: int
    duplicated: int
    recovered: int
    unexpected: int

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._asdict().items())


def total(
    attempted: Collection[str], acknowledged: Collection[str], handled: Counter[str], may_go: Collection[str] = ()
) -> TotalQueue:
    """Sum up; what ``may_go`` (it had a time to live) is lost by nobody's fault if it never came out."""
    return TotalQueue(
        attempted=len(attempted),
        acknowledged=len(acknowledged),
        lost=sum(1 for body in acknowledged if body not in handled and body not in may_go),
        duplicated=sum(count - 1 for count in handled.values()),
        recovered=sum(1 for body in handled if body in attempted and body not in acknowledged),
        unexpected=sum(1 for body in handled if body not in attempted),
    )


class Tally:
    """The account of one run. Times are those of the monotonic clock, which all processes here share, in seconds."""

    def __init__(self) -> None:
        self.attempted: dict[str, None] = {}
        self.visible_at: dict[str, float] = {}
        """Of what was acknowledged: the moment from which it could be received."""
        self.may_go: set[str] = set()
        self.starts: dict[str, list[float]] = defaultdict(list)
        self.done: Counter[str] = Counter()
        self.worst_wake_s = 0.0
        self._news = asyncio.Event()

    def names(self, count: int) -> list[str]:
        """Return new bodies, which now count as attempted."""
        first = len(self.attempted)
        names = [f"m{first + number}" for number in range(count)]
        self.attempted.update(dict.fromkeys(names))
        return names

    def acknowledge(self, bodies: Iterable[str], visible_at: float) -> None:
        """Take an acknowledgement."""
        for body in bodies:
            self.visible_at[body] = visible_at

    def began(self, body: str, at: float) -> None:
        """Hear that a handler began."""
        self.starts[body].append(at)
        self._news.set()

    def ended(self, body: str) -> None:
        """Hear that a handler succeeded."""
        self.done[body] += 1
        self._news.set()

    async def when(self, holds: Callable[[], bool], what: Callable[[], str], within_s: float = PATIENCE_S) -> None:
        """Wait until ``holds()`` after any news; fails with ``what``."""
        try:
            async with asyncio.timeout(within_s):
                while not holds():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not within {within_s:g} s: {what()}") from None

    async def all_started(self, bodies: Collection[str], since: float = 0.0, within_s: float = PATIENCE_S) -> None:
        """Wait until a handler began on each of these, at ``since`` or later."""

        def missing() -> list[str]:
            return [body for body in bodies if not any(at >= since for at in self.starts.get(body, ()))]

        await self.when(lambda: not missing(), lambda: f"started; missing {missing()[:10]}", within_s)

    async def all_done(self, bodies: Collection[str] | None = None, within_s: float = PATIENCE_S) -> None:
        """Wait until each of these, or all that was acknowledged and could not expire, is handled."""

        def missing() -> list[str]:
            wanted = [body for body in self.visible_at if body not in self.may_go] if bodies is None else bodies
            return [body for body in wanted if body not in self.done]

        await self.when(lambda: not missing(), lambda: f"handled; missing {missing()[:10]}", within_s)

    def measure(self, bodies: Iterable[str], since: float = 0.0) -> float:
        """Take the longest wait of these into account, and return it.

        A wait begins when the message is visible, or at ``since`` where that is later (a fault ended, a holder died),
        and ends when the next handler begins on it. A message that was begun before, and not again, did not wait.
        """
        longest = 0.0
        for body in bodies:
            base = max(self.visible_at.get(body, 0.0), since)
            longest = max(longest, min((at - base for at in self.starts[body] if at >= base), default=0.0))
        self.worst_wake_s = max(self.worst_wake_s, longest)
        return longest

    def total(self) -> TotalQueue:
        """Return the six numbers as they stand."""
        return total(self.attempted, self.visible_at, self.done, self.may_go)
