"""TLS: connections, client certificates, and certificates that expired or cannot be read (S39)."""

from __future__ import annotations

import asyncio
import datetime
import os
import pathlib
import ssl
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from cryptography import x509

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.keys import with_terms, without
from queuebell.bridge.brokers.credential import JUDGED_EVERY_S
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.http.server.tls import Certificates
from tests.support.access import written
from tests.support.certificates import Authority, write_self_signed
from tests.support.web import Reply, Served, request, serving


def trusting(*certificates: pathlib.Path) -> ssl.SSLContext:
    """A client's side that trusts these."""
    context = ssl.create_default_context(cafile=str(certificates[0]))
    for more in certificates[1:]:
        context.load_verify_locations(str(more))
    return context


async def test_requests_and_pages_over_tls(tmp_path: pathlib.Path) -> None:
    """The server speaks HTTPS and nothing else; a page of its own origin is one of https."""
    cert, key = write_self_signed(tmp_path)
    certificates = Certificates(str(cert), str(key), "tls")
    assert certificates.context.minimum_version is ssl.TLSVersion.TLSv1_2
    async with serving(tls=certificates.context) as served:
        assert served.server.url == f"https://127.0.0.1:{served.server.port}"
        async with served.client(ssl=trusting(cert)) as client:
            for origin, status in (("https://127.0.0.1", 200), ("http://127.0.0.1", 403)):
                await client.send(request("GET", "/v1/queues", Origin=origin))
                assert (await client.reply()).status == status
        async with served.client() as client:
            await client.send(request("GET", "/livez"))
            assert b"200" not in await client.rest()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(str(cert))
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", served.server.port, ssl=old)


DAY = datetime.timedelta(days=1)


def test_it_is_judged_again_while_it_serves(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A bridge that runs for months says so too, a few times a day."""
    cert, key = write_self_signed(tmp_path, -80 * DAY, 30 * DAY)
    key.chmod(0o600)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    moment = now
    certificates = Certificates(str(cert), str(key), "tls", wall=lambda: moment)
    for days, lines in ((1, 0), (17, 1)):
        moment = now + days * 86_400
        certificates.check()
        certificates.check()
        assert len(caplog.records) == lines
    moment += JUDGED_EVERY_S
    certificates.check()
    assert len(caplog.records) == 2


WORKER = x509.DNSName("w.internal")
PRODUCER = x509.UniformResourceIdentifier("spiffe://x/p")
GRANTS = {
    "worker": {"take": ["a/*"], "look": ["a/*"], "operate": ["*"]},
    "producer": {"put": ["a/*"], "ring": ["a/*"]},
    "keyed": {"look": ["a/*"]},
}
GOOD, NONE = "200", "handshake"


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
    certificates.check()
    assert certificates.current() is not before
    assert certificates.current().verify_mode is (ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL)
    assert caplog.text.count("expires in 240 hours") == 2


def test_a_pipe_is_no_authority(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would be waited for for ever, at the start and while it serves."""
    cert, key = write_self_signed(tmp_path)
    ca = Authority(tmp_path).file
    certificates = Certificates(str(cert), str(key), "tls", str(ca))
    before = certificates.current()
    ca.unlink()
    os.mkfifo(ca)
    with pytest.raises(ConfigurationError, match=r"tls_client_ca: .*not a regular file"):
        Certificates(str(cert), str(key), "tls", str(ca))
    certificates.check()
    assert certificates.current() is before
    assert "not a regular file" in caplog.text
