"""The ways to keep a table store's promise, by scheme; each is loaded when it is first asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bridge.brokers.schemes import argument_of, class_for
from bridge.contract.errors import ConfigurationError
from bridge.storage.tables.base import TableStore

TABLES: Final[dict[str, tuple[str, str]]] = {
    "memory": ("bridge.storage.tables.memory", "MemoryTable"),
    "sqlite": ("bridge.storage.tables.sqlite", "SqliteTable"),
    "azure": ("bridge.storage.tables.azure", "AzureTable"),
    "postgres": ("bridge.storage.tables.postgres", "PostgresTable"),
    "postgresql": ("bridge.storage.tables.postgres", "PostgresTable"),
}
"""Scheme to the module and the class that serve it."""


def open_table(url: str) -> TableStore:
    """Return the table store that ``url`` names, ready to be called.

    ``memory:NAME`` is shared within the process, ``sqlite:///absolute/path.db`` (``sqlite:relative.db`` from the
    working directory) within a machine, ``postgres://...`` and ``azure:[NAME]`` (`bridge.queues.azure.account`)
    wherever those are reached. Raises `ConfigurationError` for anything else, without repeating the URL, which may
    hold a secret.
    """
    if url.partition(":")[0].lower() in ("nats", "tls"):
        raise ConfigurationError("ledger: NATS cannot store a ledger; use postgres://, azure: or sqlite:")
    kind = class_for(url, TABLES, "ledger")
    argument = argument_of(url, "ledger", "sqlite", "/var/lib/queuebell/ledger.db")
    if url.lower().startswith("sqlite:") and not Path(argument).absolute().parent.is_dir():
        raise ConfigurationError("ledger: the directory of its file does not exist; create it, or name another file")
    table: TableStore = kind(argument)
    return table
