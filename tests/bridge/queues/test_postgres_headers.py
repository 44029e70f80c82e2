"""Headers in PostgreSQL: put by plain SQL, within transactions of every driver, and what no table lets in."""

from __future__ import annotations

import json

import asyncpg
import pytest

from bridge.contract.errors import BadInput
from bridge.contract.headers import checked_headers
from bridge.queues.base import NewMessage
from bridge.queues.postgres.schema import MIGRATIONS, init
from bridge.queues.postgres.store import PostgresStore
from bridge.queues.postgres.transaction import put_once_in_transaction
from tests.bridge.contract.test_headers import NO_NAMES, NO_VALUES
from tests.bridge.queues.postgres_rig import QUEUE, schema, server, store, url
from tests.conformance.headers import HOSTILE, LARGEST
from tests.support.postgres import PostgresServer, execute, init_as
from tests.support.transactions import OPENERS, Blocking, Opener

__all__ = ["schema", "server", "store", "url"]
pytestmark = pytest.mark.system
FUNCTION = "SELECT queuebell_put($1, 'x', headers => $2::text::jsonb)"
PLAIN = "INSERT INTO queuebell_messages (queue, text, headers) VALUES ($1, 'x', $2::text::jsonb)"
each_way = pytest.mark.parametrize("statement", [FUNCTION, PLAIN], ids=["function", "insert"])
WRONG: tuple[object, ...] = (
    *({name: "x"} for name in NO_NAMES if isinstance(name, str) and "\0" not in name),
    *({"a": value} for value in NO_VALUES if not isinstance(value, bytes) and "\0" not in str(value)
      and "\ud800" not in str(value) and "\udc00" not in str(value)),
    [], "a", 7, {"a": "1", "A": "2"}, {"a": "x" * 8192}, {f"{n}": "" for n in range(65)},
)  # fmt: skip


@pytest.fixture(autouse=True)
def beside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Django block in a test, where a loop runs; a program of Django's has none there."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


@each_way
async def test_plain_sql_puts_headers(url: str, store: PostgresStore, statement: str) -> None:
    """Whatever may stand in them, names in lower case, and none where there are none."""
    wanted: list[dict[str, str]] = [HOSTILE, *LARGEST, {}, {}]
    for headers in (*wanted[:-1], None):
        await execute(url, statement, QUEUE, None if headers is None else json.dumps(headers))
    await execute(url, statement, QUEUE, '{"Trace-ID": "X"}')
    found = (await store.receive(QUEUE, 32)).messages
    assert [message.headers for message in found] == [*wanted, {"trace-id": "X"}]
    assert found[0].body == b"x"


@each_way
async def test_plain_sql_is_held_to_the_same_rule(url: str, store: PostgresStore, statement: str) -> None:
    """What the rule of ours refuses the database refuses in its words, and nothing was put."""
    await store.create(QUEUE)
    for wrong in WRONG:
        with pytest.raises(BadInput):
            checked_headers(wrong)
        with pytest.raises(asyncpg.InvalidParameterValueError, match="nothing was put"):
            await execute(url, statement, QUEUE, json.dumps(wrong))
    assert await store.peek(QUEUE) == []


async def test_all_kinds_of_bodies_take_headers(url: str, store: PostgresStore) -> None:
    """By the name of the argument or by its place, beside a delay and a life."""
    for body in ("'text'::text", "'\\xff'::bytea", "'{}'::jsonb", "'{}'::json", "'unknown'"):
        await execute(url, f'SELECT queuebell_put($1, {body}, headers => \'{{"a": "b"}}\')', QUEUE)
        await execute(url, f"SELECT queuebell_put($1, {body}, '0', '1 hour', '{{\"a\": \"b\"}}')", QUEUE)
        await execute(url, f"SELECT queuebell_put($1, {body}, '0')", QUEUE)
    found = (await store.receive(QUEUE, 32)).messages
    assert [message.headers for message in found] == [{"a": "b"}, {"a": "b"}, {}] * 5


async def test_what_stands_in_the_table_all_the_same_harms_nobody(url: str, store: PostgresStore) -> None:
    """Somebody who goes round the rule has a message whose readable headers are read."""
    for wrong in ("[]", '"x"', '{"a": 7, "b": "\\n", "c": "d"}'):
        await execute(
            url,
            "INSERT INTO queuebell_messages (queue, body, inserted_at, headers)"
            " VALUES ($1, 'x', clock_timestamp(), $2::text::jsonb)",
            QUEUE,
            wrong,
        )
    assert [message.headers for message in (await store.receive(QUEUE, 3)).messages] == [{}, {}, {"c": "d"}]


@pytest.mark.parametrize("opened", OPENERS, ids=lambda opener: opener.__name__.removeprefix("by_"))
async def test_puts_in_a_transaction_have_headers(
    server: PostgresServer, schema: str, store: PostgresStore, opened: Opener
) -> None:
    """Commas, backslashes and colons among them, some with and some without, under a key too, by each driver."""
    headers = {**HOSTILE, "commas": "a,b,,", "places": "$1 %s :p1 %(p1)s ::text"}
    bodies = [NewMessage("one", headers=headers), NewMessage("two"), NewMessage("three", headers={"a": "b"})]
    async with opened(server, schema) as joined:
        await joined.put(store, QUEUE, bodies)
        await joined.put(store, QUEUE, [NewMessage("four")])
        once = NewMessage("five", headers=headers)
        if isinstance(joined, Blocking):
            assert put_once_in_transaction(joined.connection, QUEUE, "key", once)
            assert put_once_in_transaction(joined.connection, QUEUE, "plain", "six")
        else:
            assert await store.put_once(QUEUE, "key", once, connection=joined.connection)
            assert await store.put_once(QUEUE, "plain", "six", connection=joined.connection)
        await joined.end(True)
    found = {message.body: message.headers for message in (await store.receive(QUEUE, 32)).messages}
    assert found == {b"one": headers, b"two": {}, b"three": {"a": "b"}, b"four": {}, b"five": headers, b"six": {}}


async def test_many_under_keys_have_their_own(store: PostgresStore) -> None:
    """Some with and some without, in one statement."""
    messages = [
        (f"k{each}", NewMessage(b"%d" % each, headers={"n": str(each)} if each % 3 else {})) for each in range(64)
    ]
    assert await store.put_each_once(QUEUE, messages) == 64
    assert await store.put_each_once(QUEUE, [("new", NewMessage("64"))]) == 1
    for message in (await store.receive(QUEUE, 128)).messages:
        assert message.headers == (
            {"n": message.body.decode()} if message.key != "new" and int(message.body) % 3 else {}
        )


async def test_messages_of_the_schema_before_are_there(url: str) -> None:
    """Without headers, beside new ones that have some, in the same table."""
    await init_as(url, len(MIGRATIONS) - 1)
    await execute(url, "SELECT queuebell_put($1, 'old')", QUEUE)
    await init(url)
    async with PostgresStore(url) as store:
        await store.put(QUEUE, [NewMessage("new", headers=HOSTILE)])
        assert [each.headers for each in (await store.receive(QUEUE, 2)).messages] == [{}, HOSTILE]
