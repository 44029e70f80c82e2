"""When a broker's connection is made, doubted, given up and made anew; pure.

One connection after another is supervised for ever. A client library's word that all is well is never asked for: the
path is alive while messages to oneself come back through the broker. Its word that something is wrong is believed at
once. Seconds throughout; time and chance are arguments.

::

    DOWN ──due──▶ CONNECTING ──connected──▶ UP ──broken, or two probes lost──▶ DOWN
                      └──────failed──────▶ DOWN
"""

from __future__ import annotations

import enum

from bridge.contract.backoff import Draw, FullJitter
from bridge.observe.facts import BusDown, BusUp, Fact

PROBE_EVERY_S = 5.0
PROBES_LOST_MAX = 2
RETRY_FIRST_S = 0.1
RETRY_CAP_S = 5.0
HOPELESS_S = 5.0
"""The pause after a refusal that another try does not help: whoever sets the broker right need not tell us."""
UNREADY_AFTER_S = 2.0
"""How long a bus may be doubtful while `/readyz` stays good. A broker that hangs is found out by the first lost probe,
within `PROBE_EVERY_S` and a probe's own 2 s; all three together are 9 s of the 10 s that are promised."""
STEADY_S = 5.0
"""How long a connection has to hold before the next pause starts small again: one that dies at once is no success."""


class State(enum.Enum):
    """Where a supervised connection stands."""

    DOWN = "down"
    CONNECTING = "connecting"
    UP = "up"


class Supervision:
    """The rules for one bus. Tell it what happened; it says when to act, and keeps facts and gaps to be taken.

    A gap is a time in which triggers may have been missed: before every connection, the first one too, and whenever
    the client library dropped messages.
    """

    def __init__(self, bus: str, address: str, now: float) -> None:
        self.state = State.DOWN
        self.bus = bus
        self.address = address
        self.reason = "not connected yet"
        self.round_trip_s: float | None = None
        self.connects = 0
        self._backoff = FullJitter(RETRY_FIRST_S, RETRY_CAP_S)
        self._due_at = now
        self._up_since = now
        self._down_since = now
        self._doubted_since: float | None = now
        self._lost = 0
        self._dropped = 0
        self._gap = False
        self._told_down = False
        self._facts: list[Fact] = []

    # -- what is to be done ------------------------------------------------------------------------------------------

    def due(self) -> float:
        """Return when to act next: connect while DOWN, probe while UP."""
        return self._due_at

    def facts(self) -> list[Fact]:
        """Take the changes of state since last time: one fact for each."""
        taken, self._facts = self._facts, []
        return taken

    def take_gap(self) -> bool:
        """Say whether triggers may have been missed since last time."""
        taken, self._gap = self._gap, False
        return taken

    def ready(self, now: float) -> bool:
        """Say whether the bus works, as far as is known; never before it has worked once."""
        if not self.connects:
            return False
        return self._doubted_since is None or now - self._doubted_since < UNREADY_AFTER_S

    def detail(self, now: float) -> str:
        """Say in one line how it stands, for `/readyz`."""
        if self._doubted_since is None and self.state is State.UP:
            return f"{self.address}: connected"
        return f"{self.address}: {self.reason}, for {max(0.0, now - self._down_since):.0f} s"

    # -- what happened -----------------------------------------------------------------------------------------------

    def connecting(self) -> None:
        """A try begins."""
        assert self.state is State.DOWN
        self.state = State.CONNECTING

    def connected(self, now: float) -> None:
        """The connection stands and everything is subscribed on it."""
        assert self.state is State.CONNECTING
        self.state = State.UP
        self._facts.append(BusUp(self.bus, self.address, now - self._down_since))
        self.connects += 1
        self._told_down = False
        self._doubted_since = None
        self._lost = self._dropped = 0
        self._up_since = now
        self._due_at = now + PROBE_EVERY_S
        self._gap = True

    def failed(self, now: float, reason: str, draw: Draw, *, hopeless: bool = False) -> None:
        """The try came to nothing; ``hopeless`` where only a change of configuration can help."""
        assert self.state is State.CONNECTING
        self.state = State.DOWN
        self._down(now, reason, draw)
        if hopeless:
            self._due_at = now + HOPELESS_S

    def probed(self, now: float, round_trip_s: float, dropped: int) -> None:
        """A message to ourselves came back; ``dropped`` is the connection's count of messages lost on their way in."""
        if self.state is not State.UP:
            return
        self.round_trip_s = round_trip_s
        self._lost = 0
        self._doubted_since = None
        self._due_at = now + PROBE_EVERY_S
        if dropped > self._dropped:
            self._dropped = dropped
            self._gap = True

    def probe_lost(self, now: float, reason: str, draw: Draw) -> bool:
        """A message to ourselves did not come back. Say whether to tear the connection down; else probe at once."""
        if self.state is not State.UP:
            return False
        self._lost += 1
        if self._doubted_since is None:
            self._doubted_since = self._down_since = now
        self.reason = reason
        self._due_at = now
        if self._lost < PROBES_LOST_MAX:
            return False
        self.broken(now, reason, draw)
        return True

    def broken(self, now: float, reason: str, draw: Draw) -> None:
        """The connection is known to be broken, by whatever source."""
        if self.state is not State.UP:
            return
        self.state = State.DOWN
        if now - self._up_since >= STEADY_S:
            self._backoff.hit()
        if self._doubted_since is None:
            self._down_since = now
        self._down(now, reason, draw)

    def _down(self, now: float, reason: str, draw: Draw) -> None:
        self.reason = reason
        self.round_trip_s = None
        if self._doubted_since is None:
            self._doubted_since = now
        if not self._told_down:
            self._told_down = True
            self._facts.append(BusDown(self.bus, self.address, reason))
        self._due_at = now + self._backoff.miss(draw)
