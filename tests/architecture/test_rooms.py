"""The import rule: down a floor or within the room, listeners see open rooms only, pure rooms see no world."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.support.command import ROOT, environment

OPEN = {
    "azure_account", "blob", "blobs", "broker", "brokers", "bus", "buses", "claim_check", "contract", "observe",
    "partitions", "publication", "publisher", "publishing_queue", "queue", "queues", "table", "tables", "turns",
}  # fmt: skip
"""The rooms of `bridge` that listeners may see, themselves and through others."""

ROOTS = ("listeners.bill", "listeners.simulation")
"""Rooms that put both packages together, as the command does: they see all, and only the command loads them."""

PURE = ("bridge.contract", "bridge.core", "bridge.publication", "bridge.supervision", "bridge.turns", "listeners.core")
PURE_MODULES = {
    "__future__", "ast", "binascii", "bisect", "collections", "contextlib", "dataclasses", "datetime", "difflib",
    "enum", "functools", "hashlib", "heapq", "itertools", "math", "msgspec", "operator", "re", "tomllib", "types",
    "typing", "zlib",
}  # fmt: skip
"""What a pure room may import beside rooms: nothing that knows the time, draws lots, or reaches the world."""
CLOCKS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter"}


class Import(NamedTuple):
    """One import statement; ``typing`` where it stands under TYPE_CHECKING and never runs."""

    source: str
    target: str
    typing: bool


def room(module: str) -> str:
    """`bridge.web.app` is in the room `bridge.web`; `bridge` itself is the front door."""
    return ".".join(module.split(".")[:2])


def modules(root: pathlib.Path) -> dict[str, ast.Module]:
    found = {}
    for package in ("bridge", "listeners"):
        for file in sorted((root / package).rglob("*.py")):
            name = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(file.read_text(encoding="utf-8"), str(file))
    return found


def imports(root: pathlib.Path) -> list[Import]:
    """All imports of both packages, those within functions too."""
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
            for target in targets(node, name):
                deeper = target
                while deeper not in trees and "." in deeper and deeper.split(".")[0] in {"bridge", "listeners"}:
                    deeper = deeper.rpartition(".")[0]
                found.append(Import(name, deeper, id(node) in typing))
    return found


def targets(node: ast.AST, module: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def foreign(root: pathlib.Path) -> list[str]:
    """`bridge` never imports `listeners`, not even for a type."""
    return [
        f"{each.source} -> {each.target}"
        for each in imports(root)
        if each.source.split(".")[0] == "bridge" and each.target.split(".")[0] == "listeners"
    ]


def closed(root: pathlib.Path) -> list[str]:
    """Listeners reach no closed room of `bridge`, directly or through an open one; the chain is named."""
    ways: dict[str, set[str]] = {}
    for each in imports(root):
        if not each.typing or each.source.split(".")[0] == "listeners":
            ways.setdefault(each.source, set()).add(each.target)
    bad = []
    bound = [name for name in modules(root) if name.split(".")[0] == "listeners" and room(name) not in ROOTS]
    for start in sorted(bound):
        chains = [[start]]
        seen = {start}
        while chains:
            chain = chains.pop(0)
            for target in sorted(ways.get(chain[-1], set()) - seen):
                seen.add(target)
                parts = target.split(".")
                if (parts[0] == "bridge" and (len(parts) == 1 or parts[1] not in OPEN)) or room(target) in ROOTS:
                    bad.append(" -> ".join([*chain, target]))
                elif parts[0] in {"bridge", "listeners"}:
                    chains.append([*chain, target])
    return bad


def circles(root: pathlib.Path) -> list[str]:
    """Rooms stand on floors: whoever follows imports downward never comes back to a room."""
    below: dict[str, set[str]] = {}
    for each in imports(root):
        here, there = room(each.source), room(each.target)
        if not each.typing and here != there and there.split(".")[0] in {"bridge", "listeners"}:
            below.setdefault(here, set()).add(there)
    bad: list[str] = []
    done: set[str] = set()

    def walk(chain: list[str]) -> None:
        for there in sorted(below.get(chain[-1], set())):
            if there in chain:
                bad.append(" -> ".join([*chain[chain.index(there) :], there]))
            elif there not in done:
                walk([*chain, there])
        done.add(chain[-1])

    for start in sorted(below):
        if start not in done:
            walk([start])
    return bad


def worldly(root: pathlib.Path) -> list[str]:
    """Pure rooms import no asyncio, time, random, socket or SDK, look at no clock, and know no room above them."""
    bad = []
    for each in imports(root):
        if not each.source.startswith(PURE):
            continue
        top = each.target.split(".")[0]
        if top in {"bridge", "listeners"}:
            if not (room(each.target) in PURE or each.target == "bridge.observe.facts"):
                bad.append(f"{each.source} -> {each.target}")
        elif top not in PURE_MODULES:
            bad.append(f"{each.source} -> {each.target}")
    for name, tree in modules(root).items():
        for node in ast.walk(tree):
            if name.startswith(PURE) and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                if node.func.attr in CLOCKS and owner.split(".")[0] in {"datetime", "time", "date"}:
                    bad.append(f"{name} calls {owner}.{node.func.attr}")
    return bad


def heavy(root: pathlib.Path) -> list[str]:
    """`import bridge` and `import listeners` load no SDK and no web server."""
    code = (
        "import sys; import bridge, listeners;"
        "print([m for m in ('aiohttp', 'prometheus_client', 'nats', 'paho') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment({"PYTHONPATH": str(root)}),
        cwd=root,  # `python -c` looks there first
        timeout=50,
        check=True,
    )
    loaded: list[str] = ast.literal_eval(done.stdout)
    return loaded


CHECKS: list[Callable[[pathlib.Path], list[str]]] = [foreign, closed, circles, worldly, heavy]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_rule_holds(check: Callable[[pathlib.Path], list[str]]) -> None:
    """No import of this checkout breaks the rule."""
    assert check(ROOT) == []


@pytest.mark.parametrize(
    ("check", "file", "line", "chain"),
    [
        (foreign, "bridge/service.py", "from listeners.core import x", "bridge.service -> listeners.core"),
        (
            closed,
            "bridge/publisher.py",
            "def f(): from bridge.service import Bridge",
            "listeners.listener -> bridge.publisher -> bridge.service",
        ),
        (closed, "listeners/listener.py", "import bridge.web.app", "listeners.listener -> bridge.web.app"),
        (closed, "listeners/listener.py", "from bridge import Bridge", "listeners.listener -> bridge"),
        (closed, "listeners/listener.py", "import listeners.bill.x", "listeners.listener -> listeners.bill.x"),
        (circles, "bridge/core/x.py", "from bridge.service import y", "bridge.core -> bridge.service -> bridge.core"),
        (worldly, "bridge/core/x.py", "import asyncio", "bridge.core.x -> asyncio"),
        (worldly, "bridge/contract/x.py", "def f(): from random import random", "bridge.contract.x -> random.random"),
        (worldly, "bridge/core/x.py", "from ..queues import open_store", "bridge.core.x -> bridge.queues"),
        (worldly, "listeners/core/x.py", "import datetime\nn = datetime.datetime.now()", "calls datetime.datetime.now"),
        (heavy, "bridge/__init__.py", "import aiohttp", "aiohttp"),
    ],
)
def test_each_check_can_fail(
    check: Callable[[pathlib.Path], list[str]], file: str, line: str, chain: str, tmp_path: pathlib.Path
) -> None:
    """A planted import is found and its chain named; without it the same tree passes."""
    tree = {
        "bridge/__init__.py": "",
        "bridge/contract/__init__.py": "",
        "bridge/contract/x.py": "",
        "bridge/core/__init__.py": "",
        "bridge/core/x.py": "from bridge.contract import x",
        "bridge/queues/__init__.py": "",
        "bridge/publisher.py": "",
        "bridge/service.py": "from bridge.core import x",
        "bridge/web/__init__.py": "",
        "bridge/web/app.py": "from bridge.service import z",
        "listeners/__init__.py": "",
        "listeners/bill/__init__.py": "",
        "listeners/bill/x.py": "from bridge.core import x",
        "listeners/core/__init__.py": "",
        "listeners/core/x.py": "",
        "listeners/listener.py": "from bridge.publisher import z",
    }
    for name, text in tree.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert check(tmp_path) == []
    with (tmp_path / file).open("a") as end:
        end.write(line + "\n")
    assert any(chain in found for found in check(tmp_path))
