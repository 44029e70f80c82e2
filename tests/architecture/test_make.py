"""Makefile and .ci/run: what they say, and that they fail when they should."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.support.command import ROOT

SUITE = '<testsuites><testsuite><testcase classname="a" name="b">{}</testcase></testsuite></testsuites>'


def make(*words: str, cwd: pathlib.Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *words], cwd=cwd, capture_output=True, text=True, timeout=500, check=False)


def test_help_is_the_default_and_names_every_target() -> None:
    """A stranger who types make is told what there is."""
    done = make()
    assert done.returncode == 0
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    for target in set(phony.split()[1:]) - {"help"}:
        assert f"make {target} " in done.stdout


def test_without_a_fitting_python_it_says_what_is_needed(tmp_path: pathlib.Path) -> None:
    """No half-made .venv, but one clear reason."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    done = make("PYTHON=no-such-python", ".venv/pyvenv.cfg", cwd=tmp_path)
    assert done.returncode == 2
    assert "needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("check", "case", "code"),
    [
        (0, SUITE.format(""), 0),
        (1, SUITE.format(""), 1),
        (0, SUITE.format("<skipped/>"), 1),
        (0, "<testsuites></testsuites>", 1),
    ],
    ids=["good", "check fails", "skipped", "none ran"],
)
def test_ci_fails_on_failures_and_skips(tmp_path: pathlib.Path, check: int, case: str, code: int) -> None:
    """With a `make` that only pretends: a failed check, a skipped test or no test at all is a failed run."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    pretend = tmp_path / "bin" / "make"
    pretend.parent.mkdir()
    pretend.write_text(
        "#!/bin/sh\n"
        "[ $1 = .venv/site.stamp ] && exit 0\n"
        f'[ "$1 $2" = "check site" ] && exit {check}\n'
        '[ "$CI" = true ] || exit 9\n'
        f"echo '{case}' > \"${{2#ARGS=--junitxml=}}\"\n"
    )
    pretend.chmod(0o755)
    done = subprocess.run(
        [str(tmp_path / ".ci" / "run")],
        env={**os.environ, "PATH": f"{pretend.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (done.returncode != 0) == (code != 0), done.stdout + done.stderr
    assert ("all is well" in done.stdout) == (code == 0)
