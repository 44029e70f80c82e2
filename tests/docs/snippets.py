"""Every fenced block of the documents, and what is done with each: one of no known kind has no place in a page."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.readme.documents import DOCUMENTS
from tests.support.processes import ROOT

# What is done with a block, and which test does it.
FOLLOWED = "run: its page is followed (tests/docs/test_followed.py)"
README = "run: tests/readme/test_readme.py"
TYPED = "mypy --strict, and every name of ours is there"
SHELL = "sh -n, and each of our commands by its own parser"
REQUEST = "as above, and run against a bridge"
TOML = "read by the loader of the settings"
SQL = "run on a real PostgreSQL"
C = "compiled, and compared with our own"
DATA = "parsed"
PROXY = "run with this configuration (tests/services/test_proxies.py)"
DRAWN = "a drawing"
OUTPUT = "what a program says, or a line of a format: it is read by nobody"

# Blocks without a language that are no commands, by page and first word.
NO_COMMANDS = {
    ("cost.md", "200"): OUTPUT,
    ("handle-failures.md", "message"): OUTPUT,
    ("dead-letters.md", "queuebell-burial:1"): OUTPUT,
    (
        "azure-endpoint.md",
        "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=...;QueueEndpoint=http://127.0.0.1:10002",
    ): OUTPUT,
    ("jetstream.md", "jetstream"): OUTPUT,
}
FOLLOWED_PAGES = {
    "tutorials/first-worker",
    "tutorials/postgres",
    *(
        f"how-to/{name}"
        for name in (
            *(
                "brokers",
                "testing",
                "two-hosts",
                "several-queues",
                "from-zero",
                "large-messages",
                "sqs",
                "azure",
            ),
            *("backup", "upgrade", "several-bridges", "cluster", "redis", "pgmq"),
        )
    ),
}
"""Pages that tests/docs/test_followed.py and tests/readme follow word for word."""
COMMANDS = {"queuebell", "python", "pip", "make", "curl", "export", "redis-cli"}
BY_LANGUAGE = {
    "python": TYPED, "toml": TOML, "sql": SQL, "c": C, "json": DATA, "yaml": DATA, "mermaid": DRAWN, "text": OUTPUT,
    "nginx": PROXY, "haproxy": PROXY, "caddy": PROXY,
}  # fmt: skip
_fence = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_saved = re.compile(r"`(\w+\.py)`")


class Snippet(NamedTuple):
    """A fenced block, where it stands, and the paragraph before it."""

    page: Path
    line: int
    language: str
    text: str
    before: str

    @property
    def name(self) -> str:
        stem = "_".join(self.page.relative_to(ROOT).with_suffix("").parts)
        return f"{re.sub(r'[^a-z0-9]', '_', stem.lower())}_{self.line}"

    @property
    def saved(self) -> str | None:
        found = _saved.findall(self.before)
        return found[-1].removesuffix(".py") if found else None

    @property
    def commands(self) -> list[list[str]]:
        joined = self.text.replace("\\\n", " ")
        lines = [line.removeprefix("$ ") for line in joined.splitlines() if line.strip()]
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def snippets() -> Iterator[Snippet]:
    for page in DOCUMENTS:
        text = page.read_text(encoding="utf-8")
        for found in _fence.finditer(text):
            before = text[: found.start()].rstrip().rpartition("\n\n")[2]
            line = text.count("\n", 0, found.start()) + 1
            yield Snippet(page, line, found[2], textwrap.dedent(found[3]), before)


def kind(snippet: Snippet) -> str:
    """Return what is done with a block; raises `LookupError` for one of no known kind."""
    page, language = snippet.page, snippet.language
    first = snippet.text.split()[0]
    if f"{page.parent.name}/{page.stem}" in FOLLOWED_PAGES and language in {"sh", "text", "python"}:
        return FOLLOWED
    if page.parent == ROOT:
        return README
    if (page.name, first) in NO_COMMANDS and not language:
        return NO_COMMANDS[page.name, first]
    if language in {"sh", "console"} or (not language and first in COMMANDS):
        return REQUEST if "http://127.0.0.1:8470" in snippet.text and "curl" in snippet.text else SHELL
    if language in BY_LANGUAGE:
        return BY_LANGUAGE[language]
    raise LookupError(f"{page.name}:{snippet.line}: a block of no known kind: {language or first!r}")


def typed() -> list[Snippet]:
    return [snippet for snippet in snippets() if snippet.language == "python"]


def program(snippet: Snippet, world: set[str]) -> str:
    """Return a block as a module: with the names that its page leaves to the reader; in a coroutine if it waits.

    ``world`` are the names that there are in `tests.docs.snippet_world`; ``django_charge`` is ``charge`` in django.md.
    """
    tree = ast.parse(snippet.text, snippet.name)
    missing = sorted(_loaded(tree) - _bound(tree) - set(dir(builtins)))
    assert set(missing) <= world, f"{snippet.name}: {set(missing) - world}: not in tests/docs/snippet_world.py"
    stem = snippet.page.stem
    given = [f"{stem}_{name} as {name}" if f"{stem}_{name}" in world else name for name in missing]
    head = f"from tests.docs.snippet_world import {', '.join(given)}\n" if given else ""
    if not any(_waits(node) for node in tree.body):
        return f"{head}{snippet.text}"
    return f"{head}\n\nasync def page() -> None:\n{textwrap.indent(snippet.text, '    ')}"


def _loaded(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _bound(tree: ast.AST) -> set[str]:
    names: set[str] = {"__name__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


def _waits(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    if isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor):
        return True
    return any(_waits(child) for child in ast.iter_child_nodes(node))
