"""The tables of the store on PostgreSQL, their migrations, and the optional triggers that NOTIFY of puts.

Each schema version is a script, which is never changed. `init` runs the missing ones in one transaction, one process at
a time; ``--notify`` creates the triggers, ``--no-notify`` removes them and records that this is intended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from queuebell.bridge.brokers.address import check_prefix
from queuebell.bridge.brokers.postgres.access import CHANNEL_BYTES_MAX, PostgresAccess, client, is_pooler
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.headers import HEADERS_BYTES_MAX, HEADERS_MAX, RESERVED
from queuebell.bridge.contract.names import DEFAULT_PREFIX
from queuebell.bridge.queues.postgres.connections import SCHEMA_VERSION, explain, search_in

_LOCK: Final = 0x71756575656265  # Any number, the same for all processes.
_REFERENCE: Final = "'^[A-Za-z0-9][A-Za-z0-9_-]{0,79}/[A-Za-z0-9][A-Za-z0-9_-]{0,79}$'"

_FIRST: Final = f"""
CREATE TABLE queuebell_queues (
    name text COLLATE "C" PRIMARY KEY CHECK (name ~ {_REFERENCE}),
    metadata jsonb NOT NULL DEFAULT '{{}}',
    paused boolean NOT NULL DEFAULT false
);
CREATE TABLE queuebell_messages (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL CHECK (queue ~ {_REFERENCE}),
    body bytea NOT NULL CHECK (octet_length(body) <= 65536),
    visible_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    receipt uuid NOT NULL DEFAULT gen_random_uuid(),
    inserted_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX queuebell_messages_due ON queuebell_messages (queue, visible_at, id) INCLUDE (expires_at);
CREATE INDEX queuebell_messages_expiry ON queuebell_messages (queue, expires_at) WHERE expires_at IS NOT NULL;

CREATE FUNCTION queuebell_put(queue text, body bytea, delay interval DEFAULT '0', ttl interval DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    made bigint;
BEGIN
    -- Looked up first: two transactions that make the same new queue wait for each other, all later ones do not.
    IF NOT EXISTS (SELECT FROM queuebell_queues WHERE name = queuebell_put.queue) THEN
        INSERT INTO queuebell_queues (name) VALUES (queuebell_put.queue) ON CONFLICT (name) DO NOTHING;
    END IF;
    INSERT INTO queuebell_messages (queue, body, inserted_at, visible_at, expires_at)
    VALUES (queuebell_put.queue, queuebell_put.body, moment, moment + greatest(delay, '0'), moment + ttl)
    RETURNING id INTO made;
    RETURN made;
END $$;
CREATE FUNCTION queuebell_put(queue text, body text, delay interval DEFAULT '0', ttl interval DEFAULT NULL)
RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT queuebell_put(queue, convert_to(body, 'UTF8'), delay, ttl)
$$;
"""  # noqa: S608

# Checks run at each update of a row, even of other columns. With counted repetitions they took a third of the time of a
# receive; separate checks of lengths are faster.
_LETTERS: Final = "'^[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9][A-Za-z0-9_-]*$'"
_SECOND: Final = "".join(
    f"""
ALTER TABLE {table} DROP CONSTRAINT {table}_{column}_check, ADD CONSTRAINT {table}_{column}_check CHECK (
    {column} ~ {_LETTERS} AND length(split_part({column}, '/', 1)) <= 80 AND length(split_part({column}, '/', 2)) <= 80
);
"""
    for table, column in (("queuebell_queues", "name"), ("queuebell_messages", "queue"))
)
# Of two indexes with equal cost, as on a table vacuumed while empty, the planner uses the younger one. For ids it must
# be this one: the other would be scanned completely, and the plan stays when the table grows.
_YOUNGEST: Final = "ALTER TABLE queuebell_messages DROP CONSTRAINT queuebell_messages_pkey, ADD PRIMARY KEY (id);"

# A text given to a column of bytes is parsed for escapes, so that JSON with a backslash is changed or rejected
# unnoticed. So a plain INSERT uses `text` or `bytes`, which are empty in every row. Statements that give the body as
# bytes, also those of older workers, set `inserted_at` too, and so avoid the trigger.
_THIRD: Final = """
ALTER TABLE queuebell_messages ADD COLUMN text text, ADD COLUMN bytes bytea, ALTER COLUMN inserted_at DROP DEFAULT;

CREATE FUNCTION queuebell_take_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF new.body IS NOT NULL OR num_nonnulls(new.text, new.bytes) <> 1 THEN
        RAISE EXCEPTION 'queuebell_messages: a plain INSERT gives either text or bytes, and never body'
        USING ERRCODE = 'feature_not_supported', HINT = 'A text given to body, which is bytea, would be read as escapes'
            ' and changed. INSERT INTO queuebell_messages (queue, text) takes any text and JSON, (queue, bytes) takes'
            ' bytea, and queuebell_put(queue, ...) takes all of them. Nothing was put.';
    END IF;
    new.body := coalesce(new.bytes, convert_to(new.text, 'UTF8'));
    new.text := NULL;
    new.bytes := NULL;
    new.inserted_at := coalesce(new.inserted_at, clock_timestamp());
    RETURN new;
END $$;
CREATE TRIGGER queuebell_insert BEFORE INSERT ON queuebell_messages FOR EACH ROW
    WHEN (new.inserted_at IS NULL OR new.text IS NOT NULL OR new.bytes IS NOT NULL)
    EXECUTE FUNCTION queuebell_take_insert();
""" + "".join(
    f"""
CREATE FUNCTION queuebell_put(queue text, body {kind}, delay interval DEFAULT '0', ttl interval DEFAULT NULL)
RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT queuebell_put(queue, body::text, delay, ttl)
$$;
"""
    for kind in ("jsonb", "json")
)

# The index for puts under keys contains only messages with keys, so others cost nothing more.
_FOURTH: Final = """
ALTER TABLE queuebell_messages ADD COLUMN key text COLLATE "C";
CREATE INDEX queuebell_messages_key ON queuebell_messages (queue, key) WHERE key IS NOT NULL;
CREATE TABLE queuebell_once (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (queue, key)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX queuebell_once_until ON queuebell_once (until);

CREATE OR REPLACE FUNCTION queuebell_put(queue text, body bytea, delay interval DEFAULT '0', ttl interval DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    made bigint;
BEGIN
    -- One transaction at a time makes a queue; others put without waiting for its end.
    IF NOT EXISTS (SELECT FROM queuebell_queues WHERE name = queuebell_put.queue) THEN
        INSERT INTO queuebell_queues (name) SELECT queuebell_put.queue
        WHERE pg_try_advisory_xact_lock(hashtextextended('queuebell ' || queuebell_put.queue, 0))
        ON CONFLICT (name) DO NOTHING;
    END IF;
    INSERT INTO queuebell_messages (queue, body, inserted_at, visible_at, expires_at)
    VALUES (queuebell_put.queue, queuebell_put.body, moment, moment + greatest(delay, '0'), moment + ttl)
    RETURNING id INTO made;
    RETURN made;
END $$;
"""

# Checks headers of plain SQL by the rules of `bridge.contract.headers`, as the store does before its statements.
_HEADERS: Final = f"""
ALTER TABLE queuebell_messages ADD COLUMN headers jsonb;

CREATE FUNCTION queuebell_checked_headers(given jsonb) RETURNS jsonb IMMUTABLE STRICT LANGUAGE plpgsql AS $$
DECLARE
    checked jsonb;
    wrong text;
BEGIN
    IF jsonb_typeof(given) <> 'object' THEN
        wrong := 'headers are a JSON object of names and values';
    ELSE
        SELECT CASE
            WHEN bool_or(key !~ '^[a-z0-9][a-z0-9._-]{{0,127}}$' OR key ~ '^({"|".join(RESERVED)})')
                THEN 'the name of a header is 1 to 128 of A-Z a-z 0-9 . _ -, a letter or a digit first, and does not'
                    ' begin with {" or ".join(RESERVED)}'
            WHEN bool_or(jsonb_typeof(value) <> 'string'
                    OR value #>> '{{}}' ~ '[\\u0001-\\u0008\\u000a-\\u001f\\u007f-\\u009f]')
                THEN 'the value of a header is text without control characters (a tab may stand)'
            WHEN count(*) > count(DISTINCT key)
                THEN 'the name of a header stands twice; upper and lower case are the same'
            WHEN count(*) > {HEADERS_MAX} THEN 'a message has at most {HEADERS_MAX} headers'
            WHEN sum(length(key) + octet_length(convert_to(value #>> '{{}}', 'UTF8'))) > {HEADERS_BYTES_MAX}
                THEN 'the headers of a message have at most {HEADERS_BYTES_MAX} bytes'
        END, jsonb_object_agg(key, value)
        INTO wrong, checked
        FROM (SELECT lower(name COLLATE "C") AS key, value FROM jsonb_each(given) AS given (name, value)) AS one;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'queuebell_messages: %; nothing was put', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN checked;
END $$;

CREATE OR REPLACE FUNCTION queuebell_take_insert() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF new.body IS NOT NULL OR num_nonnulls(new.text, new.bytes) <> 1 THEN
        RAISE EXCEPTION 'queuebell_messages: a plain INSERT gives either text or bytes, and never body'
        USING ERRCODE = 'feature_not_supported', HINT = 'A text given to body, which is bytea, would be read as escapes'
            ' and changed. INSERT INTO queuebell_messages (queue, text) takes any text and JSON, (queue, bytes) takes'
            ' bytea, and queuebell_put(queue, ...) takes all of them. Nothing was put.';
    END IF;
    new.body := coalesce(new.bytes, convert_to(new.text, 'UTF8'));
    new.text := NULL;
    new.bytes := NULL;
    new.inserted_at := coalesce(new.inserted_at, clock_timestamp());
    new.headers := queuebell_checked_headers(new.headers);
    RETURN new;
END $$;
"""  # noqa: S608
# Another parameter makes another function, so without the DROP, calls would be ambiguous.
_CALLS: Final = """
DROP FUNCTION queuebell_put(text, json, interval, interval);
DROP FUNCTION queuebell_put(text, jsonb, interval, interval);
DROP FUNCTION queuebell_put(text, text, interval, interval);
DROP FUNCTION queuebell_put(text, bytea, interval, interval);
CREATE FUNCTION queuebell_put(
    queue text, body bytea, delay interval DEFAULT '0', ttl interval DEFAULT NULL, headers jsonb DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    made bigint;
BEGIN
    -- One transaction at a time makes a queue; others put without waiting for its end.
    IF NOT EXISTS (SELECT FROM queuebell_queues WHERE name = queuebell_put.queue) THEN
        INSERT INTO queuebell_queues (name) SELECT queuebell_put.queue
        WHERE pg_try_advisory_xact_lock(hashtextextended('queuebell ' || queuebell_put.queue, 0))
        ON CONFLICT (name) DO NOTHING;
    END IF;
    INSERT INTO queuebell_messages (queue, body, inserted_at, visible_at, expires_at, headers)
    VALUES (queuebell_put.queue, queuebell_put.body, moment, moment + greatest(delay, '0'), moment + ttl,
        queuebell_checked_headers(queuebell_put.headers))
    RETURNING id INTO made;
    RETURN made;
END $$;
"""
_OTHER_CALLS: Final = "".join(
    f"""
CREATE FUNCTION queuebell_put(
    queue text, body {kind}, delay interval DEFAULT '0', ttl interval DEFAULT NULL, headers jsonb DEFAULT NULL
) RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT queuebell_put(queue, convert_to(body::text, 'UTF8'), delay, ttl, headers)
$$;
"""
    for kind in ("text", "jsonb", "json")
)

MIGRATIONS: Final[tuple[str, ...]] = (_FIRST, _SECOND + _YOUNGEST, _THIRD, _FOURTH, _HEADERS + _CALLS + _OTHER_CALLS)
assert len(MIGRATIONS) == SCHEMA_VERSION
_TEXT: Final = 3
"""The first schema whose plain INSERTs use text or bytes."""


async def init(url: str, *, notify: bool | None = None, prefix: str = DEFAULT_PREFIX) -> list[str]:
    """Create or migrate the tables; return a line for each change. Repeating it changes nothing.

    With ``notify`` True every put will NOTIFY the channel ``prefix``, with False none will; None keeps that, but
    upgrades trigger functions of another version. A schema in the address's ``search_path`` is created too. Raises
    `ConfigurationError` for tables of a newer version, and errors of store calls.
    """
    access = PostgresAccess(url, options=("pool_size",)).direct
    if len(prefix) > CHANNEL_BYTES_MAX:
        raise ConfigurationError(f"prefix: a channel of PostgreSQL is at most {CHANNEL_BYTES_MAX} bytes")
    check_prefix(prefix)
    try:
        try:
            # A pooler rejects session settings and so reveals itself; prepared statements would reach other clients.
            connection = await access.connect(settings={"idle_in_transaction_session_timeout": "60s"})
        except client().PostgresError as error:
            if not is_pooler(error):
                raise
            connection = await access.connect(pooled=True)
    except (OSError, client().PostgresError, client().InterfaceError) as error:
        raise explain(error, access.text, sent=False) from error
    try:
        async with connection.transaction():
            return await _init(connection, access, notify, prefix)
    except (OSError, client().PostgresError, client().InterfaceError) as error:
        raise explain(error, access.text, sent=True) from error
    finally:
        connection.terminate()


async def _init(connection: Any, access: PostgresAccess, notify: bool | None, prefix: str) -> list[str]:
    done: list[str] = []
    # The tables are locked: a process that hangs would block all puts.
    await connection.execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
    if access.search_path is not None:
        first = access.search_path.split(",")[0].strip()
        name = first if first.startswith('"') else f'"{first.lower()}"'
        if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", name):
            await connection.execute(f"CREATE SCHEMA {name}")
            done.append(f"schema {name} created")
        await connection.execute(search_in(access.search_path))
    await connection.execute("CREATE TABLE IF NOT EXISTS queuebell_schema (version integer NOT NULL)")
    version = await connection.fetchval("SELECT version FROM queuebell_schema") or 0
    if version > len(MIGRATIONS):
        raise ConfigurationError(
            f"{access.text}: the tables are from a newer version of Queuebell (schema {version}, supported "
            f"{len(MIGRATIONS)}); nothing was changed"
        )
    for script in MIGRATIONS[version:]:
        await connection.execute(script)
    if version < len(MIGRATIONS):
        await connection.execute("DELETE FROM queuebell_schema")
        await connection.execute("INSERT INTO queuebell_schema VALUES ($1)", len(MIGRATIONS))
        done.append(
            f"tables migrated from schema {version} to {len(MIGRATIONS)}"
            if version
            else f"tables of schema {len(MIGRATIONS)} created"
        )
    if 0 < version < _TEXT:
        done.append("a plain INSERT must use text or bytes from now on; body is rejected")
    if notify:
        await connection.execute(notify_script(prefix))
        done.append(f"every put notifies the channel {prefix}")
    elif notify is False:
        await connection.execute(NO_NOTIFY)
        done.append("puts send no notifications")
    elif (channel := outdated_channel(await connection.fetchval(PUT_FUNCTION))) is not None:
        await connection.execute(notify_script(channel))
        done.append(f"trigger functions upgraded; every put notifies the channel {channel}")
    return done


_SLOT: Final = "extract(epoch FROM clock_timestamp())::bigint"
"""The second of a promise."""
COMMIT: Final = "'postgres:' || extract(epoch FROM pg_postmaster_start_time()) || ':' || pg_current_xact_id()"
"""The unique name of a statement's transaction, among all servers."""

# `bridge/triggers/postgres.py` reads a NOTIFY: a trigger as JSON, or only a queue reference. For delayed messages it
# has the earliest time; the receive at that time learns from the store when the next message is due.
#
# A NOTIFY is named after its transaction and queue. The bridge through which the message was put publishes the same
# name over the broker (`bridge.service.shared_store`), so a bridge that gets both requests one wake (B13). Both round
# up a new delay in the same way; for a row with an older timestamp the remaining time counts.
#
# Commits that notify are serialised in a database, including their writes to disk. So a bridge that receives very many
# notifications makes a promise (`bridge/triggers/promises.py`): it checks those queues itself, and puts on them do not
# notify. A put first registers its transaction and then reads the promise: so a bridge that withdraws a promise, and
# reads the open transactions afterwards, sees each that relied on it. A promise lasts two seconds of the server's clock
# at most, as a frozen bridge keeps its connection, and so its locks.
NOTIFY_PUT: Final = f"""
DECLARE
    put record;
    said text := {COMMIT};
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('{{channel}}', 1));
    FOR put IN
        SELECT queue, hashtextextended('{{channel}} ' || queue || ' ' || {_SLOT}, 2) AS promise,
            split_part(queue, '/', 1) AS account, split_part(queue, '/', 2) AS name,
            count(*) FILTER (WHERE visible_at <= now) AS n, count(*) FILTER (WHERE visible_at > now) AS later,
            least(min(CASE WHEN given - left_ms BETWEEN 0 AND 1000 THEN given + ceil(given::float8 * 1e-4::float8) + 1
                ELSE ceil(left_ms) END) FILTER (WHERE visible_at > now), 604800000)::bigint AS ms
        FROM (SELECT queue, visible_at, now, extract(epoch FROM visible_at - inserted_at) * 1000 AS given,
            extract(epoch FROM visible_at - now) * 1000 AS left_ms
            FROM ({{rows}}) AS new
        ) AS timed GROUP BY queue
    LOOP
        CONTINUE WHEN NOT CASE WHEN pg_try_advisory_lock_shared(put.promise)
            THEN pg_advisory_unlock_shared(put.promise) ELSE false END;
        IF put.n > 0 THEN
            PERFORM pg_notify('{{channel}}', json_build_object('storage_account', put.account, 'queue_name', put.name,
                'payload_size', least(put.n, 1000000), 'source', said, 'id', put.queue)::text);
        END IF;
        IF put.later > 0 THEN
            PERFORM pg_notify('{{channel}}', json_build_object('storage_account', put.account, 'queue_name', put.name,
                'payload_size', least(put.later, 1000000), 'not_before_ms', put.ms,
                'source', said, 'id', put.queue || '+' || put.ms)::text);
        END IF;
    END LOOP;
    RETURN NULL;
END """  # noqa: S608
_PUT: Final = NOTIFY_PUT.replace(
    "{rows}", "SELECT queue, visible_at, inserted_at, clock_timestamp() AS now FROM new_messages"
)
_RESUME: Final = """
BEGIN
    PERFORM pg_notify('{channel}', new.name);
    RETURN NULL;
END """
_FUNCTIONS: Final = {"queuebell_messages": _PUT, "queuebell_queues": _RESUME}
NO_NOTIFY_NOTE: Final = "puts notify nobody, and that is meant"
_channel = re.compile(r"pg_notify\('([^']*)'").search

PROMISE: Final = f"""
WITH before AS MATERIALIZED (SELECT pg_advisory_unlock_all()::text AS gone, {_SLOT} AS slot),
given AS MATERIALIZED (
    SELECT name, word
    FROM before, unnest($2::text[], $3::text[]) AS asked (name, word), generate_series(slot, slot + 1) AS of
    GROUP BY name, word HAVING bool_or(pg_try_advisory_lock(hashtextextended($1 || ' ' || name || ' ' || of, 2)))
)
SELECT name, pg_notify($1, word)::text AS said FROM given
"""  # noqa: S608
"""Promise to check the queues ``$2`` of channel ``$1``, and no others, until the end of the next second.

Returns those promised, as another bridge may have promised some, and notifies all bridges with their texts ``$3``.
"""
PROMISED_S: Final = 2.0
"""The longest duration of a promise that is not renewed."""
WITHDRAW: Final = "SELECT pg_advisory_unlock_all()"
OPEN: Final = """
SELECT virtualtransaction AS transaction FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((classid::bigint << 32) | objid::bigint) = hashtextextended($1, 1)
"""
"""The open transactions with puts on channel ``$1``."""

NO_NOTIFY: Final = f"""
DROP TRIGGER IF EXISTS queuebell_notify ON queuebell_messages;
DROP TRIGGER IF EXISTS queuebell_notify ON queuebell_queues;
DROP FUNCTION IF EXISTS queuebell_notify_put();
DROP FUNCTION IF EXISTS queuebell_notify_resume();
COMMENT ON TRIGGER queuebell_insert ON queuebell_messages IS '{NO_NOTIFY_NOTE}';
"""
TRIGGERS: Final = f"""
SELECT n.nspname::text AS schema, c.relname::text AS of, p.prosrc AS function, EXISTS (
    SELECT FROM pg_trigger AS i WHERE i.tgrelid = c.oid AND obj_description(i.oid, 'pg_trigger') = '{NO_NOTIFY_NOTE}'
) AS meant
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_trigger AS t ON t.tgrelid = c.oid AND t.tgname = 'queuebell_notify' AND t.tgenabled IN ('O', 'A')
LEFT JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE c.relname IN ('queuebell_messages', 'queuebell_queues') AND c.relkind IN ('r', 'p')
    AND ($1::bool OR n.nspname = ANY (current_schemas(false)))
ORDER BY schema, of
"""  # noqa: S608
"""The rows for `check_notify`; with `$1` of all schemas, as a channel belongs to the whole database."""

CONNECTIONS: Final = """
SELECT count(*)::int AS used, (current_setting('max_connections')::int
    - current_setting('superuser_reserved_connections')::int) AS most
FROM pg_stat_activity WHERE backend_type = 'client backend'
"""
"""The numbers of connections in use and available."""
FULL: Final = 0.8
"""The share from which `check_connections` warns."""


def notify_script(channel: str) -> str:
    """Return the script that makes every put, and each resume of a queue, notify a channel."""
    return f"""
CREATE OR REPLACE FUNCTION queuebell_notify_put() RETURNS trigger LANGUAGE plpgsql AS
    $${_PUT.format(channel=channel)}$$;
CREATE OR REPLACE FUNCTION queuebell_notify_resume() RETURNS trigger LANGUAGE plpgsql AS
    $${_RESUME.format(channel=channel)}$$;
CREATE OR REPLACE TRIGGER queuebell_notify AFTER INSERT ON queuebell_messages
    REFERENCING NEW TABLE AS new_messages FOR EACH STATEMENT EXECUTE FUNCTION queuebell_notify_put();
CREATE OR REPLACE TRIGGER queuebell_notify AFTER UPDATE OF paused ON queuebell_queues
    FOR EACH ROW WHEN (old.paused AND NOT new.paused) EXECUTE FUNCTION queuebell_notify_resume();
ALTER TABLE queuebell_messages ENABLE TRIGGER queuebell_notify;
ALTER TABLE queuebell_queues ENABLE TRIGGER queuebell_notify;
COMMENT ON TRIGGER queuebell_insert ON queuebell_messages IS NULL;
"""


PUT_FUNCTION: Final = """
SELECT p.prosrc FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = 'queuebell_messages'::regclass AND t.tgname = 'queuebell_notify' AND t.tgenabled IN ('O', 'A')
"""
"""The trigger function of puts, if there is one."""


def outdated_channel(function: str | None) -> str | None:
    """Return the channel of a trigger function of another version; None for this version's, or none."""
    found = None if function is None else _channel(function)
    return None if found is None or function == _PUT.format(channel=found[1]) else found[1]


class NotifyTrigger(NamedTuple):
    """The trigger of one table: the text of its function, None if it has none that is enabled."""

    schema: str
    of: str
    function: str | None
    meant: bool


class CheckResult(NamedTuple):
    """The result of a check, in one line."""

    ok: bool
    detail: str


def check_connections(used: int, most: int) -> CheckResult:
    """Return whether the server has enough connections left for more workers."""
    detail = f"{used} of the server's {most} connections are in use"
    if used < FULL * most:
        return CheckResult(True, detail)
    return CheckResult(
        False,
        f"{detail}; with none left it rejects workers, bridges and your application. Messages are safe. Each worker "
        "process uses up to pool_size (8) for each address: lower it in the address, or raise max_connections",
    )


def check_notify(triggers: Iterable[NotifyTrigger], channel: str) -> CheckResult:
    """Return whether puts in these tables notify ``channel``.

    Tables that notify another channel are ignored if others notify this one.
    """
    schemas: dict[str, dict[str, NotifyTrigger]] = {}
    for trigger in triggers:
        schemas.setdefault(trigger.schema, {})[trigger.of] = trigger
    if not schemas:
        return CheckResult(
            True,
            "there are no queue tables here ('queuebell queue init' creates them); notifications of other programs "
            "wake workers",
        )
    faults: list[str] = []
    others: list[str] = []
    heard: list[str] = []
    silent: list[str] = []
    for schema, tables in schemas.items():
        said = {of: tables[of].function if of in tables else None for of in _FUNCTIONS}
        found = next((match[1] for text in said.values() if text is not None and (match := _channel(text))), None)
        if found is not None and found != channel:
            others.append(f"puts in schema {schema} notify the channel {found}, but this bridge listens to {channel}")
        elif not any(said.values()) and any(each.meant for each in tables.values()):
            silent.append(schema)
        elif None in said.values():
            missing = " and ".join(of for of, text in said.items() if text is None)
            faults.append(f"schema {schema} has no trigger function at {missing}")
        elif any(said[of] != text.format(channel=channel) for of, text in _FUNCTIONS.items()):
            faults.append(f"the trigger functions of schema {schema} are from another version of Queuebell")
        else:
            heard.append(schema)
    if others and not heard:
        faults += others
    if faults:
        # Without the prefix, the command would create functions for the default channel, which would not help.
        setting = "" if channel == DEFAULT_PREFIX else f"QUEUEBELL_PREFIX={channel} "
        return CheckResult(
            False,
            f"not every plain put wakes workers: {'; '.join(faults)}. Such messages are safe, but may wait about a "
            f"minute. Create the functions with '{setting}queuebell queue init postgres://... --notify', or use "
            "'--no-notify' if producers publish triggers themselves",
        )
    if heard:
        return CheckResult(True, f"plain puts in schema {', '.join(heard)} wake workers")
    return CheckResult(True, f"puts in schema {', '.join(silent)} send no notifications, as configured (--no-notify)")
