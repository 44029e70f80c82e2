"""The locks: every version fixed by hash, no index, no path, and enough for what pyproject asks."""

from __future__ import annotations

import pathlib
import re
import tomllib

import pytest

from bridge import __version__
from tests.support.command import ROOT

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


@pytest.mark.parametrize(
    "line",
    ["--index-url https://x\n", "aiohttp==1.0\n", "./local\n", "aiohttp>=1 \\\n    --hash=sha256:" + "0" * 64 + "\n"],
)
def test_a_loose_line_is_found(line: str) -> None:
    """The check itself can fail."""
    with pytest.raises(ValueError):
        entries((ROOT / LOCKS[0]).read_text() + line)


def test_one_version() -> None:
    """The version is said once, and pyproject takes it from there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "bridge.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_all_packages_are_typed() -> None:
    """PEP 561: the markers are there."""
    for package in ("bridge", "listeners", "queuebell"):
        assert pathlib.Path(ROOT / package / "py.typed").exists()
