"""What a store is asked that settles by several requests: one that fails takes no other along.

A subclass gives two fixtures: ``faults``, and ``store`` behind a transport that does with its settling requests as
``faults`` plans. A delete, a release and an extension are a request each, in no certain order.
"""

from __future__ import annotations

import pytest

from queuebell.bridge.contract.errors import StoreUnavailable, UnknownOutcome
from queuebell.bridge.queues.base import Extend, QueueStore, Release, Settlement, StoredMessage
from tests.conformance.leases import LONG, QUEUE, claim, new
from tests.support.http_proxy import Fault, Faults


def settlement(a: StoredMessage, b: StoredMessage, c: StoredMessage) -> Settlement:
    """Delete the first, give back the second, and keep the third."""
    return Settlement([claim(a)], [Release(b.id, b.pop_receipt)], [Extend(c.id, c.pop_receipt, LONG)])


class ApartConformance:
    @pytest.mark.parametrize("first", [0, 1, 2])
    @pytest.mark.parametrize("fault", Fault)
    async def test_one_request_that_fails_takes_no_other_along(
        self, store: QueueStore, faults: Faults, fault: Fault, first: int
    ) -> None:
        """Its item alone is open, and the code says whether it may have been carried out; tried again it ends."""
        await store.put(QUEUE, new(b"a", b"b", b"c"))
        asked = settlement(*(await store.receive(QUEUE, 3, LONG)).messages)
        released = asked.release[0].id
        faults.planned = [*[None] * first, fault]
        settling = await store.settle(QUEUE, asked)
        told = {"delete": settling.delete[0], "release": settling.release[0], "extend": settling.extend[0]}
        assert faults.met == 1
        ((failed, outcome),) = [(name, one) for name, one in told.items() if not one.ok]
        assert outcome.open
        assert outcome.code == ("storage_unavailable" if fault is Fault.REFUSED else "unknown_outcome")
        again = await store.settle(QUEUE, Settlement(**{failed: getattr(asked, failed)}))
        (settled,) = getattr(again, failed)
        done_before = {"delete": "message_not_found"}.get(failed, "pop_receipt_mismatch")
        refused = fault is Fault.UNANSWERED and store.capabilities.fenced
        assert (settled.ok, settled.code) == ((False, done_before) if refused else (True, None))
        (left,) = (await store.receive(QUEUE, 3, LONG)).messages
        assert left.id == released

    @pytest.mark.parametrize("fault", Fault)
    async def test_what_all_requests_fail_by_is_raised(self, store: QueueStore, faults: Faults, fault: Fault) -> None:
        await store.put(QUEUE, new(b"a", b"b", b"c"))
        asked = settlement(*(await store.receive(QUEUE, 3, LONG)).messages)
        faults.planned = [fault] * 3
        with pytest.raises(StoreUnavailable) as failed:
            await store.settle(QUEUE, asked)
        assert isinstance(failed.value, UnknownOutcome) is (fault is not Fault.REFUSED)
        assert faults.met == 3
