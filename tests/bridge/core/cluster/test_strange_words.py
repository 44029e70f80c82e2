"""Whatever somebody says who may publish on a cluster's subjects, the rules go on and hold no more (S42 to S44)."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.contract.cluster import MEMBERS_MAX, Able, Word, decode_word
from bridge.contract.errors import BadInput
from bridge.core.cluster.members import KNOWN_MAX
from bridge.core.cluster.turns import EARLY_MAX
from tests.support.member import FIRST, LAST, MemberRig
from tests.support.words import payloads, words

SILENT_S = 4.0
"""Longer than a member is believed to be there without a word."""
AFTER = "billing/after"


def word_of(data: bytes) -> Word | None:
    """Return what it says, where it is a word."""
    with contextlib.suppress(BadInput):
        return decode_word(data)
    return None


def say(rig: MemberRig, data: bytes) -> None:
    """Have it come in, as far as it is a word."""
    word = word_of(data)
    if word is not None:
        rig.hear(word)  # type: ignore[arg-type]


def able_for(data: bytes) -> set[str]:
    """Return of which queues it says that a member has sessions: leases there are looked after when it goes (C5)."""
    word = word_of(data)
    return set(word.queues) if isinstance(word, Able) else set()


def holds(rig: MemberRig) -> tuple[int, ...]:
    """Return how much is held that a word can bring about, of each kind."""
    turns, ledger = rig.turns, rig.bell.ledger
    debt = rig.debt()
    return (
        len(ledger.debts), len(turns._queues), len(turns.deferred), len(turns._waiting), len(turns.outward),
        len(turns.outward._told), len(debt.due_to_all), len(turns.members._before),
    )  # fmt: skip


@settings(max_examples=40)
@given(st.lists(st.tuples(payloads, st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.1])), min_size=5, max_size=20))
def test_the_rules_go_on_whatever_is_said(said: list[tuple[bytes, float]]) -> None:
    """S42 to S44: nothing is raised, only a member's sessions make a queue known, and a later put is woken for."""
    rig = MemberRig()
    rig.session()
    rig.peer(FIRST)
    rig.peer(LAST, room=False)
    known = set(rig.bell.ledger.debts).union(*(able_for(data) for data, _ in said))
    for data, pause_s in said:
        say(rig, data)
        rig.wait(pause_s)
        rig.echo()
    assert set(rig.bell.ledger.debts) <= known
    assert len(rig.turns.members.peers) < MEMBERS_MAX and len(rig.turns.members.refused) <= MEMBERS_MAX
    rig.wait(SILENT_S)
    session = rig.join(AFTER)
    rig.settle_hello(session, AFTER)
    rig.trigger_all(AFTER)
    assert len(rig.wakes(session)) == 1


WENT: list[dict[str, Any]] = [
    {"type": "member", "boot": FIRST, "seq": 0},
    {"type": "able", "boot": FIRST, "seq": 0, "queues": {"many/q0": {"room": False, "visibility_ms": 0}}},
    {"type": "member", "boot": FIRST, "seq": 0, "store": "aa"},
]
"""A member that had sessions goes, for it is at another engine now: what they leased is looked after here (C5)."""


@settings(max_examples=10)
@given(st.lists(words, min_size=20, max_size=40), st.integers(0, 2**32))
@example(WENT, 0)
def test_what_is_held_has_an_end(said: list[dict[str, Any]], number: int) -> None:
    """S44: the same words of other queues, names and boots fifty times hold no more than their bounds.

    A queue of which a member said that it has sessions may be held, as one may that is triggered.
    """
    rig = MemberRig()
    rig.session()
    rig.peer(FIRST)
    texts = [json.dumps(word) for word in said]
    able: set[str] = set()
    for turn in range(50):
        for text in texts:
            other = text.replace("many/q", f"many/q{turn}").replace('"1"', f'"{number + turn}"')
            data = other.replace("5" * 32, f"{number + turn:032x}").encode()
            say(rig, data)
            able |= able_for(data)
        rig.wait(0.02)
        rig.echo()
    assert max(holds(rig)) <= 4 + len(able)
    members = rig.turns.members
    assert len(members.peers) < MEMBERS_MAX and len(members.refused) <= MEMBERS_MAX
    assert all(len(peer.abilities) <= KNOWN_MAX and len(peer.left) <= KNOWN_MAX for peer in members.peers.values())
    assert len(rig.turns._early) <= EARLY_MAX


def test_members_refused_and_names_are_held_up_to_their_bounds() -> None:
    """S44, S45: more bridges, more of other clusters and more names than there may be; the newest are known."""
    rig = MemberRig()
    rig.session()
    for number in range(100):
        for name in ("", "other"):
            boot = f"{number:031x}{1 if name else 2}"
            say(rig, json.dumps({"type": "member", "boot": boot, "seq": 1, "cluster": name}).encode())
    assert len(rig.turns.members.peers) == MEMBERS_MAX - 1
    assert len(rig.turns.members.refused) == MEMBERS_MAX
    peer = next(iter(rig.turns.members.peers))
    for first in range(0, EARLY_MAX + 640, 32):
        ids = [["producer", str(number)] for number in range(first, first + 32)]
        say(rig, json.dumps({"type": "covered", "boot": peer, "queue": "billing/orders", "ids": ids}).encode())
    assert len(rig.turns._early) == EARLY_MAX
