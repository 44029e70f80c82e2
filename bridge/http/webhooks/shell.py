"""All webhooks of a bridge: one task and one pending wake per endpoint, so that a slow one delays no others."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.wire import Wake
from queuebell.bridge.http.webhooks.deliver import Courier, Resolve, resolve_by_system
from queuebell.bridge.http.webhooks.rules import Deliveries, Outcome
from queuebell.bridge.http.webhooks.settings import CheckedWebhook, WebhookSettings, check_webhooks, name_of
from queuebell.bridge.service.announcing import Announcer
from queuebell.bridge.service.state.answers import ListenerState, Subscribed

if TYPE_CHECKING:
    from queuebell.bridge.service.bridge import Bridge

log = logging.getLogger("queuebell.webhook")


class Endpoint:
    """One endpoint, with its pending wake and its task."""

    def __init__(self, checked: CheckedWebhook, courier: Courier, draw: Draw, bridge: Bridge) -> None:
        self.queue = checked.settings.queue
        # Without path and query, which may contain a secret.
        self.name = f"{checked.target.url.partition(':')[0]}://{checked.target.host}:{checked.target.port}"
        self.deliveries = Deliveries(draw)
        self._courier = courier
        self._bridge = bridge
        self._changed = asyncio.Event()
        self._state = "ok"
        self._detail = ""

    def offer(self, wake: Wake) -> None:
        """Deliver a wake; never blocks."""
        self.deliveries.offer(asyncio.get_running_loop().time(), wake)
        self._changed.set()

    async def run(self) -> None:
        """Deliver until the endpoint is permanently gone, or this is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while not self.deliveries.disabled:
                now = loop.time()
                deadline = self.deliveries.deadline()
                if deadline is None or deadline > now:
                    await self._wait(deadline)
                    continue
                wake = self.deliveries.begin(now)
                self._ended(loop.time, await self._attempt(wake))
        finally:
            await self._courier.close()

    async def _wait(self, deadline: float | None) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()
        except TimeoutError:
            # The time for the next attempt.
            pass

    async def _attempt(self, wake: Wake) -> Outcome:
        try:
            return await self._courier.deliver(wake)
        except Exception:
            # An internal error must not end the endpoint's task: it counts as a failed attempt.
            log.exception("webhook: unexpected error in an attempt", extra={"endpoint": self.name})
            return Outcome(None, "internal error")

    def _ended(self, clock: Callable[[], float], outcome: Outcome) -> None:
        if self._courier.rate is not None:
            self.deliveries.allow(self._courier.rate)
        _, waits = self._bridge.newest(self.queue)
        self.deliveries.ended(clock(), outcome, waits=waits)
        state = "disabled" if self.deliveries.disabled else "ok" if outcome.delivered else "failing"
        self._detail = "" if outcome.delivered else outcome.detail
        if state == self._state:
            return
        self._state = state
        extra = {"endpoint": self.name, "queue": self.queue}
        if state == "ok":
            log.info("webhook: delivering again", extra=extra)
        elif state == "disabled":
            log.warning("webhook: the endpoint returned 410 and is disabled from now on", extra=extra)
        else:
            log.warning("webhook: %s; it is retried at growing intervals", outcome.detail, extra=extra)

    def row(self) -> ListenerState:
        """Return the endpoint for ``GET /v1/listeners``."""
        return ListenerState(
            listener=self.name,
            channel="webhook",
            queues=[Subscribed(queue=self.queue)],
            state=self._state,
            detail=self._detail,
            delivered=self.deliveries.delivered,
            failures=self.deliveries.failures,
            dropped=self.deliveries.dropped,
            pending=self.deliveries.pending is not None or self.deliveries.in_flight is not None,
        )


class Webhooks:
    """The webhooks of the configuration; none can be added over HTTP.

    Raises `ConfigurationError` for invalid entries. ``own`` of `start` is where the bridge itself listens.
    """

    def __init__(
        self,
        bridge: Bridge,
        settings: Sequence[WebhookSettings],
        *,
        resolve: Resolve = resolve_by_system,
        wall: Callable[[], float] = time.time,
        draw: Draw = random.random,
        **courier: Any,
    ) -> None:
        self._checked = check_webhooks(settings)
        self._announcer = Announcer(bridge)
        self._bridge = bridge
        self._resolve = resolve
        self._wall = wall
        self._draw = draw
        self._courier = courier
        self._own: tuple[str, int] | None = None
        self._endpoints: list[Endpoint] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    async def start(self, own: tuple[str, int] | None = None) -> None:
        """Begin to deliver, first what is pending since the bridge started."""
        self._own = own
        self._bridge.webhooks = self.rows
        for number, checked in enumerate(self._checked, 1):
            courier = Courier(checked, self._is_own, resolve=self._resolve, wall=self._wall, **self._courier)
            endpoint = Endpoint(checked, courier, self._draw, self._bridge)
            self._endpoints.append(endpoint)
            self._tasks.append(asyncio.create_task(endpoint.run(), name=f"webhook {number}"))
            subscriber = self._announcer.subscribe(
                [endpoint.queue], writable=_always, send=endpoint.offer, route=name_of(checked.settings)
            )
            self._announcer.catch_up(subscriber, 0)

    async def stop(self) -> None:
        """Stop now; pending wakes are delivered after the next start if work still waits. May be called twice."""
        self._announcer.close()
        if not self._stopped:
            self._stopped = True
            # Only once: a second cancellation would interrupt the cleanup of the first.
            for task in self._tasks:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def rows(self) -> list[ListenerState]:
        """Return all endpoints."""
        return [endpoint.row() for endpoint in self._endpoints]

    def _is_own(self, address: str, port: int) -> bool:
        if self._own is None or port != self._own[1]:
            return False
        return address == self._own[0] or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _always() -> bool:
    # `Deliveries` merges wakes.
    return True
