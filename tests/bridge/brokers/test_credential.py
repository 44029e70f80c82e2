"""Where a client's key and certificate come from, and where the key is never sent."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import ssl
import time
from collections.abc import AsyncIterator

import pytest

from queuebell.bridge.brokers.credential import (
    JUDGED_EVERY_S,
    ClientCertificate,
    Credential,
    key_option,
)
from queuebell.bridge.contract.address import http_addresses
from queuebell.bridge.contract.errors import BusUnavailable, ChannelLost, ConfigurationError, QueuebellError
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.producer.buses.http import HttpBus
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.listeners.session.websocket import WebSocketChannel
from tests.support.certificates import Authority, self_signed, write_self_signed

HERE = http_addresses("http://127.0.0.1:8470", "bridge")[0]


def carried(key: str) -> dict[str, str]:
    """Return the headers for a key."""
    return {"Authorization": f"Bearer {key}"}


def test_a_file_is_followed(tmp_path: pathlib.Path) -> None:
    """A new key is used immediately; the old one stays while the file is missing or half-written."""
    file = tmp_path / "key"
    file.write_text("one")
    credential = Credential(HERE, None, {"QUEUEBELL_API_KEY_FILE": str(file)})
    other = tmp_path / "other"
    other.write_text("  two\n")
    other.replace(file)
    assert credential.headers() == carried("two")
    for broken in ("", "two lines\nof it"):
        file.write_text(broken)
        assert credential.headers() == carried("two")
    file.unlink()
    assert credential.headers() == carried("two")
    file.write_text("three")
    assert credential.headers() == carried("three")
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigurationError, match="QUEUEBELL_API_KEY_FILE: cannot read a key from"):
            Credential(HERE, None, {"QUEUEBELL_API_KEY_FILE": str(path)})


def test_nothing_shows_a_key() -> None:
    assert "secret" not in repr(Credential(HERE, "secret", {}))
    with pytest.raises(ConfigurationError, match="a broker has users") as refused:
        key_option("nats://a", "secret")
    assert "secret" not in str(refused.value)
    assert key_option("https://a", "k") == {"api_key": "k"}
    assert key_option("nats://a", None) == {}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1,bell.example", "http://bell.example,localhost:1"])
def test_of_equal_bridges_all_may_be_shown_the_key(url: str) -> None:
    """One unencrypted address makes the key invalid for all; without a key any address is valid."""
    with pytest.raises(ConfigurationError, match=r"bell\.example would send the key unencrypted"):
        Credential.of(http_addresses(url, "bridge"), "k")
    assert not Credential.of(http_addresses(url, "bridge"))
    assert Credential.of(http_addresses(url.replace("http", "https"), "bridge"), "k").headers() == carried("k")
    assert Credential.of(http_addresses("http://[::1],127.0.0.1:1", "bridge"), "k").headers() == carried("k")


HTTPS, HTTP = http_addresses("https://bridge.internal", "bridge")[0], http_addresses("http://127.0.0.1", "bridge")[0]


def named(cert: object = "", key: object = "") -> dict[str, str]:
    """An environment that names files."""
    return {"QUEUEBELL_CLIENT_CERT": str(cert), "QUEUEBELL_CLIENT_KEY": str(key)}


def test_files_that_cannot_be_used_are_refused(tmp_path: pathlib.Path) -> None:
    """The error names the variable, before anything is sent."""
    cert, key = write_self_signed(tmp_path)
    for wrong in (named(tmp_path / "none", key), named(cert), named(cert, cert), named("\0", key)):
        with pytest.raises(ConfigurationError, match="QUEUEBELL_CLIENT_CERT: cannot use"):
            Credential(HTTPS, None, wrong)
    with pytest.raises(ConfigurationError, match="has no effect without QUEUEBELL_CLIENT_CERT"):
        Credential(HTTPS, None, named("", key))


def test_they_are_read_anew(tmp_path: pathlib.Path) -> None:
    """The context stays until both files change; half a change or missing files keep the last good one."""
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
        (-1.0, "has expired: bridges reject it; replace it"),
        (240.0, ""),
        (24.0, "expires in 24 hours"),
    ],
)
def test_its_times(hours: float, said: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is used all the same, with a warning: a bridge that refuses it only ends the connection."""
    cert, key = Authority(tmp_path).certificate("worker", hours=hours)
    key.chmod(0o600)
    now = time.time()
    shown = ClientCertificate(str(cert), str(key), lambda: now)
    shown.context()
    assert (f"QUEUEBELL_CLIENT_CERT: {cert} {said}" in caplog.text) if said else not caplog.records
    caplog.clear()
    now += JUDGED_EVERY_S
    shown.context()
    assert len(caplog.records) == bool(said), "the warning is repeated a few times a day"


@contextlib.asynccontextmanager
async def standing(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Serve nothing on a port, behind TLS or not."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


async def told(url: str) -> set[str]:
    """Return the errors of the queue store, the bus and the session for an address, without their own prefixes."""
    store, bus, channel = HttpStore(url), HttpBus(url), WebSocketChannel(url)
    said: set[str] = set()
    try:
        for call in (store.depth("a/q"), bus.publish([CloudQueueWorkDetected("a", "q")]), channel.connect()):
            with pytest.raises(QueuebellError) as caught:
                await call
            lead = {BusUnavailable: f"no bridge answers at {url}: ", ChannelLost: "no session: "}
            said.add(str(caught.value).removeprefix(lead.get(type(caught.value), f"no bridge answers at {url}: ")))
    finally:
        for each in (store, bus, channel):
            await each.close()
    return said


async def test_a_certificate_that_is_not_trusted_is_no_missing_permission(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL's number for it is 1, which the system reads as "Operation not permitted"."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    async with standing(self_signed(tmp_path)[0]) as port:
        assert await told(f"https://127.0.0.1:{port}") == {
            "its certificate is rejected: self-signed certificate (set SSL_CERT_FILE to a certificate to trust)"
        }


async def test_the_hint_fits_what_is_wrong(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another name is not cured by trust, and a file that is missing is named."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    async with standing(self_signed(tmp_path)[0]) as port:
        (missing,) = await told(f"https://127.0.0.1:{port}")
        assert missing.endswith(f"(SSL_CERT_FILE names {tmp_path / 'none.pem'}, which does not exist)")
        monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
        (useless,) = await told(f"https://127.0.0.1:{port}")
        assert useless.endswith("(SSL_CERT_FILE names /dev/null, which has neither this certificate nor its authority)")


def test_new_trusted_certificates_are_used_without_a_restart(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = []
    for name in ("one", "two"):
        certificates.append(Authority(tmp_path, name).file.read_bytes())
    file = tmp_path / "trusted.pem"
    file.write_bytes(certificates[0])
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    where = http_addresses("https://127.0.0.1:8470", "bridge")[0]
    credential = Credential(where)
    first = credential.tls()
    assert first is not None
    assert Credential(where).tls() is first, "connections are shared by their context"
    trusted = first.get_ca_certs(binary_form=True)
    file.unlink()
    assert credential.tls() is first
    file.write_text("none")
    assert credential.tls() is first
    file.write_bytes(certificates[1])
    second = credential.tls()
    assert second is not None
    assert second is not first
    assert second.get_ca_certs(binary_form=True) != trusted
    assert Credential(HERE).tls() is None
