"""Leases are renewed whatever becomes of other calls; and V and R are checked against each other."""

from __future__ import annotations

from queuebell.bridge.queues.base import Settlement, Settling
from queuebell.listeners import Message, batch
from tests.listeners.rig import QUEUE, Store, listening, settled
from tests.support.sim_loop import pass_time, simulated


class HalfDeaf(Store):
    """A store that never answers a call which names one kind of settlement, ``deaf`` times."""

    def __init__(self, kind: str, deaf: int) -> None:
        super().__init__()
        self.kind = kind
        self.deaf = deaf

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        if self.deaf and getattr(settlement, self.kind):
            self.deaf -= 1
            await pass_time(1e6)
        return await super().settle(queue, settlement)


@simulated
async def test_a_batch_keeps_its_messages_while_a_delete_hangs() -> None:
    """A batch handler's leases are renewed in their own lane as well."""
    store, runs = HalfDeaf("delete", 3), []

    @batch
    async def handle(messages: list[Message]) -> None:
        runs.append([message.attempt for message in messages])
        await pass_time(14.5 if len(runs) == 1 else 100)

    async with listening(store, handle, batch=2, visibility_timeout=30) as listener:
        await store.fill(b"1", b"2", b"3", b"4")
        await settled(listener, 2)
        assert runs[:2] == [[1, 1], [1, 1]]
        assert listener.state().queues[QUEUE].lost_leases <= 2  # of those whose deletes hung
