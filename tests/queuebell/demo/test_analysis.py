"""The counts of one source, of each kind of source that there is."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from queuebell.demo.analysis import UNPARSED, UNREADABLE, Facts, analyse

SOURCE = b"""import a, b
from c import d

class One:
    def two(self):
        async def three(): ...
        return lambda: 0
"""


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        (SOURCE, Facts(7, 2, 1, 2)),
        (b"", Facts()),
        (b"\xef\xbb\xbfimport a\r\nimport b", Facts(2, 0, 0, 2)),
        (b"def broken(:\n", Facts(1, fault=UNPARSED)),
        (b"x = '\0'\n", Facts(1, fault=UNPARSED)),
        (b"(" * 100_000, Facts(1, fault=UNPARSED)),
        (b"# coding: no-such\n", Facts(1, fault=UNPARSED)),
        (b"if 1 is 1: pass\n", Facts(1)),
    ],
)
def test_analyse(tmp_path: Path, source: bytes, facts: Facts) -> None:
    """Functions count at any depth; what does not parse has its lines, also where warnings are errors."""
    file = tmp_path / "source.py"
    file.write_bytes(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert analyse(str(file)) == facts


def test_unreadable(tmp_path: Path) -> None:
    assert analyse(str(tmp_path / "none.py")) == Facts(fault=UNREADABLE)
