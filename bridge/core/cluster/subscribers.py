"""Decide which bridge notifies subscribers: those of the cluster's broker, and each webhook (C10).

The first of the eligible members in a queue's order notifies immediately. Every other holds its notice for A and a
quarter of a second per place, and drops it when a peer reports that it notified. Subscribers need no session, so the
order includes members without room (decision 0033). A dropped notice settles no pending work. A peer that reports a
notice is trusted to deliver it; if it leaves, the next member notifies of work still waiting.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from queuebell.bridge.contract.cluster import Sent
from queuebell.bridge.core.agenda import TURN_MAX, Agenda
from queuebell.bridge.core.cluster.members import Members, Peer, rank
from queuebell.bridge.core.commands import AnnounceInTurn, Broadcast
from queuebell.bridge.core.dispatch import Dispatch, Timer

PLACE_S: Final = 0.25
"""Extra delay per place in the order."""
MERGE_S: Final = 0.2
"""Notices of one queue within this time are reported together."""
SKEW_S: Final = 0.1
"""Maximum difference between two bridges in receiving the same trigger."""
UNSURE_S: Final = 1.0
"""A report whose time is uncertain by more than this is ignored: it lay in a buffer."""
SUBJECTS: Final = ""
"""The route of the cluster's own wake subjects; others are names of webhooks."""

SUBSCRIBERS: Final[Timer] = ("subscribers", 0)

_Key = tuple[Literal["held", "report"], str, str]


class _Held(msgspec.Struct):
    """Hold the times of a queue's oldest (lower bound) and newest held notice, by the clock that runs during sleep."""

    first: float
    last: float


class SubscriberCoordinator:
    """Notify by this bridge's ``routes``, in turn with the members that have the same.

    ``webhooks`` identifies this bridge's set of webhooks: a member with another set sends its own.
    """

    def __init__(self, dispatch: Dispatch, members: Members, webhooks: str | None) -> None:
        self.routes: dict[str, str | None] = {}
        """How this bridge notifies, and for which queue; None for any."""
        self._d = dispatch
        self._members = members
        self._webhooks = webhooks
        self._held: dict[tuple[str, str], _Held] = {}
        self._unreported: dict[tuple[str, str], float] = {}
        """Time of the newest notice not yet reported to the peers."""
        self._agenda: Agenda[_Key] = Agenda()
        self._again: list[tuple[str, str]] = []
        """Held notices, by route and queue, that may no longer have to wait."""
        self._left: list[tuple[str, str, list[str]]] = []
        """The routes of departed members, with their boots and the queues that may need another notice."""

    def __len__(self) -> int:
        return len(self._held)

    def offer(self, now: float, at: float, route: str, queue: str, *, shared: bool) -> bool:
        """Return whether to notify now, including the queue's held notices; otherwise hold this one.

        ``at`` is ``now`` by the clock that runs during sleep. ``shared``: the peers would notify too; work that only
        this bridge knows is announced immediately.
        """
        place = self._before(route, queue, at) if shared else 0
        if not place:
            self._held.pop((route, queue), None)
            self._report_later(now, at, route, queue)
            return True
        held = self._held.get((route, queue))
        if held is None:
            self._held[route, queue] = _Held(at, at)
            self._wait(now, at, route, queue, place)
        else:
            held.last = at
        return False

    def on_peer_notified(self, now: float, at: float, message: Sent, proven: float | None) -> None:
        """Drop notices that a peer has sent, not before ``proven`` by this clock; None if that is unknown.

        The peer notified no later than the message's age before now. Its notice included all that this bridge learned
        until then, and shortly after, since this bridge may receive triggers later.
        """
        key = (message.hook or SUBJECTS, message.queue)
        held = self._held.get(key)
        latest = at - message.age_ms / 1000
        if held is None or proven is None or latest - proven > UNSURE_S:
            return
        if held.last <= latest + SKEW_S:
            self._drop(*key)
            self._d.commands.append(AnnounceInTurn(*key, "drop"))
            self._arm()
        elif held.first < latest + SKEW_S:
            # Only newer notices remain: restart the wait at the peer's report. Otherwise, in a stream of wakes, every
            # bridge's wait would end and all would notify.
            held.first = latest + SKEW_S
            self._wait(now, at, *key, self._before(*key, at))

    def reconsider(self, now: float, at: float) -> None:
        """Send held notices if no member comes before this one any more."""
        self._again = list(self._held)
        self._reconsider_some(now, at)

    def _reconsider_some(self, now: float, at: float) -> None:
        some, self._again = self._again[:TURN_MAX], self._again[TURN_MAX:]
        for route, queue in some:
            if (route, queue) in self._held and not self._before(route, queue, at):
                self._release(now, at, route, queue)
        self._arm()

    def take_over(self, now: float, at: float, peer: Peer) -> None:
        """Notify again of waiting work for which ``peer`` came first and this bridge does now.

        The peer left, and a notice that it reported may be lost with it: a POST in progress, or one to be retried.
        """
        for route, only in self.routes.items():
            if self._has(peer, route):
                self._left.append((route, peer.boot, list(self._d.pending.by_queue) if only is None else [only]))
        self._take_over_some(now, at)

    def _take_over_some(self, now: float, at: float) -> None:
        room = TURN_MAX
        while self._left and room > 0:
            route, boot, queues = self._left.pop(0)
            if len(queues) > room:
                self._left.insert(0, (route, boot, queues[room:]))
            for queue in queues[:room]:
                work = self._d.pending.find(queue)
                if work is None or not work.waits or rank(queue, boot) < rank(queue, self._members.boot):
                    continue
                if not self._before(route, queue, at):
                    self._held.pop((route, queue), None)
                    self._report_later(now, at, route, queue)
                    self._d.commands.append(AnnounceInTurn(route, queue, "again"))
            room -= len(queues)
        self._arm()

    def tick(self, now: float, at: float) -> None:
        """Run due timers, and some of the work left by members that left or are leaving."""
        self._reconsider_some(now, at)
        self._take_over_some(now, at)
        for kind, route, queue in self._agenda.pop_due(now, TURN_MAX):
            if kind == "held" and (route, queue) in self._held:
                self._release(now, at, route, queue)
            elif kind == "report" and (notified_at := self._unreported.pop((route, queue), None)) is not None:
                self._report(at, route, queue, notified_at)
        self._arm()

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _before(self, route: str, queue: str, at: float) -> int:
        """Return how many eligible members come before this one; 0 without others."""
        if self._members.alone(at):
            return 0
        mine = -1 if self._members.leaving else rank(queue, self._members.boot)
        others = (peer for peer in self._members.peers.values() if self._has(peer, route) and not peer.member.leaving)
        return sum(rank(queue, peer.boot) > mine for peer in others)

    def _has(self, peer: Peer, route: str) -> bool:
        return route == SUBJECTS or (self._webhooks is not None and peer.member.webhooks == self._webhooks)

    def _wait(self, now: float, at: float, route: str, queue: str, place: int) -> None:
        waits = self._d.tuning.of(queue).start_ack_s + PLACE_S * place
        self._agenda.set(("held", route, queue), now - (at - self._held[route, queue].first) + waits)
        self._arm()

    def _release(self, now: float, at: float, route: str, queue: str) -> None:
        self._drop(route, queue)
        self._report_later(now, at, route, queue)
        self._d.commands.append(AnnounceInTurn(route, queue, "held"))

    def _drop(self, route: str, queue: str) -> None:
        del self._held[route, queue]
        self._agenda.clear(("held", route, queue))

    def _report_later(self, now: float, at: float, route: str, queue: str) -> None:
        self._agenda.clear(("held", route, queue))
        if any(self._has(peer, route) for peer in self._members.peers.values()):
            self._unreported[route, queue] = at
            self._agenda.set_earlier(("report", route, queue), now + MERGE_S)
        self._arm()

    def _report(self, at: float, route: str, queue: str, told: float) -> None:
        self._d.commands.append(
            Broadcast(
                Sent(
                    boot=self._members.boot,
                    queue=queue,
                    hook=None if route == SUBJECTS else route,
                    age_ms=max(0, math.ceil((at - told) * 1000)),
                    heard=self._members.heard(at),
                )
            )
        )

    def _arm(self) -> None:
        due = -math.inf if self._again or self._left else self._agenda.next()
        if due is None:
            self._d.agenda.clear(SUBSCRIBERS)
        else:
            self._d.agenda.set(SUBSCRIBERS, due)
