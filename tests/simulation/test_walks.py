"""Thousands of random stories of bigger worlds: crashes, restarts, lost frames, unknown outcomes, lapsed leases."""

from __future__ import annotations

import os

import pytest

from tests.simulation.configurations import WILD
from tests.simulation.plan import REACHED, Plan
from tests.simulation.walk import walks

SEEDS = int(os.environ.get("QUEUEBELL_SEEDS", "340"))
FIRST = int(os.environ.get("QUEUEBELL_FIRST_SEED", "0"))

RACES = (
    "a wake between the store's empty answer and its hearing",
    "a wake while a receive is in flight",
    "a wake without a free slot",
    "a wake is lost",
    "a mark while owned",
    "a cover with an older generation",
    "a cover from somebody else than the owner",
    "a cover of another boot",
    "a heartbeat repeats a cover that was lost",
    "a started from somebody else than the owner",
    "a started that knows less than the newest mark",
    "more crosses a mark",
    "more with no room anywhere",
    "an answer with messages is lost",
    "a lease was lost while its handler ran",
    "a put is granted to a session",
    "a wake carries messages",
    "carried more than there was room for",
    "handed to a session that has ended",
    "messages are reclaimed",
    "reclaim races with extend",
    "reclaim finds its message accepted or gone",
    "rose within a group of calls",
    "StartMissed",
    "HandedBack",
)


@pytest.mark.timeout(3600 if SEEDS > 1000 else 60)
@pytest.mark.parametrize("plan", WILD, ids=lambda plan: plan.name)
def test_no_wake_is_lost_in_random_stories(plan: Plan) -> None:
    """I1, I2, I3 and the machine's one sentence hold in every story, and each comes to its end."""
    walks(plan, range(FIRST, FIRST + SEEDS))


def test_every_race_was_met() -> None:
    """The stories are worth something: each race that the rules are for was met at least once."""
    if not REACHED["a put is granted to a session"] or not REACHED["a cover of another boot"]:
        # Run alone or in another process than the stories: tell the first of them here.
        for plan in WILD:
            walks(plan, range(150))
    assert not [race for race in RACES if not REACHED[race]]
