"""Adding up facts, and comparing them."""

from __future__ import annotations

from queuebell.demo.analysis import CANNOT_BE_READ, DOES_NOT_PARSE, FileFacts, LongestFunction
from queuebell.demo.report import LongestOfAll, add_up, differences

FACTS = {
    "b.py": FileFacts(10, 8, 2, 1, 3, LongestFunction("B.m", 4, 5)),
    "a.py": FileFacts(20, 9, 1, 0, 1, LongestFunction("f", 1, 5)),
    "c.py": FileFacts(3, 3, fault=DOES_NOT_PARSE),
    "d.py": FileFacts(0, 0, fault=CANNOT_BE_READ),
}


def test_add_up() -> None:
    """Every count is the sum, faults are counted by kind, and of equal functions the first path's is the longest."""
    report = add_up(FACTS)
    assert (report.files, report.lines, report.code_lines) == (4, 33, 20)
    assert (report.functions, report.classes, report.imports) == (3, 1, 4)
    assert (report.unparsed, report.unreadable) == (1, 1)
    assert report.longest == LongestOfAll("a.py", "f", 1, 5)


def test_order_plays_no_part() -> None:
    """The same facts in another order give the same report."""
    assert add_up(dict(reversed(FACTS.items()))) == add_up(FACTS)


def test_nothing() -> None:
    """No facts at all make an empty report."""
    assert add_up({}).longest is None
    assert add_up({}).files == 0


def test_differences() -> None:
    """Missing on either side and unequal are differences, named in order."""
    other = {**FACTS, "a.py": FileFacts(21, 9), "e.py": FileFacts(1, 1)}
    del other["d.py"]
    assert differences(FACTS, other) == ["a.py", "d.py", "e.py"]
    assert differences(FACTS, dict(FACTS)) == []
