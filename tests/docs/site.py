"""What a built site would fetch from elsewhere: ``python -m tests.docs.site FOLDER`` ends with 1 if it is anything."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

OUTSIDE = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)")


class Fetches(HTMLParser):
    """Collects the addresses that a browser fetches by itself: not where a link leads, that is the reader's choice."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        named = [given.get(name) or "" for name in ("src", "srcset", "poster", "data")]
        if tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}:
            named.append(given.get("href") or "")
        self.found += [address for address in named if OUTSIDE.match(address)]
        self.found += IN_STYLE.findall(given.get("style") or "")


def outside(folder: Path) -> dict[str, list[str]]:
    fetched: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".html":
            page = Fetches()
            page.feed(path.read_text(encoding="utf-8"))
            found = page.found
        elif path.suffix == ".css":
            found = IN_STYLE.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        if found:
            fetched[str(path.relative_to(folder))] = found
    return fetched


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not (site / "search" / "search_index.json").exists():
        sys.exit(f"{site}: no site with a search was built there")
    if told := outside(site):
        sys.exit(f"{site}: fetched from elsewhere: {told}")
