"""A bridge's part in a cluster: what it hears of the others, and what it leaves to them (C1 to C10)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from bridge.contract.cluster import Word
from bridge.contract.event import CloudQueueWorkDetected
from bridge.core.cluster.turns import Turns
from bridge.observe.slices import sliced
from bridge.observe.swallowed import swallowing
from bridge.service.runner import Runner

log = logging.getLogger("queuebell.bridge")

LINE: Final = "the line to the other bridges"


class Line(Protocol):
    """Where the other bridges of a cluster are heard (`bridge.triggers.cluster.ClusterLine`)."""

    @property
    def shares(self) -> bool:
        """Whether what is marked here is marked by the others too."""
        ...

    def say(self, word: Word) -> None:
        """Say one word, now or never."""
        ...

    def named(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> Sequence[CloudQueueWorkDetected]:
        """Give a name to each trigger that has none and is told to the others."""
        ...

    def hears(self, bus: str) -> bool:
        """Whether all hear what comes by this bus, each by itself."""
        ...

    def tell(self, events: Sequence[CloudQueueWorkDetected]) -> int:
        """Tell the others of these triggers, and return how many of them are on their way: the first ones."""
        ...

    async def bequeath(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Tell the others what this bridge leaves behind, and wait until the broker has it, however long."""
        ...


class Membership:
    """Brings the words of the others to the rules, and hands over what this bridge has pending when it leaves."""

    def __init__(self, bridge: Runner, turns: Turns, line: Line) -> None:
        self._bridge = bridge
        self.turns = turns
        self.line = line
        self._bequeathed = False

    def connected(self, connected: bool) -> None:
        """Take turns while the others can be heard, and act alone while they cannot (C1)."""
        if not self._bridge.stopped:
            begin_or_end = self.turns.begin if connected else self.turns.end
            begin_or_end(self._bridge.now())
            self._bridge.drive()

    def hear(self, word: Word) -> None:
        """Take a word of another bridge, decoded and checked."""
        if not self._bridge.stopped:
            self._bridge.notice_suspend()
            self.turns.hear(self._bridge.now(), word)
            self._bridge.drive()

    async def bequeath(self, until: float) -> None:
        """Send the others what is pending and due here; return when the broker has it, or at ``until`` (C7)."""
        bequest: list[CloudQueueWorkDetected] = []
        try:
            async with asyncio.timeout_at(until):
                for some in sliced(self._bridge.bell.ledger.debts.values()):
                    bequest += self.turns.bequest(self._bridge.now(), some)
                    await asyncio.sleep(0)
                await self.line.bequeath(bequest)
        except TimeoutError:
            log.warning(
                "the other bridges could not be told what is owed and due here; they look at every queue when they miss"
                " this one, and their sweeps find the rest",
                extra={"left": len(bequest)},
            )
        else:
            self.turns.bequeathed(self._bridge.now())
            self._bridge.drive()
        self._bequeathed = True

    def bequeath_without_waiting(self) -> None:
        """Do so where nobody waits for the broker; nothing where it was done before."""
        if not self._bequeathed:
            self._bequeathed = True
            # The broker may not have it, so the others still check every queue (C5).
            with swallowing(LINE):
                self.line.tell(self.line.named(self.turns.bequest(self._bridge.now()), ""))
