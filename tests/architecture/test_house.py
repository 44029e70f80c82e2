"""House rules that no linter knows: named tasks, short files, and tests that wait for signals."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Callable, Iterator

import pytest

from tests.support.command import ROOT

LINES_MAX = 500
SLEEP_MAX = 0.1


def trees(root: pathlib.Path, *folders: str) -> Iterator[tuple[str, str, ast.Module]]:
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            yield str(file.relative_to(root)), text, ast.parse(text, str(file))


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def nameless_tasks(root: pathlib.Path) -> list[str]:
    """Every task has a name, so that a log and a debugger can tell them apart."""
    return [
        f"{name}:{call.lineno}"
        for name, _, tree in trees(root, "bridge", "listeners")
        for what, call in calls(tree)
        if what.split(".")[-1] == "create_task" and not any(word.arg == "name" for word in call.keywords)
    ]


def long_files(root: pathlib.Path) -> list[str]:
    """A file is one noun: fewer than 500 lines."""
    return [
        f"{name}: {lines}"
        for name, text, _ in trees(root, "bridge", "listeners")
        if (lines := len(text.splitlines())) >= LINES_MAX
    ]


def sleeping_tests(root: pathlib.Path) -> list[str]:
    """A test waits for a signal, never for a while."""
    bad = []
    for name, _, tree in trees(root, "tests"):
        for what, call in calls(tree):
            if what == "time.sleep":
                bad.append(f"{name}:{call.lineno}")
            elif what == "asyncio.sleep" and call.args:
                length = call.args[0]
                value = length.value if isinstance(length, ast.Constant) else 0
                if isinstance(value, int | float) and value >= SLEEP_MAX:
                    bad.append(f"{name}:{call.lineno}")
    return bad


def silent_tests(root: pathlib.Path) -> list[str]:
    """Each test says in a sentence what holds."""
    return [
        f"{name}:{node.name}"
        for name, _, tree in trees(root, "tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]


def skipped_tests(root: pathlib.Path) -> list[str]:
    """A test that is not run proves nothing: no skip, no expected failure."""
    words = ("pytest.skip", "pytest.importorskip", "pytest.xfail", "pytest.mark.skip", "pytest.mark.xfail")
    return [
        f"{name}:{node.lineno}"
        for name, _, tree in trees(root, "tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(words)
    ]


CHECKS: list[Callable[[pathlib.Path], list[str]]] = [
    nameless_tasks,
    long_files,
    sleeping_tests,
    silent_tests,
    skipped_tests,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_rule_holds(check: Callable[[pathlib.Path], list[str]]) -> None:
    """Nothing in this checkout breaks the rule."""
    assert check(ROOT) == []


@pytest.mark.parametrize(
    ("check", "file", "text"),
    [
        (nameless_tasks, "bridge/x.py", "async def f(): t = asyncio.create_task(g())"),
        (long_files, "listeners/x.py", "x = 1\n" * 500),
        (sleeping_tests, "tests/test_x.py", "async def f(): await asyncio.sleep(0.1)"),
        (sleeping_tests, "tests/test_x.py", "time.sleep(0)"),
        (silent_tests, "tests/test_x.py", "def test_x(): pass"),
        (skipped_tests, "tests/test_x.py", "@pytest.mark.skipif(True)\ndef f(): pass"),
        (skipped_tests, "tests/test_x.py", "pytest.importorskip('x')"),
    ],
)
def test_each_check_can_fail(
    check: Callable[[pathlib.Path], list[str]], file: str, text: str, tmp_path: pathlib.Path
) -> None:
    """A planted fault is found."""
    path = tmp_path / file
    path.parent.mkdir()
    assert check(tmp_path) == []
    path.write_text(text)
    assert len(check(tmp_path)) == 1
