"""The process initiator: what is work, and how it is dealt out."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuebell.demo.initiator import find_sources, library_root, sample, split


def test_find_sources(tmp_path: Path) -> None:
    """All .py files, in order; no packages installed beside the library, no caches, no folders of that name."""
    for name in ("b.py", "a/x.py", "a/y.txt", "site-packages/z.py", "__pycache__/b.py", "c.py/d.py", "e.pyc"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert find_sources(str(tmp_path)) == ["a/x.py", "b.py", "c.py/d.py"]


def test_library() -> None:
    """The running Python's library is found, with what surely is in it."""
    sources = find_sources(library_root())
    assert {"argparse.py", "asyncio/tasks.py", "json/__init__.py"} <= set(sources)
    assert not [source for source in sources if "site-packages" in source]


@pytest.mark.parametrize(("count", "expected"), [(None, 10), (3, 3), (10, 10), (99, 10), (1, 1)])
def test_sample(count: int | None, expected: int) -> None:
    """As many as asked, no more than there are, none twice, in order."""
    sources = [f"{number:02}.py" for number in range(10)]
    found = sample(sources, count)
    assert len(found) == len(set(found)) == expected
    assert found == sorted(found)


@pytest.mark.parametrize("bursts", [1, 2, 3, 7])
def test_split(bursts: int) -> None:
    """Every source is in one burst, and the bursts differ by one at most."""
    sources = [f"{number:02}.py" for number in range(10)]
    dealt = split(sources, bursts)
    assert sorted(source for burst in dealt for source in burst) == sources
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
