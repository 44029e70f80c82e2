"""The locks: every version fixed by hash, no index, no path, and enough for what pyproject asks."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib

import pytest

from tests.architecture.test_distributions import copied, tracked
from tests.support.command import ROOT, environment

LOCKS = [
    "requirements.lock",
    "requirements-all.lock",
    "requirements-dev.lock",
    "requirements-mutants.lock",
    "requirements-peers.lock",
    "requirements-release.lock",
    "requirements-site.lock",
]
OURS = {"test", "check"}
"""Extras for who works on Queuebell, not with it."""
ENTRY = re.compile(r"([a-z0-9][a-z0-9-]*)==([0-9][0-9a-z.]*)( ; [^\\]+?)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def entries(text: str) -> dict[str, str]:
    """Name to version; raises ValueError for a lock that holds anything but hashed versions."""
    rest = ENTRY.sub("", text)
    if rest.strip():
        raise ValueError(f"not a hashed version: {rest.strip().splitlines()[0]}")
    return {match[1]: match[2] for match in ENTRY.finditer(text)}


def asked() -> dict[str, list[str]]:
    """What pyproject asks for, by lock: names only."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = whole["project"]
    extras = project["optional-dependencies"]
    every = [*project["dependencies"], *(each for words in extras.values() for each in words)]
    image = [*project["dependencies"], *(each for name in extras if name not in OURS for each in extras[name])]

    def names(words: list[str]) -> list[str]:
        return [re.split(r"[\[<>=]", word)[0] for word in words if not word.startswith("queuebell")]

    runtime = [*project["dependencies"], *extras["nats"], *extras["mqtt"]]
    groups = whole["dependency-groups"]
    asked_for = (runtime, image, every, *(groups[name] for name in ("mutants", "peers", "release", "site")))
    return dict(zip(LOCKS, map(names, asked_for), strict=True))


@pytest.mark.parametrize("lock", LOCKS)
def test_only_hashed_versions(lock: str) -> None:
    """No index line, no path, no host, no loose version; and all that is asked for is there."""
    text = (ROOT / lock).read_text()
    assert "://" not in text
    found = entries(text)
    assert set(asked()[lock]) <= set(found)


@pytest.mark.parametrize("lock", LOCKS[:2])
def test_the_dev_lock_holds_the_runtime_versions(lock: str) -> None:
    """What is tested is what runs; what we are measured beside has its own environment, and its own versions."""
    together = (lock, *(name for name in LOCKS[2:] if "peers" not in name))
    runtime, dev, *others = (entries((ROOT / name).read_text()) for name in together)
    assert {name: dev.get(name) for name in runtime} == runtime
    for other in others:
        assert {name: dev[name] for name in other if name in dev} == {
            name: version for name, version in other.items() if name in dev
        }


def test_the_image_has_every_extra() -> None:
    """A container cannot be told to install something: what `all` names is what the extras are."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(re.findall(r"\w+", everything.partition("[")[2])) == set(extras) - OURS - {"all"}


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
