"""What code and tests cite can be looked up in this repository."""

from __future__ import annotations

import re

import pytest

from tests.support.command import ROOT

DOCS = ROOT / "docs"
ROW = re.compile(r"\bS(\d{1,2})\b")
PAGE = re.compile(r"[\w./-]+\.md\b")


def cited() -> dict[str, str]:
    rooms = ("bridge", "listeners", "queuebell", "tests", "bench")
    paths = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def test_each_row_of_bad_input_is_described() -> None:
    """S1 to S3 are rules of the protocol; every other one that is cited is a row of the page."""
    rows = {int(number) for number in re.findall(r"^\| S(\d+) \|", (DOCS / "bad-input.md").read_text(), re.MULTILINE)}
    unknown = {
        f"{name}: S{number}"
        for name, text in cited().items()
        if name != "tests/docs/test_citations.py"
        for number in map(int, ROW.findall(text))
        if number > 3 and number not in rows
    }
    assert rows and not unknown


def test_each_row_of_bad_input_is_shown_by_a_test() -> None:
    """A row that no test names may say what it likes."""
    rows = re.findall(r"^\| (S\d+) \|", (DOCS / "bad-input.md").read_text(), re.MULTILINE)
    tests = "\n".join(text for name, text in cited().items() if name.startswith(("tests/bridge", "tests/services")))
    shown = {f"S{number}" for number in re.findall(r"(?:\bS|_s)(\d+)(?![0-9a-z])", tests)}
    assert len(rows) > 30 and set(rows) - shown == set()


@pytest.mark.parametrize("planted", ["docs/never-there.md", "interfaces.md"])
def test_each_page_that_is_named_is_there(planted: str) -> None:
    """By its path from the root, or by its name alone below `docs/`; a page that is not there would be found."""
    there = {path.name for path in (*DOCS.rglob("*.md"), *(ROOT / "bench").glob("*.md"))}

    def missing(text: str) -> set[str]:
        return {page for page in PAGE.findall(text) if not (ROOT / page).exists() and page not in there}

    assert missing(f"see {planted}") == {planted}
    found = {f"{name}: {page}" for name, text in cited().items() for page in missing(text)}
    assert {one for one in found if not one.startswith("tests/")} == set()
