"""A queue that stays empty costs one look a minute, whatever its store, its listeners and its triggers do (I2)."""

from __future__ import annotations

import pytest

from tests.exploration.stories import AT_LEAST, AT_MOST, GOES_ROUND, HOUR_S, STORIES, Story, receives


@pytest.mark.parametrize("story", [*STORIES, GOES_ROUND], ids=lambda story: story.name)
def test_an_empty_queue_costs_at_most_67_receives_an_hour(story: Story) -> None:
    """I2: marks never go round; what fails is tried again by its back-off alone, and ends with the failure."""
    seen = receives(story)
    assert AT_LEAST <= len([at for at in seen if at >= story.fails_s]) <= AT_MOST
    assert seen[-1] >= story.fails_s + HOUR_S - 2 * 66.0, "the hour was not played to its end"
    # Two ways to try again for each listener: its own back-off from 0.1 s to 30 s, and the debt that comes round.
    assert len([at for at in seen if at < story.fails_s]) <= story.listeners * 40
