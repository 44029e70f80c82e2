"""Pass the embedded store's commits to the scheduler (`queuebell.bridge.queues.embedded.state.StoreObserver`)."""

from __future__ import annotations

import base64
import os
import pathlib

import msgspec

from queuebell.bridge.contract.times import rfc3339
from queuebell.bridge.contract.wire import CarriedMessage
from queuebell.bridge.core.commands import Reclaim, Refresh
from queuebell.bridge.core.embedded_queues import CARRY_BYTES_MAX
from queuebell.bridge.observe.swallowed import swallow, swallowing
from queuebell.bridge.queues.base import Claim, StoredMessage
from queuebell.bridge.queues.embedded.state import Backlog, Grant, GrantResult
from queuebell.bridge.queues.embedded.store import EmbeddedStore
from queuebell.bridge.queues.served import RECORDING
from queuebell.bridge.service.runner import Runner

# Size of id, receipt, times and names around a body in a frame.
ENVELOPE_BYTES = 320


def open_embedded_store(
    data: str | os.PathLike[str] | None, boot: str, synchronous: str, put_window_s: float
) -> EmbeddedStore:
    """Create the embedded store, in the directory ``data`` or in memory."""
    if data is None:
        from queuebell.bridge.queues.embedded.store import MemoryStore

        return MemoryStore(f"bridge-{boot}", boot=boot, put_window_s=put_window_s)
    from queuebell.bridge.queues.embedded.sqlite import SqliteStore

    file = pathlib.Path(data) / "queue.db"
    return SqliteStore(file, boot=boot, synchronous=synchronous, put_window_s=put_window_s)


class EmbeddedFeed:
    """Receives commits in the writer's order, and chooses the sessions that wakes carry messages to."""

    def __init__(self, bridge: Runner) -> None:
        self._bridge = bridge
        self._rules = bridge.scheduler.embedded
        self._grants: dict[tuple[int, str], list[tuple[int, float, float]]] = {}
        """For each grant the number of messages, the earliest start of their leases, and the lease in seconds."""

    def grant(self, queue: str, count: int) -> Grant | None:
        """Return the session that messages of a put may be sent to directly, or None (O7)."""
        if self._bridge.draining:
            return None
        now = self._bridge.now()
        granted = self._rules.grant(now, queue, count)
        if granted is None:
            return None
        session, limit, lease_s = granted
        self._grants.setdefault((session, queue), []).append((limit, now, lease_s))
        return Grant(session=str(session), limit=limit, lease_s=lease_s)

    def committed(self, backlogs: list[Backlog], handed: list[GrantResult]) -> None:
        """Pass a commit to the scheduler: first its carried messages, then the queues' backlogs."""
        now = self._bridge.now()
        for hand in handed:
            try:
                self._handed(now, hand)
            except Exception as error:  # noqa: BLE001 - the messages reappear when their leases end
                swallow("a wake that carries messages", error)
        for backlog in backlogs:
            try:
                self._backlog(now, backlog)
            except Exception as error:  # noqa: BLE001 - retried
                swallow("the state of an embedded queue", error)
                self._rules.reread_later(now, backlog.queue)
        self._bridge.drive()

    def _backlog(self, now: float, backlog: Backlog) -> None:
        self._rules.on_commit(
            now,
            backlog.queue,
            exists=backlog.exists,
            visible=backlog.visible,
            invisible=backlog.invisible,
            rose=backlog.rose,
            put=backlog.put,
            receives=backlog.receives,
            empty=backlog.empty,
            # Rounded up by the store's resolution: a timer that fires early causes an empty receive (B2).
            next_visible_s=None if backlog.next_visible_in_ms is None else (backlog.next_visible_in_ms + 1) / 1000,
            paused=backlog.paused,
            sources=backlog.sources,
            leased=backlog.leased,
            delayed=backlog.delayed,
            oldest_s=None if backlog.oldest_ms is None else backlog.oldest_ms / 1000,
        )

    def _handed(self, now: float, hand: GrantResult) -> None:
        session = int(hand.session)
        limits = self._grants.get((session, hand.queue))
        granted, since, lease_s = limits.pop(0) if limits else (len(hand.messages), now, 0.0)
        if not limits:
            self._grants.pop((session, hand.queue), None)
        # The worker counts from the wake's arrival, but the lease started before the flush.
        left_s = lease_s - (now - since)
        carried = [_carried(message, left_s) for message in hand.messages]
        weights = [_weight(message) for message in carried]
        late = left_s <= lease_s / 2
        if hand.queue in self._bridge.events.watched:
            with swallowing(RECORDING):
                self._bridge.events.carried(hand.queue, session, carried)
        self._rules.handed(now, hand.queue, session, granted, carried, hand.visible, weights, late=late)


def perform_on_store(bridge: Runner, own: EmbeddedStore, command: Refresh | Reclaim) -> None:
    """Read a queue's backlog again, or take carried messages back; a failure is retried."""
    try:
        if isinstance(command, Refresh):
            own.refresh(command.queue)
        else:
            own.reclaim(command.queue, [Claim(*claim) for claim in command.claims], uncount=command.uncount)
    except Exception as error:  # noqa: BLE001 - retried
        swallow("the store of the embedded queues", error)
        bridge.scheduler.embedded.reread_later(bridge.now(), command.queue)


def _weight(message: CarriedMessage) -> int:
    """Return an upper bound of a message's size in a frame, in bytes."""
    overhead = ENVELOPE_BYTES + (len(msgspec.json.encode(message.headers)) if message.headers else 0)
    if message.body is None:
        return len(message.body_base64 or "") + overhead
    # A control character takes six bytes in JSON. Encode only if that bound is too coarse.
    bound = 6 * len(message.body)
    if bound > CARRY_BYTES_MAX // 32:
        bound = len(msgspec.json.encode(message.body))
    return bound + overhead


def _carried(message: StoredMessage, left_s: float) -> CarriedMessage:
    text: str | None
    encoded: str | None = None
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text, encoded = None, base64.b64encode(message.body).decode()
    return CarriedMessage(
        id=message.id,
        pop_receipt=message.pop_receipt,
        dequeue_count=message.dequeue_count,
        inserted_at=rfc3339(message.inserted_at),
        expires_at=None if message.expires_at is None else rfc3339(message.expires_at),
        body=text,
        body_base64=encoded,
        visible_in_ms=max(0, int(left_s * 1000)),
        key=message.key,
        headers=message.headers,
    )
