"""The files of the page, which request nothing from other hosts."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.resources
from typing import TYPE_CHECKING, Final

from queuebell.bridge.http.api.routes import Routes, path_of
from queuebell.bridge.http.server.answer import Answer

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

NOUNS: Final = (
    "page", "told", "login", "parts", "plots", "picture", "queues", "queue", "history", "events", "messages", "buried",
    "listeners", "bridge",
)  # fmt: skip
FILES: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    **{f"/{noun}.js": (f"{noun}.js", "text/javascript; charset=utf-8") for noun in NOUNS},
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only these files are loaded and run, and no text of a message becomes markup."""


@functools.cache
def content(name: str) -> bytes:
    """Return one of the files."""
    # Some kilobytes, read once: a thread would take longer.
    return (importlib.resources.files(__package__) / "files" / name).read_bytes()


@functools.cache
def compressed(name: str) -> bytes:
    """Return one of the files, compressed."""
    return gzip.compress(content(name), mtime=0)


@functools.cache
def edition() -> bytes:
    """Return a hash of these files, another one in each version."""
    whole = b"".join(content(name) for name, _ in FILES.values())
    return hashlib.sha256(whole).hexdigest()[:16].encode()


class PageRoutes:
    """The page's files; they contain no data, so they need no key."""

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
        for path in FILES:
            routes.add("GET", path, None, self.file)

    async def file(self, request: BaseRequest, _: str) -> Answer:
        """Return one file."""
        name, media = FILES[path_of(request)]
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        answer = Answer(200, compressed(name) if packed else content(name), media)
        if packed:
            answer.add_header("Content-Encoding", "gzip")
        answer.add_header("Vary", "Accept-Encoding")
        answer.add_header("Content-Security-Policy", POLICY)
        answer.add_header("Referrer-Policy", "no-referrer")
        answer.add_header("Cross-Origin-Opener-Policy", "same-origin")
        return answer
