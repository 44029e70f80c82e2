"""The bridge's settings: files, addresses, defaults."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

import queuebell
from queuebell import bridge, listeners
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.settings import load, parse_listen, reached_at
from tests.support.command import ROOT, environment


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        load(str(tmp_path / "none.toml"), environment={})
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"binary\.toml"):
        load(str(binary), environment={})


@pytest.mark.parametrize("text", ["", "8470", ":8470", "host:", "host:x", "host:65536", "::1:8470", "host:-1", "h:٣"])
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="listen"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("[::]:0", "http://[::1]:9"),
        ("0.0.0.0:0", "http://127.0.0.1:9"),
        ("192.0.2.1:0", "http://192.0.2.1:9"),
    ],
)
def test_a_bridge_on_all_addresses_is_reached_by_loopback(listen: str, url: str) -> None:
    """No client can connect to the address that means all of them."""
    assert reached_at(load(None, environment={"QUEUEBELL_LISTEN": listen}), 9) == url


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
def test_an_application_may_have_modules_of_these_names(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    """A user's `listeners.py` or folder `bridge` beside the program is the user's, and ours goes on."""
    if kind == "file":
        (tmp_path / f"{name}.py").write_text("mine = 1\n")
    else:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("mine = 1\n" if kind == "package" else "")
        (tmp_path / name / "mine.py").write_text("mine = 1\n")
    program = f"from queuebell import Bridge, Listener; import {name}; print({name}.__file__, Bridge, Listener)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(str(tmp_path))


@pytest.mark.parametrize("name", ["listeners", "bridge"])
def test_the_folders_of_the_checkout_are_no_packages_of_their_own(name: str) -> None:
    """Imported by both names they would be two packages, whose classes differ."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and f"this folder is the package queuebell.{name}" in done.stderr
