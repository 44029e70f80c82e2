"""Who somebody is by the certificate that TLS verified: which are taken, which prove nothing, and when they end."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import pathlib
import ssl
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from bridge.contract.errors import ChannelLost, ConfigurationError, NotAllowed
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import Hello, Subscription, Welcome
from bridge.core.keys import with_terms, without
from bridge.http.server.tls import Certificates
from bridge.producer.buses.http import HttpBus
from bridge.queues.http import HttpStore
from bridge.service.access import access_file
from bridge.service.access.watch import AccessWatch
from listeners.session.channels.base import Link
from listeners.session.channels.websocket import WebSocketChannel
from queuebell.command.client import BridgeClient
from tests.support.access import written
from tests.support.certificates import Authority, write_self_signed
from tests.support.web import Reply, Served, request, serving

WORKER = x509.DNSName("w.internal")
PRODUCER = x509.UniformResourceIdentifier("spiffe://x/p")
GRANTS = {
    "worker": {"take": ["a/*"], "look": ["a/*"], "operate": ["*"]},
    "producer": {"put": ["a/*"], "ring": ["a/*"]},
    "keyed": {"look": ["a/*"]},
}
GOOD, STRANGE, NONE = "200", "401", "handshake"


class Port:
    """A bridge over TLS that believes certificates of one authority."""

    def __init__(self, folder: pathlib.Path, *, required: bool) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.cert, key = write_self_signed(folder)
        self.access = folder / "access.json"
        self.secrets = written(self.access, GRANTS)
        for name, san in (("worker", "DNS:w.internal"), ("producer", "spiffe://x/p")):
            self.change(lambda found, n=name, s=san: with_terms(found, n, {}, limits={}, certificates=[s]))
        ca = str(self.authority.file)
        self.certificates = Certificates(str(self.cert), str(key), "tls", ca, required=required)
        self.ahead = 0.0
        self.served: Served

    def change(self, step: Callable[..., object]) -> None:
        """Change the access file."""
        access_file.change(self.access, step)  # type: ignore[arg-type]

    def wall(self) -> float:
        """The bridge's own clock."""
        return time.time() + self.ahead

    def context(self, shown: tuple[pathlib.Path, pathlib.Path] | None) -> ssl.SSLContext:
        """A client's side that shows this certificate."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if shown is not None:
            context.load_cert_chain(*shown)
        return context

    async def ask(self, shown: tuple[pathlib.Path, pathlib.Path] | None, **headers: str) -> Reply:
        """List queues, which the worker and the keyed may."""
        async with self.served.client(ssl=self.context(shown)) as client:
            await client.send(request("GET", "/v1/queues", **headers))
            return await client.reply()

    async def outcome(self, shown: tuple[pathlib.Path, pathlib.Path] | None, **headers: str) -> str:
        """What comes of asking."""
        try:
            return str((await self.ask(shown, **headers)).status)
        except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
            # In TLS 1.3 a client hears only after its handshake that the server takes none of it.
            return NONE


@pytest_asyncio.fixture(params=["optional", "required"])
async def port(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> AsyncIterator[Port]:
    """What `Port` says, in both ways."""
    made = Port(tmp_path, required=request.param == "required")
    async with (
        AccessWatch(made.access, wall=made.wall) as watch,
        serving(access=watch, tls=made.certificates.current) as served,
    ):
        made.served = served
        yield made


@pytest.mark.parametrize(
    ("names", "options", "outcome"),
    [
        ([WORKER], {}, GOOD),
        ([x509.DNSName("other.internal"), WORKER], {}, GOOD),
        ([x509.DNSName("other.internal")], {}, STRANGE),
        ([], {}, STRANGE),
        ([x509.DNSName("*.internal")], {}, STRANGE),
        ([x509.DNSName("W.internal")], {}, STRANGE),
        ([x509.UniformResourceIdentifier("DNS:w.internal")], {}, STRANGE),
        ([x509.RFC822Name("w.internal")], {}, STRANGE),
        ([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))], {}, STRANGE),
        ([x509.DNSName("w.internal\0.evil.example")], {}, STRANGE),
        ([x509.DNSName("xn--w-internal")], {}, STRANGE),
        ([x509.UniformResourceIdentifier("spiffe://x/%70")], {}, STRANGE),
        ([WORKER, PRODUCER], {}, STRANGE),
        ([WORKER], {"hours": -1.0}, NONE),
        ([WORKER], {"usage": ExtendedKeyUsageOID.SERVER_AUTH}, NONE),
    ],
    ids=[
        "right",
        "two",
        "other",
        "CN",
        "wildcard",
        "case",
        "kind",
        "kind2",
        "IP",
        "NUL",
        "IDNA",
        "escape",
        "ambiguous",
        "expired",
        "usage",
    ],
)
async def test_which_certificates_prove_what(
    names: list[x509.GeneralName], options: dict[str, object], outcome: str, port: Port
) -> None:
    """Only an exact name of one principal, on a certificate that TLS verified; a common name says nothing."""
    shown = port.authority.certificate("w.internal", *names, **options)  # type: ignore[arg-type]
    assert await port.outcome(shown) == outcome
    if outcome == STRANGE:
        answer = await port.ask(shown)
        assert answer.code == "unauthenticated"
        assert "no principal here is named by this certificate" in answer.json["detail"]


async def test_another_authority_or_none(port: Port) -> None:
    """What somebody else signed is refused by TLS; without a certificate a key is asked for, or nobody let in."""
    folder = port.folder / "other"
    folder.mkdir()
    forged = Authority(folder).certificate("forged", WORKER)
    assert await port.outcome(forged) == NONE
    required = port.certificates.context.verify_mode is ssl.CERT_REQUIRED
    assert await port.outcome(None) == (NONE if required else STRANGE)
    key = {"Authorization": f"Bearer {port.secrets['keyed']}"}
    assert await port.outcome(None, **key) == (NONE if required else GOOD)


async def test_a_key_that_is_given_is_what_counts(port: Port) -> None:
    """Whoever gives one means it, so that a wrong one is not made good by a certificate."""
    producer = port.authority.certificate("p", PRODUCER)
    worker = port.authority.certificate("w", WORKER)
    assert (await port.ask(producer)).code == "forbidden"
    assert await port.outcome(producer, Authorization=f"Bearer {port.secrets['keyed']}") == GOOD
    assert (await port.ask(worker, Authorization="Bearer qb_wrong")).code == "unauthenticated"
    assert (await port.ask(worker, Authorization=f"Bearer {port.secrets['producer']}")).code == "forbidden"


@pytest.mark.parametrize("how", ["expired", "revoked"])
async def test_a_session_ends_with_its_certificate(how: str, port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment that the certificate says, or when its name is taken off the list."""
    _environ(monkeypatch, port, port.authority.certificate("w", WORKER))
    channel = WebSocketChannel(port.served.server.url)
    link = await channel.connect()
    link.send(Hello("a" * 32, "one", [Subscription("a/x", 4)]))
    assert isinstance(await link.receive(), Welcome)
    if how == "expired":
        port.ahead = 49 * 3600.0
    else:
        port.change(lambda found: without(found, "DNS:w.internal")[0])
    with pytest.raises(ChannelLost, match="knows no such key"):
        await _until_lost(link)
    await link.close()
    await channel.close()


async def test_a_body_that_is_on_its_way_when_its_certificate_is_taken_off(port: Port) -> None:
    """It is refused, and told of its certificate and not of a key that it never gave."""
    shown = port.authority.certificate("producer", PRODUCER)
    whole = request("POST", "/v1/queues/a/x/messages", b"x" * 10, media="text/plain")
    async with port.served.client(ssl=port.context(shown)) as client:
        await client.send(whole[:-9])
        # What was sent first is being read when this one is answered.
        assert await port.outcome(port.authority.certificate("worker", WORKER)) == GOOD
        port.change(lambda found: without(found, "URI:spiffe://x/p")[0])
        refused = await client.reply()
    assert (refused.status, refused.code) == (401, "unauthenticated")
    assert b"certificate" in refused.body
    assert port.served.bridge.describe("a/x") is None
    assert port.served.bridge.gate.rule.bytes == 0


@pytest.mark.parametrize("required", [False, True])
def test_the_own_one_is_judged_all_the_same(
    required: bool, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator hears of one that ends soon also where clients have to show theirs, before a new list and after."""
    day = datetime.timedelta(days=1)
    cert, key = write_self_signed(tmp_path, -80 * day, 10 * day)
    ca = Authority(tmp_path).file
    certificates = Certificates(str(cert), str(key), "tls", str(ca), required=required)
    folder = tmp_path / "new"
    folder.mkdir()
    Authority(folder).file.replace(ca)
    before = certificates.current()
    certificates.look()
    assert certificates.current() is not before
    assert caplog.text.count("expires in 240 hours") == 2


def test_a_pipe_is_no_authority(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would be waited for for ever, at the start and while it serves."""
    cert, key = write_self_signed(tmp_path)
    ca = Authority(tmp_path).file
    certificates = Certificates(str(cert), str(key), "tls", str(ca))
    before = certificates.current()
    ca.unlink()
    os.mkfifo(ca)
    with pytest.raises(ConfigurationError, match=r"tls_client_ca: .*no regular file"):
        Certificates(str(cert), str(key), "tls", str(ca))
    certificates.look()
    assert certificates.current() is before
    assert "no regular file" in caplog.text


async def test_every_client_shows_it(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store, bus, session and commands take it from the environment, and one that is replaced is shown from then on."""
    url = port.served.server.url
    _environ(monkeypatch, port, port.authority.certificate("p", PRODUCER))
    store, bus = HttpStore(url), HttpBus(url)
    await store.put("a/x", [b"one"])
    await bus.publish([CloudQueueWorkDetected("a", "x", 1)])
    with pytest.raises(NotAllowed, match="'take' is not granted"):
        await store.receive("a/x", 1, 30.0)
    port.authority.certificate("p", WORKER)
    assert len((await store.receive("a/x", 1, 30.0)).messages) == 1
    await store.close()
    await bus.close()

    def look() -> int:
        with BridgeClient(url) as client:
            return client.get("/v1/listeners")[0]

    assert await asyncio.to_thread(look) == 200


async def test_the_authority_is_replaced(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    """New connections need a certificate of the new one; an open connection stays, and a bad file changes nothing."""
    old = port.authority.certificate("old", WORKER)
    folder = port.folder / "new"
    folder.mkdir()
    other = Authority(folder)
    new = other.certificate("new", WORKER)
    async with port.served.client(ssl=port.context(old)) as steady:
        await steady.send(request("GET", "/v1/queues"))
        assert (await steady.reply()).status == 200
        for content, outcomes in ((b"none", (GOOD, NONE)), (other.file.read_bytes(), (NONE, GOOD))):
            part = port.authority.file.with_suffix(".part")
            part.write_bytes(content)
            part.replace(port.authority.file)
            port.certificates.look()
            assert (await port.outcome(old), await port.outcome(new)) == outcomes
            await steady.send(request("GET", "/v1/queues"))
            assert (await steady.reply()).status == 200
    assert "the files cannot be used" in caplog.text


def test_an_authority_that_cannot_be_used_is_refused(tmp_path: pathlib.Path) -> None:
    """When it is made, by its own key."""
    cert, key = write_self_signed(tmp_path)
    for wrong in (tmp_path / "missing", key):
        with pytest.raises(ConfigurationError, match="tls_client_ca: cannot use"):
            Certificates(str(cert), str(key), "tls", str(wrong))


async def _until_lost(link: Link) -> None:
    async with asyncio.timeout(100):
        while True:
            await link.receive()


def _environ(monkeypatch: pytest.MonkeyPatch, port: Port, shown: tuple[pathlib.Path, pathlib.Path]) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(port.cert))
    monkeypatch.setenv("QUEUEBELL_CLIENT_CERT", str(shown[0]))
    monkeypatch.setenv("QUEUEBELL_CLIENT_KEY", str(shown[1]))
