"""Table stores by the scheme of their address. Each module is imported when its scheme is first opened."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from queuebell.bridge.brokers.address import argument_of, class_for
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.storage.tables.base import TableStore

TABLES: Final[dict[str, tuple[str, str]]] = {
    "memory": ("queuebell.bridge.storage.tables.memory", "MemoryTable"),
    "sqlite": ("queuebell.bridge.storage.tables.sqlite", "SqliteTable"),
    "azure": ("queuebell.bridge.storage.tables.azure", "AzureTable"),
    "postgres": ("queuebell.bridge.storage.tables.postgres", "PostgresTable"),
    "postgresql": ("queuebell.bridge.storage.tables.postgres", "PostgresTable"),
}


def open_table(url: str) -> TableStore:
    """Return the table store at ``url``, which connects at its first call.

    ``memory:NAME`` is shared within the process, ``sqlite:///absolute/path.db`` (``sqlite:relative.db`` to the working
    directory) within a machine, ``postgres://...`` and ``azure:[NAME]`` (`AzureAccount`) between machines. Raises
    `ConfigurationError` for any other address, without repeating it: it may hold a secret.
    """
    scheme = url.partition(":")[0].lower()
    if scheme in ("nats", "tls"):
        raise ConfigurationError("ledger: NATS cannot store a ledger; use postgres://, azure: or sqlite:")
    kind = class_for(url, TABLES, "ledger")
    argument = argument_of(url, "ledger", "sqlite", "/var/lib/queuebell/ledger.db")
    if scheme == "sqlite" and not Path(argument).absolute().parent.is_dir():
        raise ConfigurationError("ledger: the directory of its file does not exist; create it, or name another file")
    table: TableStore = kind(argument)
    return table
