"""The watch over tasks in tests/conftest.py, seen to work."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.support.command import ROOT, environment

CASES = {
    "leaked": ("asyncio.create_task(asyncio.sleep(100), name='x')\n    await asyncio.sleep(0)", "left tasks running"),
    "unseen": ("asyncio.create_task(fail(), name='x')\n    await asyncio.sleep(0.001)", "that nobody saw"),
    "clean": ("await asyncio.create_task(asyncio.sleep(0), name='x')", None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_watch_finds_it(case: str, tmp_path: pathlib.Path) -> None:
    """A task that outlives its test, or fails unseen, fails the run; a clean test passes."""
    body, words = CASES[case]
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = strict\nasyncio_default_fixture_loop_scope = function\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import asyncio, pytest\n"
        "async def fail(): raise OSError('x')\n"
        f"@pytest.mark.asyncio\nasync def test_it():\n    {body}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
        timeout=50,
        check=False,
    )
    assert done.returncode == (0 if words is None else 1)
    assert words is None or words in done.stdout
