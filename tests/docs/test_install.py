"""What we say to install from the checkout leaves the install of `make` as it is: one that follows the checkout."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.processes import ROOT

_copying = re.compile(r"pip install (?!-e )['\"]?\.(?![\w/])")


def told() -> list[Path]:
    """Return every page for users, and every module that may tell them what is missing."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return [*pages, *(path for room in ("bridge", "listeners", "queuebell") for path in (ROOT / room).rglob("*.py"))]


def test_nobody_is_told_to_replace_the_checkout_by_a_copy() -> None:
    """In the environment of `make` a copy would go on to run old code after the next pull, without a word."""
    assert _copying.search("pip install '.[postgres]'") and _copying.search("`pip install .` in it")
    assert not _copying.search("pip install -e '.[postgres]'")
    texts = {path: path.read_text(encoding="utf-8") for path in told()}
    assert sum("pip install -e '.[" in text for text in texts.values()) >= 8
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if _copying.search(text)] == []
