"""A queue that is gone is forgotten, by its delete or by a person's word, and no wake is lost by it (B14, B10)."""

from __future__ import annotations

import pytest

from bridge.contract.errors import BadInput
from tests.support.bells import QUEUE, Rig


def test_a_queue_is_forgotten_with_what_is_due_there() -> None:
    """Neither its debt comes back, nor the lease of a worker that was killed, nor what was announced for later."""
    rig = Rig()
    rig.lose(rig.join())
    rig.trigger(not_before_ms=5000)
    assert rig.debt().due
    assert ("due", QUEUE) in rig.bell.dispatch.agenda
    assert rig.bell.forget(QUEUE)
    assert ("due", QUEUE) not in rig.bell.dispatch.agenda
    rig.wait(120)
    assert rig.bell.ledger.find(QUEUE) is None
    with pytest.raises(BadInput) as refused:
        rig.bell.forget(QUEUE)
    assert refused.value.code == "queue_not_found"


def test_who_comes_to_a_forgotten_queue_is_asked_to_look() -> None:
    """So that it was not gone after all costs no message."""
    rig = Rig()
    rig.settle_hello(rig.join())
    rig.lose(next(iter(rig.frames)))
    rig.trigger()
    assert rig.bell.forget(QUEUE)
    assert rig.wakes(rig.join())


def test_a_queue_with_a_listener_or_in_the_service_is_not_forgotten() -> None:
    """Who is there settles what is owed; what stands is deleted instead."""
    rig = Rig()
    number = rig.join()
    assert not rig.bell.forget(QUEUE)
    rig.bye(number)
    rig.level(0)
    assert not rig.bell.forget(QUEUE)
    assert rig.debt().dirty


def test_a_deleted_queue_is_forgotten_whatever_was_announced() -> None:
    """Its delete is its end, unless listeners are there or its newest reader took from another store."""
    rig = Rig()
    rig.level(1, put=1)
    rig.trigger()
    rig.level(0, exists=False)
    assert rig.bell.ledger.find(QUEUE) is None
    number = rig.join()
    rig.settle_hello(number)
    rig.level(0)
    rig.trigger()
    rig.level(0, exists=False)
    assert rig.debt().dirty
    rig.level(0)
    rig.bye(number)
    rig.level(0, exists=False)
    assert rig.debt().dirty
