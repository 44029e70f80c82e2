"""Thousands of random stories of bigger worlds: crashes, restarts, lost frames, unknown outcomes, lapsed leases."""

from __future__ import annotations

import os

import pytest

from tests.exploration.configurations import WILD
from tests.exploration.pairings import FULL_OWNER, HUNG_OWNER, met_after
from tests.exploration.plan import REACHED, Plan
from tests.exploration.walk import CHAOS_STEPS, walks

SEEDS = int(os.environ.get("QUEUEBELL_SEEDS", "200"))
FEW = min(SEEDS, 30)
"""Of all tests; the rest are for `make test-rest`."""
FIRST = int(os.environ.get("QUEUEBELL_FIRST_SEED", "0"))

RACES = (
    # What crosses a receive, at the listener.
    "a wake between the store's empty answer and its hearing",
    "a wake while a receive is in flight",
    "a wake without a free slot",
    "a wake while the store is being left alone",
    "a wake to a listener that stops",
    "a wake with a generation that is known",
    "two receives of one listener are in flight",
    "a lease of nobody ends at a full listener",
    "a lease was lost while its handler ran",
    # Marks and the producer.
    "a mark while owned",
    "a mark merges with an unsent wake",
    "a trigger while nobody is subscribed",
    "a mark by time (due)",
    "a mark by time (lease)",
    "a due time during a drain",
    "a due time while everybody is full",
    "a put while a publish is in flight",
    "a publish is lost",
    "an acknowledgement of a publish is lost",
    # Covers.
    "a cover with an older generation",
    "a cover from somebody else than the owner",
    "a cover of another boot",
    "a cover while a due time stands",
    "a cover is lost",
    "a heartbeat repeats a cover that was lost",
    # Started, and none.
    "a wake is lost",
    "a started is lost",
    "a started from somebody else than the owner",
    "a started that knows less than the newest mark",
    "the owner ends before it says started",
    "the owner ends after it said started",
    "StartMissed",
    "OwnerStuck",
    # Room.
    "a more is lost",
    "a room is lost",
    "a heartbeat without room from the owner",
    "more crosses a mark",
    "more on a clean queue",
    "more with no room anywhere",
    "the cascade: more wakes another",
    "room crosses a wake",
    "room while a debt waits for it",
    "a stopping listener hands its debt back",
    # Receives of unknown outcome.
    "an answer with messages is lost",
    "a receive that nobody waits for took a message",
    # Sessions and boots.
    "a hello is lost",
    "a welcome is lost",
    "a listenerheartbeat is lost",
    "a bye is lost",
    "a session is replaced by its own instance",
    "a new instance before the old session has ended",
    "a new instance while frames of the old one are on their way",
    "the bridge restarts with debts",
    "the bridge restarts while a receive is in flight",
    "a wake to a deaf session",
    "a listener degrades",
    "a look without a bridge",
    # Messages that travel with a wake.
    "a put is granted to a session",
    "a wake carries messages",
    "handed to a session that has ended",
    "a session that takes nothing up is passed over",
    "HandedBack",
    "messages are reclaimed",
    "reclaim races with extend",
    "reclaim finds its message accepted or gone",
    "rose within a group of calls",
)
"""The races that the rules are for, and those that docs/protocol.md names."""


@pytest.mark.timeout(36_000 if SEEDS > 1000 else 600)
@pytest.mark.parametrize(
    "seeds",
    [range(FIRST, FIRST + FEW), pytest.param(range(FIRST + FEW, FIRST + SEEDS), marks=pytest.mark.rest)],
    ids=["few", "many"],
)
@pytest.mark.parametrize("plan", WILD, ids=lambda plan: plan.name)
def test_no_wake_is_lost_in_random_stories(plan: Plan, seeds: range) -> None:
    """I1, I2, I3 and the machine's one sentence hold in every story, and each comes to its end."""
    told = walks(plan, seeds)
    assert told.stories == len(seeds)
    assert told.steps >= len(seeds) * CHAOS_STEPS
    # In a few nobody is left who could drain the queue; a plan in which that is the rule would prove little.
    assert told.drained >= len(seeds) * 0.9


@pytest.mark.rest
@pytest.mark.timeout(36_000 if SEEDS > 1000 else 600)
def test_every_race_was_met() -> None:
    """The stories are worth something: each race that the rules are for was met, in these very seeds."""
    for pairing in (HUNG_OWNER, FULL_OWNER):
        met_after(pairing)
    for plan in WILD:
        if all(REACHED[race] for race in RACES):
            break
        # Run alone, or in another process than the stories.
        walks(plan, range(FIRST, FIRST + SEEDS))
    assert [race for race in RACES if not REACHED[race]] == []
