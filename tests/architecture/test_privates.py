"""What other people keep private is used where docs/architecture.md says so and says what for, and nowhere else."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.support.command import ROOT

OURS = ("bridge", "listeners", "queuebell")
ROOM = "bridge/queues/aiohttp_private/"
PUBLIC = {"_asdict", "_exit", "_meta", "_replace"}
"""Documented, underscore or not: of named tuples, `os` and Django."""
AIOHTTP = {"aiohttp", "aiohttp.abc", "aiohttp.web"}
"""The modules of aiohttp whose names its reference documents."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_names(tree: ast.Module) -> Iterator[str]:
    """Give the private names that a module uses of others, of aiohttp's also modules that are not documented."""
    own = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
    } | {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own | PUBLIC:
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"getattr", "setattr"}:
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield str(name.value)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
            if module.partition(".")[0] in {*OURS, "__future__"}:
                continue
            yield from (part for part in module.split(".") if is_private(part))
            yield from (each.name for each in node.names if is_private(each.name))
            if module.partition(".")[0] == "aiohttp" and module not in AIOHTTP:
                yield module


def used() -> set[tuple[str, str]]:
    return {
        (str(file.relative_to(ROOT)), name)
        for package in OURS
        for file in sorted((ROOT / package).rglob("*.py"))
        if ROOM not in str(file.relative_to(ROOT))
        for name in private_names(ast.parse(file.read_text(encoding="utf-8")))
    }


def told(root: pathlib.Path) -> set[tuple[str, str]]:
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## Privates of libraries")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {
        (file.strip("`"), name)
        for _, file, names, why in rows[1:]
        if why and file.strip("`") != ROOM
        for name in re.findall(r"`([^`]+)`", names)
    }


def test_each_private_name_that_is_used_is_told_of_with_its_reason() -> None:
    """A row for what is not used any more goes, too."""
    assert sorted(used()) == sorted(told(ROOT))


@pytest.mark.parametrize(
    "text",
    [
        "client._hidden", "getattr(client, '_hidden', None)", "from nats._hidden import x", "import nats._hidden",
        "from asyncio.tasks import _hidden", "client.aio._hidden = 1",
    ],
)  # fmt: skip
def test_a_new_one_is_seen(text: str) -> None:
    """However it is reached."""
    assert list(private_names(ast.parse(text))) == ["_hidden"]


def test_modules_that_aiohttp_does_not_document_are_private() -> None:
    """Their names come without an underscore."""
    assert list(private_names(ast.parse("from aiohttp.helpers import parse_mimetype"))) == ["aiohttp.helpers"]


def test_what_is_ours_is_no_matter() -> None:
    """A module may reach into objects of its own classes, and documented names are no secret."""
    text = "class A:\n  def _own(self, other): return other._own, self._more, a._replace"
    assert not list(private_names(ast.parse(text)))
