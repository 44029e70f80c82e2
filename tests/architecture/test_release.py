"""`make release`: what it refuses before it does anything, and a release of a copy of this checkout."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tarfile

import pytest

from tests.architecture.test_distributions import copied, tracked
from tests.support.command import ROOT, environment

VERSION = "98.76.54"
WITHIN_S = 900.0
AS_MAINTAINERS = {
    "GIT_AUTHOR_NAME": "Queuebell maintainers",
    "GIT_AUTHOR_EMAIL": "nobody@example.invalid",
    "GIT_COMMITTER_NAME": "Queuebell maintainers",
    "GIT_COMMITTER_EMAIL": "nobody@example.invalid",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "PIP_NO_COMPILE": "1",
    "UV_PYTHON_DOWNLOADS": "never",
}


def run(*words: str, cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=cwd, env=environment(AS_MAINTAINERS), capture_output=True, text=True, timeout=WITHIN_S, check=False
    )


def git(*words: str, cwd: pathlib.Path) -> str:
    done = run("git", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def with_python(checkout: pathlib.Path, python: pathlib.Path) -> pathlib.Path:
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").symlink_to(python)
    return checkout


def standing(checkout: pathlib.Path) -> list[str]:
    """Return the tags, the newest commit and what stands beside it."""
    return [git(*words, cwd=checkout) for words in (["tag"], ["rev-parse", "HEAD"], ["status", "--porcelain"])]


def repository(folder: pathlib.Path, changelog: str) -> pathlib.Path:
    """Commit what is in a folder, with a changelog."""
    (folder / "CHANGELOG.md").write_text(changelog)
    git("init", "--quiet", cwd=folder)
    git("add", "--all", cwd=folder)
    git("commit", "--quiet", "--message", "All of it", cwd=folder)
    return folder


@pytest.fixture
def small(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository of the script and a changelog, with a Python that always fails."""
    repository(copied([".gitignore", "bridge/__init__.py", "deploy/release"], tmp_path), f"# Changes\n\n## {VERSION}\n")
    return with_python(tmp_path, pathlib.Path("/bin/false"))


@pytest.mark.parametrize(
    ("version", "spoil", "told"),
    [
        ("", "", "a version is three numbers"),
        ("1.2", "", "a version is three numbers"),
        ("v1.2.3", "", "a version is three numbers"),
        (VERSION, "echo more >>CHANGELOG.md", "changes that are not committed"),
        (VERSION, "touch new.py", "changes that are not committed"),
        (VERSION, f"git tag v{VERSION}", f"there is a tag v{VERSION} already"),
        ("1.2.3", "", "CHANGELOG.md has no section '## 1.2.3'"),
        (VERSION, "", "the tools of a release cannot be installed"),
    ],
)
def test_what_cannot_be_released_is_refused_at_once(small: pathlib.Path, version: str, spoil: str, told: str) -> None:
    """With one clear reason, before anything is built; no commit and no tag."""
    assert run("sh", "-c", spoil, cwd=small).returncode == 0
    before = standing(small)
    done = run("deploy/release", version, cwd=small)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("release: ") and told in done.stderr
    assert standing(small) == before


def test_make_hands_it_the_version() -> None:
    """As `make help` says."""
    assert 'deploy/release "1.2.3"' in run("make", "-n", "release", "VERSION=1.2.3", cwd=ROOT).stdout


@pytest.mark.rest
def test_a_release_of_this_checkout(tmp_path: pathlib.Path) -> None:
    """Built, accepted by twine and tried in fresh environments with all extras; then version, files, commit and tag."""
    text = (ROOT / "CHANGELOG.md").read_text().replace("## Unreleased", f"## {VERSION}")
    checkout = with_python(repository(copied(tracked(), tmp_path), text), pathlib.Path(sys.executable))
    done = run("deploy/release", VERSION, cwd=checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"released {VERSION}, tried with Python 3." in done.stdout
    assert "charged order 3" in done.stdout
    assert git("tag", cwd=checkout) == f"v{VERSION}"
    assert f'__version__ = "{VERSION}"' in git("show", f"v{VERSION}:bridge/__init__.py", cwd=checkout)
    assert git("status", "--porcelain", cwd=checkout) == ""
    sdist, wheel = (checkout / "dist" / f"queuebell-{VERSION}{end}" for end in (".tar.gz", "-py3-none-any.whl"))
    assert set((checkout / "dist").iterdir()) == {sdist, wheel}
    with tarfile.open(sdist) as archive:
        module = archive.extractfile(f"queuebell-{VERSION}/bridge/__init__.py")
        assert module is not None and f'__version__ = "{VERSION}"' in module.read().decode()
