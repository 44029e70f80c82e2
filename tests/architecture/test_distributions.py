"""What an sdist and a wheel hold: built here, offline, from a copy of this checkout with a day's rubbish in it."""

from __future__ import annotations

import email.message
import email.parser
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from bridge import __version__
from tests.support.command import ROOT

PACKAGES = ("bridge", "listeners", "queuebell")
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
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-c", BUILD, f"build_{kind}", str(to)]
    done = subprocess.run(words, cwd=source, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = to.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


def copied(names: list[str], to: pathlib.Path) -> pathlib.Path:
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)
    return to


def members(wheel: pathlib.Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def modules() -> set[str]:
    return {name for name in tracked() if name.startswith(tuple(f"{package}/" for package in PACKAGES))}


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


@pytest.fixture(scope="module")
def metadata(wheel: pathlib.Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.parser.Parser().parsestr(archive.read(f"queuebell-{__version__}.dist-info/METADATA").decode())


def test_the_sdist_is_the_checkout(sdist: pathlib.Path) -> None:
    """With tests, documents and all else that git knows; without caches, data and what else lies about."""
    with tarfile.open(sdist) as archive:
        names = [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]
    held = {name for name in names if not name.startswith("queuebell.egg-info/")}
    assert held - MADE == set(tracked())


def test_its_tests_run_where_it_is_unpacked(unpacked: pathlib.Path) -> None:
    """Without git as well, those of documents and of distributions themselves among them."""
    tests = ("tests/architecture/test_distributions.py", "tests/docs/test_pages.py")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "not system", "-k", "not unpacked", *tests]
    done = subprocess.run(words, cwd=unpacked, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_is_three_packages(wheel: pathlib.Path) -> None:
    """Exactly their modules and markers of types, and the licence beside them, although it is built from the sdist."""
    assert members(wheel) == modules()
    assert {f"{package}/py.typed" for package in PACKAGES} <= members(wheel)
    with zipfile.ZipFile(wheel) as archive:
        licence = archive.read(f"queuebell-{__version__}.dist-info/licenses/LICENSE")
    assert hashlib.sha256(licence).hexdigest() == APACHE_2, "LICENSE is the text as Apache publishes it"


def test_an_editable_install_is_a_folder_on_the_path(tmp_path: pathlib.Path) -> None:
    """Type checkers read `sys.path` and run nothing: an install by a finder has no types outside of the checkout."""
    source, target = copied(tracked(), tmp_path / "checkout"), tmp_path / "target"
    target.mkdir()
    with zipfile.ZipFile(build("editable", source, target)) as archive:
        (path_file,) = [name for name in archive.namelist() if name.endswith(".pth")]
        assert archive.read(path_file).decode().split() == [str(source)]


def test_the_metadata_is_whole(metadata: email.message.Message) -> None:
    """Name, licence, Pythons, topics and the command; no address, for there is none yet."""
    assert (metadata["Name"], metadata["Version"]) == ("queuebell", __version__)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Author"] == "Queuebell maintainers"
    assert metadata["Requires-Python"] == ">=3.11"
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers and any(each.startswith("Topic ::") for each in classifiers)
    assert not any(each.startswith("License ::") for each in classifiers), "the expression stands instead"
    assert metadata.get_all("Project-URL") is None
