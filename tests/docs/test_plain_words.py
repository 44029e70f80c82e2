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
FIRST_SCREEN = 45
# Words of the protocol's inside (docs/glossary.md), which no page for users has.
INNER = ("dirty", "dead-man", "generation", "eventcount", "capacity 0", "cover", "look of", "rumour", "doorbell")

TERMS = ("bridge", "trigger", "handler", "buried", "claim check")
MUST_EXPLAIN = {
    "README.md": {"bridge"},
    "docs/how-to/tour.md": {"trigger"},
    "docs/tutorials/first-worker.md": {"bridge", "handler", "buried"},
    "docs/tutorials/postgres.md": {"bridge", "handler", "buried"},
    "docs/explanation/why-a-bridge.md": {"bridge"},
}

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


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_word_is_explained_where_it_first_stands(path: Path) -> None:
    """A word of ours that a page explains (*so*) does not stand in its text before; some pages must do so."""
    text = " ".join(sentences(path.read_text(encoding="utf-8")))
    explained = {word for word in TERMS if f"*{word}*" in text}
    for word in explained:
        first = re.search(rf"\b{word}s?\b", re.sub(r"`[^`]*`", "", text), re.IGNORECASE)
        assert first is not None
        assert re.sub(r"`[^`]*`", "", text)[first.start() - 1] == "*", f"{word}: {text[: first.end()][-60:]}"
    assert explained >= MUST_EXPLAIN.get(str(path.relative_to(ROOT)), set())


def test_the_first_screen_says_what_it_is_for_whom_and_why_not_the_others() -> None:
    """And nothing has to be looked up to understand it."""
    screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN])
    for part in ("polls nothing while nothing happens", "It is for", "When not to use it", "Why not what there is"):
        assert part in screen, part
    for other in ("Procrastinate", "PgQueuer", "Celery", "long poll", "KEDA"):
        assert other in screen, other


def test_the_counting_itself() -> None:
    """A list, a link and a piece of code count as a reader counts them."""
    page = "# No\n\nOne two three. Four `a b` [six seven](x.md).\n\n- Six nine\n- Ten\n\n```sh\nnot this\n```\n\n| no |"
    assert [words(sentence) for sentence in sentences(page)] == [3, 4, 2, 1]
