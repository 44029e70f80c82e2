"""The settlements of one queue: a few calls in flight, each with what has gathered, and never two for one message."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from itertools import islice
from typing import Final

from bridge.contract.backoff import Draw, RandomExponential
from bridge.contract.bounds import STORE_CALL_S
from bridge.contract.errors import QueuebellError, QueueNotFound, StoreError, StoreUnavailable, UnknownOutcome
from bridge.queue import Claim, Extend, QueueStore, Release, Settled, Settlement
from listeners.held import Held

log = logging.getLogger("queuebell.listener")

LANES: Final = 4
"""Calls in flight at most: one at a time would settle one batch a round trip, whatever the store can do."""
GONE: Final = "message_not_found"


class Act(enum.Enum):
    """What to do with a message held."""

    DELETE = "delete"
    RELEASE = "release"
    EXTEND = "extend"


class Item:
    """One message and what to do with it; ``seconds`` is a release's delay or an extension's lease."""

    __slots__ = ("act", "held", "seconds")

    def __init__(self, act: Act, held: Held, seconds: float) -> None:
        self.act = act
        self.held = held
        self.seconds = seconds


class Settlements:
    """Gathers what handlers decide and brings it to the store, again and again within each lease.

    ``settled(item, code)`` is called once for each item: code None where it was carried out, else the store's code, or
    ``lease_ended`` where no answer came in time. It is called on the loop, never from within `add`.
    """

    def __init__(
        self,
        queue: str,
        store: QueueStore,
        *,
        settled: Callable[[Item, str | None], None],
        clock: Callable[[], float],
        draw: Draw,
    ) -> None:
        self.store_call_s = STORE_CALL_S
        """R: every store call ends by our own timer (L3)."""
        self._queue = queue
        self._store = store
        self._settled = settled
        self._most = store.capabilities.call_max
        self._clock = clock
        self._draw = draw
        self._waiting: dict[int, Item] = {}
        # A message in flight waits for its answer, for that may bring the receipt its next settlement needs.
        self._busy: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._backoff = RandomExponential(0.05, 5.0, 0.05)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, act: Act, held: Held, seconds: float = 0.0) -> None:
        """Settle a message with the next call. A delete or release replaces an extension that has not left yet."""
        waiting = self._waiting.get(held.number)
        if waiting is not None and act is Act.EXTEND:
            return
        self._waiting[held.number] = Item(act, held, seconds)
        lanes = len(self._tasks)
        if not lanes or (lanes < LANES and len(self._waiting) >= self._most * lanes):
            # Its first step comes after this tick, so that what ends in one tick is settled in one call.
            task = asyncio.create_task(self._run(), name=f"settle[{self._queue}]#{lanes + 1}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def idle(self) -> None:
        """Wait until everything that was added is settled or given up."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def abandon(self) -> None:
        """End now; what has not been settled is left to its lease."""
        if self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(list(self._tasks))
        self._waiting.clear()

    async def _run(self) -> None:
        me = asyncio.current_task()
        try:
            while numbers := list(islice((n for n in self._waiting if n not in self._busy), self._most)):
                items = [self._waiting.pop(number) for number in numbers]
                self._busy.update(numbers)
                try:
                    failed = await self._settle(items)
                    if failed:
                        self._keep(items)
                except asyncio.CancelledError:
                    raise
                except Exception:
                    log.exception("%s: settling broke; the messages come back when their leases end", self._queue)
                    self._give_up(items, "internal")
                    continue
                finally:
                    self._busy.difference_update(numbers)
                if failed:
                    await asyncio.sleep(self._backoff.miss(self._draw))
                else:
                    self._backoff.hit()
        finally:
            # In the same tick as the last look at what waits: an `add` after this makes a new task. What waits for a
            # message in flight is seen by the lane that has it, which looks again after its answer.
            if me is not None:
                self._tasks.discard(me)

    async def _settle(self, items: list[Item]) -> bool:
        """Carry out one call; True if it should be tried again."""
        began = self._clock()
        by = {act: [item for item in items if item.act is act] for act in Act}
        longest_ms = self._store.capabilities.visibility_s_max * 1000
        settlement = Settlement(
            delete=[Claim(i.held.stored.id, i.held.receipt) for i in by[Act.DELETE]],
            release=[
                # What the store cannot put off for so long comes earlier: a failed release would come earlier still.
                Release(i.held.stored.id, i.held.receipt, max(0, min(longest_ms, round(i.seconds * 1000))))
                for i in by[Act.RELEASE]
            ],
            extend=[Extend(i.held.stored.id, i.held.receipt, i.seconds) for i in by[Act.EXTEND]],
        )
        try:
            async with asyncio.timeout(self.store_call_s):
                answer = await self._store.settle(self._queue, settlement)
        except (UnknownOutcome, TimeoutError):
            for item in items:
                item.held.doubtful = True
            return True
        except QueueNotFound:
            self._give_up(items, GONE)
            return False
        except (StoreUnavailable, StoreError) as error:
            log.info("%s: settling failed, trying again: %s", self._queue, error)
            return True
        except QueuebellError as error:
            log.error("%s: the store refuses to settle: %s", self._queue, error)
            self._give_up(items, error.code)
            return False
        for act, results in ((Act.DELETE, answer.delete), (Act.RELEASE, answer.release), (Act.EXTEND, answer.extend)):
            for item, result in zip(by[act], results, strict=True):
                self._tell(item, result, began)
        return False

    def _tell(self, item: Item, result: Settled, began: float) -> None:
        held = item.held
        if result.ok:
            if item.act is Act.EXTEND:
                held.receipt = result.pop_receipt or held.receipt
                held.lease_ends = max(held.lease_ends, began + item.seconds)
            self._settled(item, None)
        elif held.doubtful and item.act is not Act.EXTEND:
            self._settled(item, None)  # the first try was carried out after all, or the lease ended: nobody can tell
        else:
            self._settled(item, result.code or "internal")

    def _keep(self, items: list[Item]) -> None:
        """Put back what a failed call could not do, unless its lease has ended or something newer was asked for."""
        now = self._clock()
        again: dict[int, Item] = {}
        for item in items:
            newer = self._waiting.get(item.held.number)
            if now >= item.held.lease_ends:
                self._waiting.pop(item.held.number, None)
                self._settled(newer or item, "lease_ended")
            elif newer is None:
                again[item.held.number] = item
        self._waiting = {**again, **self._waiting}

    def _give_up(self, items: list[Item], code: str) -> None:
        for item in items:
            self._settled(item, code)
