"""A run's story: the same events give the same lines and hash, whatever else differs."""

from __future__ import annotations

import hashlib

from tests.simulation import events as e
from tests.simulation.story import Story, tell

EVENTS = [
    e.Phase(0.0, "faults"),
    e.StoreUp(0.1),
    e.PutAttempted(1.0000004, 0, "a/q", 0, 3, 0.0),
    e.ListenerIdle(2.5, "worker-0", "a/q", None, 1.25),
    e.ListenerRoom(3.0, "worker-0", "a/q", True, True, 2, False),
]


def test_events_are_told_in_one_fixed_form() -> None:
    """Times to the microsecond, names and numbers, and nothing else."""
    assert [tell(event).strip() for event in EVENTS] == [
        "0.000000 Phase name=faults",
        "0.100000 StoreUp",
        "1.000000 PutAttempted producer=0 queue=a/q first=0 count=3 delay_s=0.000000",
        "2.500000 ListenerIdle worker=worker-0 queue=a/q newest_wake=None newest_empty=1.250000",
        "3.000000 ListenerRoom worker=worker-0 queue=a/q live=True subscribed=True free=2 reaches_store=False",
    ]


def test_a_story_nobody_keeps_has_the_hash_of_one_that_is_kept() -> None:
    """The hash is that of the lines, however they were grouped on the way."""
    kept, lost = Story(keep=True), Story()
    for number in range(1000):
        for story in (kept, lost):
            story.hear(EVENTS[number % len(EVENTS)])
        if number % 77 == 0:
            kept.sha256()
    assert kept.sha256() == lost.sha256()
    assert lost.lines() == [] and len(kept.lines()) == lost.events == 1000
    assert kept.sha256() == hashlib.sha256("".join(f"{line}\n" for line in kept.lines()).encode()).hexdigest()


def test_any_difference_changes_the_hash() -> None:
    """An event more, another order, another number, or a microsecond."""
    stories = [
        EVENTS,
        [*EVENTS, EVENTS[0]],
        [*EVENTS[1:], EVENTS[0]],
        [*EVENTS[:-1], e.ListenerRoom(3.0, "worker-0", "a/q", True, True, 1, False)],
        [*EVENTS[:-1], e.ListenerRoom(3.000001, "worker-0", "a/q", True, True, 2, False)],
    ]
    hashes = set()
    for events in stories:
        story = Story()
        for event in events:
            story.hear(event)
        hashes.add(story.sha256())
    assert len(hashes) == len(stories)


def test_every_kind_of_event_can_be_told() -> None:
    """A new event with a field that has no fixed form would be noticed here."""
    kinds = [kind for kind in vars(e).values() if isinstance(kind, type) and issubclass(kind, e.Event)]
    assert len(kinds) > 20
    for kind in kinds:
        values = dict.fromkeys(kind.__struct_fields__, 1.0)
        assert kind.__name__ in tell(kind(**values)), kind
