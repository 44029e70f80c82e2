"""The settlements of one queue: a few batched calls in flight, and never two for one message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from queuebell.bridge.contract.backoff import Draw, RandomExponential
from queuebell.bridge.contract.bounds import STORE_CALL_S
from queuebell.bridge.contract.errors import (
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
    named,
)
from queuebell.bridge.contract.throttle import Throttle
from queuebell.bridge.observe import tracing
from queuebell.bridge.observe.swallowed import swallow, unless_cancelled
from queuebell.bridge.queues.base import MAYBE_DONE, Claim, Extend, QueueStore, Release, Settled, Settlement, Settling
from queuebell.bridge.queues.side_by_side import CALL_S
from queuebell.listeners.work.lease import Act, Held

log = logging.getLogger("queuebell.listener")

CALLS_MAX: Final = 4
"""Calls in flight of a queue of calls: with one at a time, each batch would wait for the round trip of the last."""
GONE: Final = "message_not_found"
WARN_EVERY_S: Final = 60.0
LEAST_S: Final = 0.5
"""No pause after a failure ends sooner because the store is heard: its receives may work where its deletions do not."""


class Item(NamedTuple):
    """One message and what to do with it; ``seconds`` is a release's delay or an extension's lease."""

    act: Act
    held: Held
    seconds: float


class CallQueue:
    """Items waiting for a call to the store, and the tasks that make the calls; one queue settles, one renews leases.

    A hanging call delays the items behind it. A late settlement is only late, but a late renewal loses a lease and
    cancels a handler. So renewals have their own tasks, and start another one rather than wait for a call in flight.
    """

    __slots__ = ("backoff", "fresh", "name", "renews", "tasks", "waiting")

    def __init__(self, name: str, *, renews: bool) -> None:
        self.name = name
        self.renews = renews
        self.waiting: dict[int, Item] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.fresh = 0
        """Tasks that have not taken their first batch yet."""
        self.backoff = RandomExponential(0.05, 5.0, 0.05)


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
        self._failures = Throttle(WARN_EVERY_S)
        self.settling = CallQueue("settle", renews=False)
        """Deletes and releases."""
        self._renewing = CallQueue("renew", renews=True)
        # A message in flight waits for its answer, for that may bring the receipt its next settlement needs.
        self._busy: set[int] = set()
        self._back: asyncio.Event | None = None
        """Set once the store is heard to answer again; None unless the last call had no answer."""

    @property
    def idling(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not any(calls.waiting or calls.tasks for calls in (self.settling, self._renewing))

    def add(self, act: Act, held: Held, seconds: float = 0.0) -> None:
        """Settle a message with the next call. A delete or release replaces an extension that has not left yet."""
        if act is not Act.EXTEND:
            self._renewing.waiting.pop(held.number, None)
            self.settling.waiting[held.number] = Item(act, held, seconds)
            self._start_caller(self.settling)
        elif held.number not in self.settling.waiting and held.number not in self._renewing.waiting:
            self._renewing.waiting[held.number] = Item(act, held, seconds)
            self._start_caller(self._renewing)

    def _start_caller(self, calls: CallQueue) -> None:
        """Start another task if what waits needs one."""
        if calls.tasks:
            never_began = {task for task in calls.tasks if task.done()}  # cancelled before their first step
            calls.tasks -= never_began
            calls.fresh -= len(never_began)
        callers, waiting = calls.fresh if calls.renews else len(calls.tasks), len(calls.waiting)
        if not waiting or len(calls.tasks) >= CALLS_MAX or (callers and waiting < self._most * callers):
            return
        # Its first step comes after this tick, so that what ends in one tick is settled in one call.
        task = asyncio.create_task(self._run(calls), name=f"{calls.name}[{self._queue}]#{len(calls.tasks) + 1}")
        calls.fresh += 1
        calls.tasks.add(task)  # `_run` takes it out; a callback would cost another turn of the loop

    def heard(self) -> None:
        """Try again now if the store did not answer before: in the long pauses after an outage leases may end."""
        if self._back is not None:
            self._back.set()
            self._back = None

    async def idle(self) -> None:
        """Wait until everything that was added is settled or given up."""
        while tasks := {task for calls in (self.settling, self._renewing) for task in calls.tasks if not task.done()}:
            await asyncio.wait(tasks)

    async def abandon(self) -> None:
        """End now; what has not been settled is left to its lease."""
        if tasks := self.settling.tasks | self._renewing.tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for calls in (self.settling, self._renewing):
            calls.tasks.clear()  # one that was cancelled before its first step is still there
            calls.waiting.clear()

    async def _run(self, calls: CallQueue) -> None:
        me = asyncio.current_task()
        calls.fresh -= 1
        pause, early = 0.0, False
        try:
            while items := self._take(calls):
                try:
                    failed = await self._settle(items)
                    self._keep(calls, failed)
                except asyncio.CancelledError:
                    raise
                except Exception:
                    log.exception(
                        "%s: unexpected error while settling; each message is tried alone, and those that fail come "
                        "again when their leases end",
                        self._queue,
                    )
                    failed = await self._settle_each(items)
                    self._keep(calls, failed)
                finally:
                    self._busy.difference_update(item.held.number for item in items)
                # Items in the other queue may have waited for these messages' new receipts.
                self._start_caller(self.settling if calls.renews else self._renewing)
                if failed:
                    # A try that came early makes no later one wait longer.
                    pause = pause if early else calls.backoff.miss(self._draw)
                    early = await self._pause(pause)
                else:
                    calls.backoff.hit()
                    early = False
        finally:
            # In the same tick as the last check of what waits: an `add` after this makes a new task. What waits for a
            # message in flight is taken by that call's task, which checks both queues after its answer.
            if me is not None:
                calls.tasks.discard(me)

    def _take(self, calls: CallQueue) -> list[Item]:
        """Remove what the next call settles."""
        items: list[Item] = []
        for number, item in calls.waiting.items():
            if number not in self._busy:
                items.append(item)
                if len(items) == self._most:
                    break
        for item in items:
            del calls.waiting[item.held.number]
            self._busy.add(item.held.number)
        return items

    async def _pause(self, seconds: float) -> bool:
        """Wait, and return whether it was less because the store was heard."""
        back = self._back
        if back is None:  # it answered, and refused for now
            await asyncio.sleep(seconds)
            return False
        await asyncio.sleep(min(LEAST_S, seconds))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - LEAST_S):
                return await back.wait()
        return False

    async def _settle_each(self, items: list[Item]) -> list[Item]:
        """Settle one by one, so that an item which cannot be settled costs no other."""
        again: list[Item] = []
        for item in items:
            try:
                again += await self._settle([item])
            except Exception as error:  # noqa: BLE001 - logged with the whole call
                log.error("%s: message %s cannot be settled: %s", self._queue, item.held.stored.id, named(error))
                self._give_up([item], "internal")
        return again

    async def _settle(self, items: list[Item]) -> list[Item]:
        """Carry out one call; return what should be tried again."""
        began = self._clock()
        by: dict[Act, list[Item]] = {Act.DELETE: [], Act.RELEASE: [], Act.EXTEND: []}
        for item in items:
            by[item.act].append(item)
        longest_ms = self._store.capabilities.visibility_s_max * 1000
        settlement = Settlement(
            delete=[Claim(i.held.stored.id, i.held.receipt) for i in by[Act.DELETE]],
            release=[
                # A delay above the store's maximum becomes shorter: a failed release would come back earlier still.
                Release(
                    i.held.stored.id,
                    i.held.receipt,
                    max(0, min(longest_ms, round(i.seconds * 1000))),
                    uncounted=i.held.given_back
                    and not i.held.handler_ended
                    and self._store.capabilities.uncounted_release,
                )
                for i in by[Act.RELEASE]
            ],
            extend=[Extend(i.held.stored.id, i.held.receipt, i.seconds) for i in by[Act.EXTEND]],
        )
        CALL_S.set(self.store_call_s)
        try:
            answer = await self._ask(settlement, items)
        except (UnknownOutcome, TimeoutError):
            self._back = self._back or asyncio.Event()
            self._doubt(items)
            return items
        except QueueNotFound:
            self._give_up(items, GONE)
            return []
        except StoreError as error:
            if isinstance(error, StoreUnavailable):
                self._back = self._back or asyncio.Event()
            self._warn_of_failure(len(items), error)
            return items
        except QueuebellError as error:
            log.error(
                "%s: the store refused to delete, release or renew messages, they are handled again: %s",
                self._queue,
                error,
            )
            self._give_up(items, error.code)
            return []
        self.heard()
        failed: list[tuple[Item, Settled]] = []
        for act, results in ((Act.DELETE, answer.delete), (Act.RELEASE, answer.release), (Act.EXTEND, answer.extend)):
            for item, result in zip(by[act], results, strict=True):
                if not result.ok and result.open:
                    failed.append((item, result))
                else:
                    self._on_result(item, result, began)
        if failed:
            self._warn_of_failure(len(failed), failed[0][1].code)
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
        try:
            self._on_settled(item, code)
        except Exception as error:  # noqa: BLE001 - the other messages of the call are settled all the same
            swallow("what follows a settlement", error)

    def _warn_of_failure(self, messages: int, reason: object) -> None:
        more = self._failures.passes(self._clock())
        if more is not None:
            log.warning(
                "%s: deleting, releasing or renewing %d messages failed (%d more failures since the last report). "
                "It is tried again until their leases end, then they are handled again: %s",
                self._queue,
                messages,
                more,
                reason,
            )

    def _doubt(self, items: Iterable[Item]) -> None:
        """Remember what may have been done. A renewal's new receipt is lost with its answer for good."""
        for item in items:
            if item.act is not Act.EXTEND:
                item.held.doubted = item.act

    def _on_result(self, item: Item, result: Settled, began: float) -> None:
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

    def _keep(self, calls: CallQueue, items: list[Item]) -> None:
        """Queue again what a failed call could not do, unless its lease has ended or something newer was asked for."""
        if not items:
            return
        now = self._clock()
        again: dict[int, Item] = {}
        for item in items:
            number = item.held.number
            newer = self.settling.waiting.get(number)
            if now >= item.held.lease_ends:
                self.settling.waiting.pop(number, None)
                self._settled(newer or item, "lease_ended")
            elif newer is None:
                again[number] = item
        calls.waiting = {**again, **calls.waiting}

    def _give_up(self, items: list[Item], code: str) -> None:
        """Report rejected items; if a newer settlement of a message waits, that one reports instead."""
        for item in items:
            if item.held.number not in self.settling.waiting:
                self._settled(item, code)
