"""What people read first is in short sentences, and in words that they know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.plain_words import LONGEST, avoided, sentences, words
from tests.support.processes import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    ROOT / "docs" / "explanation" / "why-a-bridge.md",
]
WORDS_ON_AVERAGE = 20
# Words of the protocol's inside (docs/reference/glossary.md), which no page for users has.
INNER = ("dirty", "dead-man", "generation", "eventcount", "capacity 0", "cover", "look of", "rumour", "doorbell")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_sentences_are_short(path: Path) -> None:
    """Twenty words on average, and none that nobody can read in one breath."""
    found = sentences(path.read_text(encoding="utf-8"))
    counts = [words(sentence) for sentence in found]
    assert sum(counts) / len(counts) <= WORDS_ON_AVERAGE
    assert [sentence for sentence in found if words(sentence) > LONGEST] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_word_of_the_inside_of_the_protocol(path: Path) -> None:
    text = path.read_text(encoding="utf-8").lower()
    assert [word for word in INNER if re.search(rf"\b{word}\b", text)] == []


def test_a_planted_phrase_and_a_planted_sentence_are_found(tmp_path: Path) -> None:
    """In a page, a module, a text of the page and a unit; what is allowed in one place is found in another."""
    planted = {
        "docs/how-to/watch.md": f"Check it.\n\nThe bridge is told of it. {'word ' * (LONGEST + 1)}\n",
        "bridge/core/limits.py": '"""Whoever is first."""\n',
        "bridge/http/page/files/page.js": "// anew\n",
        "deploy/systemd/queuebell.service": "# as ever\n",
        "queuebell/command/top.py": "# in words\n",
        "bridge/contract/settings.py": "# in words\n",
        "docs/decisions/0001-old.md": "It is told.\n",
    }
    for name, text in planted.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = avoided(tmp_path)
    assert [line for line in found if "words: " not in line] == [
        "docs/how-to/watch.md:3: 'is told'",
        "deploy/systemd/queuebell.service:1: 'as ever'",
        "bridge/core/limits.py:1: 'Whoever'",
        "bridge/http/page/files/page.js:1: 'anew'",
        "queuebell/command/top.py:1: 'in words'",
    ]
    assert [line.split(":")[0] for line in found if "words: " in line] == ["docs/how-to/watch.md"]


def test_the_project_has_none() -> None:
    """What `make check` asks."""
    assert avoided() == []
