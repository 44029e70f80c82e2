"""Rounds: one question a period to a store, in place of a sweep of each of its queues (B17).

The bridge asks with its own credentials: `serve --postgres` has those of a database, `serve --store` those of the store
that bridges share. Where a round fails, its queues are swept one by one, as they are in stores that no bridge can ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from queuebell.bridge.contract.errors import BadQueueReference, QueuebellError
from queuebell.bridge.contract.throttle import Throttle
from queuebell.bridge.observe.facts import RoundMade
from queuebell.bridge.observe.slices import sliced
from queuebell.bridge.observe.swallowed import swallow, swallowing, unless_cancelled

if TYPE_CHECKING:
    from queuebell.bridge.queues.base import RoundStore
    from queuebell.bridge.service.bridge import Bridge

log = logging.getLogger("queuebell.bridge")

QUEUES_AT_ONCE: Final = 100
"""How many queues are checked before other tasks run."""
CONNECTED_S: Final = 600.0
"""How long a connection is used: where an address leads is looked up at its beginning, and a database may move."""
WARN_EVERY_S: Final = 3600.0
ROUND: Final = "a round"


class Rounds:
    """Asks one store once a period while listeners of it are here, and once more if it fails.

    ``here`` if it is the store of this bridge, which closes it; any other is opened by ``connect``, and closed here.
    """

    def __init__(self, bridge: Bridge, connect: Callable[[], RoundStore], *, here: bool = False) -> None:
        self._bridge = bridge
        self._connect = connect
        self._store = connect()
        self._connected_at = 0.0
        self._here = here
        self._round = bridge.scheduler.add_round(self._fingerprint, scope=self._store.scope, here=here)
        self._throttle = Throttle(WARN_EVERY_S)
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask, if there are sweeps."""
        if self._round.every_s:
            self._asking = asyncio.create_task(self._ask_again(), name=f"rounds[{self._store.kind}]")

    async def stop(self) -> None:
        """End it; may be called twice."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        if not self._here:
            with swallowing(ROUND):
                await self._store.close()

    def _fingerprint(self, queue: str) -> str:
        # A listener says hello meanwhile: no exception of a store may end that.
        with swallowing(ROUND), contextlib.suppress(BadQueueReference):
            return self._store.fingerprint(queue)
        return ""

    async def _ask_again(self) -> None:
        now, scheduler, made = self._bridge.now, self._bridge.scheduler, self._round
        self._connected_at = now()
        scheduler.round_begins(now(), made)
        while True:
            pause = scheduler.round_due(now(), made) - now()
            if pause > 0:
                # A peer's answer, which comes meanwhile, postpones the question.
                await asyncio.sleep(pause)
                continue
            if not made.wanted(now()):
                scheduler.round_begins(now(), made)
                continue
            if now() - self._connected_at >= CONNECTED_S:
                await self._connect_anew()
            if not await self._asked():
                # Otherwise all queues would be swept within a tenth of a period.
                failed_at = made.asked_at
                await asyncio.sleep(made.again_s)
                await self._connect_anew()
                if made.began is None or made.began < failed_at:
                    await self._asked()

    async def _connect_anew(self) -> None:
        if self._here:
            return
        with swallowing(ROUND):
            # Closed first: if the bridge stops meanwhile, its stop closes this store again, to the end.
            async with asyncio.timeout(self._round.every_s):
                await unless_cancelled(self._store.close())
        with swallowing(ROUND):
            self._connected_at = self._bridge.now()
            self._store = self._connect()

    async def _asked(self) -> bool:
        with swallowing(ROUND):
            return await self._ask()
        return False

    async def _ask(self) -> bool:
        bridge = self._bridge
        bridge.notice_suspend()
        began = bridge.now()
        bridge.scheduler.round_begins(began, self._round)
        found, why = None, "it has over 10,000 busy queues, or hides rows from this user"
        try:
            async with asyncio.timeout(self._round.every_s):
                found = await unless_cancelled(self._store.visible_queues())
        except QueuebellError as error:
            why = str(error)
        except TimeoutError:
            why = "no answer before the next one was due"
        except Exception as error:  # noqa: BLE001 - it costs this round only
            swallow(ROUND, error)
        if found is None and self._throttle.passes(began) is not None:
            log.warning("the question for all queues of %s failed; each is swept by itself: %s", self._store, why)
        bridge.emit(RoundMade(self._store.kind, found is not None))
        if found is None or bridge.stopped:
            return bridge.stopped
        bridge.notice_suspend()
        bridge.scheduler.round_answered(bridge.now(), self._round, found.queues, found.place)
        bridge.drive()
        for part in sliced(found.queues, QUEUES_AT_ONCE):
            with swallowing(ROUND):
                bridge.scheduler.round_found(bridge.now(), self._round, part, began)
            bridge.drive()
            await asyncio.sleep(0)
        return True
