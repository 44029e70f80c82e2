"""What the documents and the deployment say a ScaledObject is, is one that the bridge takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from bridge.core.keda import asked as rules
from tests.docs.snippets import snippets
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "scaling.md"


def scaled_objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return all that stand anywhere, with where."""
    texts = [(str(each.page), each.text) for each in snippets() if each.language == "yaml"]
    texts += [(str(file), file.read_text(encoding="utf-8")) for file in sorted((ROOT / "deploy").rglob("*.y*ml"))]
    for where, text in texts:
        if "keda.sh/" in text:
            for document in yaml.safe_load_all(text):
                if document and document.get("kind") in ("ScaledObject", "ScaledJob"):
                    yield where, document


def test_every_trigger_that_is_shown_is_taken() -> None:
    """Its keys are known, and its values are texts within their range."""
    seen = 0
    for where, found in scaled_objects():
        for trigger in found["spec"]["triggers"]:
            if trigger["type"] in ("external", "external-push"):
                metadata = trigger["metadata"]
                assert all(isinstance(value, str) for value in metadata.values()), where
                assert rules.asked(metadata, {metadata.get("store", "")}).queue, where
                seen += 1
    assert seen


@pytest.mark.parametrize("key", rules.KEYS)
def test_each_key_is_in_the_table(key: str) -> None:
    """With its default and its range, as the code has them."""
    (row,) = re.findall(rf"^\| `{key}` \|.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for number in {
        "perProcess": (rules.PER_PROCESS, rules.PER_PROCESS_MAX),
        "startSeconds": (rules.START_S, rules.START_S_MAX),
    }.get(key, ()):
        assert str(number) in row
