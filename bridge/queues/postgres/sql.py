"""The statements of the store on PostgreSQL: each is one call, one round trip and one transaction.

Only a put within the caller's transaction is part of that one.

``$1`` is always the queue. Time is the server's `clock_timestamp()`, read once a statement. All parts of a statement
see one snapshot: counts see messages as they were before the statement leased some.

Statistics of a queue's table are always outdated, and a plan made for an empty table is used when it is long. So the
statements leave the planner no choice: rows to change are selected by ``id = ANY(array)``, never joined, and a queue's
name is compared as an expression where an index on it would be the wrong one.
"""

from __future__ import annotations

from typing import Final

from queuebell.bridge.contract.names import DEFAULT_PREFIX
from queuebell.bridge.queues.postgres.schema import COMMIT, NO_NOTIFY_NOTE

BATCH_MAX: Final = 256
"""Maximum of messages a statement; with so many, commit and round trip hardly matter."""
FREED: Final = 2
"""Of a move in `SETTLE`: no worker holds the message then. With 1 added the receive that it undoes does not count."""
COUNTED: Final = 32
"""A receive counts at most so many of its batches, and after a full batch one batch of invisible messages; `DEPTH`
counts all."""
COUNTED_ON: Final = 8
"""The same for a receive that starts at a mark; each second another one counts more."""
COUNTS_MAX: Final = 100_000
APART_MAX: Final = 10_000
"""Limits of `COUNTS` for visible messages, and for others, whose rows it has to read."""
PURGED: Final = 1000
FORGOTTEN_PER_PUT: Final = 4
"""Expired keys that one put under a key checks."""

MOMENT = "moment AS MATERIALIZED (SELECT clock_timestamp() AS now)"
NOW = "(SELECT now FROM moment)"
_ALIVE = f"(expires_at IS NULL OR expires_at > {NOW})"
_STAND = """stand AS MATERIALIZED (
    SELECT count(*) > 0 AS named, coalesce(bool_or(paused), false) AS paused FROM queuebell_queues WHERE name = $1
)"""
MS = "interval '1 millisecond'"


def place(table: str) -> str:
    """Return which table of which run of the server a statement reads, as 32 hex digits.

    Names of hosts, databases and schemas do not show it: they lead elsewhere on another machine, or for another user.
    """
    return f"""md5(concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()), '{table}'::regclass::oid,
    (SELECT oid FROM pg_database WHERE datname = current_database())))"""  # noqa: S608


def _exists(schema: str = "") -> str:
    # A queue exists while it has a row or a message: a put concurrent with a delete of the queue, or a plain INSERT, is
    # then never a message without a queue.
    return f"""(EXISTS (SELECT FROM {schema}queuebell_queues WHERE name = $1)
    OR EXISTS (SELECT FROM {schema}queuebell_messages WHERE queue = $1))"""  # noqa: S608


_EXISTS = _exists()


def _made(schema: str, only: str) -> str:
    """Return the creation of a missing queue.

    A second one would wait for the end of the first's transaction, which may be the caller's. So only one at a time
    tries, and the others put without a row: their message makes the queue exist.
    """
    return f"""made AS (
    INSERT INTO {schema}queuebell_queues (name) SELECT $1
    WHERE {only} AND CASE WHEN EXISTS (SELECT FROM {schema}queuebell_queues WHERE name = $1) THEN false
        ELSE pg_try_advisory_xact_lock(hashtextextended('queuebell ' || $1, 0)) END
    ON CONFLICT (name) DO NOTHING
)"""  # noqa: S608


def _put(lists: str, headers: str, returning: str, *, schema: str = "", only: str = "true") -> str:
    return f"""
WITH {MOMENT},
{_made(schema, only)}
INSERT INTO {schema}queuebell_messages (queue, body, inserted_at, visible_at, expires_at, headers)
SELECT $1, given.body, moment.now, moment.now + given.delay * {MS},
       CASE WHEN given.ttl > 0 THEN moment.now + given.ttl * interval '1 second' END, {headers}
FROM unnest({lists}) WITH ORDINALITY AS given (body, delay, ttl, headers, place), moment
WHERE {only}
ORDER BY given.place
RETURNING {returning}
"""  # noqa: S608


_LISTS = "$2::bytea[], $3::bigint[], $4::bigint[], $5::text[]"
"""Headers are null if no message has any."""
_HEADERS = "given.headers::jsonb"
_NAMED = f"id, receipt, (SELECT {COMMIT}) AS said"
PUT: Final = _put(_LISTS, _HEADERS, _NAMED)
PUT_EXISTING: Final = _put(_LISTS, _HEADERS, _NAMED, only=_EXISTS)
"""The same for an existing queue; returns no row if it does not exist."""


# A put under a key waits for another put of the same key to end. A key is valid until it expires, and while its message
# exists. Each put checks some expired keys, so that they are removed faster than new ones come, at no cost for other
# calls. ctid selects rows that this statement has locked.
def _put_once(
    schema: str, only: str, create: bool, body: str, number: str, digest: str, key: str, headers: str, returning: str
) -> str:
    stands = f"""EXISTS (SELECT FROM {schema}queuebell_messages AS m
        WHERE m.queue = o.queue AND m.key = o.key AND {_ALIVE})"""
    until = f"{NOW} + {number.format(7)} * {MS}"
    return f"""
WITH {MOMENT},
here AS MATERIALIZED (SELECT {only} AS inside, {"true" if create else _exists(schema)} AS there),
{_made(schema, "(SELECT inside AND there FROM here)")},
claimed AS (
    INSERT INTO {schema}queuebell_once AS o (queue, key, digest, until)
    SELECT $1, {key}, decode({digest}, 'hex'), {until} FROM here WHERE inside AND there
    ON CONFLICT (queue, key) DO UPDATE SET digest = excluded.digest, until = excluded.until
        WHERE o.until <= {NOW} AND NOT {stands}
    RETURNING key
),
put AS (
    INSERT INTO {schema}queuebell_messages (queue, key, body, inserted_at, visible_at, expires_at, headers)
    SELECT $1, claimed.key, {body}, moment.now, moment.now + {number.format(3)} * {MS},
        CASE WHEN {number.format(4)} > 0 THEN moment.now + {number.format(4)} * interval '1 second' END, {headers}
    FROM claimed, moment
    RETURNING {returning}
),
due AS MATERIALIZED (
    SELECT o.ctid AS place, {stands} AS stands FROM {schema}queuebell_once AS o
    WHERE o.until <= {NOW} AND (o.queue, o.key) <> ($1, {key}) AND (SELECT inside FROM here)
    ORDER BY o.until LIMIT {FORGOTTEN_PER_PUT} FOR UPDATE SKIP LOCKED
),
kept AS (
    UPDATE {schema}queuebell_once SET until = {until} WHERE ctid = ANY(ARRAY(SELECT place FROM due WHERE stands))
),
forgotten AS (
    DELETE FROM {schema}queuebell_once WHERE ctid = ANY(ARRAY(SELECT place FROM due WHERE NOT stands))
)
SELECT here.inside, here.there, put.* FROM here LEFT JOIN put ON true
"""  # noqa: S608


def put_once(*, create: bool) -> str:
    """Return the put of one message under the key ``$5``: ``id`` is null if the key is known, or if not `there`.

    ``$2`` to ``$4`` are body, delay in ms and time to live in s; ``$6`` is the body's digest, ``$7`` the window in ms,
    ``$8`` the headers as JSON, null for none.
    """
    return _put_once("", "true", create, "$2::bytea", "${}::bigint", "$6::text", "$5::text", "$8::text::jsonb", _NAMED)


# Claimed in the order of keys, so that two statements with the same keys cannot deadlock.
PUT_EACH_ONCE: Final = f"""
WITH {MOMENT},
given AS MATERIALIZED (
    SELECT * FROM unnest($2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::text[], $8::text[])
        WITH ORDINALITY AS given (key, body, delay, ttl, digest, headers, place)
),
{_made("", "true")},
claimed AS (
    INSERT INTO queuebell_once AS o (queue, key, digest, until)
    SELECT $1, key, decode(digest, 'hex'), {NOW} + $7::bigint * {MS} FROM given ORDER BY key
    ON CONFLICT (queue, key) DO UPDATE SET digest = excluded.digest, until = excluded.until
        WHERE o.until <= {NOW} AND NOT EXISTS (SELECT FROM queuebell_messages AS m
            WHERE m.queue = o.queue AND m.key = o.key AND {_ALIVE})
    RETURNING key
)
INSERT INTO queuebell_messages (queue, key, body, inserted_at, visible_at, expires_at, headers)
SELECT $1, given.key, given.body, {NOW}, {NOW} + given.delay * {MS},
    CASE WHEN given.ttl > 0 THEN {NOW} + given.ttl * interval '1 second' END, {_HEADERS}
FROM given WHERE given.key = ANY(ARRAY(SELECT key FROM claimed)) ORDER BY given.place
RETURNING key
"""  # noqa: S608
"""The put of many messages under different keys; returns the new keys."""

OTHERS: Final = """
SELECT given.key FROM unnest($2::text[], $3::text[]) AS given (key, digest)
JOIN queuebell_once AS o ON o.queue = $1 AND o.key = given.key WHERE o.digest <> decode(given.digest, 'hex')
"""
"""Those of the keys ``$2`` whose body has another digest than ``$3``."""


def known(schema: str = "") -> str:
    """Return the query whether the body under the key ``$2`` has the digest ``$3``; no row for an unknown key."""
    return f"""
SELECT encode(digest, 'hex') = CAST($3 AS text) AS same FROM {schema}queuebell_once
WHERE queue = $1 AND key = CAST($2 AS text)
"""  # noqa: S608


def quoted(schema: str) -> str:
    """Return a quoted schema, with a dot, as a prefix of a table."""
    return '"' + schema.replace('"', '""') + '".'


_TEXTS = "lpad(to_hex(id), 16, '0') AS id, replace(receipt::text, '-', '') AS receipt"
_INSIDE = "pg_current_xact_id()::text = $5"


def _returning_texts(notify: bool) -> str:
    return _TEXTS + (f", pg_notify('{DEFAULT_PREFIX}', $1)::text AS said" if notify else "")


def put_within(schema: str, *, notify: bool, create: bool) -> str:
    """Return the put on the caller's connection, with the tables of ``schema``.

    All values are texts, which every driver supports: lists are joined by commas, bytes are in the server's text
    format, and headers are JSON as such bytes (``$6``). It puts nothing outside the transaction ``$5``. With ``notify``
    it notifies the channel ``queuebell``.
    """
    lists = ", ".join(
        f"string_to_array(${place}, ',')::{kind}[]"
        for place, kind in ((2, "bytea"), (3, "bigint"), (4, "bigint"), (6, "bytea"))
    )
    headers = from_bytes("given.headers")
    tables = quoted(schema)
    only = _INSIDE if create else f"{_INSIDE} AND {_exists(tables)}"
    return _put(lists, headers, _returning_texts(notify), schema=tables, only=only)


def from_bytes(headers: str) -> str:
    """Return JSON given as bytes, null for no bytes."""
    return f"CASE WHEN octet_length({headers}) > 0 THEN convert_from({headers}, 'UTF8')::jsonb END"


def put_once_within(schema: str, *, notify: bool, create: bool) -> str:
    """Return the put of one message under a key on the caller's connection, as `put_within`.

    ``$6`` is the digest, ``$7`` the window, ``$8`` the key, ``$9`` the headers.
    """
    number, key = "CAST(${} AS text)::bigint", "CAST($8 AS text)"
    body, digest = "CAST($2 AS text)::bytea", "CAST($6 AS text)"
    headers = from_bytes("CAST($9 AS text)::bytea")
    return _put_once(quoted(schema), _INSIDE, create, body, number, digest, key, headers, _returning_texts(notify))


INSIDE: Final = "SELECT pg_current_xact_id()::text = $1"
"""Whether this statement is part of the transaction ``$1``."""


# The server's start and the tables' number in it show whether two connections lead to the same tables; names of hosts
# and databases do not, because of poolers. The transaction gets its number here: in autocommit mode each statement has
# another one.
WITHIN: Final = f"""
SELECT concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()), d.oid, c.oid), n.nspname::text,
    CASE WHEN current_setting('transaction_read_only') = 'off' THEN pg_current_xact_id()::text END, EXISTS (
        SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid
        AND (t.tgname = 'queuebell_notify' AND t.tgenabled IN ('O', 'A')
            OR obj_description(t.oid, 'pg_trigger') = '{NO_NOTIFY_NOTE}')
    )
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace, pg_database AS d
WHERE c.oid = to_regclass(CASE WHEN $1 = '' THEN '' ELSE quote_ident($1) || '.' END || 'queuebell_messages')
    AND d.datname = current_database()
"""  # noqa: S608
"""Where a connection leads: the tables, their schema (``$1``, or the first on the search path), the transaction (null
if read-only), and whether the tables notify of puts or are set not to; no row without tables."""


def version_within(schema: str) -> str:
    """Return the query for the version of the tables in ``schema``."""
    return f"SELECT version FROM {quoted(schema)}queuebell_schema"  # noqa: S608


# A lease need not survive a crash of the server: without it the message is visible again, as after the end of the
# lease. So receives do not wait for the disk; puts and settlements do.
MOMENT_LAZILY = """moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', true) AS lazily
)"""
_SINCE = "coalesce($4, '-infinity')"
_WALKED = "pg_stat_get_xact_tuples_returned('queuebell_messages_due'::regclass)"
_LEASED = f"""leased AS (
    UPDATE queuebell_messages AS m
    SET visible_at = {NOW} + $3::bigint * {MS}, receipt = gen_random_uuid(), attempts = m.attempts + 1
    WHERE m.id = ANY(ARRAY(SELECT id FROM picked))
    RETURNING m.id, m.receipt, m.body, m.attempts, m.inserted_at, m.expires_at, m.key, m.headers
)"""  # noqa: S608


def beside(column: str, rows: str, id_: str) -> str:
    """Return ``column`` of the row of ``rows`` with this id; a join would scan all rows for each."""
    return f"(ARRAY(SELECT {column} FROM {rows}))[array_position(ARRAY(SELECT id FROM {rows}), {id_})]"  # noqa: S608


# Receipts are random UUIDs; version 8 means that the message is not leased.
_FREED = "overlay(gen_random_uuid()::text PLACING '8' FROM 15 FOR 1)::uuid"
_DELAYED = "(attempts = 0 OR substring(receipt::text FROM 15 FOR 1) = '8')"


# Workers report the ends of their leases, so only messages never received count as delayed. A delayed message may
# follow more leases than are read; a check at the last of them finds it.
#
# After a full batch little is counted, because the index keeps dead entries until the next vacuum: visible messages
# from the begin of the batch, others from the far end, where the newest leases are.
#
# $4 is the time to start at, NULL for the beginning: then leases are not counted, because they leave dead entries too,
# nor messages that become visible after $5 milliseconds. The number of index entries walked over is the server's
# statistics of this transaction, and of some before it that are not gathered yet.
RECEIVE: Final = f"""
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', true) AS lazily, {_WALKED} AS before
),
{_STAND},
dead AS MATERIALIZED (
    SELECT id FROM queuebell_messages WHERE queue = $1 AND expires_at <= {NOW} AND $4::timestamptz IS NULL
    ORDER BY expires_at LIMIT {PURGED} FOR UPDATE SKIP LOCKED
),
purged AS (DELETE FROM queuebell_messages WHERE id = ANY(ARRAY(SELECT id FROM dead))),
picked AS MATERIALIZED (
    SELECT id, visible_at FROM queuebell_messages
    WHERE queue = $1 AND visible_at <= {NOW} AND visible_at >= {_SINCE} AND {_ALIVE} AND NOT (SELECT paused FROM stand)
    ORDER BY visible_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
),
{_LEASED},
counted AS MATERIALIZED (
    SELECT (SELECT count(*) FROM picked) AS taken, there.visible, there.earliest,
        $4 IS NOT NULL AND (SELECT count(*) = $2 FROM picked) AND EXISTS (SELECT FROM queuebell_messages
            WHERE queue = $1 AND visible_at >= $4 AND visible_at < (SELECT min(visible_at) FROM picked) AND {_ALIVE}
        ) AS passed,
        (SELECT count(*) FROM (SELECT FROM queuebell_messages
            WHERE queue = $1 AND visible_at > {NOW} AND {_ALIVE}
            ORDER BY visible_at DESC, id DESC
            LIMIT CASE WHEN $4 IS NOT NULL THEN 0 WHEN (SELECT count(*) FROM picked) < $2 THEN $2 * {COUNTED}
                ELSE $2 END) AS i) AS invisible
    FROM (SELECT count(*) AS visible, min(visible_at) AS earliest FROM (SELECT visible_at FROM queuebell_messages
        WHERE queue = $1 AND visible_at <= {NOW} AND {_ALIVE} AND visible_at >= (SELECT CASE
            WHEN count(*) < $2 THEN {_SINCE} ELSE min(visible_at) END FROM picked)
        ORDER BY visible_at, id LIMIT $2 * {COUNTED + 1}) AS v) AS there
),
later AS MATERIALIZED (
    SELECT visible_at, attempts, {_DELAYED} AS waits FROM queuebell_messages
    WHERE queue = $1 AND visible_at > {NOW} AND visible_at <= coalesce({NOW} + $5::bigint * {MS}, 'infinity')
        AND {_ALIVE} AND (expires_at IS NULL OR expires_at > visible_at)
        AND (SELECT taken < $2 FROM counted)
    ORDER BY visible_at, id LIMIT $2 * {COUNTED}
),
next AS (
    SELECT min(visible_at) AS visible_at, coalesce(min(visible_at) FILTER (WHERE attempts = 0),
        CASE WHEN count(*) = $2 * {COUNTED} THEN max(visible_at) END) AS delayed,
        CASE WHEN count(*) < $2 * {COUNTED} THEN count(*) FILTER (WHERE NOT waits) END AS leased,
        count(*) FILTER (WHERE waits) AS waiting
    FROM later
)
SELECT {place("queuebell_messages")} AS place,
    stand.named, stand.paused, counted.taken, counted.visible, counted.invisible, counted.passed,
    least({NOW} - interval '1 second', counted.earliest) AS settled, {_WALKED} - (SELECT before FROM moment) AS walked,
    ceil(extract(epoch FROM (SELECT visible_at FROM next) - {NOW}) * 1000)::bigint AS next_ms,
    ceil(extract(epoch FROM (SELECT delayed FROM next) - {NOW}) * 1000)::bigint AS delayed_ms,
    (SELECT leased FROM next) AS leased, (SELECT waiting FROM next) AS delayed,
    floor(extract(epoch FROM {NOW} - counted.earliest) * 1000)::bigint AS oldest_ms,
    picked.visible_at AS due,
    leased.id, leased.receipt, leased.body, leased.attempts, leased.inserted_at, leased.expires_at, leased.key,
    leased.headers
FROM stand CROSS JOIN counted LEFT JOIN (leased JOIN picked ON picked.id = leased.id) ON true
ORDER BY picked.visible_at, picked.id
"""  # noqa: S608

# Dead index entries come before live ones, and accumulate while a backlog is processed: with a mark ($4,
# `PostgresMarks`), only entries after it are read. An answer that is not a full batch proves nothing about the queue.
# After a full batch most of the other results of `RECEIVE` are useless, and take as long as the batch.
RECEIVE_ON: Final = f"""
WITH {MOMENT_LAZILY},
picked AS MATERIALIZED (
    SELECT id, visible_at FROM queuebell_messages
    WHERE queue = $1 AND visible_at <= {NOW} AND visible_at >= $4::timestamptz AND {_ALIVE}
        AND NOT EXISTS (SELECT FROM queuebell_queues WHERE name = $1 AND paused)
    ORDER BY visible_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
),
{_LEASED}
SELECT (SELECT count(*) FROM (SELECT FROM queuebell_messages
        WHERE queue = $1 AND visible_at <= {NOW} AND {_ALIVE} AND visible_at >= (SELECT min(visible_at) FROM picked)
        LIMIT $2 * {COUNTED_ON + 1}) AS v) AS visible,
    {beside("visible_at", "picked", "leased.id")} AS due,
    leased.id, leased.receipt, leased.body, leased.attempts, leased.inserted_at, leased.expires_at, leased.key,
    leased.headers
FROM leased
ORDER BY due, leased.id
"""  # noqa: S608

# Ids are unique here, so each receipt is compared at its place. If another receive changed a message since the
# snapshot, the statement waits for its row and compares again. Lists are texts joined by commas: for an array the
# client first asks the server about its type, on each new connection, which takes milliseconds.
DELETE_HELD: Final = """
DELETE FROM queuebell_messages
WHERE id = ANY((SELECT string_to_array($2, ',')::bigint[])::bigint[])
    AND receipt = ((SELECT string_to_array($3, ',')::uuid[]))[
        array_position((SELECT string_to_array($2, ',')::bigint[]), id)]
    AND queue || '' = $1 AND (expires_at IS NULL OR expires_at > (SELECT clock_timestamp()))
RETURNING id
"""

# A receipt that another receive changed since the snapshot is compared again when the row is locked. Receipts are
# random, so a match with any of those given is a match with this message's.
SETTLE: Final = f"""
WITH {MOMENT},
there AS MATERIALIZED (
    SELECT id, receipt FROM queuebell_messages WHERE id = ANY($8::bigint[]) AND queue || '' = $1 AND {_ALIVE}
),
given_up AS MATERIALIZED (
    SELECT there.id, there.receipt FROM there
    JOIN unnest($2::bigint[], $3::uuid[]) AS held (id, receipt) ON held.id = there.id AND held.receipt = there.receipt
),
kept AS MATERIALIZED (
    SELECT there.id, there.receipt, held.ms, held.body, held.how FROM there
    JOIN unnest($4::bigint[], $5::uuid[], $6::bigint[], $7::bytea[], $9::bigint[])
        AS held (id, receipt, ms, body, how)
        ON held.id = there.id AND held.receipt = there.receipt
),
deleted AS (
    DELETE FROM queuebell_messages
    WHERE id = ANY(ARRAY(SELECT id FROM given_up)) AND receipt = ANY(ARRAY(SELECT receipt FROM given_up))
    RETURNING id, receipt
),
moved AS (
    UPDATE queuebell_messages AS m
    SET visible_at = {NOW} + {beside("ms", "kept", "m.id")} * {MS},
        body = coalesce({beside("body", "kept", "m.id")}, m.body),
        attempts = greatest(0, m.attempts - ({beside("how", "kept", "m.id")} & 1)),
        receipt = CASE WHEN ({beside("how", "kept", "m.id")} & {FREED}) > 0 THEN {_FREED} ELSE gen_random_uuid() END
    WHERE m.id = ANY(ARRAY(SELECT id FROM kept)) AND m.receipt = ANY(ARRAY(SELECT receipt FROM kept))
    RETURNING m.id, m.receipt
)
SELECT 'deleted' AS what, id, receipt AS held, NULL::uuid AS receipt FROM deleted
UNION ALL SELECT 'moved', id, {beside("receipt", "kept", "moved.id")}, receipt FROM moved
UNION ALL SELECT 'there', id, NULL, NULL FROM there
UNION ALL SELECT 'queue', 0, NULL, NULL WHERE EXISTS (SELECT FROM there) OR {_EXISTS}
"""  # noqa: S608

PEEK: Final = f"""
WITH {MOMENT}
SELECT {_EXISTS} AS there, m.* FROM (SELECT) AS one LEFT JOIN (
    SELECT id, body, attempts, inserted_at, expires_at, visible_at, key, headers FROM queuebell_messages
    WHERE queue = $1 AND visible_at <= {NOW} AND {_ALIVE}
    ORDER BY visible_at, id LIMIT $2
) AS m ON true
ORDER BY m.visible_at, m.id
"""  # noqa: S608

DEPTH: Final = f"""
WITH {MOMENT}, {_STAND}
SELECT stand.named, stand.paused, counted.visible, counted.total FROM stand, (
    SELECT count(*) FILTER (WHERE visible_at <= {NOW}) AS visible, count(*) AS total
    FROM queuebell_messages WHERE queue = $1 AND {_ALIVE}
) AS counted
"""  # noqa: S608

COUNTS: Final = f"""
WITH {MOMENT}, {_STAND}
SELECT stand.named, stand.paused, due.visible, due.oldest_ms, later.invisible, later.delayed FROM stand, (
    SELECT count(*) AS visible, floor(extract(epoch FROM {NOW} - min(visible_at)) * 1000)::bigint AS oldest_ms
    FROM (SELECT visible_at FROM queuebell_messages WHERE queue = $1 AND visible_at <= {NOW} AND {_ALIVE}
        ORDER BY visible_at, id LIMIT {COUNTS_MAX}) AS v
) AS due, (
    SELECT count(*) AS invisible, count(*) FILTER (WHERE waits) AS delayed
    FROM (SELECT {_DELAYED} AS waits FROM queuebell_messages WHERE queue = $1 AND visible_at > {NOW} AND {_ALIVE}
        ORDER BY visible_at, id LIMIT {APART_MAX}) AS i
) AS later
"""  # noqa: S608

EXISTS: Final = f"SELECT {_EXISTS} AS there"

OLDEST: Final = f"""
WITH {MOMENT}
SELECT floor(extract(epoch FROM {NOW} - visible_at) * 1000)::bigint AS ms FROM queuebell_messages
WHERE queue = $1 AND visible_at <= {NOW} AND {_ALIVE}
    AND NOT EXISTS (SELECT FROM queuebell_queues WHERE name = $1 AND paused)
ORDER BY visible_at, id LIMIT 1
"""  # noqa: S608

CLEAR: Final = f"""
WITH gone AS (DELETE FROM queuebell_messages WHERE queue = $1),
forgotten AS (DELETE FROM queuebell_once WHERE queue = $1)
SELECT {_EXISTS} AS there
"""  # noqa: S608

PAUSE: Final = f"""
INSERT INTO queuebell_queues (name, paused) SELECT $1, $2 WHERE {_EXISTS}
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused
RETURNING true
"""

PAUSED: Final = "SELECT EXISTS (SELECT FROM queuebell_queues WHERE name = $1 AND paused) AS paused"

CREATE: Final = """
INSERT INTO queuebell_queues (name, metadata) VALUES ($1, coalesce($2::jsonb, '{}'))
ON CONFLICT (name) DO UPDATE SET metadata = coalesce($2::jsonb, queuebell_queues.metadata)
RETURNING xmax = 0 AS new
"""

# A queue that only has messages has no metadata, and no row until one is created.
CREATE_ALIKE: Final = f"""
WITH stood AS MATERIALIZED (SELECT {_EXISTS} AS there),
made AS (
    INSERT INTO queuebell_queues (name, metadata)
    SELECT $1, CASE WHEN there THEN '{{}}' ELSE $2::jsonb END FROM stood
    ON CONFLICT (name) DO NOTHING RETURNING metadata
)
SELECT EXISTS (SELECT FROM made) AND NOT there AS new,
    coalesce((SELECT metadata FROM made), (SELECT metadata FROM queuebell_queues WHERE name = $1)) = $2::jsonb AS same
FROM stood
"""  # noqa: S608
"""``same`` is null if another transaction has created the queue since the statement began."""

METADATA: Final = f"""
SELECT {_EXISTS} AS there, (SELECT metadata FROM queuebell_queues WHERE name = $1)::text AS metadata
"""  # noqa: S608

DELETE: Final = """
WITH gone AS (DELETE FROM queuebell_queues WHERE name = $1),
forgotten AS (DELETE FROM queuebell_once WHERE queue = $1)
DELETE FROM queuebell_messages WHERE queue = $1
"""

# Names of queues with messages but no row are found by skipping from name to name along the index.
NAMES: Final = """
WITH RECURSIVE leap AS (
    (SELECT queue FROM queuebell_messages WHERE queue > $1 AND queue >= $2 ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT m.queue FROM queuebell_messages AS m WHERE m.queue > leap.queue ORDER BY m.queue LIMIT 1)
    FROM leap WHERE leap.queue < $3
)
SELECT name FROM (
    SELECT name FROM queuebell_queues
    UNION SELECT queue FROM leap
) AS known
WHERE name > $1 AND name >= $2 AND name < $3 ORDER BY name LIMIT $4
"""
LISTING: Final = f"""
SELECT page.name, q.metadata::text AS metadata
FROM ({NAMES}) AS page LEFT JOIN queuebell_queues AS q ON q.name = page.name ORDER BY page.name
"""  # noqa: S608

_HIDDEN = "row_security_active('queuebell_messages') OR row_security_active('queuebell_queues')"

PLACE: Final = f"SELECT {place('queuebell_messages')} AS place"

# From one queue to the next by the index that receives use: the cost grows with the queues that have messages, and not
# with their messages. Names are compared as in the index.
VISIBLE_QUEUES: Final = f"""
WITH RECURSIVE named AS (
    (SELECT queue FROM queuebell_messages ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT m.queue FROM queuebell_messages AS m WHERE m.queue > named.queue ORDER BY m.queue LIMIT 1)
    FROM named WHERE named.queue IS NOT NULL
), {MOMENT}
SELECT {place("queuebell_messages")} AS place, {_HIDDEN} AS hidden, found.name
FROM (SELECT) AS one LEFT JOIN (
    SELECT named.queue AS name FROM named CROSS JOIN LATERAL (
        SELECT FROM queuebell_messages WHERE queue = named.queue AND visible_at <= {NOW} AND {_ALIVE}
        ORDER BY visible_at, id LIMIT 1
    ) AS first
    WHERE NOT EXISTS (SELECT FROM queuebell_queues WHERE name = named.queue AND paused)
    LIMIT $1
) AS found ON true
"""  # noqa: S608
