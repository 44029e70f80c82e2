"""Where a client's key comes from, where it goes, and where it never goes."""

from __future__ import annotations

import pathlib
import time

import pytest

from bridge.brokers.credential import JUDGED_EVERY_S, ClientCertificate, Credential, key_option
from bridge.brokers.postgres.access import PostgresAccess
from bridge.contract.address import http_addresses
from bridge.contract.errors import ConfigurationError
from tests.support.certificates import Authority, write_self_signed

HERE = http_addresses("http://127.0.0.1:8470", "bridge")[0]


def carried(key: str) -> dict[str, str]:
    """What a request has of a key."""
    return {"Authorization": f"Bearer {key}"}


def test_a_file_is_followed(tmp_path: pathlib.Path) -> None:
    """A new one counts at once; while it is away or half-written, the old one does."""
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
    """Neither its text form nor a complaint about where it was given."""
    assert "secret" not in repr(Credential(HERE, "secret", {}))
    with pytest.raises(ConfigurationError, match="a broker has users") as refused:
        key_option("nats://a", "secret")
    assert "secret" not in str(refused.value)
    assert key_option("https://a", "k") == {"api_key": "k"}
    assert key_option("nats://a", None) == {}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1,bell.example", "http://bell.example,localhost:1"])
def test_of_equal_bridges_all_may_be_shown_the_key(url: str) -> None:
    """Where one of them would hear it in the clear, none is given it; without a key nothing is said of it."""
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
    """By the name of the variable, before anything is sent."""
    cert, key = write_self_signed(tmp_path)
    for wrong in (named(tmp_path / "none", key), named(cert), named(cert, cert), named("\0", key)):
        with pytest.raises(ConfigurationError, match="QUEUEBELL_CLIENT_CERT: cannot use"):
            Credential(HTTPS, None, wrong)
    with pytest.raises(ConfigurationError, match="has no effect without QUEUEBELL_CLIENT_CERT"):
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
        (-1.0, "has expired: bridges reject it; replace it"),
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


def test_no_secret_leaves_the_address() -> None:
    """What is logged and compared names the database, and neither user nor password nor options."""
    access = PostgresAccess("postgres://me:s3cret@db.example:6432/jobs?sslmode=require&search_path=bell")
    assert access.text == "postgres://db.example:6432/jobs"
    assert access.place == "postgres://db.example:6432/jobs?bell"
    assert "s3cret" not in repr(access)


def test_one_database_has_one_place() -> None:
    """Two ways of writing the same database are one; another schema is another place."""
    places = [
        PostgresAccess(url).place
        for url in (
            "postgres://a@localhost/jobs",
            "postgresql://b:x@127.0.0.1:5432/jobs",
            "postgres:///jobs?host=localhost",
        )
    ]
    assert len(set(places)) == 1
    assert PostgresAccess("postgres://localhost/jobs?search_path=x").place not in places


@pytest.mark.parametrize(
    "url",
    [
        "mysql://host/db", "postgres://host", "postgres://host/", "postgres://host/a/b", "postgres://host:port/db",
        "postgres://host/db#x", "postgres://host/db?pool=3", "postgres://host/db?command_timeout=5",
        "postgres://me:s3cret@[::1/db",
    ],
)  # fmt: skip
def test_a_wrong_address_is_refused_without_being_repeated(url: str) -> None:
    """Each mistake is told when the address is read, and the message holds none of it."""
    with pytest.raises(ConfigurationError) as refused:
        PostgresAccess(url)
    assert url.partition("://")[2] not in str(refused.value)


def test_numbers_of_the_caller() -> None:
    """An option of the caller is read, bounded, and kept from the client."""
    url = "postgres://host/db?pool_size="
    assert PostgresAccess(url + "5", options=("pool_size",)).number("pool_size", 8, most=100) == 5
    assert PostgresAccess("postgres://host/db", options=("pool_size",)).number("pool_size", 8, most=100) == 8
    for text in ("0", "101", "-1", "five", ""):
        with pytest.raises(ConfigurationError):
            PostgresAccess(url + text, options=("pool_size",)).number("pool_size", 8, most=100)


def test_several_hosts_are_one_place_in_any_order() -> None:
    """The hosts may stand before the database or in options, and have one port for all or one for each."""
    places = [
        PostgresAccess(url).place
        for url in (
            "postgres://me:x@one:5433,two/jobs",
            "postgres://two:5432,one:5433/jobs",
            "postgres:///jobs?host=one,two&port=5433,5432",
            "postgres:///jobs?host=one%2Ctwo&port=5433%2C5432",
            "postgres://one,two/jobs?port=5433,5432",
        )
    ]
    assert places == ["postgres://one:5433,two:5432/jobs?"] * 5
    assert PostgresAccess("postgres://[::1],two:1/jobs").text == "postgres://[::1]:5432,two:1/jobs"
    assert PostgresAccess("postgres:///jobs?host=one,two&port=1").place == "postgres://one:1,two:1/jobs?"
    for wrong in ("one,two:x/jobs", "one,two/jobs?port=1,2,3", "one/jobs?port=x"):
        with pytest.raises(ConfigurationError):
            PostgresAccess(f"postgres://{wrong}")
