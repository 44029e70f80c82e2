"""The tables of the store on PostgreSQL: made, migrated upward, and optionally given a voice (NOTIFY).

A version of the schema is a script; scripts that were carried out stand in `queuebell_schema` and are never changed.
Everything happens in one transaction, one process at a time.
"""

from __future__ import annotations

from typing import Any, Final

from bridge.brokers.address import check_prefix
from bridge.brokers.postgres.access import CHANNEL_BYTES_MAX, PostgresAccess, client, is_pooler
from bridge.contract.errors import ConfigurationError
from bridge.contract.headers import HEADERS_BYTES_MAX, HEADERS_MAX, RESERVED
from bridge.contract.names import DEFAULT_PREFIX
from bridge.queues.postgres.connections import SCHEMA_VERSION, search_in
from bridge.queues.postgres.errors import explain
from bridge.queues.postgres.voice import SILENCE, SPOKEN, outdated, speak

_LOCK: Final = 0x71756575656265  # any number, the same for all who make these tables
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

# A check is carried out at each update of a row, also where it looks at nothing that was changed. Counted repetitions
# made it a third of the cost of a receive; lengths are cheaper to ask for beside the letters.
_LETTERS: Final = "'^[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9][A-Za-z0-9_-]*$'"
_SECOND: Final = "".join(
    f"""
ALTER TABLE {table} DROP CONSTRAINT {table}_{column}_check, ADD CONSTRAINT {table}_{column}_check CHECK (
    {column} ~ {_LETTERS} AND length(split_part({column}, '/', 1)) <= 80 AND length(split_part({column}, '/', 2)) <= 80
);
"""
    for table, column in (("queuebell_queues", "name"), ("queuebell_messages", "queue"))
)
# Of two indexes that seem to cost the same, as all do on a table that was vacuumed while empty, the planner takes the
# younger one. By id it must be this: the other would be read from end to end, and the plan outlives the emptiness.
_YOUNGEST: Final = "ALTER TABLE queuebell_messages DROP CONSTRAINT queuebell_messages_pkey, ADD PRIMARY KEY (id);"

# A text given to a column of bytes is read as escapes, so that JSON with a backslash is changed or refused, and nothing
# in the table could tell. So a plain INSERT names what it gives, `text` or `bytes`; both are empty in every row. Who
# knows that the body is bytes, a worker of the older version too, names `inserted_at` as well, and passes at no cost.
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

# A put under a key finds its message by an index that only keyed messages are in: the others cost what they did.
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

# What SQL puts is held to the rule of `bridge.contract.headers` here; what our own statements put was already.
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
# A parameter more makes another function, and beside the one before a call would be ambiguous.
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
"""The first schema whose plain INSERTs name what they give."""


async def init(url: str, *, notify: bool | None = None, prefix: str = DEFAULT_PREFIX) -> list[str]:
    """Make or migrate the tables, and return what was done, a line each; doing it again does nothing.

    ``notify`` True has every put NOTIFY the channel ``prefix``, False ends that, None leaves it, and brings functions
    of another version up to date. A schema named by
    ``search_path`` in the address is made too. Raises `ConfigurationError` for a database that a newer version has
    written, and what a store call raises.
    """
    access = PostgresAccess(url, options=("pool_size",)).direct
    if len(prefix) > CHANNEL_BYTES_MAX:
        raise ConfigurationError(f"prefix: a channel of PostgreSQL is at most {CHANNEL_BYTES_MAX} bytes")
    check_prefix(prefix)
    try:
        try:
            # A setting of the session has a pooler tell itself: else it would keep our prepared statements for others.
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
    # One that stands still would have all others wait, and all puts: the tables are locked.
    await connection.execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
    if access.search_path is not None:
        first = access.search_path.split(",")[0].strip()
        name = first if first.startswith('"') else f'"{first.lower()}"'
        if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", name):
            await connection.execute(f"CREATE SCHEMA {name}")
            done.append(f"schema {name} made")
        await connection.execute(search_in(access.search_path))
    await connection.execute("CREATE TABLE IF NOT EXISTS queuebell_schema (version integer NOT NULL)")
    version = await connection.fetchval("SELECT version FROM queuebell_schema") or 0
    if version > len(MIGRATIONS):
        raise ConfigurationError(
            f"{access.text}: a newer version of Queuebell has made the tables (schema {version}, this one knows "
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
            else f"tables of schema {len(MIGRATIONS)} made"
        )
    if 0 < version < _TEXT:
        done.append("a plain INSERT names text or bytes from now on, and is refused where it names body")
    if notify:
        await connection.execute(speak(prefix))
        done.append(f"every put notifies the channel {prefix}")
    elif notify is False:
        await connection.execute(SILENCE)
        done.append("puts notify nobody")
    elif (channel := outdated(await connection.fetchval(SPOKEN))) is not None:
        await connection.execute(speak(channel))
        done.append(f"every put notifies the channel {channel} as this version has it")
    return done
