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
from queuebell.command.listen_settings import load as listen_settings
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


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("sweep_s = 1e-6", "sweep_s"),
        ("sweep_s = 1e-320", "sweep_s"),
        ('[[queue]]\nmatch = "a/b"\nsweep_s = 0.05', "queue 1: sweep_s"),
        ("slack_s = 0.1", "slack_s"),
        ('[[queue]]\nmatch = "a/b"\nslack_s = 9', "queue 1: slack_s"),
        *((f"requests_per_second = {rate}", "requests_per_second") for rate in ("1e-320", "0.0009", "inf", "nan", "0")),
        ("request_burst = 0", "request_burst"),
        (f"request_burst = {10**400}", "request_burst"),
    ],
)
def test_numbers_whose_promise_would_be_false_are_refused(tmp_path: pathlib.Path, text: str, key: str) -> None:
    """What `check` and `serve` print of a configuration holds for every one that is accepted."""
    file = tmp_path / "queuebell.toml"
    file.write_text(text + "\n")
    with pytest.raises(ConfigurationError, match=key):
        load(str(file), environment={})


def test_a_variable_that_is_like_a_key_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """It may be a key written wrongly, or another program's; what Kubernetes sets for a service of our name is not."""
    environment = {
        "QUEUEBELL_SWEPT": "3",
        "QUEUEBELL_PORT": "tcp://10.0.0.1:8470",
        "QUEUEBELL_SERVICE_HOST": "10.0.0.1",
        "QUEUEBELL_PORT_8470_TCP_ADDR": "10.0.0.1",
        "QUEUEBELL_BURIAL": "{}",
        "QUEUEBELL_CLIENT_CERT": "worker.crt",
        "QUEUEBELL_CLIENT_KEY": "worker.key",
        "QUEUEBELL_POOL_LIMIT": "a/b=1",
        "SWEEP": "1",
    }
    assert load(None, environment=environment) == load(None, environment={})
    words = "environment: QUEUEBELL_SWEPT is no setting and changes nothing; did you mean QUEUEBELL_SWEEP_S?"
    assert [record.getMessage() for record in caplog.records] == [words]
    assert listen_settings(None, environment={"QUEUEBELL_SWEEP_S": "3", "QUEUEBELL_CONCUR": "3"}).concurrency is None
    assert caplog.records[-1].getMessage().endswith("did you mean QUEUEBELL_CONCURRENCY?")
    assert len(caplog.records) == 2


def test_every_public_name_is_there() -> None:
    """The same objects as in the packages that hold them, and nothing else."""
    for package in (bridge, listeners):
        for name in package.__all__:
            assert getattr(queuebell, name) is getattr(package, name)
    assert set(dir(queuebell)) == {*bridge.__all__, *listeners.__all__}
    with pytest.raises(AttributeError, match="no attribute 'Bell'"):
        _ = queuebell.Bell


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
