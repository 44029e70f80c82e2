"""When a bridge looks by itself, so that puts in PostgreSQL need not each say that they are there.

A commit that notifies waits for all others in the database that do. A bridge that hears many puts of a queue, of
transactions beside each other, promises to look, and has all bridges look every 10 ms; meanwhile its puts notify nobody
(`bridge.queues.postgres.schema`). After half a second, or up to five while there is a crowd, it withdraws the promise
to hear whose puts those are. Transactions that relied on it may be open then: the queue is looked after until the last
of them is over.

A promise lapses after two seconds of the server's clock unless it is given again. Each bridge tells the others which
queues it looks after. Where they hear nothing more of it, they look themselves once the promise has lapsed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final, Protocol

from bridge.queues.postgres.schema import OPEN, PROMISE, PROMISED_S, WITHDRAW

TICK_S: Final = 0.01
"""How long a put that says nothing waits at most, while a promise stands."""
WINDOW_S: Final = 0.1
MANY: Final = 5
"""So many puts of one queue within the window, and the bridge asks how many are open beside each other."""
CROWD: Final = 3
"""So many transactions that put and were not open when it was asked before: fewer do not keep each other waiting."""
PROMISE_S: Final = 0.5
RENEWALS: Final = 9
"""How often a promise is prolonged where there is a crowd, whichever queue that is of."""
OPEN_S: Final = 0.25
"""How long a put waits at most whose transaction stayed open for longer than the promise."""
SILENCE_S: Final = PROMISED_S + 0.25
"""After so long without a word of a promise nobody stands by it, and nobody relies on it any more."""
PREPARED: Final = "-1/"
"""How transactions begin that are prepared (two phases): they have lost the name that they had while they were open."""


class Line(Protocol):
    """What a promise needs of a connection to PostgreSQL."""

    def ask(self, statement: str, *arguments: object) -> Awaitable[list[dict[str, str]]]:
        """Return the rows of a statement."""

    def notify(self, said: Sequence[tuple[str, str]]) -> Awaitable[None]:
        """Send payloads to channels."""


class Promises:
    """The promises of one bridge to the queues of one channel; times are seconds of one monotonic clock."""

    def __init__(self, channel: str, boot: str) -> None:
        self._channel = channel
        self._boot = boot
        self._heard: dict[str, int] = {}
        self._window = self._calm = 0.0
        self._wanted: set[str] = set()
        self._given: set[str] = set()
        self._until = 0.0
        self._owed: set[str] = set()
        """Queues of which a put may have relied on a promise and not been looked for since it was over."""
        self._open: frozenset[str] | None = None
        """The transactions among which such puts are, once that was asked; only fewer can they become."""
        self._seen: frozenset[str] = frozenset()
        self._renewed = 0
        self._wait = TICK_S
        self._others: dict[tuple[str, str], float] = {}
        """Which bridge looks after which queue, and until when that is believed without another word."""
        self._lapsed: set[str] = set()

    def heard(self, queue: str, now: float) -> bool:
        """Note a put of a queue that said so, and return whether `turn` is to be carried out soon."""
        if now < self._calm:
            return False
        if now >= self._window:
            self._heard.clear()
            self._window = now + WINDOW_S
        count = self._heard[queue] = self._heard.get(queue, 0) + 1
        if count >= MANY and queue not in self._given:
            self._wanted.add(queue)
        return queue in self._wanted

    def told(self, queue: str, by: str, promised: bool, now: float) -> None:
        """Note that a bridge looks after a queue, or has done so to the end."""
        if not promised:
            self._others.pop((by, queue), None)
        elif by != self._boot:
            self._others[by, queue] = now + SILENCE_S

    def silent(self, now: float) -> float | None:
        """Take over what nobody speaks of any more; return in how many seconds to call again, None for not."""
        for key in [key for key, until in self._others.items() if until <= now]:
            del self._others[key]
            self._lapsed.add(key[1])
        return min(self._others.values()) - now if self._others else None

    def wait(self) -> float | None:
        """Return in how many seconds the next turn is due; None where nothing is promised or owed."""
        if self._wanted or self._given or self._lapsed:
            return TICK_S
        return self._wait if self._owed else None

    def broke(self) -> None:
        """Note that the connection is gone, and the promises with it; what is owed is found out on the next."""
        self._wanted.clear()
        self._given.clear()
        self._open = None

    async def turn(self, line: Line, now: float) -> None:
        """Look, give and withdraw as it is time to. Raises what ``line`` does; `broke` is to be called then."""
        due = set(self._given)
        if self._lapsed:
            # Before the question: transactions may have relied on them that are in no answer so far.
            self._owed |= self._lapsed
            self._lapsed.clear()
            self._open = None
        if self._wanted or not self._given or now >= self._until:
            now_open = await self._ask(line)
            crowded = len(now_open - self._seen) >= CROWD
            self._seen = now_open
            if self._wanted and not crowded:
                self._wanted.clear()
                self._calm = now + WINDOW_S
            if self._given and now >= self._until:
                self._until = now + PROMISE_S
                self._renewed += 1
                if not crowded or self._renewed > RENEWALS:
                    await line.ask(WITHDRAW)
                    self._given.clear()
                    self._open = None
                    now_open = await self._ask(line)
                else:
                    await self._promise(line, now)
            if self._owed != self._given and self._over(now_open):
                due |= self._owed
        if self._wanted:
            await self._promise(line, now)
        if due:
            # What was committed before the question is seen by whoever looks after this.
            await line.notify([(self._channel, self._word(queue)) for queue in sorted(due)])
        if self._open is not None and not self._open:
            self._owed = set(self._given)
            self._open = None

    async def _ask(self, line: Line) -> frozenset[str]:
        return frozenset(row["transaction"] for row in await line.ask(OPEN, self._channel))

    def _over(self, now_open: frozenset[str]) -> bool:
        """Say whether any transaction is over that may have relied on a promise, now that these are open."""
        before = self._open
        prepared = {each for each in now_open if each.startswith(PREPARED)}
        self._open = now_open if before is None else (now_open & before) | prepared
        changed = self._open != before
        self._wait = TICK_S if changed else min(self._wait * 2, OPEN_S)
        return changed

    async def _promise(self, line: Line, now: float) -> None:
        # What is looked after already is promised again in the same breath: the statement takes all others back.
        asked = sorted(self._wanted | self._given)
        # Before the answer: puts rely on a promise from the moment on that the server has it.
        self._owed.update(asked)
        self._wanted.clear()
        rows = await line.ask(PROMISE, self._channel, asked, [self._said(queue, "true") for queue in asked])
        if not rows:
            return  # another bridge looks after them, and says so to all
        if not self._given:
            self._until, self._renewed = now + PROMISE_S, 0
        self._given.update(row["name"] for row in rows)
        # Heard while the server was asked.
        self._wanted -= self._given
        self._wait = TICK_S

    def _word(self, queue: str) -> str:
        if queue in self._given:
            return self._said(queue, "true")
        # While some of those that relied on it are open the others go on to listen, and ask themselves in the end.
        return queue if self._open else self._said(queue, "false")

    def _said(self, queue: str, promised: str) -> str:
        account, name = queue.split("/")
        return f'{{"storage_account":"{account}","queue_name":"{name}","promised":{promised},"by":"{self._boot}"}}'
