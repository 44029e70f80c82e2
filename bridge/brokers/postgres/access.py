"""Where a PostgreSQL database is and as which user to connect; shared by the store, the bus and the bridge.

asyncpg is imported at the first connection.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import ConfigurationError

SCHEMES: Final = ("postgres", "postgresql")
PORT: Final = 5432
CONNECT_S: Final = 5.0
CHANNEL_BYTES_MAX: Final = 63
CLIENT_OPTIONS: Final = frozenset(
    {"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "passfile", "target_session_attrs"}
)
"""Options of the address that are for the client library."""
SEARCH_PATH: Final = "search_path"
DIRECT: Final = "direct"
"""The option with the database's own hosts, for the address of a pooler."""
ATTRIBUTES: Final = "target_session_attrs"
WRITES: Final = "read-write"
"""The default: a queue on a standby cannot be used."""
_SHARED: Final = frozenset({"26000", "42P05"})
"""A prepared statement is missing, or its name is taken: clients share the connections to the server."""
_SESSION: Final = {"queuebell.session": "kept"}
"""A setting without a meaning to the server: a connection that has lost it is shared."""
# Scripts: they need no prepared statement, which a shared connection would keep for another client.
_KEPT: Final = """DO $$ BEGIN
    IF current_setting('queuebell.session', true) IS DISTINCT FROM 'kept' THEN
        RAISE EXCEPTION 'the settings of a session are dropped' USING ERRCODE = '26000';
    END IF;
END $$"""
_TAKES_WRITES: Final = """DO $$ BEGIN
    IF current_setting('transaction_read_only') = 'on' THEN
        RAISE EXCEPTION 'this server is read-only' USING ERRCODE = '25006';
    END IF;
END $$"""
_PROTOCOL: Final = "08P01"
_AUTHORITY: Final = re.compile(r"[/?#]")


def is_pooler(error: Exception) -> bool:
    """Return whether a client's error means that the address leads to a pooler in transaction mode.

    Such a pooler refuses the settings of a session, or drops them, which `PostgresAccess.connect` detects.
    """
    state = getattr(error, "sqlstate", None)
    return state in _SHARED or (state == _PROTOCOL and "startup parameter" in str(error))


def pooler(where: str) -> ConfigurationError:
    """Return the error for a pooler's address where the database's own is needed."""
    return ConfigurationError(
        f"postgres: {where} is a connection pooler (PgBouncer in transaction mode). Bridges and "
        "publishers need LISTEN, which it does not support. Puts and workers can use it, and messages "
        "are safe. Name the database itself too: postgres://USER@POOLER:6432/DATABASE?direct=HOST:5432"
    )


def client() -> Any:
    """Return the client library. Raises `ConfigurationError` that names the extra where it is missing."""
    try:
        import asyncpg  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigurationError(f"postgres: its client is not installed: {install('postgres')}") from None
    return asyncpg


class PostgresAccess:
    """``postgres://[USER[:PASSWORD]@][HOST[:PORT][,HOST[:PORT]...]]/DATABASE[?OPTION=VALUE&...]``, checked.

    Of several hosts it connects to the first that accepts writes (``target_session_attrs``: ``read-write``).
    Options are those of the client, ``search_path`` (the schema of the tables), ``direct`` (HOST[:PORT] of the database
    itself, several with commas, where the address leads to a pooler), and the caller's ``options``; the client does not
    get the last two. An empty host is the local socket. ``text`` is the address without user, password and options, for
    logs; ``place`` is the same for every way of writing one database and schema. Raises `ConfigurationError`, which
    never repeats the address.
    """

    def __init__(self, url: str, *, options: Collection[str] = ()) -> None:
        scheme, slashes, rest = url.partition("://")
        authority = _AUTHORITY.split(rest, maxsplit=1)[0]
        user, at, named = authority.rpartition("@")
        try:
            # Without its hosts: urlsplit allows brackets for a single host only.
            parts = urlsplit(f"{scheme}{slashes}{user}{at}{rest[len(authority) :]}")
            hosts = [_host(each) for each in named.split(",")]
        except ValueError:
            raise ConfigurationError("postgres: the address is malformed") from None
        database = unquote(parts.path).strip("/")
        if parts.scheme not in SCHEMES or not database or "/" in database or parts.fragment:
            raise ConfigurationError(
                "postgres: an address is postgres://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?OPTION=VALUE]"
            )
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        options = {*options, DIRECT}
        known = {*CLIENT_OPTIONS, SEARCH_PATH, *options}
        for key, _ in pairs:
            if key not in known:
                raise ConfigurationError(f"postgres: options of the address are {', '.join(sorted(known))}")
        self.options: Mapping[str, str] = dict(pairs)
        self.search_path = self.options.get(SEARCH_PATH)
        if "host" in self.options or "port" in self.options:
            hosts = _given(hosts, self.options)
        self._hosts = hosts if named or len(hosts) > 1 else []
        shown = [f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in hosts]
        self.text = f"postgres://{','.join(shown)}/{database}"
        same = sorted("127.0.0.1" + each[9:] if each.startswith("localhost:") else each for each in shown)
        self.place = f"postgres://{','.join(same)}/{database}?{self.search_path or ''}"
        self._attributes = self.options.get(ATTRIBUTES) or os.environ.get("PGTARGETSESSIONATTRS") or WRITES
        self.writes = self._attributes == WRITES
        kept = [pair for pair in pairs if pair[0] not in options]
        self._dsn = urlunsplit(parts._replace(query=urlencode(kept)))
        self._pooled = urlunsplit(parts._replace(query=urlencode([pair for pair in kept if pair[0] != SEARCH_PATH])))
        self.direct = self
        """The same database without the pooler."""
        if DIRECT in self.options:
            if not all(each.partition(":")[0] for each in self.options[DIRECT].split(",")):
                raise ConfigurationError(
                    "postgres: direct must name the database itself, not a pooler: direct=HOST:PORT"
                )
            query = urlencode([pair for pair in pairs if pair[0] not in (DIRECT, "host", "port")])
            netloc = f"{user}{at}{self.options[DIRECT]}"
            self.direct = PostgresAccess(urlunsplit(parts._replace(netloc=netloc, query=query)), options=options)
            self.place = self.direct.place

    def __repr__(self) -> str:
        return f"<PostgresAccess {self.text}>"

    def number(self, option: str, default: int, *, most: int) -> int:
        """Return an option that is a whole number from 1 to ``most``."""
        text = self.options.get(option)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise ConfigurationError(f"postgres: {option} must be a whole number from 1 to {most}")
        return int(text)

    async def connect(
        self, *, within_s: float = CONNECT_S, settings: Mapping[str, str] | None = None, pooled: bool = False
    ) -> Any:
        """Return a new connection with these settings of the session.

        A ``pooled`` connection keeps nothing between transactions: no search path and no prepared statement. A
        statement with arguments, or one that returns rows, needs a transaction there.

        Raises the client's errors: `OSError`, `TimeoutError`, and its own, which `is_pooler` recognizes where a pooler
        refuses or drops ``settings``; `ConfigurationError` for files or options that cannot be used.
        """
        asyncpg = client()
        session = {**settings, **_SESSION} if settings else {}
        given: dict[str, Any] = {"server_settings": {"application_name": "queuebell", **session}}
        dsn, attributes, script = self._dsn, self._attributes, _KEPT if session else None
        if pooled:
            # asyncpg would use a prepared statement to check that the server accepts writes.
            script = _TAKES_WRITES if self.writes and len(self._hosts) > 1 else None
            dsn, attributes = self._pooled, "any"
            given["statement_cache_size"] = 0
        # Each host has its share of the time, so that one that hangs does not use up the others'.
        tries: list[dict[str, Any]] = [{"host": host, "port": port} for host, port in self._hosts if host]
        if self._attributes == "prefer-standby" and tries:
            tries = [{key: [each[key] for each in tries] for key in ("host", "port")}]
        tries = tries or [{"port": port} for _, port in self._hosts] or [{}]
        try:
            for number, host in enumerate(tries, 1):
                try:
                    share_s = within_s / len(tries)
                    connection = await asyncpg.connect(
                        dsn, timeout=share_s, target_session_attrs=attributes, **host, **given
                    )
                    try:
                        if script is not None:
                            await connection.execute(script, timeout=share_s)
                    except BaseException:
                        connection.terminate()
                        raise
                    return connection
                except (
                    OSError,
                    asyncpg.PostgresError,
                    asyncpg.InterfaceError,
                    asyncpg.TargetServerAttributeNotMatched,
                ) as error:
                    # A pooler ends the round: the caller then tries all hosts as a pooler needs it.
                    if number == len(tries) or is_pooler(error):
                        raise
        except asyncpg.TargetServerAttributeNotMatched:
            raise ConnectionError(
                f"none of its servers is {self._attributes} now; to read from a standby, set target_session_attrs=any"
                if self.writes
                else f"none of its servers is {self._attributes} now"
            ) from None
        except (asyncpg.ClientConfigurationError, ssl.SSLError, FileNotFoundError, ValueError) as error:
            # A missing socket is not a missing file: it comes with the server.
            if isinstance(error, ssl.SSLError) or (isinstance(error, OSError) and not self._names_files()):
                raise
            raise ConfigurationError(f"postgres: {self.text}: the address cannot be used: {error}") from None

    def suits(self, connection: Any) -> bool:
        """Return whether a connection's server still accepts writes where needed, as far as it has reported."""
        read_only = getattr(connection.get_settings(), "default_transaction_read_only", "off")
        return not (self.writes and read_only == "on")

    def _names_files(self) -> bool:
        return any(option in self.options for option in ("sslrootcert", "sslcert", "sslkey", "passfile"))


def _host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "", parts.port or PORT


def _given(hosts: list[tuple[str, int]], options: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the hosts of the options ``host`` and ``port``, with one port for all or one for each."""
    names = options["host"].split(",") if "host" in options else [host for host, _ in hosts]
    texts = options["port"].split(",") if "port" in options else [str(port) for _, port in hosts]
    if len(texts) == 1:
        texts *= len(names)
    if len(texts) != len(names) or not all(text.isascii() and text.isdigit() for text in texts):
        raise ConfigurationError(
            "postgres: port must be one number for all hosts, or one per host, separated by commas"
        )
    return [(name, int(text)) for name, text in zip(names, texts, strict=True)]
