"""The settlements of one queue: a few batched calls in flight, and never two for one message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, NamedTuple

from bridge.contract.backoff import Draw, RandomExponential
from bridge.contract.bounds import STORE_CALL_S
from bridge.contract.errors import QueuebellError, QueueNotFound, StoreError, StoreUnavailable, UnknownOutcome
from bridge.observe import tracing
from bridge.observe.swallowed import swallowing, unless_cancelled
from bridge.queues.base import MAYBE_DONE, Claim, Extend, QueueStore, Release, Settled, Settlement, Settling
from bridge.queues.side_by_side import CALL_S
from listeners.work.lease import Act, Held

log = logging.getLogger("queuebell.listener")

LANES: Final = 4
"""Calls of a line in flight at most: one at a time would settle one batch a round trip, whatever the store can do."""
GONE: Final = "message_not_found"


class Item(NamedTuple):
    """One message and what to do with it; ``seconds`` is a release's delay or an extension's lease."""

    act: Act
    held: Held
    seconds: float


class Line:
    """What waits for its call, and the lanes that take from it: one line settles, the other renews.

    A lane that hangs holds up what comes after it. Of what settles that is a delay; a lease that is not renewed is a
    handler cancelled. So renewals wait for nothing that is in flight, theirs or another's, while a lane is free.
    """

    __slots__ = ("backoff", "fresh", "name", "renews", "tasks", "waiting")

    def __init__(self, name: str, *, renews: bool) -> None:
        self.name = name
        self.renews = renews
        self.waiting: dict[int, Item] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.fresh = 0
        """Lanes that have not taken their first batch yet."""
        self.backoff = RandomExponential(0.05, 5.0, 0.05)

    def wants_lane(self, most: int) -> bool:
        """Return whether what waits should have a lane more, where a call takes ``most``."""
        lanes = self.fresh if self.renews else len(self.tasks)
        return bool(self.waiting) and len(self.tasks) < LANES and (not lanes or len(self.waiting) >= most * lanes)


class Settlements:
    """Batches what handlers decide and settles it in the store, with retries within each lease.

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
        self._on_settled = settled
        self._most = store.capabilities.call_max
        self._clock = clock
        self._draw = draw
        self._settling = Line("settle", renews=False)
        self._renewing = Line("renew", renews=True)
        # A message in flight waits for its answer, for that may bring the receipt its next settlement needs.
        self._busy: set[int] = set()

    def __len__(self) -> int:
        return len(self._settling.waiting)

    @property
    def idling(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not any(line.waiting or line.tasks for line in (self._settling, self._renewing))

    def add(self, act: Act, held: Held, seconds: float = 0.0) -> None:
        """Settle a message with the next call. A delete or release replaces an extension that has not left yet."""
        if act is not Act.EXTEND:
            self._renewing.waiting.pop(held.number, None)
            self._settling.waiting[held.number] = Item(act, held, seconds)
            self._open(self._settling)
        elif held.number not in self._settling.waiting and held.number not in self._renewing.waiting:
            self._renewing.waiting[held.number] = Item(act, held, seconds)
            self._open(self._renewing)

    def _open(self, line: Line) -> None:
        if not line.wants_lane(self._most):
            return
        # Its first step comes after this tick, so that what ends in one tick is settled in one call.
        task = asyncio.create_task(self._run(line), name=f"{line.name}[{self._queue}]#{len(line.tasks) + 1}")
        line.fresh += 1
        line.tasks.add(task)
        task.add_done_callback(line.tasks.discard)

    async def idle(self) -> None:
        """Wait until everything that was added is settled or given up."""
        while tasks := self._settling.tasks | self._renewing.tasks:
            await asyncio.wait(tasks)

    async def abandon(self) -> None:
        """End now; what has not been settled is left to its lease."""
        if tasks := self._settling.tasks | self._renewing.tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        self._settling.waiting.clear()
        self._renewing.waiting.clear()

    async def _run(self, line: Line) -> None:
        me = asyncio.current_task()
        line.fresh -= 1
        try:
            while numbers := list(islice((n for n in line.waiting if n not in self._busy), self._most)):
                items = [line.waiting.pop(number) for number in numbers]
                self._busy.update(numbers)
                try:
                    failed = await self._settle(items)
                    self._keep(line, failed)
                except asyncio.CancelledError:
                    raise
                except Exception:
                    log.exception(
                        "%s: unexpected error while settling; the messages come again when their leases end",
                        self._queue,
                    )
                    self._give_up(items, "internal")
                    failed = []
                finally:
                    self._busy.difference_update(numbers)
                # What waits in the other line for these very messages, and the receipts that came or did not.
                self._open(self._settling if line.renews else self._renewing)
                if failed:
                    await asyncio.sleep(line.backoff.miss(self._draw))
                else:
                    line.backoff.hit()
        finally:
            # In the same tick as the last check of what waits: an `add` after this makes a new task. What waits for a
            # message in flight is taken by that message's lane, which checks both lines after its answer.
            if me is not None:
                line.tasks.discard(me)

    async def _settle(self, items: list[Item]) -> list[Item]:
        """Carry out one call; return what should be tried again."""
        began = self._clock()
        by = {act: [item for item in items if item.act is act] for act in Act}
        longest_ms = self._store.capabilities.visibility_s_max * 1000
        settlement = Settlement(
            delete=[Claim(i.held.stored.id, i.held.receipt) for i in by[Act.DELETE]],
            release=[
                # A delay above the store's maximum becomes shorter: a failed release would come back earlier still.
                Release(
                    i.held.stored.id,
                    i.held.receipt,
                    max(0, min(longest_ms, round(i.seconds * 1000))),
                    uncounted=i.held.given_back and not i.held.answered and self._store.capabilities.uncounted_release,
                )
                for i in by[Act.RELEASE]
            ],
            extend=[Extend(i.held.stored.id, i.held.receipt, i.seconds) for i in by[Act.EXTEND]],
        )
        CALL_S.set(self.store_call_s)
        try:
            answer = await self._ask(settlement, items)
        except (UnknownOutcome, TimeoutError):
            self._doubt(items)
            return items
        except QueueNotFound:
            self._give_up(items, GONE)
            return []
        except (StoreUnavailable, StoreError) as error:
            log.info("%s: deleting or releasing messages failed, trying again: %s", self._queue, error)
            return items
        except QueuebellError as error:
            log.error(
                "%s: the store refused to delete or release messages, they are handled again: %s", self._queue, error
            )
            self._give_up(items, error.code)
            return []
        failed: list[tuple[Item, Settled]] = []
        for act, results in ((Act.DELETE, answer.delete), (Act.RELEASE, answer.release), (Act.EXTEND, answer.extend)):
            for item, result in zip(by[act], results, strict=True):
                if result.open:
                    failed.append((item, result))
                else:
                    self._conclude(item, result, began)
        if failed:
            what = "%s: settling %d of %d messages failed, trying them again: %s"
            log.info(what, self._queue, len(failed), len(items), failed[0][1].code)
            self._doubt(item for item, result in failed if result.code == MAYBE_DONE)
        return [item for item, _ in failed]

    async def _ask(self, settlement: Settlement, items: list[Item]) -> Settling:
        on = tracing.on
        if on is None or settlement.extend:  # to hold a message longer settles nothing
            async with asyncio.timeout(self.store_call_s):
                return await unless_cancelled(self._store.settle(self._queue, settlement))
        ids = [item.held.stored.id for item in items]
        causes = [cause for item in items for cause in item.held.causes()]
        with on.settle(self._queue, causes, ids, str(self._store)) as span:
            async with asyncio.timeout(self.store_call_s):
                answer = await unless_cancelled(self._store.settle(self._queue, settlement))
            refused = sum(not one.ok for one in (*answer.delete, *answer.release))
            if refused:
                tracing.note(span, tracing.REFUSED, refused)
            return answer

    def _settled(self, item: Item, code: str | None) -> None:
        with swallowing("what follows a settlement"):
            self._on_settled(item, code)

    def _doubt(self, items: Iterable[Item]) -> None:
        """Remember what may have been done. A renewal's new receipt is lost with its answer for good."""
        for item in items:
            if item.act is not Act.EXTEND:
                item.held.doubted = item.act

    def _conclude(self, item: Item, result: Settled, began: float) -> None:
        held = item.held
        if result.ok:
            if item.act is Act.EXTEND:
                held.receipt = result.pop_receipt or held.receipt
                held.lease_ends = max(held.lease_ends, began + item.seconds)
            self._settled(item, None)
        elif item.act is held.doubted and (item.act is Act.RELEASE or result.code == GONE):
            # The first try was carried out after all, or the lease ended: it is unknown. But a message that exists
            # under another receipt was not deleted, and is another worker's.
            self._settled(item, None)
        else:
            self._give_up([item], result.code or "internal")

    def _keep(self, line: Line, items: list[Item]) -> None:
        """Queue again what a failed call could not do, unless its lease has ended or something newer was asked for."""
        now = self._clock()
        again: dict[int, Item] = {}
        for item in items:
            number = item.held.number
            newer = self._settling.waiting.get(number)
            if now >= item.held.lease_ends:
                self._settling.waiting.pop(number, None)
                self._settled(newer or item, "lease_ended")
            elif newer is None:
                again[number] = item
        line.waiting = {**again, **line.waiting}

    def _give_up(self, items: list[Item], code: str) -> None:
        """Report rejected items; if a newer settlement of a message waits, that one reports instead."""
        for item in items:
            if item.held.number not in self._settling.waiting:
                self._settled(item, code)
