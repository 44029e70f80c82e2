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
GUARD_MIN_S = 10.0
LAST_RESORT_S = 600.0
WAITS = {"run", "communicate", "wait", "check_call", "check_output", "urlopen", "get", "Barrier", "search"}
Check = Callable[[str, ast.Module], list[str]]
"""Given the name of a file and its code, returns where that breaks a rule."""


def broken(root: pathlib.Path, *checks: Check) -> list[str]:
    """Return what the code breaks, each file read once."""
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
    """Return all there is in a file, for one check after the other."""
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
    """A test waits for a signal, never for a while."""
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


def _numbers(tree: ast.Module) -> dict[str, float]:
    """Return the constants of a module that are plain numbers."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and type(node.value.value) in (int, float)
    }


def _guards(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    """Return where a test would give up by the wall clock, and after how long."""
    for what, call in calls(tree):
        last = what.split(".")[-1]
        if what == "asyncio.timeout" and call.args:
            yield call.lineno, call.args[0]
        if what == "until" and len(call.args) > 2:
            yield call.lineno, call.args[2]
        for word in call.keywords:
            if word.arg == "within_s" or (word.arg == "timeout" and last in WAITS and what != "asyncio.wait"):
                yield call.lineno, word.value
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            last_ones = given.args[len(given.args) - len(given.defaults) :]
            for argument, default in [
                *zip(last_ones, given.defaults, strict=True),
                *zip(given.kwonlyargs, given.kw_defaults, strict=True),
            ]:
                if argument.arg == "within_s" and default is not None:
                    yield node.lineno, default


def _expected(tree: ast.Module) -> set[int]:
    """Return the lines in which a time-out is what is wanted, or is one of a simulation."""
    wanted: set[int] = set()
    for node in nodes(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            heads = " ".join(ast.unparse(item.context_expr) for item in node.items)
            if "raises(TimeoutError" in heads or "suppress(TimeoutError" in heads:
                wanted |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Try):
            heard = any("TimeoutError" in ast.unparse(handler.type) for handler in node.handlers if handler.type)
            raises = any(isinstance(each, ast.Raise) for handler in node.handlers for each in ast.walk(handler))
            if heard and not raises:
                wanted |= set(range(node.lineno, node.body[-1].end_lineno or node.lineno))
        if isinstance(node, ast.AsyncWith) and "pass_time(" in ast.unparse(node):
            wanted |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return wanted


def hasty_tests(name: str, tree: ast.Module) -> list[str]:
    """Where a test gives up by the wall clock, it leaves room for a machine that does ten other things."""
    bad = []
    if name.startswith("tests/chaos/"):
        return bad
    numbers, guards = _numbers(tree), list(_guards(tree))
    expected = _expected(tree) if guards else set()
    for line, value in guards:
        seconds = numbers.get(value.id) if isinstance(value, ast.Name) else getattr(value, "value", None)
        if type(seconds) in (int, float) and seconds < GUARD_MIN_S and line not in expected:
            bad.append(f"{name}:{line}")
    for what, call in calls(tree):
        limit = call.args[0] if what == "pytest.mark.timeout" else None
        if isinstance(limit, ast.Constant) and type(limit.value) in (int, float) and limit.value < LAST_RESORT_S:
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
    """Nothing in this checkout breaks one."""
    assert broken(ROOT, nameless_tasks, sleeping_tests, hasty_tests, skipped_tests) == []


@pytest.mark.parametrize(
    ("check", "file", "text"),
    [
        (nameless_tasks, "bridge/x.py", "async def f(): t = asyncio.create_task(g())"),
        (sleeping_tests, "tests/test_x.py", "async def f(): await asyncio.sleep(0.1)"),
        (sleeping_tests, "tests/test_x.py", "time.sleep(0)"),
        (hasty_tests, "tests/test_x.py", "async def f():\n    async with asyncio.timeout(5):\n        await g()"),
        (hasty_tests, "tests/test_x.py", "WITHIN_S = 5.0\nsubprocess.run(['x'], timeout=WITHIN_S)"),
        (hasty_tests, "tests/test_x.py", "process.communicate(timeout=2)"),
        (hasty_tests, "tests/test_x.py", "def until(holds, within_s=5): ..."),
        (hasty_tests, "tests/test_x.py", "until(holds, 'it holds', 5)"),
        (hasty_tests, "tests/test_x.py", "@pytest.mark.timeout(60)\ndef f(): ..."),
        (skipped_tests, "tests/test_x.py", "@pytest.mark.skipif(True)\ndef f(): pass"),
        (skipped_tests, "tests/test_x.py", "pytest.importorskip('x')"),
    ],
)
def test_each_check_can_fail(check: Check, file: str, text: str, tmp_path: pathlib.Path) -> None:
    """A planted fault is found."""
    path = tmp_path / file
    path.parent.mkdir()
    assert broken(tmp_path, check) == []
    path.write_text(text)
    assert len(broken(tmp_path, check)) == 1


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
