"""What mkdocs.yml cannot say about the site: pages that are not there yet, folders, and links that leave it.

mkdocs calls these functions by their names (https://www.mkdocs.org/user-guide/plugins/#events).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DECISIONS = "decisions"
"""They stay in the checkout (mkdocs.yml excludes them)."""
LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)([^)\s#]+)[^)\s]*\)")


def on_config(config: Any) -> Any:
    """Take from the navigation what is not there, and put in the pages of each folder."""
    docs = Path(config.docs_dir)
    config.nav = list(_there(config.nav, docs))
    named = set(_pages(config.nav))
    if rest := sorted(
        {str(path.relative_to(docs)) for path in docs.rglob("*.md") if path.parent.name != DECISIONS} - named
    ):
        config.nav.append({"More": rest})
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Name a file that is in the checkout and not on the site, where a page has a link to it."""
    docs = Path(config.docs_dir)
    here = (docs / page.file.src_uri).parent

    def within(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        shown = target.is_relative_to(docs) and target.parent.name != DECISIONS
        if shown and target.suffix in {".md", ".svg", ".png", ".yaml", ".json"}:
            return link[0]
        name = str(target.relative_to(ROOT))
        return f"`{name}`" if link[1].strip("`") == name else f"{link[1]} (`{name}`)"

    return LINK.sub(within, markdown)


def _pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from _pages(value) if isinstance(value, list) else (value,)


def _there(entries: list[Any], docs: Path) -> Iterator[Any]:
    for entry in entries:
        title, value = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(value, list):
            kept = list(_there(value, docs))
        elif value.endswith("/"):
            kept = sorted(str(path.relative_to(docs)) for path in (docs / value).glob("*.md"))
            kept.sort(key=lambda name: not name.endswith("README.md"))
        else:
            kept = value if (docs / value).exists() else None
        if kept:
            yield kept if title is None else {title: kept}
