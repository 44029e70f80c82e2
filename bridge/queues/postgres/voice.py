"""The trigger functions by which puts in PostgreSQL say themselves (NOTIFY), and whether a bridge hears them; pure.

`queuebell queue init --notify` makes them, ``--no-notify`` takes them away and leaves a note that silence is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from bridge.contract.names import DEFAULT_PREFIX

_SLOT: Final = "extract(epoch FROM clock_timestamp())::bigint"
"""The second that a promise is for."""
COMMIT: Final = "'postgres:' || extract(epoch FROM pg_postmaster_start_time()) || ':' || pg_current_xact_id()"
"""What names the transaction that a statement is part of, among those of all servers."""

# `bridge/triggers/postgres.py` reads a NOTIFY: a trigger as JSON, or a queue reference alone. For delayed messages it
# carries the earliest time; the receive at that time learns from the store when the next message is due.
#
# A NOTIFY is named after its transaction and queue. The bridge through which the message was put publishes the same
# name over the broker (`bridge.service.shared_store`), so a bridge that gets both requests one wake (B13). Both round
# up a new delay in the same way; for a row with an older timestamp the remaining time counts.
#
# A commit that notifies waits for all others in the database that do, its write to the disk included. So a bridge that
# hears very many promises to look by itself (`bridge/triggers/promises.py`), and a put whose queue is promised says
# nothing. Its transaction is taken part in first and the promise looked at then: in this order whoever withdraws a
# promise, and reads afterwards which transactions are open, knows of each that relied on it. A promise is for two
# seconds of the server's clock at most, for a frozen bridge keeps its connection, and with it its locks.
_PUT: Final = f"""
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
            FROM (SELECT queue, visible_at, inserted_at, clock_timestamp() AS now FROM new_messages) AS new
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
_RESUME: Final = """
BEGIN
    PERFORM pg_notify('{channel}', new.name);
    RETURN NULL;
END """
_FUNCTIONS: Final = {"queuebell_messages": _PUT, "queuebell_queues": _RESUME}
MEANT: Final = "puts notify nobody, and that is meant"
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
"""Promise to look after the queues ``$2`` of channel ``$1``, and after no others, until the next second is over.

Says of which, as another bridge may have done so, and tells all bridges the words ``$3`` of those.
"""
PROMISED_S: Final = 2.0
"""How long a promise stands at most that is not given again."""
WITHDRAW: Final = "SELECT pg_advisory_unlock_all()"
OPEN: Final = """
SELECT virtualtransaction AS transaction FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((classid::bigint << 32) | objid::bigint) = hashtextextended($1, 1)
"""
"""The transactions that have put something on channel ``$1`` and are not over."""

SILENCE: Final = f"""
DROP TRIGGER IF EXISTS queuebell_notify ON queuebell_messages;
DROP TRIGGER IF EXISTS queuebell_notify ON queuebell_queues;
DROP FUNCTION IF EXISTS queuebell_notify_put();
DROP FUNCTION IF EXISTS queuebell_notify_resume();
COMMENT ON TRIGGER queuebell_insert ON queuebell_messages IS '{MEANT}';
"""
LOOK: Final = f"""
SELECT n.nspname::text AS schema, c.relname::text AS of, p.prosrc AS function, EXISTS (
    SELECT FROM pg_trigger AS i WHERE i.tgrelid = c.oid AND obj_description(i.oid, 'pg_trigger') = '{MEANT}'
) AS meant
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_trigger AS t ON t.tgrelid = c.oid AND t.tgname = 'queuebell_notify' AND t.tgenabled IN ('O', 'A')
LEFT JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE c.relname IN ('queuebell_messages', 'queuebell_queues') AND c.relkind IN ('r', 'p')
    AND ($1::bool OR n.nspname = ANY (current_schemas(false)))
ORDER BY schema, of
"""  # noqa: S608
"""What `hearing` judges; `$1`: whether tables of all schemas count, as a channel is one for the whole database."""

ROOM: Final = """
SELECT count(*)::int AS used, (current_setting('max_connections')::int
    - current_setting('superuser_reserved_connections')::int) AS most
FROM pg_stat_activity WHERE backend_type = 'client backend'
"""
"""How many connections of the server are in use, and how many there are for everybody."""
FULL: Final = 0.8
"""From this part on `room` warns."""


def speak(channel: str) -> str:
    """Return the script that has every put, and each resume of a queue, notify this channel."""
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


SPOKEN: Final = """
SELECT p.prosrc FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = 'queuebell_messages'::regclass AND t.tgname = 'queuebell_notify' AND t.tgenabled IN ('O', 'A')
"""
"""The function by which puts notify, where they do."""


def outdated(function: str | None) -> str | None:
    """Return the channel of a function that puts notify by, where it is of another version; None where it is not."""
    found = None if function is None else _channel(function)
    return None if found is None or function == _PUT.format(channel=found[1]) else found[1]


class Voice(NamedTuple):
    """What stands at one table: the text of its trigger function, None where there is none that works."""

    schema: str
    of: str
    function: str | None
    meant: bool


class Hearing(NamedTuple):
    """Whether plain puts wake listeners, in one line."""

    ok: bool
    detail: str


def room(used: int, most: int) -> Hearing:
    """Say whether a server has connections left for a fleet that grows."""
    detail = f"{used} of the server's {most} connections are in use"
    if used < FULL * most:
        return Hearing(True, detail)
    return Hearing(
        False,
        f"{detail}; with none left it refuses workers, bridges and your application alike. Messages are safe. Each "
        "worker process has up to pool_size (8) for each address: lower it in the address, or raise max_connections",
    )


def hearing(voices: Iterable[Voice], channel: str) -> Hearing:
    """Say whether what is put in these tables is heard on ``channel``.

    Tables that notify another channel belong to another system, as long as some notify this one.
    """
    schemas: dict[str, dict[str, Voice]] = {}
    for voice in voices:
        schemas.setdefault(voice.schema, {})[voice.of] = voice
    if not schemas:
        return Hearing(
            True,
            "there are no tables of queues here ('queuebell queue init' makes them); "
            "what anybody notifies wakes listeners",
        )
    faults: list[str] = []
    others: list[str] = []
    heard: list[str] = []
    silent: list[str] = []
    for schema, tables in schemas.items():
        said = {of: tables[of].function if of in tables else None for of in _FUNCTIONS}
        found = next((match[1] for text in said.values() if text is not None and (match := _channel(text))), None)
        if found is not None and found != channel:
            others.append(f"puts in schema {schema} notify the channel {found}, and this bridge listens to {channel}")
        elif not any(said.values()) and any(each.meant for each in tables.values()):
            silent.append(schema)
        elif None in said.values():
            missing = " and ".join(of for of, text in said.items() if text is None)
            faults.append(f"schema {schema} has no trigger function at {missing}")
        elif any(said[of] != text.format(channel=channel) for of, text in _FUNCTIONS.items()):
            faults.append(f"the trigger functions of schema {schema} are of another version of Queuebell")
        else:
            heard.append(schema)
    if others and not heard:
        faults += others
    if faults:
        # Without it the command would make what notifies the usual channel, and nothing would be mended.
        told = "" if channel == DEFAULT_PREFIX else f"QUEUEBELL_PREFIX={channel} "
        return Hearing(
            False,
            f"not every plain put wakes listeners: {'; '.join(faults)}. Such messages are safe, and wait a minute or "
            f"so. Make the functions with '{told}queuebell queue init postgres://... --notify', or say with "
            "'--no-notify' that producers publish by themselves",
        )
    if heard:
        return Hearing(True, f"plain puts in schema {', '.join(heard)} wake listeners")
    return Hearing(True, f"puts in schema {', '.join(silent)} notify nobody, as was asked for (--no-notify)")
