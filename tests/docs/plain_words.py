"""Plain words: ``python -m tests.docs.plain_words`` ends with 1 if a page, a text or a comment has a phrase to avoid.

It finds the phrases that crept in before; whether a sentence reads well, a reader judges.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.processes import ROOT, placed

WHERE: Final = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs",
    "deploy",
    "bridge",
    "listeners",
    "queuebell",
)
KINDS: Final = {".md", ".py", ".js", ".html", ".yml", ".toml", ".service"}
LONGEST: Final = 45
"""Words of a sentence on a page."""
PHRASES: Final = re.compile(
    r"\b(?:(?:is|are|was|were) told|whoever|anew|likewise|of ours|in words|for so long|hears of|be had|stands still"
    r"|whatever becomes|owes? a look|a look at|what became of|as ever|by the by|that very)\b",
    re.IGNORECASE,
)
ALLOWED: Final = {
    ("bridge/contract/settings.py", "in words"),
    ("bridge/http/azure/auth.py", "in words"),
    ("bridge/observe/tracing.py", "in words"),
    ("bridge/brokers/nats/broker.py", "in words"),
    ("listeners/scaling/actuators/process.py", "in words"),
    ("queuebell/testing.py", "stands still"),
}
"""Where a phrase is code, or right."""


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


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and content of each file that people read, without the decisions: they keep the words of their day."""
    for name in WHERE:
        place = placed(name) if root == ROOT else root / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            shown = (
                str(path.relative_to(root)).removeprefix("queuebell/")
                if place != root / name
                else str(path.relative_to(root))
            )
            if path.suffix in KINDS and path.is_file() and "docs/decisions" not in shown:
                yield shown, path.read_text(encoding="utf-8")


def avoided(root: Path = ROOT) -> list[str]:
    """Return each phrase to avoid, and each sentence that is too long, with its place."""
    found = []
    for name, text in texts(root):
        for number, line in enumerate(text.splitlines(), 1):
            for match in PHRASES.finditer(line):
                if (name, match[0].lower()) not in ALLOWED:
                    found.append(f"{name}:{number}: {match[0]!r}")
        if name.startswith("docs/"):
            found += [
                f"{name}: {words(each)} words: {each[:60]} ..." for each in sentences(text) if words(each) > LONGEST
            ]
    return found


if __name__ == "__main__":
    if found := avoided():
        sys.exit("write these in plain words (tests/docs/plain_words.py):\n" + "\n".join(found))
