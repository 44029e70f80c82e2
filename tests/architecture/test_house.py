"""House rules that no linter knows: named tasks, and tests that wait for signals."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.command import ROOT, environment

SLEEP_MAX = 0.1
Check = Callable[[str, ast.Module], list[str]]
"""Given the name of a file and its code, returns where that breaks a rule."""


def broken(root: pathlib.Path, *checks: Check) -> list[str]:
    found = []
    for folder in ("bridge", "listeners", "queuebell", "tests"):
        for file in sorted((root / folder).rglob("*.py")):
            name, tree = str(file.relative_to(root)), ast.parse(file.read_text(encoding="utf-8"), str(file))
            found += [
                f"{check.__name__}: {where}"
                for check in checks
                if (check is nameless_tasks) is (folder != "tests")
                for where in check(name, tree)
            ]
    return found


@functools.lru_cache(maxsize=1)
def nodes(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` as it stands there; the long way only for what is no such name."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def nameless_tasks(name: str, tree: ast.Module) -> list[str]:
    """Every task has a name, so that a log and a debugger can tell them apart."""
    return [
        f"{name}:{call.lineno}"
        for what, call in calls(tree)
        if what.split(".")[-1] == "create_task" and not any(word.arg == "name" for word in call.keywords)
    ]


def sleeping_tests(name: str, tree: ast.Module) -> list[str]:
    bad = []
    for what, call in calls(tree):
        if what == "time.sleep":
            bad.append(f"{name}:{call.lineno}")
        elif what == "asyncio.sleep" and call.args:
            length = call.args[0]
            value = length.value if isinstance(length, ast.Constant) else 0
            if isinstance(value, int | float) and value >= SLEEP_MAX:
                bad.append(f"{name}:{call.lineno}")
    return bad


def skipped_tests(name: str, tree: ast.Module) -> list[str]:
    """A test that is not run proves nothing: no skip, no expected failure."""
    words = ("pytest.skip", "pytest.importorskip", "pytest.xfail", "pytest.mark.skip", "pytest.mark.xfail")
    return [
        f"{name}:{node.lineno}"
        for node in nodes(tree)
        if isinstance(node, ast.Attribute) and dotted(node).startswith(words)
    ]


def test_the_rules_hold() -> None:
    assert broken(ROOT, nameless_tasks, sleeping_tests, skipped_tests) == []


@pytest.mark.parametrize(
    ("check", "file", "text"),
    [
        (nameless_tasks, "bridge/x.py", "async def f(): t = asyncio.create_task(g())"),
        (sleeping_tests, "tests/test_x.py", "async def f(): await asyncio.sleep(0.1)"),
        (skipped_tests, "tests/test_x.py", "@pytest.mark.skipif(True)\ndef f(): pass"),
    ],
)
def test_each_check_can_fail(check: Check, file: str, text: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    assert broken(tmp_path, check) == []
    path.write_text(text)
    assert len(broken(tmp_path, check)) == 1


OURS = ("bridge", "listeners", "queuebell")
ROOM = "bridge/http/server/aiohttp_private.py"
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
    } | {(ROOM, name) for name in inherited_names(ast.parse((ROOT / ROOM).read_text(encoding="utf-8")))}


def inherited_names(tree: ast.Module) -> Iterator[str]:
    """Give the private names of a module's foreign parents that it reads or replaces, and those that it imports."""
    yield from private_names(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.bases:
            for part in ast.walk(node):
                name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "name", "")
                if is_private(name):
                    yield name


def told(root: pathlib.Path) -> set[tuple[str, str]]:
    text = (root / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## Privates of libraries")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {
        (file.strip("`"), name) for _, file, names, why in rows[1:] if why for name in re.findall(r"`([^`]+)`", names)
    }


def test_each_private_name_that_is_used_is_told_of_with_its_reason() -> None:
    assert sorted(used()) == sorted(told(ROOT))


def kept_private() -> set[str]:
    """Return the private names that the product keeps its state and its ways under."""
    return {
        name
        for package in OURS
        for file in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in (getattr(node, "attr", "") if isinstance(node, ast.Attribute) else getattr(node, "name", "") or "",)
        if is_private(name) and name not in PUBLIC
    }


def test_each_test_that_reads_what_is_private_says_why() -> None:
    """In a comment below its imports, ``# Private: `_name`: the reason.``, and of no name that it does not use."""
    ours = kept_private()
    wrong = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        given = "".join(re.findall(r"^# Private: .*(?:\n# .*)*", text, re.MULTILINE))
        tree, reasons = ast.parse(text), set(re.findall(r"`(_\w+)`", given))
        missing = {*private_names(tree)} & ours - reasons
        stale = reasons - set(re.findall(r"\b_\w+", text.replace(given, "") if given else text))
        wrong += [f"{file.relative_to(ROOT)}: {name}" for name in sorted(missing | stale)]
    assert wrong == []


CASES = {
    "leaked": ("asyncio.create_task(asyncio.sleep(100), name='x')\n    await asyncio.sleep(0)", "left tasks running"),
    "unseen": ("asyncio.create_task(fail(), name='x')\n    await asyncio.sleep(0.001)", "that nobody saw"),
    "clean": ("await asyncio.create_task(asyncio.sleep(0), name='x')", None),
}


def test_the_watch_finds_it(tmp_path: pathlib.Path) -> None:
    """A task that outlives its test, or fails unseen, is an error of that test; a clean test passes."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import asyncio, pytest\n"
        "async def fail(): raise OSError('x')\n"
        + "".join(f"async def test_{case}():\n    {body}\n" for case, (body, _) in CASES.items())
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rE", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**environment(), "COLUMNS": "1000"},
        cwd=tmp_path,
        timeout=500,
        check=False,
    )
    assert done.returncode == 1
    found = dict(re.findall(r"^ERROR test_it\.py::test_(\w+) - (.*)$", done.stdout, re.MULTILINE))
    expected = {case: words for case, (_, words) in CASES.items() if words is not None}
    assert found.keys() == expected.keys(), done.stdout
    assert all(words in found[case] for case, words in expected.items()), found
    assert f"{len(CASES)} passed, {len(expected)} errors" in done.stdout
