"""The ways to keep a table store's promise, by scheme; each is loaded when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from bridge.contract.errors import ConfigurationError
from bridge.table import TableStore

TABLES: Final[dict[str, str]] = {
    "memory": "bridge.tables.memory:MemoryTable",
    "sqlite": "bridge.tables.sqlite:SqliteTable",
    "azure": "bridge.tables.azure:AzureTable",
    "postgres": "bridge.tables.postgres:PostgresTable",
    "postgresql": "bridge.tables.postgres:PostgresTable",
    "nats": "bridge.tables.nats:NatsTable",
    "tls": "bridge.tables.nats:NatsTable",
}
"""Scheme to the class that serves it, by dotted name."""


def open_table(url: str) -> TableStore:
    """Return the table store that ``url`` names, ready to be called.

    ``memory:NAME`` is shared within the process, ``sqlite:///absolute/path.db`` (``sqlite:relative.db`` from the
    working directory) within a machine, ``postgres://...``, ``azure:[NAME]`` (`bridge.azure_account`)
    and ``nats://host:4222`` or ``tls://host:4222`` wherever those are reached. Raises
    `ConfigurationError` for anything else, without repeating the URL, which may hold a secret.
    """
    scheme, colon, rest = url.partition(":")
    name = TABLES.get(scheme.lower()) if colon else None
    if name is None:
        known = ", ".join(f"{scheme}:" for scheme in TABLES)
        raise ConfigurationError(f"ledger: the scheme of a table store's URL is one of {known}")
    module, _, attribute = name.partition(":")
    make: Callable[[str], TableStore] = getattr(importlib.import_module(module), attribute)
    return make(_argument(scheme.lower(), url, rest))


def _argument(scheme: str, url: str, rest: str) -> str:
    """Return what the class of a scheme takes: a name, a path, or the whole URL."""
    if scheme == "memory":
        return rest.strip("/") or "default"
    if scheme != "sqlite":
        return url
    parts = urlsplit(url)
    if parts.netloc or not parts.path.strip("/"):
        raise ConfigurationError("ledger: sqlite takes a path and no host, as in sqlite:///var/lib/queuebell/ledger.db")
    path = unquote(parts.path)
    if "\0" in path:
        raise ConfigurationError("ledger: the path of its file holds a NUL character")
    if not Path(path).absolute().parent.is_dir():
        raise ConfigurationError("ledger: the directory of its file is not there; make it, or name another file")
    return path
