"""Who may import whom (`FLOORS`), and who does: read from the code."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator
from typing import Final, NamedTuple

PACKAGES: Final = ("bridge", "listeners", "queuebell")
OURS_BY_LINK: Final = ("queuebell.bridge", "queuebell.listeners")
"""They stand at the root, and are imported below `queuebell`; here they have their short names."""

FLOORS: Final[tuple[dict[str, str], ...]] = (
    {
        "queuebell.__main__": "queuebell.command",
        "queuebell.demo": "bridge.brokers bridge.contract bridge.queues bridge.service listeners.handler"
        " listeners.listener listeners.scaling queuebell.command",
        "queuebell": "bridge listeners",
        "queuebell.frameworks": "bridge.brokers bridge.contract bridge.observe bridge.producer bridge.queues"
        " bridge.storage listeners.handler listeners.listener listeners.pool listeners.session listeners.work"
        " queuebell.command",
    },
    {
        "queuebell.pytest_plugin": "queuebell.testing",
        "queuebell.command": "bridge bridge.access bridge.brokers bridge.contract bridge.core bridge.http bridge.keda"
        " bridge.observe bridge.producer bridge.queues bridge.service bridge.storage listeners.wake"
        " listeners.handler listeners.listener listeners.pool listeners.running listeners.scaling"
        " listeners.session listeners.work queuebell.assembly queuebell.settings",
    },
    {
        "queuebell.assembly": "bridge.access bridge.brokers bridge.contract bridge.http bridge.keda bridge.queues"
        " bridge.service bridge.triggers queuebell.settings",
        "queuebell.testing": "bridge.contract bridge.queues bridge.service listeners.handler listeners.listener"
        " listeners.testing",
    },
    {
        "queuebell.settings": "bridge.access bridge.brokers bridge.contract bridge.core bridge.http bridge.keda"
        " bridge.queues",
        "listeners": "bridge.contract listeners.wake listeners.figures listeners.handler listeners.listener"
        " listeners.pool listeners.running listeners.scaling listeners.session listeners.work",
    },
    {
        "bridge": "bridge.contract bridge.observe bridge.producer bridge.queues bridge.service bridge.storage",
        "bridge.http": "bridge.access bridge.brokers bridge.contract bridge.observe bridge.producer"
        " bridge.queues bridge.service",
        "bridge.triggers": "bridge.access bridge.brokers bridge.contract bridge.core bridge.observe bridge.queues"
        " bridge.service",
        "listeners.scaling": "bridge.brokers bridge.contract bridge.observe bridge.queues listeners.wake"
        " listeners.figures listeners.session listeners.work",
        "listeners.running": "bridge.contract bridge.observe listeners.listener listeners.work",
        "listeners.testing": "bridge.contract bridge.queues listeners.handler listeners.work",
        "bridge.keda": "bridge.access bridge.contract bridge.core bridge.observe bridge.queues bridge.service",
    },
    {
        "bridge.service": "bridge.access bridge.brokers bridge.contract bridge.core bridge.observe bridge.queues",
        "listeners.listener": "bridge.brokers bridge.contract bridge.queues bridge.storage listeners.wake"
        " listeners.figures listeners.handler listeners.pool listeners.session listeners.work",
    },
    {
        "bridge.access": "bridge.brokers bridge.contract bridge.observe bridge.queues",
    },
    {
        "bridge.core": "bridge.contract bridge.observe",
        "listeners.session": "bridge.brokers bridge.contract bridge.observe bridge.producer bridge.queues"
        " listeners.wake listeners.work",
    },
    {
        "bridge.producer": "bridge.brokers bridge.contract bridge.observe bridge.queues bridge.storage",
        "listeners.work": "bridge.contract bridge.observe bridge.queues bridge.storage listeners.wake"
        " listeners.figures listeners.handler listeners.pool",
    },
    {
        "bridge.storage": "bridge.brokers bridge.contract bridge.queues",
        "listeners.handler": "bridge.contract bridge.queues",
        "listeners.pool": "bridge.contract listeners.wake listeners.figures",
    },
    {
        "bridge.queues": "bridge.brokers bridge.contract bridge.observe",
        "listeners.wake": "bridge.contract",
        "listeners.figures": "",
    },
    {
        "bridge.observe": "bridge.brokers bridge.contract",
    },
    {
        "bridge.brokers": "bridge.contract",
    },
    {
        "bridge.contract": "",
    },
)
"""The rooms from the top floor down, and what each may import, for types as well; nothing else, and no more."""


class Import(NamedTuple):
    """One import statement; ``typing`` where it stands under TYPE_CHECKING and never runs."""

    source: str
    target: str
    typing: bool


def files(root: pathlib.Path) -> dict[str, pathlib.Path]:
    return {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for package in PACKAGES
        for file in sorted((root / package).rglob("*.py"))
    }


def modules(root: pathlib.Path) -> dict[str, ast.Module]:
    return {name: ast.parse(file.read_text(encoding="utf-8"), str(file)) for name, file in files(root).items()}


def room(module: str) -> str:
    """`bridge.http.api.app` is in the room `bridge.http`; a module at a package's root is a room by itself."""
    return ".".join(module.split(".")[:2])


def imports(root: pathlib.Path) -> list[Import]:
    """All imports, those within functions too; read anew where a file has changed."""
    return _imports(root, tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files(root).values()))


@functools.lru_cache(maxsize=1)
def _imports(root: pathlib.Path, _as_of: tuple[tuple[pathlib.Path, int, int], ...]) -> list[Import]:
    trees = modules(root)
    found = []
    for name, tree in trees.items():
        typing = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            for target in _targets(node, name):
                deeper = target.removeprefix("queuebell.") if target.startswith(OURS_BY_LINK) else target
                while deeper not in trees and "." in deeper and deeper.split(".")[0] in PACKAGES:
                    deeper = deeper.rpartition(".")[0]
                found.append(Import(name, deeper, id(node) in typing))
    return found


def _targets(node: ast.AST, module: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def arrows(root: pathlib.Path) -> dict[tuple[str, str], list[Import]]:
    found: dict[tuple[str, str], list[Import]] = {}
    for each in imports(root):
        here, there = room(each.source), room(each.target)
        if here != there and there.split(".")[0] in PACKAGES:
            found.setdefault((here, there), []).append(each)
    return found
