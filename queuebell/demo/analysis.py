"""What one Python source says about itself: lines, code lines, functions, classes, imports, its longest function.

The counts, exactly:

- *lines* end at a newline, a carriage return, or both, as Python's tokenizer sees it; a form feed ends none.
- *code lines* are neither blank, nor only a comment, nor part of a docstring. A line within any other string of
  several lines is judged by its look.
- *functions* are ``def`` and ``async def`` at any depth, methods among them; a lambda is an expression and counts not.
- *classes* likewise; *imports* are import statements.
- the *longest function* is measured from its ``def`` line (decorators stand above it) to its last; the first one of
  several equals counts.

A source that does not parse is a result too: its lines are counted, and code lines by their look alone.
"""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

DOES_NOT_PARSE: Final = "does not parse"
CANNOT_BE_READ: Final = "cannot be read"

_BOM: Final = b"\xef\xbb\xbf"
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Owner = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# Warning filters belong to the whole process: two threads that set and restore them would mix up each other's.
_filters = threading.Lock()


class LongestFunction(msgspec.Struct, frozen=True):
    """A function by its qualified name, its first line (from 1) and its length in lines."""

    name: str
    line: int
    lines: int


class FileFacts(msgspec.Struct, frozen=True):
    """What was found in one source; ``fault`` says why the counts below the lines are 0, else it is None."""

    lines: int
    code_lines: int
    functions: int = 0
    classes: int = 0
    imports: int = 0
    longest: LongestFunction | None = None
    fault: str | None = None


def analyse(source: bytes) -> FileFacts:
    """Count one source text as it lies in its file; never raises, and gives the same for the same bytes."""
    text = source.removeprefix(_BOM)
    lines = text.splitlines()
    tree = _parse(source)
    if tree is None:
        return FileFacts(len(lines), len(_code_by_look(lines)), fault=DOES_NOT_PARSE)
    code = _code_by_look(lines)
    functions = classes = imports = 0
    longest: LongestFunction | None = None
    for name, node in _statements(tree):
        if isinstance(node, _Function):
            functions += 1
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if longest is None or (-length, node.lineno) < (-longest.lines, longest.line):
                longest = LongestFunction(name, node.lineno, length)
        elif isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports += 1
        if isinstance(node, _Owner):
            code.difference_update(_docstring_lines(node, lines))
    return FileFacts(len(lines), len(code), functions, classes, imports, longest)


def analyse_file(path: str) -> FileFacts:
    """Count one file; one that cannot be read is a counted result as well. Never raises."""
    try:
        source = Path(path).read_bytes()
    except OSError:
        return FileFacts(0, 0, fault=CANNOT_BE_READ)
    return analyse(source)


def _parse(source: bytes) -> ast.Module | None:
    # Under a filter of "error" the parser turns a SyntaxWarning into a SyntaxError, so that the same bytes would parse
    # in one process and not in another: filters are set aside for the time of the parse.
    with _filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            # ValueError: null bytes and undecodable text; MemoryError: the parser's own stack overflowed.
            return None


def _code_by_look(lines: list[bytes]) -> set[int]:
    """Return the numbers (from 1) of the lines that are neither blank nor only a comment."""
    return {number for number, line in enumerate(lines, 1) if (bare := line.strip()) and not bare.startswith(b"#")}


def _statements(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Give every statement, and the module, with its qualified name where it defines one.

    Only statements are visited, not the far more numerous expressions: no function, class or import hides in those.
    The stack is our own, because a long chain of ``elif`` nests deeper than Python may recurse.
    """
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        scope, node = stack.pop()
        name = scope
        if isinstance(node, (*_Function, ast.ClassDef)):
            name = f"{scope}.{node.name}" if scope else node.name
        yield name, node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, field, None)
            if isinstance(children, list):
                stack.extend((name, child) for child in children)


def _docstring_lines(
    owner: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, lines: list[bytes]
) -> range:
    """Return the numbers of the lines that hold the owner's docstring and nothing else."""
    if not owner.body:
        return range(0)
    first = owner.body[0]
    if not (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    ):
        return range(0)
    start, end = first.lineno, first.end_lineno or first.lineno
    beside = len(owner.body) > 1 and owner.body[1].lineno == end
    stop = end if beside else end + 1
    if lines[start - 1][: first.col_offset].strip():
        start += 1
    return range(start, stop)
