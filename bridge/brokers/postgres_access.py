"""Where a PostgreSQL database is and as whom to connect; shared by the store, the bus and the bridge's ear.

asyncpg is loaded when somebody connects, never before.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from bridge.contract.errors import ConfigurationError

SCHEMES: Final = ("postgres", "postgresql")
PORT: Final = 5432
CONNECT_S: Final = 5.0
CHANNEL_BYTES_MAX: Final = 63
CLIENT_OPTIONS: Final = frozenset(
    {"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "passfile", "target_session_attrs"}
)
"""Options of the address that are for the client library."""
SEARCH_PATH: Final = "search_path"


def client() -> Any:
    """Return the client library; raises `ConfigurationError` that names the extra where it is missing."""
    try:
        import asyncpg  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigurationError(
            "postgres: its client is not installed: pip install -e '.[postgres]' in the checkout"
        ) from None
    return asyncpg


class PostgresAccess:
    """``postgres://[USER[:PASSWORD]@][HOST[:PORT]]/DATABASE[?OPTION=VALUE&...]``, checked.

    Options are those of the client, ``search_path`` (the schema that holds the tables), and ``options`` of the caller,
    which are kept from the client. An empty host is the local socket. ``text`` is the address without user, password
    and options, for logs; ``place`` is the same text for every way of writing one database and schema. Raises
    `ConfigurationError`; its message never repeats the address.
    """

    def __init__(self, url: str, *, options: Collection[str] = ()) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or PORT
        except ValueError:
            raise ConfigurationError("postgres: the address is malformed") from None
        database = unquote(parts.path).strip("/")
        if parts.scheme not in SCHEMES or not database or "/" in database or parts.fragment:
            raise ConfigurationError(
                "postgres: an address is postgres://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?OPTION=VALUE]"
            )
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        known = {*CLIENT_OPTIONS, SEARCH_PATH, *options}
        for key, _ in pairs:
            if key not in known:
                raise ConfigurationError(f"postgres: options of the address are {', '.join(sorted(known))}")
        self.options: Mapping[str, str] = dict(pairs)
        self.search_path = self.options.get(SEARCH_PATH)
        host = self.options.get("host", host)
        shown = f"[{host}]" if ":" in host else host
        self.text = f"postgres://{shown}:{self.options.get('port', port)}/{database}"
        same = self.text.replace("://localhost:", "://127.0.0.1:")
        self.place = f"{same}?{self.search_path or ''}"
        kept = urlencode([pair for pair in pairs if pair[0] not in options])
        self._dsn = urlunsplit(parts._replace(query=kept))

    def __repr__(self) -> str:
        return f"<PostgresAccess {self.text}>"

    def number(self, option: str, default: int, *, most: int) -> int:
        """Return an option that is a whole number from 1 to ``most``."""
        text = self.options.get(option)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise ConfigurationError(f"postgres: {option} is a whole number from 1 to {most}")
        return int(text)

    async def connect(self, *, within_s: float = CONNECT_S, settings: Mapping[str, str] | None = None) -> Any:
        """Return a new connection with these settings of the session.

        Raises what the client raises: `OSError`, `TimeoutError`, and its own errors; `ConfigurationError` where the
        address names files or options that it cannot use.
        """
        asyncpg = client()
        try:
            return await asyncpg.connect(
                self._dsn, timeout=within_s, server_settings={"application_name": "queuebell", **(settings or {})}
            )
        except (asyncpg.ClientConfigurationError, ssl.SSLError, FileNotFoundError, ValueError) as error:
            # A missing socket is no missing file of ours: it comes with the server.
            if isinstance(error, ssl.SSLError) or (isinstance(error, OSError) and not self._names_files()):
                raise
            raise ConfigurationError(f"postgres: {self.text}: the address cannot be used: {error}") from None

    def _names_files(self) -> bool:
        return any(option in self.options for option in ("sslrootcert", "sslcert", "sslkey", "passfile"))
