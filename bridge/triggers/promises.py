"""Promises of a bridge to poll busy queues in PostgreSQL, so that puts to them need not notify.

Commits that notify wait for each other in the whole database. A bridge that receives many concurrent puts of a queue
promises to trigger it for all bridges every 10 ms; until the promise ends, puts to it do not notify
(`bridge.queues.postgres.schema`). After half a second, or up to five under load, the bridge withdraws the promise and
counts notifications again. Transactions that relied on it may still be open: the queue is triggered until the last of
them has ended.

A promise expires after two seconds of the server's clock unless it is renewed. Each bridge reports its promised queues
to the others; when these reports stop, they take the queues over once the promise has expired.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from queuebell.bridge.brokers.postgres.broker import PostgresBroker
from queuebell.bridge.contract.errors import BusUnavailable
from queuebell.bridge.queues.postgres.schema import OPEN, PROMISE, PROMISED_S, WITHDRAW

log = logging.getLogger("queuebell.bridge")

TICK_S: Final = 0.01
"""The longest wait of a put without a notification, during a promise."""
WINDOW_S: Final = 0.1
MANY: Final = 5
"""Puts of one queue within the window after which the bridge asks how many transactions are concurrent."""
CROWD: Final = 3
"""Open transactions that were not open at the last question: fewer do not make each other wait."""
PROMISE_S: Final = 0.5
RENEWALS: Final = 9
"""How often a promise is renewed under load."""
OPEN_S: Final = 0.25
"""The longest wait of a put whose transaction stayed open for longer than the promise."""
SILENCE_S: Final = PROMISED_S + 0.25
"""After this long without a report a promise has expired, and nothing relies on it any more."""
PREPARED: Final = "-1/"
"""The prefix of prepared (two-phase) transactions, which have lost the name that they had while open."""


class PromiseKeeper:
    """Makes and keeps promises for the queues of a database, over one connection after the other."""

    def __init__(self, bus: str, prefix: str, boot: str) -> None:
        self._bus = bus
        self._promises = Promises(prefix, boot)
        self._line: PostgresBroker | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._watching: asyncio.TimerHandle | None = None

    def on_put(self, queue: str) -> None:
        """Count a put that notified. Never raises."""
        if self._promises.on_put(queue, asyncio.get_running_loop().time()):
            self._keep_soon()

    def on_report(self, queue: str, by: str, promised: bool) -> None:
        """Note a bridge's report of its promise. Never raises."""
        self._promises.on_report(queue, by, promised, asyncio.get_running_loop().time())
        if self._watching is None:
            self._watch()

    def attach(self, line: PostgresBroker) -> None:
        """Continue with what is pending since the previous connection."""
        self._line = line
        self._keep_soon()

    def detach(self) -> None:
        """Drop the promises of the lost connection."""
        self._line = None
        self._promises.reset()
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    def stop(self) -> None:
        """Stop watching the promises of other bridges."""
        if self._watching is not None:
            self._watching.cancel()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        wait = self._promises.take_over(loop.time())
        self._watching = None if wait is None else loop.call_later(wait, self._watch)
        self._keep_soon()

    def _keep_soon(self) -> None:
        if self._keeping is None and self._line is not None and self._promises.wait() is not None:
            self._keeping = asyncio.create_task(self._keep(self._line), name=f"promises[{self._bus}]")

    async def _keep(self, line: PostgresBroker) -> None:
        while (wait := self._promises.wait()) is not None:
            await asyncio.sleep(wait)
            try:
                await self._promises.turn(line, asyncio.get_running_loop().time())
            except BusUnavailable as error:
                log.debug("promises end with their connection: %s", error, extra={"bus": self._bus})
                return  # `detach` follows, and the next connection continues
        self._keeping = None


class Promises:
    """The promises of one bridge for the queues of one channel. Times are seconds of one monotonic clock."""

    def __init__(self, channel: str, boot: str) -> None:
        self._channel = channel
        self._boot = boot
        self._counts: dict[str, int] = {}
        self._window = self._calm = 0.0
        self._wanted: set[str] = set()
        self._promised: set[str] = set()
        self._until = 0.0
        self._pending: set[str] = set()
        """Queues with puts that may have relied on a promise and not been triggered since they were committed."""
        self._open: frozenset[str] | None = None
        """The open transactions that may contain such puts, once known; they can only become fewer."""
        self._seen: frozenset[str] = frozenset()
        self._renewed = 0
        self._wait = TICK_S
        self._others: dict[tuple[str, str], float] = {}
        """When the promise of a bridge for a queue expires without another report."""
        self._lapsed: set[str] = set()

    def on_put(self, queue: str, now: float) -> bool:
        """Count a put that notified, and return whether `turn` should be called soon."""
        if now < self._calm:
            return False
        if now >= self._window:
            self._counts.clear()
            self._window = now + WINDOW_S
        count = self._counts[queue] = self._counts.get(queue, 0) + 1
        if count >= MANY and queue not in self._promised:
            self._wanted.add(queue)
        return queue in self._wanted

    def on_report(self, queue: str, by: str, promised: bool, now: float) -> None:
        """Note that a bridge has promised to trigger a queue, or has finished."""
        if not promised:
            self._others.pop((by, queue), None)
        elif by != self._boot:
            self._others[by, queue] = now + SILENCE_S

    def take_over(self, now: float) -> float | None:
        """Take over queues whose promise by another bridge expired; return when to call again in seconds, or None."""
        for key in [key for key, until in self._others.items() if until <= now]:
            del self._others[key]
            self._lapsed.add(key[1])
        return min(self._others.values()) - now if self._others else None

    def wait(self) -> float | None:
        """Return in how many seconds the next turn is due; None if nothing is promised or pending."""
        if self._wanted or self._promised or self._lapsed:
            return TICK_S
        return self._wait if self._pending else None

    def reset(self) -> None:
        """Forget the promises of a lost connection; pending queues are asked for again on the next."""
        self._wanted.clear()
        self._promised.clear()
        self._open = None

    async def turn(self, line: PostgresBroker, now: float) -> None:
        """Trigger, promise and withdraw what is due. Raises what ``line`` raises; call `reset` then."""
        due = set(self._promised)
        if self._lapsed:
            # Before asking: the answers so far may lack transactions that relied on these promises.
            self._pending |= self._lapsed
            self._lapsed.clear()
            self._open = None
        if self._wanted or not self._promised or now >= self._until:
            now_open = await self._ask(line)
            crowded = len(now_open - self._seen) >= CROWD
            self._seen = now_open
            if self._wanted and not crowded:
                self._wanted.clear()
                self._calm = now + WINDOW_S
            if self._promised and now >= self._until:
                self._until = now + PROMISE_S
                self._renewed += 1
                if not crowded or self._renewed > RENEWALS:
                    await line.ask(WITHDRAW)
                    self._promised.clear()
                    self._open = None
                    now_open = await self._ask(line)
                else:
                    await self._promise(line, now)
            if self._pending != self._promised and self._over(now_open):
                due |= self._pending
        if self._wanted:
            await self._promise(line, now)
        if due:
            # A receive after this trigger finds everything that was committed before the question.
            await line.notify([(self._channel, self._trigger(queue)) for queue in sorted(due)])
        if self._open is not None and not self._open:
            self._pending = set(self._promised)
            self._open = None

    async def _ask(self, line: PostgresBroker) -> frozenset[str]:
        return frozenset(row["transaction"] for row in await line.ask(OPEN, self._channel))

    def _over(self, now_open: frozenset[str]) -> bool:
        """Return whether the open transactions changed since the last call, or were unknown."""
        before = self._open
        prepared = {each for each in now_open if each.startswith(PREPARED)}
        self._open = now_open if before is None else (now_open & before) | prepared
        changed = self._open != before
        self._wait = TICK_S if changed else min(self._wait * 2, OPEN_S)
        return changed

    async def _promise(self, line: PostgresBroker, now: float) -> None:
        # All at the same time, because the statement withdraws all other promises.
        asked = sorted(self._wanted | self._promised)
        # Before the answer: puts rely on a promise as soon as the server has it.
        self._pending.update(asked)
        self._wanted.clear()
        rows = await line.ask(PROMISE, self._channel, asked, [self._report(queue, "true") for queue in asked])
        if not rows:
            return  # another bridge has promised them, and reports it
        if not self._promised:
            self._until, self._renewed = now + PROMISE_S, 0
        self._promised.update(row["name"] for row in rows)
        # Received while the server was asked.
        self._wanted -= self._promised
        self._wait = TICK_S

    def _trigger(self, queue: str) -> str:
        if queue in self._promised:
            return self._report(queue, "true")
        # While such transactions are open, other bridges keep watching and would take over.
        return queue if self._open else self._report(queue, "false")

    def _report(self, queue: str, promised: str) -> str:
        account, name = queue.split("/")
        return f'{{"storage_account":"{account}","queue_name":"{name}","promised":{promised},"by":"{self._boot}"}}'
