"""Who is there, who comes first, and who could wake somebody (C1 to C3).

Every bridge reckons this alone, from what it heard. Two that disagree both act, or both wait for A.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from typing import Final

import msgspec

from bridge.contract.cluster import MEMBERS_MAX, Ability, Able, Member

SAY_S: Final = 1.0
SILENT_S: Final = 3.5
"""Whoever is silent for so long is gone."""
STOOD_STILL_S: Final = 1.0
"""Who did not run for so long may have missed anything, and is alone until it hears itself."""
SINCE_MAX_MS: Final = 1500
"""A word heard longer ago says nothing of when something happened: its sender says a newer one every second."""
WENT_S: Final = 300.0
"""For how long it is remembered that a member went."""
KNOWN_MAX: Final = 100_000
"""Queues of one other member that are known; of more it is not heard that it is able, which is safe (C3)."""
_WENT_MAX: Final = 256
_SENT_MAX: Final = 64


class Peer(msgspec.Struct, eq=False):
    """Another member, as far as it was heard."""

    boot: str
    word: Member
    heard_at: float
    timed: bool = True
    """Whether ``heard_at`` may be told: not once the clock stood still or words were missed since."""
    abilities: dict[str, Ability] = {}
    left: dict[str, tuple[float, int]] = {}
    """Queues that its sessions left, with until when their leases may last, and their visibility timeout."""


class Refused(msgspec.Struct, eq=False):
    """Another bridge on the cluster's subjects that is none of its members."""

    boot: str
    address: str
    why: str
    heard_at: float


class Members:
    """The members of one cluster as one of them, ``boot``, sees them."""

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.leaving = False
        self.peers: dict[str, Peer] = {}
        self.refused: OrderedDict[str, Refused] = OrderedDict()
        """By boot, those that were refused of late; as many as a cluster has members, for anybody can say anything."""
        self.went: deque[tuple[float, str]] = deque(maxlen=_WENT_MAX)
        """When members went of late, and their addresses: of those that come and go, whatever their boots."""
        self._seq = 0
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._heard_self: tuple[int, float] | None = None
        self._came_back = 0
        self._doubled_at: float | None = None
        self._needs = 1
        self._before: dict[str, tuple[tuple[str | None, bool, bool], int]] = {}

    # -- itself ------------------------------------------------------------------------------------------------------

    def next_seq(self, now: float) -> int:
        """Return the number of a word that is said now."""
        self._seq += 1
        self._sent[self._seq] = now
        if len(self._sent) > _SENT_MAX:
            self._sent.popitem(last=False)
        return self._seq

    @property
    def seq(self) -> int:
        """The number of the newest word said."""
        return self._seq

    def sent_at(self, seq: int) -> float | None:
        """Return when the word of this number was said; None where that says nothing any more."""
        return self._sent.get(seq)

    def heard_self(self, seq: int) -> bool:
        """Take note of an own word that came back; False for one that was never said, or came back before.

        Words come back once and in order, or another bridge speaks under this one's boot.
        """
        if not self._came_back < seq <= self._seq:
            return False
        self._came_back = seq
        at = self._sent.get(seq)
        if at is not None:
            self._heard_self = (seq, at)
        return True

    def heard_double(self, now: float) -> None:
        """Another speaks under this boot, a copy of this machine or a forger: for a while nothing is proven, alone.

        What others heard of this boot is not what was said here, so that no moment of it proves anything (C4).
        """
        self._doubled_at = now

    def doubled(self, now: float) -> bool:
        """Whether another was heard under this boot of late."""
        return self._doubled_at is not None and now - self._doubled_at <= SILENT_S

    def alone(self, now: float) -> bool:
        """Whether this bridge is to act as if there were no other."""
        if self._heard_self is None or self._heard_self[0] < self._needs or self.doubled(now):
            return True
        return now - self._heard_self[1] > SILENT_S

    def stood_still(self) -> None:
        """The loop did not run for a while: be alone until a word said from now on comes back."""
        self._needs = self._seq + 1

    def lost_touch(self) -> None:
        """Words were missed, or a clock stood still: no moment from before proves anything (C4), and be alone."""
        self._sent.clear()
        self._heard_self = None
        self.stood_still()
        for peer in self.peers.values():
            peer.timed = False

    # -- others ------------------------------------------------------------------------------------------------------

    def refuse(self, now: float, word: Member, why: str) -> bool:
        """Note that a bridge is none of the members, and why; whether that is news."""
        before = self.refused.pop(word.boot, None)
        self.refused[word.boot] = Refused(word.boot, word.address or "", why, now)
        if len(self.refused) > MEMBERS_MAX:
            self.refused.popitem(last=False)
        return before is None or before.why != why

    def has_room(self, boot: str) -> bool:
        """Whether this bridge is one of the members, or there is room for another."""
        return boot in self.peers or len(self.peers) < MEMBERS_MAX - 1

    def flapping(self, now: float) -> dict[str, int]:
        """Return by address, or boot, how often a member went of late."""
        return dict(Counter(who for at, who in self.went if now - at <= WENT_S))

    def hear(self, now: float, word: Member) -> bool:
        """Take a word of another; say whether it is a newcomer. One that is older than what is known is not taken."""
        peer = self.peers.get(word.boot)
        if peer is None:
            if not self.has_room(word.boot):
                return False
            self.refused.pop(word.boot, None)
            self.peers[word.boot] = Peer(boot=word.boot, word=word, heard_at=now)
            self._before.clear()
            return True
        if word.seq > peer.word.seq:
            if word.leaving is not peer.word.leaving:
                self._before.clear()
            peer.word, peer.heard_at, peer.timed = word, now, True
        return False

    def hear_able(self, now: float, word: Able) -> list[str]:
        """Take what a member is able for; return the queues of which it said something else before."""
        peer = self.peers.get(word.boot)
        if peer is None:
            return []
        queues: dict[str, Ability | None] = dict(word.queues)
        if word.whole:
            queues = {**dict.fromkeys(peer.abilities), **queues}
        changed = [queue for queue, ability in queues.items() if peer.abilities.get(queue) != ability]
        # Once a word: a member may leave ten thousand queues at a stroke.
        peer.left = {name: held for name, held in peer.left.items() if held[0] > now}
        for queue in changed:
            ability, before = queues[queue], peer.abilities.pop(queue, None)
            if ability is not None:
                if len(peer.abilities) < KNOWN_MAX:
                    peer.abilities[queue] = ability
            elif before is not None and len(peer.left) < KNOWN_MAX:
                peer.left[queue] = (now + before.visibility_ms / 1000, before.visibility_ms)
            self._before.pop(queue, None)
        return changed

    def silent_at(self) -> float | None:
        """Return when the first of them will have been silent for too long."""
        return min((peer.heard_at for peer in self.peers.values()), default=None)

    def gone(self, now: float) -> list[Peer]:
        """Take out those of whom nothing was heard for too long."""
        gone = [peer for peer in self.peers.values() if now - peer.heard_at >= SILENT_S]
        for peer in gone:
            del self.peers[peer.boot]
            self.went.append((now, peer.word.address or peer.boot))
        for boot in [each.boot for each in self.refused.values() if now - each.heard_at >= SILENT_S]:
            del self.refused[boot]
        if gone:
            self._before.clear()
        return gone

    def heard(self, now: float) -> dict[str, tuple[int, int]]:
        """Return by boot the newest word of each other, and for how many milliseconds it is known, rounded down."""
        told = {
            peer.boot: (peer.word.seq, int((now - peer.heard_at) * 1000)) for peer in self.peers.values() if peer.timed
        }
        return {boot: (seq, since) for boot, (seq, since) in told.items() if since <= SINCE_MAX_MS}

    # -- order -------------------------------------------------------------------------------------------------------

    def before(
        self, queue: str, now: float, store: str | None = None, *, ready: bool = True, starts: bool = False
    ) -> int:
        """Return how many that are able for ``queue`` come before this one; 0: it acts at once (C2, C3).

        Whoever is known to work on another store than ``store`` is not able for our debts (B11). Without a session that
        is ``ready`` this one comes after all who are able; where it ``starts`` workers, also after those others who
        would and come first (Z5).
        """
        if not self.peers or self.alone(now):
            return 0
        known = self._before.get(queue)
        if known is None or known[0] != (store, ready, starts):
            mine = rank(queue, self.boot) if not self.leaving else -1
            count = sum(
                not ready or rank(queue, peer.boot) > mine for peer in self.peers.values() if able(peer, queue, store)
            )
            if starts:
                others = (peer for peer in self.peers.values() if able(peer, queue, store, starts=True))
                count += sum(rank(queue, peer.boot) > mine for peer in others)
            known = self._before[queue] = ((store, ready, starts), count)
        return known[1]

    def forget(self, queue: str) -> None:
        """Forget who comes before this one for a queue that is not known any more."""
        self._before.pop(queue, None)

    def left(self) -> None:
        """Note that this one goes: it is the last in every order."""
        self.leaving = True
        self._before.clear()


def able(peer: Peer, queue: str, store: str | None, *, starts: bool = False) -> bool:
    """Whether a member could wake somebody for a queue of ``store`` now, as it said. Not heard is not able (C3).

    With ``starts``: whether it could not, and would start somebody.
    """
    ability = peer.abilities.get(queue)
    if ability is None or peer.word.leaving or not (ability.starts and not ability.room if starts else ability.room):
        return False
    return store is None or ability.store in (None, store)


def rank(queue: str, boot: str) -> int:
    """Return a member's place in the order of one queue: the highest is first."""
    return int.from_bytes(hashlib.blake2b(f"{queue}\n{boot}".encode(), digest_size=8).digest(), "big")


OTHER_NAME: Final = "its cluster has another name, on the same subjects"
OTHER_ENGINE: Final = "it works on another engine under this cluster's name"
OTHER_MACHINE: Final = "the address of its store is ours and leads to another engine there"
OTHER_ADDRESS: Final = "it reaches our engine, or a copy of it, by another address: give all the same --store"
TOO_MANY: Final = f"a cluster has at most {MEMBERS_MAX} bridges"


def why_not(mine: Member, engine: str | None, other: Member) -> str | None:
    """Return why ``other`` is refused; None for a member of the same cluster, as far as can be said.

    Two engines under one name would each be asked in turn, and every other put be late. ``engine`` is what ours says of
    itself. A copy says the same as its original, so this proves another engine and never the same one: the address has
    to be the same too. Older versions, which say nothing, are judged by the address alone.
    """
    if other.cluster != mine.cluster:
        return OTHER_NAME
    same = None if engine is None or other.engine is None else engine == other.engine
    if other.store != mine.store:
        return OTHER_ADDRESS if same else OTHER_ENGINE
    return OTHER_MACHINE if same is False else None
