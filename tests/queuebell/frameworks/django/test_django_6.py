"""The tests of Django's tasks with Django 6, which brings its own."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, environment

pytestmark = pytest.mark.system
INSTALL_S = 1500.0
TOOLS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")
OTHERS = ("-m", "", "-k", "test_backend or of_every_kind")


def python_3_12() -> str:
    """Find a Python that Django 6 runs on: this one, or `python3.12` on the PATH, where pyenv is told which."""
    if sys.version_info >= (3, 12):
        return sys.executable
    found = shutil.which("python3.12")
    assert found is not None, "this test needs python3.12 on the PATH: Django 6 runs on no older one"
    ask = [found, "-c", "import sys; print(sys.executable)"]
    asked = subprocess.run(
        ask, env={**os.environ, "PYENV_VERSION": "3.12"}, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, f"this test needs python3.12, and {found} does not run: {asked.stderr}"
    return asked.stdout.strip()


def locked(*roots: str) -> str:
    """Return what the lock says of some distributions and of all that they need; all of it would take minutes."""
    wanted, asked = set[str](), list(roots)
    while asked:
        name = asked.pop().lower()
        if name not in wanted:
            wanted.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # needed elsewhere only
                needs = importlib.metadata.requires(name) or []
                asked += [_name(need) for need in needs if "extra ==" not in need]
    blocks = re.split(r"^(?=\w)", (ROOT / "requirements-dev.lock").read_text(), flags=re.MULTILINE)
    return "".join(block for block in blocks[1:] if _name(block) in wanted)


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return found[0]


@pytest.mark.timeout(3000)
def test_the_same_with_django_6(tmp_path: Path) -> None:
    """In an environment of Python 3.12 or newer with what the lock has for it: Django's own tasks, not the backport."""
    folder, known = tmp_path / "environment", environment(PYTHONPATH=str(ROOT))
    lock = tmp_path / "lock"
    lock.write_text(locked("queuebell", "django", "asyncpg", "psycopg", "psycopg-binary", *TOOLS))
    python = str(folder / "bin/python")
    pip = (sys.executable, "-m", "pip", "--python", python)
    for words in (
        [python_3_12(), "-m", "venv", "--without-pip", str(folder)],
        [*pip, "install", "--quiet", "--no-compile", "--require-hashes", "-r", str(lock)],
        [python, "-c", "import django.tasks, importlib.util as u; assert u.find_spec('django_tasks') is None"],
        [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *OTHERS, str(Path(__file__).parent)],
    ):
        done = subprocess.run(
            words, cwd=ROOT, env=known, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-5000:]}{done.stderr[-5000:]}"
    assert "passed" in done.stdout and "skipped" not in done.stdout
