"""The publisher's pure machine: P3 to P5, explored whole and then with chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuebell.bridge.contract.event import (
    EVENTS_MAX,
    CloudQueueWorkDetected,
    check_event,
    encode_events,
)
from queuebell.bridge.contract.trace_context import Traces
from queuebell.bridge.producer.publication import BACKOFF_CAP_S, DUE_TIMES_MAX, Publication, Sending
from tests.exploration.mutants import ClearsAfterAcknowledgement


def event(queue: str = "q", size: int = 1, after_ms: int = 0, id: str | None = None) -> CloudQueueWorkDetected:
    return CloudQueueWorkDetected("a", queue, size, id=id, not_before_ms=after_ms)


def machine(kind: type[Publication] = Publication) -> Publication:
    numbers = itertools.count(1)
    return kind("test", lambda: f"id-{next(numbers)}")


class NoTrailingEdge(Publication):
    """A put while a publish is on its way sets nothing: the trailing edge is missing."""

    def add(self, now: float, event: CloudQueueWorkDetected) -> None:
        known = self._queues.get(event.queue)
        if known is None or not known.in_flight:
            super().add(now, event)


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
            publication.add(now, event())
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
    """P3: over all scripts of seven steps, an acknowledged publish follows each put."""
    for script in SCRIPTS:
        assert uncovered(Publication, script) == [], script


@pytest.mark.parametrize("mutant", [ClearsAfterAcknowledgement, NoTrailingEdge])
def test_mutants_lose_puts(mutant: type[Publication]) -> None:
    """V16: a bit cleared after the acknowledgement loses a put in between, and the scripts find it."""
    assert any(uncovered(mutant, script) for script in SCRIPTS if len(script) <= 5)


def test_publishes_merge_while_one_is_on_its_way() -> None:
    """P3: they become one event with the summed size, sent after the first has landed."""
    publication = machine()
    publication.add(0.0, event(size=2))
    first = publication.take(0.0)
    publication.add(0.0, event(size=3))
    publication.add(0.0, event(size=4))
    assert publication.take(0.0) == []
    assert publication.deadline() is None
    publication.sent(first)
    (second,) = publication.take(0.0)
    assert second.event.payload_size == 7


def test_other_queues_do_not_wait() -> None:
    """P3 is per queue."""
    publication = machine()
    publication.add(0.0, event("one"))
    publication.take(0.0)
    publication.add(0.0, event("two"))
    assert [sending.event.queue_name for sending in publication.take(0.0)] == ["two"]


def test_sizes_are_summed_up_to_the_maximum() -> None:
    publication = machine()
    for _ in range(3):
        publication.add(0.0, event(size=900_000))
    (sending,) = publication.take(0.0)
    assert sending.event.payload_size == 1_000_000
    check_event(sending.event)


def test_a_resend_keeps_its_id() -> None:
    """P5."""
    publication = machine()
    publication.add(0.0, event())
    (first,) = publication.take(0.0)
    publication.failed([first], 0.0, lambda: 0.0)
    (again,) = publication.take(0.0)
    assert again.event == first.event


def test_a_merged_resend_has_another_id() -> None:
    """P5: an event that includes a later put is a new one."""
    publication = machine()
    publication.add(0.0, event())
    (first,) = publication.take(0.0)
    publication.add(0.0, event())
    publication.failed([first], 0.0, lambda: 0.0)
    (again,) = publication.take(0.0)
    assert again.event.id != first.event.id
    assert again.event.payload_size == 2


def test_what_is_due_first_is_sent_first() -> None:
    """For now before any due time, then the nearest, in any order of publishing."""
    publication = machine()
    for after_ms in (9000, 3000, 0, 6000):
        publication.add(0.0, event(after_ms=after_ms))
    assert [sending.due_ms for sending in publication.take(0.0)] == [None, 3000, 6000, 9000]


def test_given_words_are_kept() -> None:
    """The event has the caller's id and the publisher's source."""
    publication = machine()
    publication.add(0.0, event(id="mine"))
    (sending,) = publication.take(0.0)
    assert (sending.event.id, sending.event.source) == ("mine", "test")


def test_failures_back_off_and_a_success_forgets_them() -> None:
    """Nothing is sent during a back-off, which grows to 30 s at most."""
    publication = machine()
    publication.add(0.0, event())
    now, waits = 0.0, []
    for _ in range(20):
        batch = publication.take(now)
        wait = publication.failed(batch, now, lambda: 0.999)
        waits.append(wait)
        assert publication.take(now + wait * 0.99) == []
        assert publication.deadline() == now + wait
        now += wait
    assert waits == sorted(waits)
    assert BACKOFF_CAP_S * 0.99 < waits[-1] <= BACKOFF_CAP_S
    publication.sent(publication.take(now))
    publication.add(now, event())
    assert publication.deadline() == -math.inf


def test_a_close_ends_the_back_off() -> None:
    """P4."""
    publication = machine()
    publication.add(0.0, event())
    publication.failed(publication.take(0.0), 0.0, lambda: 0.999)
    assert publication.take(0.0) == []
    publication.reset_backoff()
    assert len(publication.take(0.0)) == 1


def test_one_refused_event_stops_no_other() -> None:
    """A rejected batch is halved until the bad event is alone; all others are sent."""
    publication = machine()
    for number in range(1000):
        publication.add(0.0, event(f"q{number}"))
    sent, dropped = set(), []
    while publication.deadline() is not None:
        batch = publication.take(0.0)
        if any(sending.event.queue_name == "q777" for sending in batch):
            if (bad := publication.refused(batch)) is not None:
                dropped.append(bad.queue_name)
        else:
            publication.sent(batch)
            sent.update(sending.event.queue_name for sending in batch)
    assert dropped == ["q777"]
    assert len(sent) == 999


def test_batches_stay_within_a_request() -> None:
    """At most 1000 events and 1 MiB each, and every queue is reached."""
    publication = machine()
    for number in range(2500):
        publication.add(0.0, CloudQueueWorkDetected("a", f"q{number}", traceparent="é" * 1000))
    seen = set()
    while batch := publication.take(0.0):
        assert len(batch) <= EVENTS_MAX
        assert len(encode_events([sending.event for sending in batch])) <= 1024 * 1024
        publication.sent(batch)
        seen.update(sending.event.queue for sending in batch)
    assert len(seen) == 2500


def test_due_times_past_the_limit_are_rounded_up() -> None:
    """B2: they are merged into whole seconds, never to an earlier time."""
    publication = machine()
    for after in range(1, 3 * DUE_TIMES_MAX):
        publication.add(0.0, event(after_ms=after * 7))
    owed = publication.pending(0.0)
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
    """B2, P3: for each publish an acknowledged event, cut after it, takes effect at its due time or later."""
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
            publication.add(now, event(text, after_ms=number))
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


def traced(
    queue: str = "q", after_ms: int = 0, trace: str | None = TRACE, id: str | None = None
) -> CloudQueueWorkDetected:
    return CloudQueueWorkDetected("a", queue, 1, id=id, not_before_ms=after_ms, traceparent=trace)


@pytest.mark.parametrize("after_ms", [0, 500])
@pytest.mark.parametrize(("newer", "told"), [(None, TRACE), (OTHER, OTHER)])
def test_a_trace_goes_with_its_put(after_ms: int, newer: str | None, told: str) -> None:
    """Merged, failed and sent again: the newest trace that there is, and the newest id."""
    publication = machine()
    publication.add(0.0, traced(after_ms=after_ms, id="one"))
    (sending,) = publication.take(0.0)
    assert (sending.event.id, sending.event.traceparent) == ("one", TRACE)
    publication.failed([sending], 0.0, lambda: 0.0)
    (sending,) = publication.take(0.0)
    assert (sending.event.id, sending.event.traceparent) == ("one", TRACE)
    publication.add(0.0, traced(after_ms=after_ms, trace=newer, id="two"))
    publication.failed([sending], 0.0, lambda: 0.0)
    (sending,) = publication.take(0.0)
    assert (sending.event.id, sending.event.traceparent, sending.event.payload_size) == ("two", told, 2)
    publication.failed([sending], 0.0, lambda: 0.0)
    publication.add(0.0, traced(after_ms=after_ms, trace=None, id="three"))
    (owed,) = publication.pending(0.0)
    assert (owed.id, owed.traceparent, owed.payload_size) == ("three", told, 3)


def test_publishes_that_became_one_tell_all_their_traces() -> None:
    """Merged while pending, after a failure and when due; a single one has no list."""
    third = OTHER.replace("b", "c")
    publication = machine()
    publication.add(0.0, traced())
    (sending,) = publication.take(0.0)
    assert sending.event.traces is None
    publication.add(0.0, traced(trace=OTHER))
    publication.failed([sending], 0.0, lambda: 0.0)
    (sending,) = publication.take(0.0)
    assert (sending.event.traceparent, sending.event.traces) == (OTHER, Traces((TRACE, OTHER)))
    publication.failed([sending], 0.0, lambda: 0.0)
    (sending,) = publication.take(0.0)
    assert (sending.event.traceparent, sending.event.traces) == (OTHER, Traces((TRACE, OTHER)))
    publication.sent([sending])
    publication.add(5.0, traced(trace=third))
    publication.add(5.0, traced(after_ms=1000))
    (sending,) = publication.take(6.0)
    assert sending.event.traces == Traces((third, TRACE))


@pytest.mark.parametrize("after_ms", [0, 500])
def test_the_newer_of_two_merged_traces_is_told(after_ms: int) -> None:
    publication = machine()
    publication.add(0.0, traced(after_ms=after_ms))
    publication.add(0.0, traced(after_ms=after_ms, trace=OTHER))
    assert [owed.traceparent for owed in publication.pending(0.0)] == [OTHER]
