"""The bridge's settings: files, addresses, defaults."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

import bridge
import listeners
import queuebell
from bridge.contract.errors import ConfigurationError
from queuebell.settings import load, parse_listen
from tests.support.command import ROOT, environment


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: pathlib.Path) -> None:
    """A missing or binary file is named."""
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        load(str(tmp_path / "none.toml"), environment={})
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"binary\.toml"):
        load(str(binary), environment={})


@pytest.mark.parametrize("text", ["", "8470", ":8470", "host:", "host:x", "host:65536", "::1:8470", "host:-1", "h:٣"])
def test_wrong_addresses_are_refused(text: str) -> None:
    """Anything else names the key."""
    with pytest.raises(ConfigurationError, match="listen"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("text", "buses"),
    [
        ("nats://a", ("nats://a",)),
        (" nats://a:1, b:2,,nats://c , d", ("nats://a:1,b:2", "nats://c,d")),
        ("embedded, nats://a", ("embedded", "nats://a")),
        ("nats://a,embedded:4222", ("nats://a", "embedded:4222")),
        (",a,b", ("a", "b")),
    ],
)
def test_a_variable_has_buses_each_of_several_servers(text: str, buses: tuple[str, ...]) -> None:
    """A comma before another host of the same bus divides nothing; what has no scheme begins no bus of several."""
    assert load(None, environment={"QUEUEBELL_NATS": text}).nats == buses


def test_every_public_name_is_there() -> None:
    """The same objects as in the packages that hold them, and nothing else."""
    for package in (bridge, listeners):
        for name in package.__all__:
            assert getattr(queuebell, name) is getattr(package, name)
    assert set(dir(queuebell)) == {*bridge.__all__, *listeners.__all__}
    with pytest.raises(AttributeError, match="no attribute 'WakeScheduler'"):
        _ = queuebell.WakeScheduler


def test_all_names_come_at_once() -> None:
    """`from queuebell import *` brings each public name."""
    names: dict[str, object] = {}
    exec("from queuebell import *", names)
    assert {name: names[name] for name in dir(queuebell)} == {name: getattr(queuebell, name) for name in dir(queuebell)}


def test_no_name_stands_for_two_things() -> None:
    """What both packages call alike would be one of them only."""
    assert set(bridge.__all__).isdisjoint(listeners.__all__)


@pytest.mark.parametrize("name", ["listeners", "bridge"])
@pytest.mark.parametrize("kind", ["file", "package", "folder"])
def test_a_package_of_ones_own_is_named(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    """A user's `listeners` hides ours: the error says where it is, and what to do."""
    if kind == "file":
        (tmp_path / f"{name}.py").write_text("mine = 1\n")
    else:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text("mine = 1\n")
    if kind == "package":
        (tmp_path / name / "__init__.py").write_text("mine = 1\n")
    done = subprocess.run(
        [sys.executable, "-c", "from queuebell import Listener"],
        cwd=tmp_path,
        env=environment({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=False,
    )
    # A folder without code is not taken for the package that stands behind it.
    expected = "" if kind == "folder" else f"which is not Queuebell's: a file or folder called {name} comes first"
    assert expected in done.stderr and bool(done.returncode) == bool(expected)
