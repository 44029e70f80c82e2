"""The pages for developers name files, functions and folders that are there."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_protocol import missing
from tests.support.processes import ROOT

_code = re.compile(r"`([^`\n]+)`")
_path = re.compile(r"(?:bridge|listeners|queuebell|tests|docs)/[\w./-]*")


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_place_that_a_developer_is_sent_to_exists(page: str) -> None:
    """A function as ``path: Name.method``, a file or folder by its path from the root."""
    named = _code.findall((ROOT / page).read_text(encoding="utf-8"))
    functions = [text for text in named if ".py: " in text]
    paths = [text for text in named if _path.fullmatch(text)]
    assert len(paths) > 10
    assert [text for text in functions if missing(text)] == []
    assert [text for text in paths if not (ROOT / text).exists()] == []
