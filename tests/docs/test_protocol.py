"""docs/protocol.md keeps its word: every rule is there, and every function and test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.exploration.wrong_turns import WRONG_TURNS
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "protocol.md"
RULES = [
    *(f"P{number}" for number in range(1, 6)),
    *(f"B{number}" for number in range(1, 17)),
    *(f"O{number}" for number in range(8)),
    *(f"L{number}" for number in range(1, 13)),
    *(f"S{number}" for number in range(1, 4)),
    *(f"C{number}" for number in range(1, 9)),
    "C10",
]
STORES = ["own service", "PostgreSQL", "Azure Queue", "SQS", "JetStream"]

_rule = re.compile(r"^- \*\*([PBOLSC]\d+)\*\* (.*?)(?=^- \*\*|^## |\Z)", re.MULTILINE | re.DOTALL)
_row = re.compile(r"^\| (V\d+|sweep|dead-man) \| .* \| (.*) \|$", re.MULTILINE)
_code = re.compile(r"`([^`\n]+)`")
_function = re.compile(r"^([\w/]+\.py): ([\w.]+)$")
_test = re.compile(r"^([\w/]+\.py)::(test_\w+)$")


def rules(page: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return of each rule what keeps it and what attacks it."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for name, text in _rule.findall(page):
        _, kept, rest = text.partition("Kept by ")
        keeps, attacked, attacks = rest.partition("Attacked by ")
        assert kept, f"{name}: nothing is said to keep it"
        assert attacked, f"{name}: nothing is said to attack it"
        assert name not in found, f"{name} stands twice"
        found[name] = _code.findall(keeps), _code.findall(attacks)
    return found


@cache
def names(path: Path) -> frozenset[str]:
    """Return the functions, classes and methods of a file, dotted; read, not imported."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{prefix}{node.name}.")

    walk(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(found)


def missing(reference: str) -> bool:
    """Say whether a reference to a function (``path: Name.method``) or a test (``path::test``) leads nowhere."""
    found = _function.match(reference) or _test.match(reference)
    if found is None:
        return True
    path = ROOT / found[1]
    return not path.is_file() or found[2] not in {
        name if ": " in reference else name.split(".")[-1] for name in names(path)
    }


def test_every_rule_has_its_place() -> None:
    """P1 to P5, B1 to B16, O0 to O7, L1 to L12, S1 to S3, C1 to C8 and C10, in order, each once, none besides."""
    assert list(rules(PAGE.read_text(encoding="utf-8"))) == RULES


@pytest.mark.parametrize("rule", RULES)
def test_what_keeps_and_what_attacks_a_rule_exists(rule: str) -> None:
    """At least one function of the product and one test, and all that are named."""
    keeps, attacks = rules(PAGE.read_text(encoding="utf-8"))[rule]
    functions = [reference for reference in keeps if reference.startswith(("bridge/", "listeners/"))]
    assert functions
    assert [reference for reference in attacks if _test.match(reference)]
    assert [reference for reference in keeps + attacks if missing(reference)] == []


def test_every_other_reference_leads_somewhere() -> None:
    """Also those in tables and between the rules."""
    page = PAGE.read_text(encoding="utf-8")
    references = [text for text in _code.findall(page) if ".py:" in text]
    assert len(references) > 100
    assert [reference for reference in references if missing(reference)] == []
    assert [store for store in STORES if f"\n| {store}" not in page] == []


def test_the_wrong_turns_are_those_of_the_register() -> None:
    """All 21, by the register's names, each with where it is planted."""
    rows = _row.findall(PAGE.read_text(encoding="utf-8"))
    assert [name for name, _ in rows] == [turn.name for turn in WRONG_TURNS]
    assert all(_code.findall(planted) for _, planted in rows)
