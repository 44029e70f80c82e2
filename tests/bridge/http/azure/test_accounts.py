"""Accounts and where their keys come from."""

from __future__ import annotations

import base64
import pathlib

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.http.azure.accounts import AccountSettings, read_accounts
from queuebell.settings import load

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


SIXTEEN = base64.b64encode(b"x" * 16).decode()
FIFTEEN = base64.b64encode(b"x" * 15).decode()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"name": "a/b", "key": KEY}, ": name: letters, digits"),
        ({"name": "a" * 81, "key": KEY}, ": name: letters, digits"),
        ({"name": "acme-secondary", "key": KEY}, ": name: .* not ending in -secondary"),
        ({"name": "acme"}, " (acme): one of key, key_file and key_env is needed"),
        ({"name": "acme", "key": KEY, "key_env": "X"}, " (acme): one of key, key_file and key_env is needed"),
        ({"name": "acme", "key": KEY, "key_file": "X"}, " (acme): one of key, key_file and key_env is needed"),
        ({"name": "acme", "key_file": "X", "key_env": "X"}, " (acme): one of key, key_file and key_env is needed"),
        ({"name": "acme", "key": "not base64!"}, " (acme): key: a key is written in base64"),
        ({"name": "acme", "key": "!!!!" + KEY}, " (acme): key: a key is written in base64"),
        ({"name": "acme", "key": FIFTEEN}, " (acme): key: a key has at least 16 bytes"),
        ({"name": "acme", "key_env": "SHORT"}, " (acme): key_env: a key has at least 16 bytes"),
        ({"name": "acme", "key_env": "MISSING"}, " (acme): key_env: MISSING is not set in the environment"),
        ({"name": "acme", "key_file": "/nowhere/key"}, " (acme): key_file: cannot read '/nowhere/key': No such file"),
        ({"name": "acme", "key_file": "/nowhere\0"}, " (acme): key_file: cannot read .*: .*null"),
    ],
)
@pytest.mark.parametrize("before", [0, 1])
def test_a_table_that_is_wrong_is_named(table: dict[str, str], says: str, before: int) -> None:
    """The refusal names the table, counted from one, with its account, the field and what is wrong, but never a key."""
    pattern = f"^azure_account {before + 1}{says.replace('(', '[(]').replace(')', '[)]')}"
    good = [AccountSettings(name="good", key=KEY)] * before
    with pytest.raises(ConfigurationError, match=pattern) as caught:
        read_accounts([*good, AccountSettings(**table)], {"X": KEY, "SHORT": FIFTEEN})
    assert table.get("key", KEY) not in str(caught.value)


@pytest.mark.parametrize(
    ("held", "says"), [("\u00e9", "does not hold a key in base64"), ("?", "a key is written in base64")]
)
def test_a_file_that_holds_no_key_is_named(held: str, says: str, tmp_path: pathlib.Path) -> None:
    """Other letters, or such as no key has."""
    file = tmp_path / "key"
    file.write_text(held, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"^azure_account 1 [(]acme[)]: key_file: .*{says}"):
        read_accounts([AccountSettings(name="acme", key_file=str(file))], {})


def test_a_key_may_be_as_short_as_sixteen_bytes() -> None:
    """Blanks around it are not part of it; a name may have eighty letters."""
    accounts = read_accounts([AccountSettings(name="a" * 80, key=f" {SIXTEEN}\n")], {})
    assert accounts.keys("a" * 80) == (b"x" * 16,)


def test_keys_are_in_no_repr() -> None:
    """What is logged by accident holds none."""
    settings = AccountSettings(name="acme", key=KEY)
    assert repr(settings) == "AccountSettings(name='acme')"
    assert repr(read_accounts([settings], {})) == "Accounts(acme, devstoreaccount1)"


def test_a_key_file_that_everybody_can_read_is_told_of(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With its table and the command that closes it; a group may be meant to."""
    file = tmp_path / "key"
    file.write_text(KEY)
    for mode, lines in ((0o640, 0), (0o644, 1)):
        file.chmod(mode)
        read_accounts([AccountSettings(name="acme", key_file=str(file))], {})
        assert len(caplog.records) == lines
    assert f"azure_account 1 (acme): key_file: every user of this machine can read it: chmod 600 {file}" in caplog.text
