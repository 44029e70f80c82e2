"""What a command holds of a queue: how long, and how long one call may take."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bridge.contract.errors import UnknownOutcome
from bridge.producer.held_leases import CALL_S, SHARED_LEASE_S, HeldLeases
from bridge.queues.base import BATCH_MAX, QueueStore
from tests.bridge.queues.clocks import FakeClock
from tests.listeners.rig import Store
from tests.support.sim_loop import simulated

QUEUE = "billing/orders-poison"


class Sharing(Store):
    """A store whose leases all last as long as the longest that was ever asked for."""

    capabilities = msgspec.structs.replace(Store.capabilities, own_leases=False)


@pytest.mark.parametrize(
    ("store", "asked", "lease_s", "call_s"),
    [
        (Store, 600.0, 600.0, CALL_S),
        (Store, 60.0, 60.0, 15.0),
        (Sharing, 600.0, SHARED_LEASE_S, SHARED_LEASE_S / 4),
        (Sharing, 10.0, 10.0, 2.5),
    ],
)
@simulated
async def test_a_lease_is_no_longer_than_others_bear_and_a_call_ends_within_it(
    store: type[Store], asked: float, lease_s: float, call_s: float
) -> None:
    """Where leases are shared a long one would be every worker's; a call has a quarter of it, and a minute at most."""
    loop = asyncio.get_running_loop()
    held = HeldLeases(store(), QUEUE, asked, loop.time)
    assert held.lease_s == lease_s
    began = loop.time()
    with pytest.raises(UnknownOutcome, match=f"within {call_s:g} s"):
        await held.in_time(asyncio.Event().wait())
    assert loop.time() - began == pytest.approx(call_s)


@simulated
async def test_leases_are_renewed_in_their_second_half_and_given_back_uncounted() -> None:
    """Whatever is held stays held however long the look takes, and afterwards nobody sees that it was taken."""
    clock = FakeClock()
    store: QueueStore = Store()
    for start in range(0, 40, BATCH_MAX):
        await store.put(QUEUE, [b"%d" % number for number in range(start, min(40, start + BATCH_MAX))])
    held = HeldLeases(store, QUEUE, 20.0, clock)
    ids = [message.id for _ in range(2) for message in await held.receive(BATCH_MAX)]
    first = {id_: held.receipt(id_) for id_ in ids}
    await clock.let_pass(10.0)
    await held.renew()
    assert {id_: held.receipt(id_) for id_ in ids} == first
    await clock.let_pass(0.1)
    await held.renew()
    assert all(held.receipt(id_) != first[id_] for id_ in ids)
    gone = held.pop(ids[0])
    assert gone and ids[0] not in held and ids[1] in held
    await held.give_back()
    assert not any(id_ in held for id_ in ids)
    found = (await store.receive(QUEUE, BATCH_MAX, 30.0)).messages
    assert len(found) == BATCH_MAX and {message.dequeue_count for message in found} == {1}
