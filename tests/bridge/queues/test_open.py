"""The table of schemes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.queues import STORES, open_store
from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.embedded.sqlite import SqliteStore
from bridge.storage.blobs import open_blobs
from bridge.storage.tables import open_table


def test_schemes_lead_to_their_stores() -> None:
    """Names, paths and options arrive where they belong."""
    store = open_store("memory:orders", boot="ab" * 16)
    assert isinstance(store, MemoryStore)
    assert (store.name, store.boot) == ("orders", "ab" * 16)
    store = open_store("sqlite:///var/lib/my%20queue.db")
    assert isinstance(store, SqliteStore)
    assert store.path == Path("/var/lib/my queue.db")
    store = open_store("sqlite:here/queue.db")
    assert isinstance(store, SqliteStore)
    assert store.path == Path.cwd() / "here" / "queue.db"


@pytest.mark.parametrize("rest", ["/q.db?k=secret", "/q#secret.db", "file?", "/q.db#", "//[secret", "//x]/secret"])
@pytest.mark.parametrize(("open_", "scheme"), [(open_store, "sqlite"), (open_table, "sqlite"), (open_blobs, "file")])
def test_no_part_of_an_address_is_ignored(open_: Callable[[str], object], scheme: str, rest: str) -> None:
    """An option that no file has is refused, and what would cut the path short, without repeating a secret."""
    with pytest.raises(ConfigurationError) as refused:
        open_(f"{scheme}:{rest}")
    text = str(refused.value)
    assert f"{scheme}://" in text or "malformed" in text
    assert "secret" not in text
    # Nor does a traceback.
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_path_has_any_character_as_an_escape() -> None:
    """Those with a meaning in a URL too."""
    store = open_store("sqlite:///var/lib/q%231%3F%25.db")
    assert isinstance(store, SqliteStore)
    assert store.path == Path("/var/lib/q#1?%.db")


def test_no_path_has_a_nul() -> None:
    """An escape of the URL is no way to give the system what it cannot take."""
    with pytest.raises(ConfigurationError, match="NUL"):
        open_store("sqlite:/var/lib/%00.db")


@pytest.mark.parametrize("url", ["mongodb://secret@host", "", "nonsense", "/etc/passwd", "sqlite:", "sqlite://host/x"])
def test_other_schemes_name_the_known_ones(url: str) -> None:
    """What is not understood is refused in one line that helps, and without repeating a secret."""
    with pytest.raises(ConfigurationError) as refused:
        open_store(url)
    text = str(refused.value)
    assert "sqlite" in text
    assert "secret" not in text
    assert "\n" not in text


def test_looking_at_the_table_loads_no_store() -> None:
    """`import bridge.queues` costs neither a web client nor a database."""
    code = "import sys, bridge.queues; print(sorted(m for m in sys.modules if m in ('aiohttp', 'sqlite3')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(STORES) >= {"memory", "sqlite", "http", "https"}
