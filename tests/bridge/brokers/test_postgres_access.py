"""Addresses of PostgreSQL databases."""

from __future__ import annotations

import pytest

from bridge.brokers.postgres.access import PostgresAccess
from bridge.contract.errors import ConfigurationError


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


def test_a_server_has_to_take_writes_unless_somebody_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is asked first, then the client's own environment."""
    monkeypatch.delenv("PGTARGETSESSIONATTRS", raising=False)
    assert PostgresAccess("postgres://one/jobs").writes
    assert PostgresAccess("postgres://one/jobs?target_session_attrs=read-write").writes
    assert not PostgresAccess("postgres://one/jobs?target_session_attrs=any").writes
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    assert not PostgresAccess("postgres://one/jobs").writes
    assert PostgresAccess("postgres://one/jobs?target_session_attrs=read-write").writes
