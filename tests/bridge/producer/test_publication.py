"""The publisher's pure machine: P3 to P5, explored whole and then with chance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.event import CloudQueueWorkDetected, check_event
from bridge.producer.publication import DUE_TIMES_MAX, Publication, Sending
from bridge.producer.turns import Turns
from tests.exploration.mutants import ClearsAfterAcknowledgement


def event(queue: str = "q", size: int = 1, after_ms: int = 0, id: str | None = None) -> CloudQueueWorkDetected:
    return CloudQueueWorkDetected("a", queue, size, id=id, not_before_ms=after_ms)


def machine(kind: type[Publication] = Publication) -> Publication:
    numbers = itertools.count(1)
    return kind("test", lambda: f"id-{next(numbers)}")


class NoTrailingEdge(Publication):
    """A put while a publish is on its way sets nothing: the trailing edge is missing."""

    def owe(self, now: float, event: CloudQueueWorkDetected) -> None:
        known = self._queues.get(event.queue)
        if known is None or not known.flying:
            super().owe(now, event)


def uncovered(kind: type[Publication], script: Sequence[str]) -> list[int]:
    """Play a script, then let everything through; return the puts that no acknowledged, later-cut event covers."""
    publication = machine(kind)
    now = 0.0
    puts: list[tuple[int, int]] = []  # (number, step)
    covered: set[int] = set()
    flying: list[tuple[list[Sending], int]] = []

    def land(well: bool) -> None:
        batch, cut = flying.pop()
        if well:
            publication.sent(batch)
            covered.update(number for number, step in puts if step <= cut)
        else:
            publication.failed(batch, now, lambda: 0.5)

    for step, word in enumerate(script):
        now += 100.0  # beyond every back-off
        if word == "put":
            puts.append((len(puts), step))
            publication.owe(now, event())
        elif word == "take":
            if batch := publication.take(now):
                assert not flying, "P3: two publishes of one queue in flight"
                flying.append((batch, step))
        elif flying:
            land(well=word == "sent")
    if flying:
        land(well=True)
    while publication.deadline() is not None:
        now += 100.0
        flying.append((publication.take(now), len(script)))
        land(well=True)
    return [number for number, _ in puts if number not in covered]


SCRIPTS = [
    script for length in range(1, 8) for script in itertools.product(("put", "take", "sent", "failed"), repeat=length)
]


def test_every_put_is_covered_by_a_publish_cut_after_it() -> None:
    """P3: over all scripts of seven steps no put is left without an acknowledged publish that followed it."""
    for script in SCRIPTS:
        assert uncovered(Publication, script) == [], script


@pytest.mark.parametrize("mutant", [ClearsAfterAcknowledgement, NoTrailingEdge])
def test_mutants_lose_puts(mutant: type[Publication]) -> None:
    """V16: a bit cleared after the acknowledgement loses a put that came meanwhile, and the exploration finds it."""
    assert any(uncovered(mutant, script) for script in SCRIPTS if len(script) <= 5)


def test_a_resend_keeps_its_id() -> None:
    """P5: the very same publish is sent again under the very same id."""
    publication = machine()
    publication.owe(0.0, event())
    (first,) = publication.take(0.0)
    publication.failed([first], 0.0, lambda: 0.0)
    (again,) = publication.take(0.0)
    assert again.event == first.event


def test_a_merged_resend_has_another_id() -> None:
    """P5: an event that also speaks of a later put is not the one that was sent before."""
    publication = machine()
    publication.owe(0.0, event())
    (first,) = publication.take(0.0)
    publication.owe(0.0, event())
    publication.failed([first], 0.0, lambda: 0.0)
    (again,) = publication.take(0.0)
    assert again.event.id != first.event.id
    assert again.event.payload_size == 2


def test_due_times_past_the_limit_are_rounded_up() -> None:
    """B2: many due times of one queue are merged into whole seconds, never to an earlier time."""
    publication = machine()
    for after in range(1, 3 * DUE_TIMES_MAX):
        publication.owe(0.0, event(after_ms=after * 7))
    owed = publication.owed(0.0)
    assert len(owed) <= DUE_TIMES_MAX + 3 * DUE_TIMES_MAX * 7 // 1000 + 2
    assert sum(each.payload_size for each in owed) == 3 * DUE_TIMES_MAX - 1


steps = st.lists(
    st.one_of(
        st.tuples(st.just("owe"), st.sampled_from("pqr"), st.sampled_from([0, 0, 1, 500, 60_000])),
        st.tuples(st.just("take"), st.just(""), st.just(0)),
        st.tuples(st.just("land"), st.sampled_from(["sent", "failed", "refused"]), st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 70_000)),
    ),
    max_size=40,
)


@given(steps)
def test_no_due_time_comes_early_and_none_is_lost(script: list[tuple[str, str, int]]) -> None:
    """B2, P3: for each publish an acknowledged event reaches its due time or later, cut after the publish."""
    publication = machine()
    now = 17.0003
    publishes: list[tuple[str, float, float]] = []  # queue, when published, when due
    marks: list[tuple[str, float, float]] = []  # queue, when cut, when it takes effect
    flying: list[tuple[list[Sending], float]] = []
    ids: dict[str, tuple[str, int | None]] = {}

    def take() -> None:
        batch = publication.take(now)
        names = [sending.event.queue_name for sending in batch if sending.due_ms is None]
        assert len(names) == len(set(names))
        on_the_way = {sending.event.queue for other, _ in flying for sending in other}
        assert not on_the_way & {sending.event.queue for sending in batch}
        for sending in batch:
            check_event(sending.event)
            assert sending.event.id is not None
            assert ids.setdefault(sending.event.id, (sending.event.queue, sending.event.payload_size)) == (
                sending.event.queue,
                sending.event.payload_size,
            )
        if batch:
            flying.append((batch, now))

    def land(how: str) -> None:
        batch, cut = flying.pop(0)
        if how == "failed":
            publication.failed(batch, now, lambda: 0.1)
        elif how == "refused" and len(batch) > 1:
            publication.refused(batch)
        else:
            publication.sent(batch)
            marks.extend((sending.event.queue_name, cut, now + sending.event.not_before_ms / 1000) for sending in batch)

    for word, text, number in script:
        if word == "owe":
            publication.owe(now, event(text, after_ms=number))
            publishes.append((text, now, now + number / 1000))
        elif word == "take":
            take()
        elif word == "wait":
            now += number / 1000
        elif flying:
            land(text)
    while flying or publication.deadline() is not None:
        now += 31.0
        take()
        land("sent")
    for queue, published, due in publishes:
        assert any(name == queue and cut >= published and effect >= due for name, cut, effect in marks)


# -- each word and each limit, exactly ---------------------------------------------------------------------------------
TRACE, OTHER = "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "00-" + "c" * 32 + "-" + "d" * 16 + "-01"


def test_where_all_rest_the_one_that_is_due_first_is_asked() -> None:
    """A put is always tried: what rests may have come back."""
    turns = Turns(3, lambda: 0.0)
    for now, number in ((0.0, 2), (0.1, 0), (0.2, 1)):
        turns.failed(now, number)
    assert turns.take(0.3) == 2
    assert turns.take(0.3, [2]) == 0
