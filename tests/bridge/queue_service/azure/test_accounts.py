"""Accounts and where their keys come from."""

from __future__ import annotations

import base64
import pathlib

import pytest

from bridge.config import load
from bridge.contract.errors import ConfigurationError
from bridge.queue_service.azure.accounts import AccountSettings, read_accounts

KEY = base64.b64encode(b"secret".ljust(64)).decode()


def test_the_emulators_account_is_there_by_default() -> None:
    """With the key that every SDK knows, unless it is configured or unwanted."""
    (key,) = read_accounts((), {}).keys("devstoreaccount1")
    assert len(key) == 64
    assert read_accounts((), {}, emulator=False).keys("devstoreaccount1") == ()
    own = read_accounts([AccountSettings(name="devstoreaccount1", key=KEY)], {})
    assert own.keys("devstoreaccount1") == (b"secret".ljust(64),)


def test_keys_come_from_three_places(tmp_path: pathlib.Path) -> None:
    """The table, a file, a variable; a second table of one name adds a key."""
    held = tmp_path / "key"
    held.write_text(KEY + "\n")
    file = tmp_path / "queuebell.toml"
    file.write_text(
        f'[[azure_account]]\nname = "acme"\nkey = "{KEY}"\n[[azure_account]]\nname = "acme"\nkey_file = "{held}"\n'
        '[[azure_account]]\nname = "other"\nkey_env = "OTHER_KEY"\n'
    )
    accounts = read_accounts(load(str(file), environment={}).azure_account, {"OTHER_KEY": KEY})
    assert accounts.keys("acme") == (b"secret".ljust(64),) * 2
    assert accounts.keys("other") == (b"secret".ljust(64),)
    assert "acme" in accounts
    assert "nobody" not in accounts


@pytest.mark.parametrize(
    "table",
    [
        {"name": "a/b", "key": KEY},
        {"name": "acme-secondary", "key": KEY},
        {"name": "acme"},
        {"name": "acme", "key": KEY, "key_env": "X"},
        {"name": "acme", "key": "not base64!"},
        {"name": "acme", "key": "c2hvcnQ="},
        {"name": "acme", "key_env": "MISSING"},
        {"name": "acme", "key_file": "/nowhere/key"},
        {"name": "acme", "key_file": "/nowhere\0"},
    ],
)
def test_a_table_that_is_wrong_is_named(table: dict[str, str]) -> None:
    """The refusal names the table and never a key."""
    with pytest.raises(ConfigurationError, match="azure_account 1") as caught:
        read_accounts([AccountSettings(**table)], {"X": KEY})
    assert table.get("key", KEY) not in str(caught.value)


def test_keys_are_in_no_repr() -> None:
    """What is logged by accident holds none."""
    settings = AccountSettings(name="acme", key=KEY)
    assert repr(settings) == "AccountSettings(name='acme')"
    assert "secret" not in repr(read_accounts([settings], {}))
    assert KEY not in repr(read_accounts([settings], {}))
