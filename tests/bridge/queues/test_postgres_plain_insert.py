"""Puts by plain SQL: any text, JSON and bytes, by every driver, arrive as the very bytes; what cannot is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable

import psycopg
import pytest
from psycopg.types.json import Jsonb

from bridge.brokers.postgres.access import PostgresAccess
from bridge.contract.errors import ConfigurationError, NotPrepared
from bridge.queues.base import Claim, NewMessage, Settlement
from bridge.queues.postgres import connections as postgres_connections
from bridge.queues.postgres import sql
from bridge.queues.postgres.schema import MIGRATIONS, init
from bridge.queues.postgres.store import PostgresStore
from tests.bridge.queues.postgres_rig import QUEUE, schema, server, store, url
from tests.support.postgres import PostgresServer, execute, init_as
from tests.support.processes import ROOT, environment

__all__ = ["schema", "server", "store", "url"]
pytestmark = pytest.mark.system
JSONS = (
    r'{"a": "one\ntwo"}',
    r'{"path": "C:\\temp\\101"}',
    r'{"said": "\"hm\" \u00e9 \\u0041"}',
    '{"name": "J\u00fcrgen \U0001f514 it\'s %s $1 :x"}',
    '{"nothing": [], "null": null}',
)
TEXTS = (*JSONS, "", "\\", "a\\", r"\x41", r"\xdeadbeef", r"\101", r"\\", "two\r\nlines\ttab", "'quote''d'", "$$ %% ?")
PLAIN = "INSERT INTO queuebell_messages (queue, {column}) VALUES ({queue}, {value})"
FUNCTION = "SELECT queuebell_put({queue}, {value})"
CASTS = {"text": "", "jsonb": "::jsonb", "bytea": "::bytea"}
COLUMNS = {"text": "text", "jsonb": "text", "bytea": "bytes"}

Call = tuple[str, str, str]
"""A statement, the type of what it puts, and its value."""


async def by_asyncpg(server: PostgresServer, schema: str, calls: list[Call]) -> None:
    connection = await PostgresAccess(server.url(search_path=schema)).connect()
    try:
        for statement, kind, value in calls:
            await connection.execute(statement, QUEUE, value.encode() if kind == "bytea" else value)
    finally:
        await connection.close()


async def by_psycopg(server: PostgresServer, schema: str, calls: list[Call]) -> None:
    async with await psycopg.AsyncConnection.connect(server.url(), options=f"-csearch_path={schema}") as connection:
        for statement, kind, value in calls:
            given = value.encode() if kind == "bytea" else Jsonb(json.loads(value)) if kind == "jsonb" else value
            await connection.execute(statement.replace("$1", "%s").replace("$2", "%s"), (QUEUE, given))


async def by_node(server: PostgresServer, schema: str, calls: list[Call]) -> None:
    node = shutil.which("node")
    assert node, "no node"
    subprocess.run(
        [node, str(ROOT / "tests/bridge/queues/postgres_insert.cjs"), server.url(), schema, QUEUE],
        input=json.dumps(calls).encode(),
        env=environment(NODE_PATH=str(ROOT / ".ci" / "node" / "node_modules")),
        check=True,
        timeout=50,
    )


async def by_psql(server: PostgresServer, schema: str, calls: list[Call]) -> None:
    """As a person types: each value is a literal in quotes, of which only the quote is doubled."""
    lines = [f"SET search_path = {schema};"]
    for statement, kind, value in calls:
        given = f"\\x{value.encode().hex()}" if kind == "bytea" else value
        literal = "'" + given.replace("'", "''") + "'"
        lines.append(statement.replace("$1", f"'{QUEUE}'").replace("$2", literal) + ";")
    run_psql(server, "\n".join(lines).encode())


def run_psql(server: PostgresServer, script: bytes, *, encoding: str = "UTF8") -> None:
    psql = shutil.which("psql")
    assert psql, "no psql"
    command = [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", os.devnull, server.url()]
    subprocess.run(command, input=script, env=environment(PGCLIENTENCODING=encoding), check=True, timeout=50)


Driver = Callable[[PostgresServer, str, list[Call]], Awaitable[None]]


@pytest.mark.parametrize("way", [PLAIN, FUNCTION], ids=["insert", "function"])
@pytest.mark.parametrize("kind", ["text", "jsonb", "bytea"])
@pytest.mark.parametrize("driver", [by_asyncpg, by_psycopg, by_node, by_psql])
async def test_what_a_driver_gives_is_what_a_worker_gets(
    server: PostgresServer, schema: str, store: PostgresStore, driver: Driver, kind: str, way: str
) -> None:
    """Backslashes, quotes and letters of any script, in both documented ways; JSON that was parsed means the same."""
    statement = way.format(column=COLUMNS[kind], queue="$1", value="$2" + CASTS[kind])
    values = JSONS if kind == "jsonb" else TEXTS
    await driver(server, schema, [(statement, kind, value) for value in values])
    bodies = [message.body for message in (await store.receive(QUEUE, 32)).messages]
    if kind == "jsonb":
        assert [json.loads(body) for body in bodies] == [json.loads(value) for value in values]
    else:
        assert bodies == [value.encode() for value in values]


@pytest.mark.parametrize("driver", [by_asyncpg, by_psycopg, by_node])
async def test_a_text_needs_no_cast(server: PostgresServer, schema: str, store: PostgresStore, driver: Driver) -> None:
    """Of the functions of one name the one for texts is taken where the driver leaves the type open."""
    await driver(server, schema, [("SELECT queuebell_put($1, $2)", "text", value) for value in TEXTS])
    assert [message.body for message in (await store.receive(QUEUE, 32)).messages] == [each.encode() for each in TEXTS]


async def test_another_encoding_of_the_client(server: PostgresServer, schema: str, store: PostgresStore) -> None:
    """A body is the UTF-8 of the text, whatever the client writes in."""
    script = (
        f"SET search_path = {schema}; INSERT INTO queuebell_messages (queue, text) VALUES ('{QUEUE}', 'J\u00fcrgen');"
    )
    run_psql(server, script.encode("latin-1"), encoding="LATIN1")
    assert [message.body for message in (await store.receive(QUEUE)).messages] == ["J\u00fcrgen".encode()]


@pytest.mark.parametrize(
    "given",
    ["(queue, body) VALUES ($1, '{}')", "(queue, body) VALUES ($1, convert_to('{}', 'UTF8'))",
     "(queue, body, text) VALUES ($1, '{}', '{}')", "(queue, text, bytes) VALUES ($1, '{}', '{}')",
     "(queue) VALUES ($1)", "(queue, text) VALUES ($1, NULL)"],
)  # fmt: skip
async def test_what_could_be_changed_on_its_way_is_refused(url: str, store: PostgresStore, given: str) -> None:
    """An INSERT that names the bytes themselves, both ways at once, or none says which columns are meant."""
    import asyncpg

    with pytest.raises(asyncpg.FeatureNotSupportedError, match="either text or bytes") as refused:
        await execute(url, f"INSERT INTO queuebell_messages {given}", QUEUE)
    assert "(queue, text)" in refused.value.hint
    assert await store.depth(QUEUE) is None


async def test_an_insert_is_complete(url: str, store: PostgresStore) -> None:
    """Nothing of what was given stays beside the body; a delay, an expiry and many rows at once go as they went."""
    await execute(
        url,
        "INSERT INTO queuebell_messages (queue, text, visible_at, expires_at) "
        "SELECT $1, 'n' || n, now() - interval '1 s', now() + interval '1 h' FROM generate_series(1, 3) AS n",
        QUEUE,
    )
    rows = await execute(url, "SELECT body, text, bytes, inserted_at IS NOT NULL AS timed FROM queuebell_messages")
    assert [tuple(row) for row in rows] == [(body, None, None, True) for body in (b"n1", b"n2", b"n3")]
    assert all(message.expires_at for message in (await store.receive(QUEUE, 3)).messages)


async def test_a_worker_of_the_older_version_goes_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It puts, receives and settles while the tables are migrated under it; one that starts afterwards refuses."""
    older = len(MIGRATIONS) - 1
    await init_as(url, older)
    monkeypatch.setattr(postgres_connections, "SCHEMA_VERSION", older)
    # It knew of no headers.
    monkeypatch.setattr(sql, "RECEIVE", sql.RECEIVE.replace("m.headers", "NULL::text AS headers"))
    put = sql.PUT.replace("expires_at, headers)", "expires_at)").replace(", given.headers::jsonb", "")
    monkeypatch.setattr(sql, "PUT", put)
    async with PostgresStore(url) as old:
        await old.put(QUEUE, [NewMessage(b"\\before")])
        (held,) = (await old.receive(QUEUE)).messages
        assert await init(url) == [f"tables migrated from schema {older} to {len(MIGRATIONS)}"]
        assert (await old.settle(QUEUE, Settlement(delete=[Claim(held.id, held.pop_receipt)]))).delete[0].ok
        await old.put(QUEUE, [NewMessage(b"\\after")])
        assert [message.body for message in (await old.receive(QUEUE)).messages] == [b"\\after"]
    async with PostgresStore(url) as late:
        with pytest.raises(ConfigurationError, match="newer version"):
            await late.receive(QUEUE)


async def test_a_worker_of_this_version_waits_for_the_tables(url: str) -> None:
    """At tables of the older schema it says what to run, and takes nothing until that was done."""
    await init_as(url, len(MIGRATIONS) - 1)
    await execute(url, "SELECT queuebell_put($1, 'kept')", QUEUE)
    async with PostgresStore(url) as store:
        with pytest.raises(NotPrepared, match="queuebell queue init"):
            await store.receive(QUEUE)
        await init(url)
        assert [message.body for message in (await store.receive(QUEUE)).messages] == [b"kept"]
