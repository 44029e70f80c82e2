"""Whose connection string an ``azure:`` address of blobs or tables means."""

from __future__ import annotations

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.queues.azure.account import EMULATOR, VARIABLE, AzureAccount
from bridge.storage.blobs import open_blobs
from bridge.storage.tables import open_table

TEXT = "AccountName=billing;AccountKey=c2VjcmV0;EndpointSuffix=core.windows.net"


def account(url: str, **environment: str) -> AzureAccount:
    return AzureAccount(url, "claim_check", "container", "bodies", environment)


def test_the_variable_is_named_by_the_address() -> None:
    """The plain one, or that with the name behind it in capitals; nothing of it is shown."""
    assert account("azure:", **{VARIABLE: TEXT}).connection_string == TEXT
    found = account("azure:west-2?container=other", **{f"{VARIABLE}_WEST_2": TEXT})
    assert (found.connection_string, found.place, found.options) == (TEXT, "other", {})
    assert "c2VjcmV0" not in repr(found)
    assert account("azure:?api_version=2025-11-05", **{VARIABLE: TEXT}).options == {"api_version": "2025-11-05"}


@pytest.mark.parametrize("text", ["UseDevelopmentStorage=true", " usedevelopmentstorage = TRUE; "])
def test_the_emulator_has_a_short_name(text: str) -> None:
    """As every other Azure SDK has it."""
    assert account("azure:", **{VARIABLE: text}).connection_string == EMULATOR


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("azure:", "has no AZURE_STORAGE_CONNECTION_STRING"),
        ("azure:other", "has no AZURE_STORAGE_CONNECTION_STRING_OTHER"),
        ("azure://host", "without a host"),
        ("azure:a/b", "without a host"),
        ("azure:?secret=1", "options of azure: are container"),
        ("azure:?api_version=newest", "is a date"),
    ],
)
def test_an_address_that_cannot_work_is_refused(url: str, says: str) -> None:
    """With the setting's name, and without what the address held."""
    with pytest.raises(ConfigurationError, match=says) as refused:
        account(url)
    assert str(refused.value).startswith("claim_check: ")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "azure:?container=Upper",
        "azure:?container=a--b",
        "azure:?container=ab",
        "s3://B",
        "s3://bucket/a.b",
        "s3://bucket?endpoint=secret",
        "s3://bucket?secret=1",
        "s3:bucket",
    ],
)
def test_a_place_that_has_no_such_name_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked of a service."""
    monkeypatch.setenv(VARIABLE, TEXT)
    with pytest.raises(ConfigurationError) as refused:
        open_blobs(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["azure:?table=a-b", "azure:?table=9ab", "postgres://secret@host"])
def test_a_table_that_has_no_such_name_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked of a service."""
    monkeypatch.setenv(VARIABLE, TEXT)
    with pytest.raises(ConfigurationError) as refused:
        open_table(url)
    assert "secret" not in str(refused.value)
