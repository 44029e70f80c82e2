"""The watch over tasks in tests/conftest.py, seen to work."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

from tests.support.command import ROOT, environment

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
