"""What people read first is in short sentences, and in words that they know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.processes import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    ROOT / "docs" / "explanation" / "why-a-bridge.md",
]
WORDS_ON_AVERAGE = 20
WORDS_AT_MOST = 45
# Words of the protocol's inside (docs/reference/glossary.md), which no page for users has.
INNER = ("dirty", "dead-man", "generation", "eventcount", "capacity 0", "cover", "look of", "rumour", "doorbell")


_fence = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_link = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_end = re.compile(r"(?<=[.:;?!])[*)\"]*\s+")


def sentences(page: str) -> list[str]:
    """Return the sentences of a page: no code, tables or headings; each item of a list begins one."""
    kept: list[str] = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", _fence.sub("\n\n", page)):
        text = paragraph.strip()
        if text and not text.startswith(("#", "|")):
            kept += _end.split(" ".join(_link.sub(r"\1", text).split()))
    return [sentence for sentence in kept if re.search(r"\w", sentence)]


def words(sentence: str) -> int:
    """Count words; what is set as code is one."""
    return len(re.findall(r"\w[\w'.-]*", re.sub(r"`[^`]*`", "code", sentence)))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_sentences_are_short(path: Path) -> None:
    """Twenty words on average, and none that nobody can read in one breath."""
    found = sentences(path.read_text(encoding="utf-8"))
    counts = [words(sentence) for sentence in found]
    assert sum(counts) / len(counts) <= WORDS_ON_AVERAGE
    assert [sentence for sentence in found if words(sentence) > WORDS_AT_MOST] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_word_of_the_inside_of_the_protocol(path: Path) -> None:
    """A page for users does without them."""
    text = path.read_text(encoding="utf-8").lower()
    assert [word for word in INNER if re.search(rf"\b{word}\b", text)] == []
