"""Track cluster members, their order, and which of them could wake a session (C1 to C3).

Each bridge computes this alone from received messages. Two that disagree both act, or both wait for A.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from typing import Final

import msgspec

from queuebell.bridge.contract.cluster import MEMBERS_MAX, Ability, Able, Member

MEMBER_EVERY_S: Final = 1.0
SILENT_S: Final = 3.5
"""A member that is silent for this long is gone."""
BLOCKED_S: Final = 1.0
"""A bridge that did not run for this long may have missed anything, and acts alone until its own message returns."""
SINCE_MAX_MS: Final = 1500
"""A message received longer ago proves no time: its sender sends a newer one every second."""
DEPARTED_S: Final = 300.0
"""How long a member's departure is remembered."""
KNOWN_MAX: Final = 100_000
"""Known queues per peer; beyond that it counts as unable to wake any session, which is safe (C3)."""
_DEPARTED_MAX: Final = 256
_SENT_MAX: Final = 64


class Peer(msgspec.Struct, eq=False):
    """Hold what is known of a peer."""

    boot: str
    member: Member
    heard_at: float
    timed: bool = True
    """True if ``heard_at`` may be reported: not after the clock stopped or messages were missed."""
    abilities: dict[str, Ability] = {}
    possible_leases: dict[str, tuple[float, int]] = {}
    """Queues that its sessions left: when their leases end at the latest, and their visibility timeout."""


class Refused(msgspec.Struct, eq=False):
    """Hold another bridge on the cluster's subjects that is not a member."""

    boot: str
    address: str
    why: str
    heard_at: float


class Members:
    """Track the members of one cluster as seen by ``boot``."""

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.leaving = False
        self.peers: dict[str, Peer] = {}
        self.refused: OrderedDict[str, Refused] = OrderedDict()
        """Recently refused bridges by boot; at most as many as a cluster has members: anyone can send anything."""
        self.departed: deque[tuple[float, str]] = deque(maxlen=_DEPARTED_MAX)
        """Recent departures with address, to find members that come and go under changing boots."""
        self._seq = 0
        self._sent: OrderedDict[int, float] = OrderedDict()
        self.newest_returned: tuple[int, float] | None = None
        self._returned_seq = 0
        self._duplicated_at: float | None = None
        self.min_returned_seq = 1
        self._ahead_cache: dict[str, tuple[tuple[str | None, bool, bool], int]] = {}

    # -- this bridge ---------------------------------------------------------------------------------------------------

    def next_seq(self, now: float) -> int:
        """Return the number of a message that is sent now."""
        self._seq += 1
        self._sent[self._seq] = now
        if len(self._sent) > _SENT_MAX:
            self._sent.popitem(last=False)
        return self._seq

    @property
    def seq(self) -> int:
        """Return the number of the newest sent message."""
        return self._seq

    def sent_at(self, seq: int) -> float | None:
        """Return when a message was sent; None if that proves nothing any more."""
        return self._sent.get(seq)

    def own_message_returned(self, seq: int) -> bool:
        """Record that this bridge's message returned; return False if it was never sent or returned before.

        Messages return once and in order; otherwise another bridge sends under this boot.
        """
        if not self._returned_seq < seq <= self._seq:
            return False
        self._returned_seq = seq
        at = self._sent.get(seq)
        if at is not None:
            self.newest_returned = (seq, at)
        return True

    def boot_duplicated(self, now: float) -> None:
        """Record that a copy of this machine or a forger sends under this boot: act alone for a while.

        Peers may have received messages of this boot that this bridge never sent, so its times prove nothing (C4).
        """
        self._duplicated_at = now

    def is_duplicated(self, now: float) -> bool:
        """Return whether another bridge recently sent under this boot."""
        return self._duplicated_at is not None and now - self._duplicated_at <= SILENT_S

    def alone(self, now: float) -> bool:
        """Return whether this bridge must act as if it had no peers."""
        if self.newest_returned is None or self.newest_returned[0] < self.min_returned_seq or self.is_duplicated(now):
            return True
        return now - self.newest_returned[1] > SILENT_S

    def loop_blocked(self) -> None:
        """Act alone after the loop was blocked, until a message sent from now on returns."""
        self.min_returned_seq = self._seq + 1

    def missed_messages(self) -> None:
        """Discard known times after missed messages or a stopped clock (C4), and act alone."""
        self._sent.clear()
        self.newest_returned = None
        self.loop_blocked()
        for peer in self.peers.values():
            peer.timed = False

    # -- peers ---------------------------------------------------------------------------------------------------------

    def refuse(self, now: float, message: Member, why: str) -> bool:
        """Record a refused bridge and the reason; return whether that is new."""
        previous = self.refused.pop(message.boot, None)
        self.refused[message.boot] = Refused(message.boot, message.address or "", why, now)
        if len(self.refused) > MEMBERS_MAX:
            self.refused.popitem(last=False)
        return previous is None or previous.why != why

    def has_room(self, boot: str) -> bool:
        """Return whether a bridge is a member, or there is room for another."""
        return boot in self.peers or len(self.peers) < MEMBERS_MAX - 1

    def flapping(self, now: float) -> dict[str, int]:
        """Return how often members left recently, by address or boot."""
        return dict(Counter(address for at, address in self.departed if now - at <= DEPARTED_S))

    def on_member(self, now: float, message: Member) -> bool:
        """Record a peer's message unless it is outdated; return whether the peer is new."""
        peer = self.peers.get(message.boot)
        if peer is None:
            if not self.has_room(message.boot):
                return False
            self.refused.pop(message.boot, None)
            self.peers[message.boot] = Peer(boot=message.boot, member=message, heard_at=now)
            self._ahead_cache.clear()
            return True
        if message.seq > peer.member.seq:
            if message.leaving is not peer.member.leaving:
                self._ahead_cache.clear()
            peer.member, peer.heard_at, peer.timed = message, now, True
        return False

    def on_capacity(self, now: float, message: Able) -> list[str]:
        """Record a member's abilities; return the queues whose ability changed."""
        peer = self.peers.get(message.boot)
        if peer is None:
            return []
        queues: dict[str, Ability | None] = dict(message.queues)
        if message.whole:
            queues = {**dict.fromkeys(peer.abilities), **queues}
        changed = [queue for queue, ability in queues.items() if peer.abilities.get(queue) != ability]
        # Once per message: a member may leave ten thousand queues at once.
        peer.possible_leases = {name: held for name, held in peer.possible_leases.items() if held[0] > now}
        for queue in changed:
            ability, previous = queues[queue], peer.abilities.pop(queue, None)
            if ability is not None:
                if len(peer.abilities) < KNOWN_MAX:
                    peer.abilities[queue] = ability
            elif previous is not None and len(peer.possible_leases) < KNOWN_MAX:
                peer.possible_leases[queue] = (now + previous.visibility_ms / 1000, previous.visibility_ms)
            self._ahead_cache.pop(queue, None)
        return changed

    def silent_at(self) -> float | None:
        """Return when the longest-silent peer was last heard."""
        return min((peer.heard_at for peer in self.peers.values()), default=None)

    def gone(self, now: float) -> list[Peer]:
        """Remove and return the peers that were silent for too long."""
        gone = [peer for peer in self.peers.values() if now - peer.heard_at >= SILENT_S]
        for peer in gone:
            del self.peers[peer.boot]
            self.departed.append((now, peer.member.address or peer.boot))
        for boot in [each.boot for each in self.refused.values() if now - each.heard_at >= SILENT_S]:
            del self.refused[boot]
        if gone:
            self._ahead_cache.clear()
        return gone

    def heard(self, now: float) -> dict[str, tuple[int, int]]:
        """Return by boot each peer's newest message and its age in milliseconds, rounded down."""
        ages = {
            peer.boot: (peer.member.seq, int((now - peer.heard_at) * 1000))
            for peer in self.peers.values()
            if peer.timed
        }
        return {boot: (seq, since) for boot, (seq, since) in ages.items() if since <= SINCE_MAX_MS}

    # -- order ---------------------------------------------------------------------------------------------------------

    def bridges_ahead(
        self, queue: str, now: float, store: str | None = None, *, ready: bool = True, starts: bool = False
    ) -> int:
        """Return how many members that can wake a session for ``queue`` come before this one (C2, C3).

        0 means that this bridge acts immediately. A peer with another store than ``store`` cannot (B11). Without a
        ``ready`` session this bridge comes after all that can. If it can only start a worker (``starts``), it also
        comes after the peers that can and that rank higher (Z5).
        """
        if not self.peers or self.alone(now):
            return 0
        known = self._ahead_cache.get(queue)
        if known is None or known[0] != (store, ready, starts):
            mine = rank(queue, self.boot) if not self.leaving else -1
            count = sum(
                not ready or rank(queue, peer.boot) > mine
                for peer in self.peers.values()
                if can_wake(peer, queue, store)
            )
            if starts:
                others = (peer for peer in self.peers.values() if can_wake(peer, queue, store, starts=True))
                count += sum(rank(queue, peer.boot) > mine for peer in others)
            known = self._ahead_cache[queue] = ((store, ready, starts), count)
        return known[1]

    def forget(self, queue: str) -> None:
        """Forget the cached order of a queue that is no longer known."""
        self._ahead_cache.pop(queue, None)

    def leave(self) -> None:
        """Leave: put this bridge last in every order."""
        self.leaving = True
        self._ahead_cache.clear()


def can_wake(peer: Peer, queue: str, store: str | None, *, starts: bool = False) -> bool:
    """Return whether a member reported that it could wake a session for a queue of ``store`` now (C3).

    A member without a report cannot wake any. With ``starts``: whether it could not, but would start a worker.
    """
    ability = peer.abilities.get(queue)
    if ability is None or peer.member.leaving or not (ability.starts and not ability.room if starts else ability.room):
        return False
    return store is None or ability.store in (None, store)


def rank(queue: str, boot: str) -> int:
    """Return a member's rank in a queue's order: the highest is first."""
    return int.from_bytes(hashlib.blake2b(f"{queue}\n{boot}".encode(), digest_size=8).digest(), "big")


OTHER_NAME: Final = "its cluster has another name but uses the same subjects"
OTHER_ENGINE: Final = "it uses a different store under this cluster's name"
OTHER_MACHINE: Final = "its store has the same address as this bridge's, but it is a different store"
OTHER_ADDRESS: Final = (
    "it reaches this bridge's store, or a copy of it, by another address: use the same --store on every bridge"
)
TOO_MANY: Final = f"a cluster has at most {MEMBERS_MAX} bridges"


def refusal_reason(mine: Member, engine: str | None, other: Member) -> str | None:
    """Return why ``other`` is refused; None for a member of the same cluster, as far as is known.

    The bridges would check two stores under one name alternately, and every second put would be late. ``engine``
    is the identity of this bridge's store. A copy has its original's identity, so identities can prove two stores
    different but never the same: the address must match too. Older versions report none and are judged by the address
    alone.
    """
    if other.cluster != mine.cluster:
        return OTHER_NAME
    same = None if engine is None or other.engine is None else engine == other.engine
    if other.store != mine.store:
        return OTHER_ADDRESS if same else OTHER_ENGINE
    return OTHER_MACHINE if same is False else None
