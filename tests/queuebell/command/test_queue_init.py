"""`queuebell queue init`: what it makes, what it says, and with which code it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.command import ROOT, perform
from tests.support.postgres import PostgresServer, running


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


def test_only_a_database_needs_tables() -> None:
    """Any other store is refused as a mistake of configuration."""
    assert b"database" in perform("queue", "init", "http://127.0.0.1:8470", code=78).stderr
    said = perform("queue", "init", "postgresql+asyncpg://me:s3cret@127.0.0.1/jobs", code=78).stderr
    assert b"without a driver's name" in said and b"s3cret" not in said


def test_the_address_comes_from_the_environment() -> None:
    """As for every other command, so that no list of processes shows a password; nothing here passes one otherwise."""
    done = perform("queue", "init", env={"QUEUEBELL_STORE": "postgres://me:s3cret@127.0.0.1:1/jobs"}, code=69)
    assert b"127.0.0.1:1/jobs" in done.stderr
    for file in [*ROOT.glob("docker-compose*.yml"), *(ROOT / "deploy").rglob("*.yaml")]:
        assert "$QUEUEBELL_STORE" not in file.read_text(encoding="utf-8"), file


def test_a_database_that_is_not_there() -> None:
    """Unreachable has its own exit code, and the password is not repeated."""
    done = perform("queue", "init", "postgres://me:s3cret@127.0.0.1:1/jobs", code=69)
    assert b"127.0.0.1:1/jobs" in done.stderr
    assert b"s3cret" not in done.stderr


@pytest.mark.system
def test_tables_are_made_once_and_used(server: PostgresServer) -> None:
    """It says what it did; a put and a get go after it, and not before."""
    url = server.url(search_path="command")
    assert b"queuebell queue init" in perform("queue", "put", "a/b", "x", "--store", url, code=78).stderr
    assert b"tables of schema 5 made" in perform("queue", "init", url).stdout
    assert b"nothing to do" in perform("queue", "init", url).stdout
    assert json.loads(perform("queue", "init", url, "--notify", "--json").stdout) == {
        "done": ["every put notifies the channel queuebell"]
    }
    perform("queue", "put", "a/b", "hello", "--store", url)
    assert perform("queue", "get", "a/b", "--store", url).stdout == b"hello\n"


@pytest.mark.system
def test_a_channel_that_is_none_is_refused_before_every_put_fails(server: PostgresServer) -> None:
    """A prefix too long for a channel would have each INSERT refused."""
    env = {"QUEUEBELL_PREFIX": "p" * 64}
    perform("queue", "init", server.url(search_path="long"), "--notify", env=env, code=78)
