"""When a member of a cluster tells the others what happened on its queues."""

from __future__ import annotations

from typing import Any

import pytest

from queuebell.bridge.contract.cluster import Past
from queuebell.bridge.service.bridge import Bridge
from tests.listeners.rig import QUEUE
from tests.support.sim_loop import pass_time, simulated


class Link:
    """What the others hear."""

    shares = True

    def __init__(self) -> None:
        self.told: list[list[tuple[str, str]]] = []

    def broadcast(self, message: Any) -> None:
        if isinstance(message, Past):
            assert self.shares
            self.told.append(message.queues[QUEUE].marks)

    async def hand_over_queues(self, events: object) -> None:
        """All have it."""


@pytest.mark.parametrize(("away_s", "told"), [(0, True), (30, True), (120, False)])
@simulated
async def test_what_happens_while_the_link_is_away_is_told_later(away_s: float, told: bool) -> None:
    """Within a minute; later it would be shown at a wrong time. A bridge that leaves tells the rest at once."""
    bridge, link = Bridge(), Link()
    member = bridge.join_cluster(link)  # type: ignore[arg-type]
    async with bridge:
        member.connected(True)
        await pass_time(1)
        link.shares = not away_s
        bridge.history.mark("paused\x1b", "clerk" * 100, QUEUE)
        await pass_time(away_s)
        link.shares = True
        await pass_time(6)
        assert link.told == ([[("paused?", ("clerk" * 100)[:256])]] if told else [])
        bridge.history.mark("resumed", "", QUEUE)
        await bridge.leave()
        assert link.told[-1:] == [[("resumed", "")]]
