"""docs/stores/README.md keeps its word: its table is what the stores say of themselves, and every store has a page."""

from __future__ import annotations

import re

import msgspec
import pytest

from bridge.queues import STORES, open_store
from bridge.queues.base import Capabilities
from tests.support.processes import ROOT

PAGES = ROOT / "docs" / "stores"
ADDRESSES = {
    "embedded": "http://127.0.0.1:8470",
    "PostgreSQL": "postgres://user@host/database",
    "Azure": "azure:",
    "SQS": "sqs://eu-west-1",
    "JetStream": "nats://host:4222",
    "Redis": "redis://host:6379",
}
MEANING = {
    "complete_receive": "an empty receive proves that nothing is due (L8)",
    "exact_depth": "the depth is exact",
    "zero_depth": "a depth of 0 and 0 that is not exact is none all the same",
    "next_visible": "a receive tells when the next message is due",
    "delayed_put": "puts may be delayed",
    "update_body": "an extension may change the body",
    "peek": "peek",
    "time_to_live": "messages may expire",
    "metadata": "metadata of a queue",
    "pause": "pause and resume",
    "batch_max": "messages a receive, at most",
    "body_bytes_max": "bytes of a body, at most",
    "resolution_ms": "leases and delays are rounded up to, ms (B2)",
    "receive_s": "a receive may wait, s (L3)",
    "short_batch_ends": "a short batch proves that nothing is left (L8)",
    "ordered": "longest visible first, and not roughly",
    "fenced": "only the newest receipt settles",
    "put_receipts": "a put's receipt may delete it",
    "atomic_put": "several messages go in together or not at all",
    "delay_ms_max": "delay of a put, s at most",
    "own_leases": "each lease lasts as long as it was asked for, and no longer",
    "put_once": "a put with a key of its own is carried out once",
    "oldest_age": "it tells how long the oldest message has waited",
    "counts_leased": "it tells the leased apart from the delayed",
    "joins_transaction": "a put can be part of a transaction of yours",
    "uncounted_release": "a message may be given back uncounted",
    "visibility_s_max": "lease, s at most",
    "headers": "messages carry headers",
}


def said(field: str, value: object) -> str:
    """Return a value as a reader wants it."""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    assert isinstance(value, int | float)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value // 1000 if field == 'delay_ms_max' else value:,}"


def table() -> str:
    """Return the table of the page, from what the stores say."""
    each = [open_store(address).capabilities for address in ADDRESSES.values()]
    lines = ["| | " + " | ".join(ADDRESSES) + " |", "|---|" + "---|" * len(ADDRESSES)]
    for field in msgspec.structs.fields(Capabilities):
        assert {type(getattr(one, field.name)) for one in each} == {type(field.default)}, field.name
        values = [said(field.name, getattr(one, field.name)) for one in each]
        lines.append(f"| {MEANING[field.name]} | " + " | ".join(values) + " |")
    return "\n".join(lines)


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the address that reads its account from the environment one to read."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")


def test_the_table_is_what_the_stores_say() -> None:
    """Every capability of every store stands in it, as the code has it."""
    page = (PAGES / "README.md").read_text("utf-8")
    assert table() in page, "docs/stores/README.md: the table of capabilities is to be\n\n" + table()


def test_the_embedded_addresses_are_one_store() -> None:
    """What stands in one column for three addresses is true of all."""
    others = ("memory:said", "sqlite:///said/nowhere.db")
    for address in others:
        assert open_store(address).capabilities == open_store(ADDRESSES["embedded"]).capabilities


def test_every_scheme_has_a_page_that_says_its_cost_and_its_bound() -> None:
    """Each page is linked, names its schemes, and has the three answers."""
    front = (PAGES / "README.md").read_text("utf-8")
    linked = re.findall(r"^\| \[[^\]]+\]\((\w+\.md)\) \|", front, re.MULTILINE)
    assert sorted(linked) == sorted(path.name for path in PAGES.glob("*.md") if path.name != "README.md")
    pages = {name: (PAGES / name).read_text("utf-8") for name in linked}
    for name, page in pages.items():
        for heading in (r"[Ee]xact", r"What a quiet queue costs", r"[Bb]ound"):
            assert re.search(rf"^## .*{heading}", page, re.MULTILINE), f"{name}: no section about {heading}"
    for scheme in STORES.keys() - {"postgresql"}:
        assert any(re.search(rf"`{scheme}:", page) for page in pages.values()), f"{scheme}: stands on no page"
