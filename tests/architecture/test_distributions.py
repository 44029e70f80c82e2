"""What is given away: the sdist and the wheel, built here and offline; the locks, `make`, CI and the release."""

from __future__ import annotations

import email.parser
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

from queuebell.bridge import __version__
from tests.support.command import ROOT, environment

LINKED = ("bridge/", "listeners/")
"""Folders of the checkout that are packages of queuebell by links; in a distribution they are folders there."""
MADE = {"PKG-INFO", "setup.cfg"}
"""What setuptools adds to an sdist, besides its folder `queuebell.egg-info`."""
RUBBISH = [
    ".ci/node/package.json",
    ".venv/pyvenv.cfg",
    "bench/out/figures.json",
    "bridge/__pycache__/gone.cpython-311.pyc",
    "build/lib/bridge/gone.py",
    "queuebell-data/queue.db",
    "tests/__pycache__/gone.cpython-311.pyc",
]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def tracked() -> list[str]:
    """Name the files that git knows or would take; where the checkout is itself an sdist, those that it says it has."""
    if (ROOT / "PKG-INFO").exists():
        named = (ROOT / "queuebell.egg-info/SOURCES.txt").read_text(encoding="utf-8")
    else:
        words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        named = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {name for name in named.splitlines() if not name.startswith("queuebell.egg-info/")} - MADE
    return sorted(name for name in names if (ROOT / name).exists())


def build(kind: str, source: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """Build what ``kind`` says as an installer would, but without a fresh environment, which only an index can fill."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-c", BUILD, f"build_{kind}", str(to)]
    done = subprocess.run(words, cwd=source, env=kept, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = to.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


def copied(names: list[str], to: pathlib.Path) -> pathlib.Path:
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name, follow_symlinks=False)
    return to


def given(names: list[str]) -> set[str]:
    """Name what a distribution has: folders for the links, and nothing of them at the root."""
    inside = {f"queuebell/{name}" if name.startswith(LINKED) else name for name in names}
    return inside - {f"queuebell/{name.rstrip('/')}" for name in LINKED}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    source = copied(tracked(), tmp_path_factory.mktemp("checkout"))
    for name in RUBBISH:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


@pytest.fixture(scope="module")
def wheel(unpacked: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


def test_the_sdist_is_the_checkout(sdist: pathlib.Path) -> None:
    """With tests, documents and all else that git knows; without caches, data and what else lies about."""
    with tarfile.open(sdist) as archive:
        names = [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]
    held = {name for name in names if not name.startswith("queuebell.egg-info/")}
    assert held - MADE == given(tracked())


def test_its_tests_run_where_it_is_unpacked(unpacked: pathlib.Path) -> None:
    """Without git as well, those of documents and of distributions themselves among them."""
    tests = ("tests/architecture/test_distributions.py", "tests/docs/test_pages.py")
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-m",
        "not system",
        "-k",
        "not unpacked and not release",
        *tests,
    ]
    done = subprocess.run(words, cwd=unpacked, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_is_one_package(wheel: pathlib.Path) -> None:
    """Exactly their modules and markers of types, and the licence beside them, although it is built from the sdist."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name for name in archive.namelist() if ".dist-info/" not in name}
        licence = archive.read(f"queuebell-{__version__}.dist-info/licenses/LICENSE")
    assert members == {name for name in given(tracked()) if name.startswith("queuebell/")}
    assert "queuebell/py.typed" in members
    assert hashlib.sha256(licence).hexdigest() == APACHE_2, "LICENSE is the text as Apache publishes it"


def test_an_editable_install_is_a_folder_on_the_path(tmp_path: pathlib.Path) -> None:
    """Type checkers read `sys.path` and run nothing: an install by a finder has no types outside of the checkout."""
    source, target = copied(tracked(), tmp_path / "checkout"), tmp_path / "target"
    target.mkdir()
    with zipfile.ZipFile(build("editable", source, target)) as archive:
        (path_file,) = [name for name in archive.namelist() if name.endswith(".pth")]
        assert archive.read(path_file).decode().split() == [str(source)]


def test_the_metadata_is_whole(wheel: pathlib.Path) -> None:
    """Name, licence and Pythons; no address, for there is none yet."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"queuebell-{__version__}.dist-info/METADATA").decode()
    metadata = email.parser.Parser().parsestr(text)
    assert (metadata["Name"], metadata["Version"]) == ("queuebell", __version__)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_all("Project-URL") is None


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


def make(*words: str, cwd: pathlib.Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *words], cwd=cwd, capture_output=True, text=True, timeout=500, check=False)


def test_without_a_fitting_python_it_says_what_is_needed(tmp_path: pathlib.Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    done = make("PYTHON=no-such-python", ".venv/pyvenv.cfg", cwd=tmp_path)
    assert done.returncode == 2
    assert "needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()


SUITE = '<testsuites><testsuite><testcase classname="a" name="b">{}</testcase></testsuite></testsuites>'


@pytest.mark.parametrize(
    ("check", "case", "code"),
    [(0, SUITE.format(""), 0), (1, SUITE.format(""), 1), (0, SUITE.format("<skipped/>"), 1)],
    ids=["good", "check fails", "skipped"],
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
        f"report=${{2#ARGS=--junitxml=}}; echo '{case}' > \"${{report%% *}}\"\n"
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
    "UV_PYTHON_DOWNLOADS": "never",
}


def run(*words: str, cwd: pathlib.Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        env=environment({**AS_MAINTAINERS, **more}),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def git(*words: str, cwd: pathlib.Path) -> str:
    done = run("git", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def with_python(checkout: pathlib.Path, python: pathlib.Path) -> pathlib.Path:
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (checkout / ".venv/bin/python").chmod(0o755)
    return checkout


def repository(folder: pathlib.Path, changelog: str) -> pathlib.Path:
    (folder / "CHANGELOG.md").write_text(changelog)
    git("init", "--quiet", cwd=folder)
    git("add", "--all", cwd=folder)
    git("commit", "--quiet", "--message", "All of it", cwd=folder)
    return folder


@pytest.mark.parametrize(
    ("version", "spoil", "told"),
    [
        ("1.2", "", "a version is three numbers"),
        (VERSION, "echo more >>CHANGELOG.md", "changes that are not committed"),
        (VERSION, f"git tag v{VERSION}", f"there is a tag v{VERSION} already"),
        ("1.2.3", "", "CHANGELOG.md has no section '## 1.2.3'"),
        (VERSION, "", "the tools of a release cannot be installed"),
    ],
)
def test_what_cannot_be_released_is_refused_at_once(
    tmp_path: pathlib.Path, version: str, spoil: str, told: str
) -> None:
    """With one clear reason, before anything is built; no commit and no tag. Here a Python stands that always fails."""
    repository(copied([".gitignore", "bridge/__init__.py", "deploy/release"], tmp_path), f"# Changes\n\n## {VERSION}\n")
    small = with_python(tmp_path, pathlib.Path("/bin/false"))
    assert run("sh", "-c", spoil, cwd=small).returncode == 0
    before = [git(*words, cwd=small) for words in (["tag"], ["rev-parse", "HEAD"], ["status", "--porcelain"])]
    done = run("deploy/release", version, cwd=small)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("release: ") and told in done.stderr
    assert before == [git(*words, cwd=small) for words in (["tag"], ["rev-parse", "HEAD"], ["status", "--porcelain"])]


@pytest.mark.rest
def test_a_release_of_this_checkout(tmp_path: pathlib.Path) -> None:
    """Built, accepted by twine and tried in fresh environments with all extras; then version, files, commit and tag."""
    text = (ROOT / "CHANGELOG.md").read_text().replace("## Unreleased", f"## {VERSION}")
    checkout = with_python(repository(copied(tracked(), tmp_path), text), pathlib.Path(sys.executable))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    done = run("deploy/release", VERSION, cwd=checkout, PYTHONS=python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"released {VERSION}, tried with Python 3." in done.stdout
    assert "charged order 3" in done.stdout
    assert git("tag", cwd=checkout) == f"v{VERSION}"
    assert f'__version__ = "{VERSION}"' in git("show", f"v{VERSION}:bridge/__init__.py", cwd=checkout)
    assert git("status", "--porcelain", cwd=checkout) == ""
    sdist, wheel = (checkout / "dist" / f"queuebell-{VERSION}{end}" for end in (".tar.gz", "-py3-none-any.whl"))
    assert set((checkout / "dist").iterdir()) == {sdist, wheel}
    with tarfile.open(sdist) as archive:
        module = archive.extractfile(f"queuebell-{VERSION}/queuebell/bridge/__init__.py")
        assert module is not None and f'__version__ = "{VERSION}"' in module.read().decode()
