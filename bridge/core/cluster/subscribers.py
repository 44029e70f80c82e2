"""Whose turn it is to tell plain subscribers: those of the cluster's broker, and each webhook (C10).

Of the members that could tell, first in a queue's order tells at once. Every other holds what it would tell for A and a
quarter of a second for each place, and drops it when it hears that somebody told of the queue since. No session is
needed for a wake to be heard, so the order is that of members and not of those who are able (decision 0033). Nothing is
forgiven by what is dropped here: a debt stands as it does. Who told is believed to bring it; if it goes, the next tells
of what still waits.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from bridge.contract.cluster import Sent
from bridge.core.agenda import TURN_MAX, Agenda
from bridge.core.cluster.members import Members, Peer, rank
from bridge.core.commands import AnnounceInTurn, Broadcast
from bridge.core.dispatch import Dispatch, Timer

PLACE_S: Final = 0.25
"""How much later each further place in the order tells."""
MERGE_S: Final = 0.2
"""What was told of one queue within this time is said together."""
SKEW_S: Final = 0.1
"""By so much later one bridge may hear of the same trigger than another."""
UNSURE_S: Final = 1.0
"""A word that leaves open by more than this when it was told says nothing: it lay in a buffer."""
SUBJECTS: Final = ""
"""The way of the cluster's own wake subjects; others are names of webhooks."""

OUTWARD: Final[Timer] = ("outward", 0)

_Key = tuple[Literal["held", "say"], str, str]


class _Held(msgspec.Struct):
    """What is held of one queue, by the clock that goes on: no later than the oldest, and the newest."""

    first: float
    last: float


class SubscriberCoordinator:
    """What this bridge tells by its ``ways``, in turn with the members that have the same.

    ``webhooks`` names those of this bridge together: who has others sends its own.
    """

    def __init__(self, dispatch: Dispatch, members: Members, webhooks: str | None) -> None:
        self.ways: dict[str, str | None] = {}
        """By what this bridge tells, and of which queue, None of any."""
        self._d = dispatch
        self._members = members
        self._webhooks = webhooks
        self._held: dict[tuple[str, str], _Held] = {}
        self._told: dict[tuple[str, str], float] = {}
        """When the newest was told that the others do not know of."""
        self._agenda: Agenda[_Key] = Agenda()
        self._again: list[tuple[str, str]] = []
        """What is held, by way and queue, and may not have to be any more."""
        self._left: list[tuple[str, str, list[str]]] = []
        """The ways of members that went, with their boots and the queues that may have to be told of again."""

    def __len__(self) -> int:
        return len(self._held)

    def offer(self, now: float, at: float, way: str, queue: str, *, shared: bool) -> bool:
        """Say whether this is told now, with all that is held of the queue; else it is held.

        ``at`` is ``now`` by the clock that goes on. ``shared`` where the others would tell of it as well; what one
        bridge alone knows it tells at once.
        """
        place = self._before(way, queue, at) if shared else 0
        if not place:
            self._held.pop((way, queue), None)
            self._tell(now, at, way, queue)
            return True
        held = self._held.get((way, queue))
        if held is None:
            self._held[way, queue] = _Held(at, at)
            self._wait(now, at, way, queue, place)
        else:
            held.last = at
        return False

    def hear(self, now: float, at: float, word: Sent, proven: float | None) -> None:
        """Take the word of one that told of a queue, not before ``proven`` by our clock; None where that is not known.

        It cannot have been told later than its age before now. What this bridge learned of until then, and a moment
        later, for it may be slower to hear, was told with it.
        """
        key = (word.hook or SUBJECTS, word.queue)
        held = self._held.get(key)
        latest = at - word.age_ms / 1000
        if held is None or proven is None or latest - proven > UNSURE_S:
            return
        if held.last <= latest + SKEW_S:
            self._drop(*key)
            self._d.commands.append(AnnounceInTurn(*key, "drop"))
            self._arm()
        elif held.first < latest + SKEW_S:
            # What is left is newer. Were it held from the oldest on, a stream of wakes would be told by all.
            held.first = latest + SKEW_S
            self._wait(now, at, *key, self._before(*key, at))

    def reconsider(self, now: float, at: float) -> None:
        """Tell what is held where nobody is before this one any more."""
        self._again = list(self._held)
        self._reconsider_some(now, at)

    def _reconsider_some(self, now: float, at: float) -> None:
        some, self._again = self._again[:TURN_MAX], self._again[TURN_MAX:]
        for way, queue in some:
            if (way, queue) in self._held and not self._before(way, queue, at):
                self._release(now, at, way, queue)
        self._arm()

    def succeed(self, now: float, at: float, peer: Peer) -> None:
        """Tell again of what waits where ``peer`` came before and this one is first now, with what was held of it.

        It went, and what it said that it had told may have gone with it: a post under way, or one to be tried again.
        """
        for way, only in self.ways.items():
            if self._has(peer, way):
                self._left.append((way, peer.boot, list(self._d.pending.by_queue) if only is None else [only]))
        self._succeed_some(now, at)

    def _succeed_some(self, now: float, at: float) -> None:
        room = TURN_MAX
        while self._left and room > 0:
            way, boot, queues = self._left.pop(0)
            if len(queues) > room:
                self._left.insert(0, (way, boot, queues[room:]))
            for queue in queues[:room]:
                work = self._d.pending.find(queue)
                if work is None or not work.waits or rank(queue, boot) < rank(queue, self._members.boot):
                    continue
                if not self._before(way, queue, at):
                    self._held.pop((way, queue), None)
                    self._tell(now, at, way, queue)
                    self._d.commands.append(AnnounceInTurn(way, queue, "again"))
            room -= len(queues)
        self._arm()

    def tick(self, now: float, at: float) -> None:
        """Do what is due, and some of what a member that went or is leaving left to this one."""
        self._reconsider_some(now, at)
        self._succeed_some(now, at)
        for kind, way, queue in self._agenda.pop_due(now, TURN_MAX):
            if kind == "held" and (way, queue) in self._held:
                self._release(now, at, way, queue)
            elif kind == "say" and (told := self._told.pop((way, queue), None)) is not None:
                self._say(at, way, queue, told)
        self._arm()

    # -- parts -------------------------------------------------------------------------------------------------------

    def _before(self, way: str, queue: str, at: float) -> int:
        """Return how many that could tell come before this one; 0 for one that is alone."""
        if self._members.alone(at):
            return 0
        mine = -1 if self._members.leaving else rank(queue, self._members.boot)
        others = (peer for peer in self._members.peers.values() if self._has(peer, way) and not peer.word.leaving)
        return sum(rank(queue, peer.boot) > mine for peer in others)

    def _has(self, peer: Peer, way: str) -> bool:
        return way == SUBJECTS or (self._webhooks is not None and peer.word.webhooks == self._webhooks)

    def _wait(self, now: float, at: float, way: str, queue: str, place: int) -> None:
        waits = self._d.tuning.of(queue).start_ack_s + PLACE_S * place
        self._agenda.set(("held", way, queue), now - (at - self._held[way, queue].first) + waits)
        self._arm()

    def _release(self, now: float, at: float, way: str, queue: str) -> None:
        self._drop(way, queue)
        self._tell(now, at, way, queue)
        self._d.commands.append(AnnounceInTurn(way, queue, "held"))

    def _drop(self, way: str, queue: str) -> None:
        del self._held[way, queue]
        self._agenda.clear(("held", way, queue))

    def _tell(self, now: float, at: float, way: str, queue: str) -> None:
        self._agenda.clear(("held", way, queue))
        if any(self._has(peer, way) for peer in self._members.peers.values()):
            self._told[way, queue] = at
            self._agenda.set_earlier(("say", way, queue), now + MERGE_S)
        self._arm()

    def _say(self, at: float, way: str, queue: str, told: float) -> None:
        self._d.commands.append(
            Broadcast(
                Sent(
                    boot=self._members.boot,
                    queue=queue,
                    hook=None if way == SUBJECTS else way,
                    age_ms=max(0, math.ceil((at - told) * 1000)),
                    heard=self._members.heard(at),
                )
            )
        )

    def _arm(self) -> None:
        due = -math.inf if self._again or self._left else self._agenda.next()
        if due is None:
            self._d.agenda.clear(OUTWARD)
        else:
            self._d.agenda.set(OUTWARD, due)
