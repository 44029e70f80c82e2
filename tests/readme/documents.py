"""What the documents say, taken apart: fenced blocks, links, and words set as code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import ROOT

README = ROOT / "README.md"
OVER_BROKERS = ROOT / "docs" / "how-to" / "brokers.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]

_fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_link = re.compile(r"\]\(([^)\s]+)\)")
_code = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    language: str
    text: str
    before: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.strip()]


def blocks(path: Path = README) -> list[Block]:
    text = path.read_text("utf-8")
    return [
        Block(found[1], found[2], text[: found.start()].rstrip().rpartition("\n\n")[2])
        for found in _fence.finditer(text)
    ]


def links(path: Path) -> list[str]:
    return _link.findall(_fence.sub("", path.read_text("utf-8")))


def inline_code(path: Path) -> list[str]:
    return _code.findall(_fence.sub("", path.read_text("utf-8")))


def commands(path: Path) -> list[str]:
    """Return every ``queuebell ...`` that a document shows, in blocks and in its text."""
    shown = [line.strip() for block in blocks(path) if block.language == "sh" for line in block.lines]
    return [text for text in [*shown, *inline_code(path)] if re.match(r"queuebell( |$)", text)]
