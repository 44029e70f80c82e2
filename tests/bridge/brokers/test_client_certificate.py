"""The certificate that a client shows: from files that the environment names, anew when they are replaced."""

from __future__ import annotations

import pathlib
import time

import pytest

from bridge.brokers.client_certificate import JUDGED_EVERY_S, ClientCertificate
from bridge.brokers.credential import Credential
from bridge.contract.address import http_addresses
from bridge.contract.errors import ConfigurationError
from tests.support.certificates import Authority, write_self_signed
from tests.support.memory_broker import MemoryServer

HTTPS, HTTP = http_addresses("https://bridge.internal", "bridge")[0], http_addresses("http://127.0.0.1", "bridge")[0]


def named(cert: object = "", key: object = "") -> dict[str, str]:
    """An environment that names files."""
    return {"QUEUEBELL_CLIENT_CERT": str(cert), "QUEUEBELL_CLIENT_KEY": str(key)}


def test_who_shows_one(tmp_path: pathlib.Path) -> None:
    """Where it is named, and TLS is spoken; a file may hold both."""
    cert, key = write_self_signed(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    assert Credential(HTTPS, None, named()).tls() is None
    assert Credential(HTTP, None, named(cert, key)).tls() is None
    assert Credential(HTTPS, None, named(cert, key)).tls() is not None
    assert Credential(HTTPS, None, named(both)).tls() is not None


def test_over_a_broker_nobody_shows_one(tmp_path: pathlib.Path) -> None:
    """What the broker learns of it, the bridge does not: a key is asked for there, and goes beside it."""
    environment = named(*write_self_signed(tmp_path))
    broker = MemoryServer().broker()
    assert Credential(broker, None, environment).tls() is None
    assert not Credential(broker, None, environment)
    assert Credential(broker, "k", environment).secret() == "k"


def test_files_that_cannot_be_used_are_refused(tmp_path: pathlib.Path) -> None:
    """By the name of the variable, before anything is sent."""
    cert, key = write_self_signed(tmp_path)
    for wrong in (named(tmp_path / "none", key), named(cert), named(cert, cert), named("\0", key)):
        with pytest.raises(ConfigurationError, match="QUEUEBELL_CLIENT_CERT: cannot use"):
            Credential(HTTPS, None, wrong)
    with pytest.raises(ConfigurationError, match="of no use without QUEUEBELL_CLIENT_CERT"):
        Credential(HTTPS, None, named("", key))


def test_they_are_read_anew(tmp_path: pathlib.Path) -> None:
    """The same until they change; half a change, and files that are gone, leave the one that worked."""
    cert, key = write_self_signed(tmp_path)
    shown = ClientCertificate(str(cert), str(key))
    first = shown.context()
    assert shown.context() is first
    kept = key.read_bytes()
    key.unlink()
    assert shown.context() is first
    folder = tmp_path / "new"
    folder.mkdir()
    new_cert, new_key = write_self_signed(folder)
    new_key.replace(key)
    assert shown.context() is first
    new_cert.replace(cert)
    second = shown.context()
    assert second is not first
    assert shown.context() is second
    assert kept != key.read_bytes()


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        (24 * 60.0, ""),
        (-1.0, "has expired: bridges refuse it; put a new one in its place"),
        (240.0, ""),
        (24.0, "expires in 24 hours"),
    ],
)
def test_its_times(hours: float, said: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is shown all the same; a bridge that refuses it only ends the connection, so it is said here."""
    cert, key = Authority(tmp_path).certificate("worker", hours=hours)
    key.chmod(0o600)
    now = time.time()
    shown = ClientCertificate(str(cert), str(key), lambda: now)
    shown.context()
    assert (f"QUEUEBELL_CLIENT_CERT: {cert} {said}" in caplog.text) if said else not caplog.records
    caplog.clear()
    now += JUDGED_EVERY_S
    shown.context()
    assert len(caplog.records) == bool(said), "of one that is in use it is said a few times a day"


def test_a_key_that_everybody_can_read(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning with the command that closes it."""
    cert, key = write_self_signed(tmp_path)
    key.chmod(0o604)
    ClientCertificate(str(cert), str(key))
    assert f"QUEUEBELL_CLIENT_KEY: every user of this machine can read it: chmod 600 {key}" in caplog.text
