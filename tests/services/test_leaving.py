"""A bridge of a cluster that leaves in order, over a real NATS server (C7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queuebell.bridge import Bridge, Publisher
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import BadInput, BusUnavailable
from queuebell.bridge.observe.facts import SessionClosed
from tests.services.test_turns import EVENT, PATIENCE_S, QUEUE, Site, cluster, patient, put, working
from tests.support.processes import until

# Private: `_broker`: replaced by a flush that is not acknowledged.

__all__ = ["patient"]


def spread(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Have the sessions of whoever leaves go at these moments."""

    def departures(count: int, others: int, draw: Draw) -> list[float]:
        return list(seconds[:count])

    monkeypatch.setattr("queuebell.bridge.service.sessions.departures", departures)


def owe(bridge: Bridge) -> None:
    """Have a bridge alone know of a lease that ends in a minute."""
    work = bridge.scheduler.pending.get_or_add("billing/later", bridge.now())
    bridge.scheduler.timers.arm_due(work, bridge.now(), 60.0, "lease", 1)


def leaver_told(site: Site, leaver: int) -> bool:
    """Whether all others know that it leaves."""
    boot = site.bridges[leaver].boot
    others = [bridge.coordinator for place, bridge in enumerate(site.bridges) if place != leaver]
    return all(each is not None and each.members.peers[boot].member.leaving for each in others)


async def test_until_the_last_session_has_gone_it_is_woken_for_what_all_hear(
    tmp_path: Path, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only worker is with the one that leaves, and its turn to go comes late: nothing waits for that."""
    spread(monkeypatch, 60.0)
    async with cluster(tmp_path, workers=(0,)) as site, Publisher(site.url) as publisher:
        leaving = asyncio.create_task(site.bridges[0].leave(), name="leave")
        await until(lambda: leaver_told(site, 0), "the others know", PATIENCE_S)
        for number in range(3):
            await put(site, number)
            await publisher.publish(QUEUE)
            await until(lambda n=number: len(site.handled) == n + 1, "handled", PATIENCE_S)
        assert not leaving.done()
        with pytest.raises(BadInput, match="stopping"):
            # What it alone would know of is another's to take.
            site.bridges[0].trigger([EVENT], bus="http")
        leaving.cancel()
        await asyncio.wait([leaving])


async def test_what_the_broker_did_not_answer_for_is_told_again_under_the_same_name(
    tmp_path: Path, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, bridges=2, workers=()) as site:
        leaver = site.bridges[0]
        owe(leaver)
        bus = site.buses[0].buses["nats"]
        broker = bus._broker
        assert broker is not None
        told: list[str] = []
        refusals = iter([True, True, False])
        barrier, publish = broker.barrier, broker.publish

        async def flush() -> None:
            if next(refusals):
                raise BusUnavailable("not answered")
            await barrier()

        def note(topic: tuple[str, ...], payload: bytes, **more: object) -> bool:
            if topic[1] == "trigger":
                told.append(payload.decode())
            return publish(topic, payload, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(broker, "barrier", flush)
        monkeypatch.setattr(broker, "publish", note)
        await leaver.leave()
        assert len(told) == 3
        assert len(set(told)) == 1


async def test_sessions_go_one_after_the_other_and_the_others_are_told_first(
    tmp_path: Path, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`leaving`, then each session at its moment."""
    spread(monkeypatch, 0.0, 1.0)
    async with cluster(tmp_path, bridges=2, workers=(0,)) as site, working(site, 0):
        site.forget_facts()
        leaving = asyncio.create_task(site.bridges[0].leave(), name="leave")
        await until(lambda: len(site.of(SessionClosed)) == 1, "the first went", PATIENCE_S)
        assert site.bridges[0].coordinator is not None
        assert site.bridges[0].coordinator.members.leaving
        await leaving
        assert len(site.of(SessionClosed)) == 2
