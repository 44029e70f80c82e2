"""What docs/model says of the code is true: each function and file that it names exists."""

from __future__ import annotations

import ast
import re

import pytest

from tests.model.search import MODELS
from tests.support.command import ROOT

NAMED = re.compile(r"`((?:bridge|listeners)/[\w/]+\.py)` `([\w.]+)`")


def missing(text: str) -> list[str]:
    """Return the functions that a text names, as `file.py` `Class.function`, and that are not there."""
    gone = []
    for file, dotted in NAMED.findall(text):
        path = ROOT / file
        body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
        for name in dotted.split("."):
            found = [
                node
                for node in body
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
            ]
            body = found[0].body if found else []
        if not body:
            gone.append(f"{file} {dotted}")
    return gone


@pytest.mark.parametrize(("page", "least"), [("README.md", 20), ("cluster.md", 10)])
def test_every_function_that_the_table_names_exists(page: str, least: int) -> None:
    """The table ties the model to the code; a rule that moves takes its line along."""
    text = (MODELS / page).read_text(encoding="utf-8")
    assert len(NAMED.findall(text)) >= least
    assert missing(text) == []


def test_the_check_can_fail() -> None:
    """A function, a class or a file that is not there is found."""
    assert missing("`bridge/core/bell.py` `Bell.tick`") == []
    for named in ("`bridge/core/bell.py` `Bell.tock`", "`bridge/core/bell.py` `Bill.tick`", "`bridge/no.py` `tick`"):
        assert len(missing(named)) == 1


@pytest.mark.parametrize(("page", "model", "least"), [("README.md", "wake.pml", 15), ("cluster.md", "cluster.pml", 10)])
def test_every_label_of_the_table_is_in_the_model(page: str, model: str, least: int) -> None:
    """The first column names an inline, a process or a macro of the model."""
    labels = re.findall(r"^\| `(\w+)` \|", (MODELS / page).read_text(encoding="utf-8"), re.MULTILINE)
    text = (MODELS / model).read_text(encoding="utf-8")
    assert len(labels) >= least
    assert [x for x in labels if not re.search(rf"^(?:inline|proctype|#define) {x}\b", text, re.MULTILINE)] == []
