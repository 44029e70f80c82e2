"""Counts of what became of messages: differences, sums, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import BadInput
from bridge.contract.jobs import (
    BOUNDS_S,
    CLASSES_MAX,
    COUNT_MAX,
    HANDLERS_MAX,
    NO_JOBS,
    NOTHING,
    OTHER,
    Jobs,
    Spread,
    add,
    bucket,
    label,
    minus,
    plus,
    quantile,
)
from bridge.contract.wire import ListenerHeartbeat, QueueBeat, decode_up, encode_frame

COUNTS = st.integers(1, 1000)
SPREADS = st.builds(
    lambda counts, last, total: Spread([*counts, last], total),
    st.lists(st.integers(0, 9), max_size=len(BOUNDS_S)),
    COUNTS,
    st.integers(0, 10**6),
)
JOBS = st.builds(
    Jobs,
    st.dictionaries(st.sampled_from(["done", "failed"]), COUNTS),
    st.dictionaries(st.sampled_from(["A", "B", "C"]), COUNTS),
    st.just(0),
    st.integers(0, 5),
    st.one_of(st.just(NOTHING), SPREADS),
    st.one_of(st.just(NOTHING), SPREADS),
)


@given(JOBS, JOBS)
def test_a_difference_added_again_is_the_level(known: Jobs, more: Jobs) -> None:
    """What is new in a level, added to what was known, gives the level; and nothing is new in it then."""
    level = plus(known, more)
    assert minus(level, known) == more
    assert plus(known, minus(level, known)) == level
    assert minus(known, level) == NO_JOBS, "a level that was overtaken has nothing new"


@given(JOBS)
def test_levels_survive_the_wire_and_zeros_cost_nothing(jobs: Jobs) -> None:
    """A counter that is 0 is absent, and a queue with nothing to tell has no such field."""
    told = ListenerHeartbeat(7, {"a/b": QueueBeat(1, jobs={"m:f": jobs}), "a/c": QueueBeat(1)})
    raw = encode_frame(told)
    assert decode_up(raw) == told
    assert raw.count(b'"jobs"') == 1
    assert encode_frame(ListenerHeartbeat(7, {"a/b": QueueBeat(jobs={"m:f": NO_JOBS})})).endswith(b'"m:f":{}}}}}')


@pytest.mark.parametrize(
    "wrong",
    [
        {"": NO_JOBS},
        {"x" * 129: NO_JOBS},
        {"m:\x1b[2J": NO_JOBS},
        {f"m:f{number}": NO_JOBS for number in range(HANDLERS_MAX + 1)},
        {"m:f": Jobs({"done": -1})},
        {"m:f": Jobs({"done": COUNT_MAX + 1})},
        {"m:f": Jobs({str(number): 1 for number in range(CLASSES_MAX + 1)})},
        {"m:f": Jobs({}, {"": 1})},
        {"m:f": Jobs({}, {"x" * 65: 1})},
        {"m:f": Jobs({}, {"a\nb": 1})},
        {"m:f": Jobs({}, {str(number): 1 for number in range(CLASSES_MAX + 2)})},
        {"m:f": Jobs({}, {}, -1)},
        {"m:f": Jobs({}, {}, 0, -1)},
        {"m:f": Jobs(handling=Spread([1] * (len(BOUNDS_S) + 2)))},
        {"m:f": Jobs(handling=Spread([-1, 2]))},
        {"m:f": Jobs(waiting=Spread([1], -1))},
    ],
)
def test_what_no_listener_tells_is_refused(wrong: dict[str, Jobs]) -> None:
    """Names too many, too long or not printable, and numbers out of their range are the sender's fault."""
    with pytest.raises(BadInput, match=r"^jobs: "):
        decode_up(encode_frame(ListenerHeartbeat(7, {"a/b": QueueBeat(jobs=wrong)})))


def test_the_limits_themselves_are_let_in() -> None:
    """As many names, as long, and as large numbers as may be."""
    classes = {f"{number:064}": COUNT_MAX for number in range(CLASSES_MAX)} | {OTHER: 1}
    most = Jobs(failures=classes, in_flight=COUNT_MAX, handling=Spread([1] * (len(BOUNDS_S) + 1), COUNT_MAX))
    told = ListenerHeartbeat(7, {"a/b": QueueBeat(jobs={f"{n:0128}": most for n in range(HANDLERS_MAX)})})
    assert decode_up(encode_frame(told)) == told


def test_names_are_bounded_and_nothing_is_lost() -> None:
    """Beyond 20 handlers, and 20 classes of failure of one, counts go on as other."""
    sums: dict[str, Jobs] = {}
    for number in range(HANDLERS_MAX + 5):
        add(sums, f"m:f{number}", Jobs({"done": 1}))
    assert sums[OTHER] == Jobs({"done": 5})
    add(sums, "m:f0", Jobs({}, {f"E{number}": 1 for number in range(CLASSES_MAX - 1)}))
    add(sums, "m:f0", Jobs({}, {"F": 2, "G": 3, "H": 4}))
    failures = sums["m:f0"].failures
    assert (len(failures), failures["F"], failures[OTHER]) == (CLASSES_MAX + 1, 2, 7)


def test_buckets_and_quantiles() -> None:
    """A bound belongs to its bucket; a quantile is the bound of the bucket that holds it."""
    assert [bucket(seconds) for seconds in (0.0, 0.001, 0.0011, 1800.0, 1801.0)] == [0, 0, 1, 15, 16]
    assert quantile(NOTHING, 0.5) is None
    spread = Spread([0, 5, 4, 0, 1])
    assert [quantile(spread, part) for part in (0.0, 0.5, 0.51, 0.9, 0.95, 1.0)] == [
        0.005, 0.005, 0.01, 0.01, 0.05, 0.05,
    ]  # fmt: skip
    assert quantile(Spread([0] * 16 + [1]), 0.5) == float("inf")


def test_a_label_is_printable_and_short() -> None:
    """Whatever a program calls its handlers, the name does no harm on a terminal, and is never empty."""
    assert label("m:\x1b[2Jf", 128) == "m:?[2Jf"
    assert label("x" * 200, 128) == "x" * 128
    assert label("", 128) == label("\udc80", 128) == "?"
    assert label("ü" * 200, 65) == "ü" * 32
