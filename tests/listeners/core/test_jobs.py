"""What a queue's listener counts of its handler, and what of it which bridge is told."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.contract.jobs import (
    BOUNDS_S,
    CLASSES_MAX,
    NO_JOBS,
    NOTHING,
    OTHER,
    OUTCOMES,
    Jobs,
    Spread,
    add,
    minus,
    plus,
)
from bridge.core import jobs as bridges
from bridge.core.ledger import Debt
from bridge.core.routing import Seats
from bridge.core.settings import Periods, Tuning
from listeners.core.jobs import BOOTS_MAX, EXTRA_BYTES, JobCounts

HANDLER = "shop.orders:handle"


def happen(counts: JobCounts, number: int) -> None:
    """Have one attempt begin, fail or not, and end; few kinds, so that the same counters grow again and again."""
    counts.began(1, [number % 2])
    counts.ended(1, 0.0004 + number % 3)
    if number % 2:
        counts.failed("ValueError")
    if number % 5:
        counts.concluded("failed" if number % 2 else "done")
    else:
        counts.lost()


class OneBoot:
    """A boot of a bridge, and what it has counted."""

    def __init__(self, number: int) -> None:
        self.boot = f"{number:032x}"
        self.counts = bridges.JobCounts()
        self.debt = Debt(queue="a/b", seats=Seats(), numbers=Tuning(Periods()).of("a/b"))

    @property
    def sum(self) -> Jobs:
        return (self.debt.jobs or {}).get(HANDLER, NO_JOBS)

    def hear(self, told: dict[str, Jobs]) -> None:
        before = self.sum
        self.counts.told("1" * 32, self.debt, told)
        assert minus(before, self.sum) == NO_JOBS, "a counter went back"


MOVES = st.sampled_from(["work", "beat", "lose", "delay", "late", "deaf", "greet", "other", "restart"])


def played(moves: list[str], *, bridges_: int, orderly: bool) -> tuple[Jobs, Jobs]:
    """Play moves, then tell in peace; return what happened, and the sums of all boots there were."""
    counts = JobCounts(HANDLER)
    boots = [OneBoot(number) for number in range(bridges_)]
    gone: list[OneBoot] = []
    at, stamp, delayed = 0, 0, []
    counts.greeted(boots[at].boot)

    def tell(*, heard: bool = True, echoed: bool = True) -> None:
        nonlocal stamp
        if counts.changed:
            stamp += 1
            told = counts.report(stamp)
            assert len(msgspec.json.encode(told)) + len(',"jobs":') <= counts.report_bytes()
            if heard:
                boots[at].hear(told)
            if heard and echoed:
                counts.echoed(stamp)

    for number, move in enumerate(moves):
        if move == "work":
            happen(counts, number)
        elif move == "beat":
            tell()
        elif move == "lose":
            tell(heard=False)
        elif move == "deaf":
            tell(echoed=orderly)
        elif move == "delay" and counts.changed:
            stamp += 1
            delayed.append((boots[at], counts.report(stamp)))
        elif move == "late" and delayed and not orderly:
            boot, told = delayed.pop()
            boot.hear(told)
        elif move == "greet":
            counts.greeted(boots[at].boot)
        elif move == "other" and bridges_ > 1:
            at = (at + 1 + number) % bridges_
            counts.greeted(boots[at].boot)
        elif move == "restart" and bridges_ > 1:
            gone.append(boots[at])
            boots[at] = OneBoot(100 + number)
            counts.greeted(boots[at].boot)
    counts.greeted(boots[at].boot)
    tell()
    assert not counts.changed
    total = NO_JOBS
    for boot in [*boots, *gone]:
        total = plus(total, boot.sum)
    return counts.level(), total


@settings(max_examples=300)
@given(st.lists(MOVES, min_size=10, max_size=60))
def test_one_bridge_counts_exactly_what_happened(moves: list[str]) -> None:
    """However heartbeats and echoes are lost, late and repeated, and sessions replaced."""
    happened, counted = played(moves, bridges_=1, orderly=False)
    assert counted == happened


@settings(max_examples=300)
@given(st.lists(MOVES, min_size=10, max_size=60))
def test_several_bridges_and_restarts_count_all_and_nothing_twice(moves: list[str]) -> None:
    """Going to and fro between bridges, also those that were there before, each attempt is counted by one of them."""
    happened, counted = played(moves, bridges_=3, orderly=True)
    assert counted == happened


@settings(max_examples=300)
@given(st.lists(MOVES, min_size=10, max_size=60))
def test_no_attempt_is_missing_where_echoes_are_lost_at_a_change(moves: list[str]) -> None:
    """What a bridge heard and could not acknowledge is told to the next one too."""
    happened, counted = played(moves, bridges_=3, orderly=False)
    assert minus(happened, counted) == NO_JOBS


def test_nothing_is_repeated_that_was_heard() -> None:
    """An idle queue owes nothing, and what is told after the first echo says that it was heard before."""
    counts = JobCounts(HANDLER)
    counts.greeted("b" * 32)
    assert not counts.changed
    happen(counts, 1)
    assert counts.report(7)[HANDLER].resumed is False
    counts.echoed(6)
    assert counts.changed, "the echo of another heartbeat"
    counts.echoed(7)
    assert not counts.changed
    happen(counts, 1)
    told = counts.report(8)[HANDLER]
    assert told.resumed and told.outcomes == {"failed": 2}


def test_calls_that_run_are_told_once_and_again_to_a_new_session() -> None:
    """A bridge whose session is new knows nothing of what runs; a change that is undone before it is told is none."""
    counts = JobCounts(HANDLER)
    counts.greeted("b" * 32)
    counts.began(3, [])
    assert counts.report(1)[HANDLER].in_flight == 3
    counts.echoed(1)
    assert not counts.changed
    counts.greeted("b" * 32)
    assert counts.report(2)[HANDLER].in_flight == 3
    counts.echoed(2)
    assert not counts.changed


def test_classes_and_names_are_bounded() -> None:
    """The first 20 classes have names, the rest is other; a name does no harm and takes so many bytes."""
    counts = JobCounts("m:\x1b" + "ü" * 200)
    assert counts.handler.isprintable() and len(counts.handler.encode()) <= 128
    for number in range(CLASSES_MAX + 5):
        counts.failed(f"Error{number}")
    counts.failed("Error0")
    failures = counts.level().failures
    assert (len(failures), failures["Error0"], failures[OTHER]) == (CLASSES_MAX + 1, 2, 5)


def test_times_are_counted_by_bucket() -> None:
    """Of a batch each message counts with the time of all; a clock behind the store's makes no time negative."""
    counts = JobCounts(HANDLER)
    counts.began(3, [-4.0, 0.2])
    counts.ended(3, 0.004)
    level = counts.level()
    assert level.handling == Spread([0, 3], 12)
    assert level.waiting == Spread([1, 0, 0, 0, 0, 0, 1], 200)
    assert JobCounts(HANDLER).level() == Jobs(handling=NOTHING)


def test_boots_are_forgotten_in_the_end() -> None:
    """A worker that outlives very many restarts of its bridge remembers the newest sixteen."""
    counts = JobCounts(HANDLER)
    for number in range(BOOTS_MAX + 9):
        counts.greeted(f"{number:032x}")
    assert len(counts._told_to) <= BOOTS_MAX


def test_the_largest_report_is_small() -> None:
    """With every name as long and every number as large as may be, a report takes a few thousand bytes."""
    counts = JobCounts("x" * 200)
    for number in range(CLASSES_MAX + 1):
        counts.failed(f"{number:0100}")
    for outcome in OUTCOMES:
        counts.concluded(outcome)
    for bound in (*BOUNDS_S, 1e9):
        counts.began(1, [bound])
        counts.ended(1, bound)
    assert counts.report_bytes() < 2500 and EXTRA_BYTES
    sums: dict[str, Jobs] = {}
    for handler, jobs in counts.report(1).items():
        add(sums, handler, jobs)
    assert sum(sums[counts.handler].failures.values()) == CLASSES_MAX + 1
