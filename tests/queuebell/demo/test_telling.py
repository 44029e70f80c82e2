"""How the outcome is told."""

from __future__ import annotations

import msgspec
import pytest

from queuebell.demo.bill import QueueCounters, make_out
from queuebell.demo.outcome import BurstTime, Outcome, faults_of
from queuebell.demo.report import LongestOfAll, Report
from queuebell.demo.telling import WIDTH, shown, tell_bill, tell_report, tell_verdict

REPORT = Report(
    1_790, 858_237, 617_724, 58_754, 13_116, 11_965, 9, 1, LongestOfAll("test/" * 20 + "x.py", "f" * 90, 1, 9)
)


def outcome(*faults: str, quiet_receives: int = 0) -> Outcome:
    """Make an outcome with large figures."""
    bill = make_out(
        seconds=1234.5,
        quiet_seconds=4.5,
        workers=32,
        process_s=999_999.0,
        messages=99_999_999,
        counters=QueueCounters(99_999_999, 99_999_999, 99_999_999, 9_999_999),
        receives_while_quiet=quiet_receives,
        wake_latencies_ns=[123_456_789],
    )
    return Outcome(
        ok=not faults,
        faults=list(faults),
        python="3.11.7",
        workers=32,
        processes=[0, *range(10, 33), *range(31, 9, -1), 0],
        killed_worker=4_194_304,
        bursts=[BurstTime(597, 3.2, 2.5)],
        files_put=1_790,
        probes_put=60,
        lost=0,
        duplicates=12,
        later_attempts=16,
        equal=not faults,
        differing=[],
        report=REPORT,
        direct=REPORT,
        bill=bill,
    )


def test_width() -> None:
    """No line is wider than a terminal of 80 columns, however large the figures."""
    told = outcome()
    lines = [*tell_report(told.report), *tell_bill(told.bill), *tell_verdict(told)]
    assert [line for line in lines if len(line) > WIDTH] == []


def test_verdict() -> None:
    """Good news names what held; bad news names each fault."""
    assert any("0 receives" in line for line in tell_verdict(outcome()))
    assert "  3 of 9 items have no result" in tell_verdict(outcome("3 of 9 items have no result"))


@pytest.mark.parametrize(
    ("course", "told"),
    [
        ([0, 4, 3, 4, 3, 2, 1, 0], "0 -> 4 -> 3 -> 4 -> 3 -> 2 -> 1 -> 0"),
        ([0, *[1, 2] * 9, 7, *[2, 1] * 9, 0], "0 -> 1 -> 2 -> ... -> 7 -> ... -> 2 -> 1 -> 0"),
    ],
)
def test_a_long_course_is_shortened(course: list[int], told: str) -> None:
    """How many processes there were: from the first to the last, and the most in between."""
    assert shown(course) == told


def test_no_quiet_month_that_was_not() -> None:
    """Where the quiet was broken, the bill claims no quiet month of ours."""
    assert any("quiet month" in line for line in tell_bill(outcome().bill))
    assert not any("quiet month" in line for line in tell_bill(outcome("broken", quiet_receives=1).bill))


CLEAN: dict[str, object] = {
    "put": 10,
    "lost": 0,
    "unknown": 0,
    "differing": [],
    "totals_equal": True,
    "receives_while_quiet": 0,
    "poisoned": 0,
    "processes": [0, 4, 3, 4, 0],
    "ends": [],
}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lost": 1}, "no result"),
        ({"unknown": 1}, "no item that was put"),
        ({"differing": ["a.py"]}, "a.py"),
        ({"totals_equal": False}, "report differs"),
        ({"receives_while_quiet": 1}, "quiet"),
        ({"poisoned": 1}, "poison"),
        ({"processes": [1, 2, 0]}, "1 worker processes ran before any work"),
        ({"processes": [0, 2, 1]}, "1 were left"),
        ({"ends": ["the bridge ended with code 3"]}, "code 3"),
    ],
)
def test_each_fault_counts(change: dict[str, object], word: str) -> None:
    """Whatever does not hold is a fault of its own; where all holds there is none."""
    assert faults_of(**CLEAN) == []  # type: ignore[arg-type]
    faults = faults_of(**{**CLEAN, **change})  # type: ignore[arg-type]
    assert len(faults) == 1
    assert word in faults[0]


def test_json_and_back() -> None:
    """The outcome goes through JSON unharmed."""
    told = outcome()
    assert msgspec.json.decode(msgspec.json.encode(told), type=Outcome) == told
