"""The bridge's own port over TLS: who is asked, what is refused, and certificates that are replaced under load."""

from __future__ import annotations

import asyncio
import pathlib
import ssl

import aiohttp
import pytest

from bridge.contract.errors import ConfigurationError
from bridge.http.server.settings import WebSettings, check_settings
from bridge.http.server.tls import Certificates
from tests.support.certificates import write_self_signed
from tests.support.web import Served, request, serving


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


async def _served_by(served: Served) -> bytes:
    """The certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", served.server.port, ssl=context)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(shown, bytes)
        return shown
    finally:
        writer.close()
        await writer.wait_closed()


async def test_certificates_replaced_under_load(tmp_path: pathlib.Path) -> None:
    """Twenty times: new connections get the new one, the open one is never cut, and no request fails."""
    made = []
    for number in range(21):
        folder = tmp_path / str(number)
        folder.mkdir()
        made.append(write_self_signed(folder))
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(number: int) -> None:
        for source, target in zip(made[number], (cert, key), strict=True):
            part = target.with_suffix(".part")
            part.write_bytes(source.read_bytes())
            part.replace(target)

    install(0)
    certificates = Certificates(str(cert), str(key), "tls")
    answered = 0
    async with serving(tls=certificates.context) as served:
        shown = {await _served_by(served)}
        async with served.client(ssl=trusting(made[0][0])) as steady:
            for number in range(1, 21):
                install(number)
                certificates.look()
                shown.add(await _served_by(served))
                assert len(shown) == number + 1
                async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting(made[number][0]))) as new:
                    for _ in range(5):
                        async with new.get(f"{served.server.url}/livez") as answer:
                            answered += answer.status == 200
                await steady.send(request("GET", "/livez"))
                answered += (await steady.reply()).status == 200
    assert answered == 120


async def test_files_that_do_not_fit_change_nothing(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Between the copying of one and of the other, and while a file is away: what was served goes on."""
    caplog.set_level("INFO", "queuebell.web")
    (tmp_path / "other").mkdir()
    cert, key = write_self_signed(tmp_path)
    other_cert, other_key = write_self_signed(tmp_path / "other")
    certificates = Certificates(str(cert), str(key), "tls")
    async with serving(tls=certificates.context) as served:
        before = await _served_by(served)
        whole = cert.read_bytes(), key.read_bytes()
        for broken in (other_cert.read_bytes(), b"", b"no PEM"):
            cert.write_bytes(broken)
            certificates.look()
            assert await _served_by(served) == before
        cert.unlink()
        certificates.look()
        assert await _served_by(served) == before
        said = [record for record in caplog.records if "cannot be used" in record.getMessage()]
        assert len(said) == 4
        certificates.look()
        assert len([record for record in caplog.records if "cannot be used" in record.getMessage()]) == 4
        cert.write_bytes(other_cert.read_bytes())
        key.write_bytes(other_key.read_bytes())
        certificates.look()
        assert await _served_by(served) != before
        assert whole[1] != key.read_bytes()
        read = [record for record in caplog.records if record.getMessage() == "certificates read again"]
        assert [getattr(record, "file", "") for record in read] == [str(cert)]


def test_what_cannot_be_served_is_refused(tmp_path: pathlib.Path) -> None:
    """Half a pair, files that are away, and a key that asks for a password: by the setting's name."""
    cert, key = write_self_signed(tmp_path)
    for half in ((str(cert), None), (None, str(key)), (str(cert), "")):
        with pytest.raises(ConfigurationError, match=r"tls_(cert|key): HTTPS needs both"):
            Certificates(*half, "tls")
    for wrong in (
        (str(tmp_path / "none"), str(key)),
        (str(key), str(cert)),
        (str(cert), str(cert)),
        ("a\0b", str(key)),
    ):
        with pytest.raises(ConfigurationError, match="tls_cert: cannot use"):
            Certificates(*wrong, "tls")


@pytest.mark.parametrize(
    ("settings", "fine"),
    [
        ({"host": "127.0.0.1"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "guarded": True}, True),
        ({"host": "0.0.0.0", "insecure_public": True}, True),
        ({"host": "bridge.example"}, False),
    ],
)
def test_where_a_bridge_may_listen(settings: dict[str, object], fine: bool) -> None:
    """Beyond this machine only with authentication and TLS, or where somebody insists."""
    if fine:
        check_settings(WebSettings(**settings))  # type: ignore[arg-type]
    else:
        with pytest.raises(ConfigurationError, match="--auth, --tls-cert, --tls-key"):
            check_settings(WebSettings(**settings))  # type: ignore[arg-type]
