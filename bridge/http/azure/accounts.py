"""The accounts of the Azure endpoint and their keys."""

from __future__ import annotations

import base64
import binascii
import logging
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from queuebell.bridge.brokers.credential import open_to_all
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.names import is_token

SECONDARY = "-secondary"
"""The suffix of an account's name at its second, read-only address."""

log = logging.getLogger("queuebell.access")

EMULATOR_ACCOUNT = "devstoreaccount1"
EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Every SDK has this key for ``UseDevelopmentStorage=true``: not a secret."""
KEY_BYTES_MIN = 16


class AccountSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[azure_account]]`` table: a name and one key, from one of three places.

    A second table of the same name adds a key, so that a key can be changed while the other still serves.
    """

    name: str
    key: str | None = None
    """The key itself, in base64."""
    key_file: str | None = None
    """A file that holds it."""
    key_env: str | None = None
    """A variable of the environment that holds it."""

    principal: str | None = None
    """The principal whose permissions bound its signatures if the bridge has an access file; default: its own name."""

    def __repr__(self) -> str:
        # Neither the key nor its place.
        return f"AccountSettings(name={self.name!r})"


class Accounts:
    """Accounts and their keys; the keys never leave in a ``repr``."""

    def __init__(self, keys: Mapping[str, Sequence[bytes]]) -> None:
        self._keys = {name: tuple(of_account) for name, of_account in keys.items()}

    def __repr__(self) -> str:
        return f"Accounts({', '.join(sorted(self._keys))})"

    def keys(self, account: str) -> Sequence[bytes]:
        """Return the keys of an account, none for an unknown one."""
        return self._keys.get(account, ())


def read_accounts(
    tables: Iterable[AccountSettings], environment: Mapping[str, str], *, emulator: bool = True, secret: bool = False
) -> Accounts:
    """Read the keys of all tables; with ``emulator`` the emulator's account has its well-known key unless configured.

    With ``secret`` that key is refused. Raises `ConfigurationError` naming the table and the field, never the key.
    """
    found: dict[str, list[bytes]] = {}
    for number, table in enumerate(tables, 1):
        where = f"azure_account {number}"
        if not is_token(table.name) or table.name.endswith(SECONDARY):
            raise ConfigurationError(
                f"{where}: name: must be letters, digits, '_' and '-', at most 80, and must not end in {SECONDARY}"
            )
        key = _read_key(table, f"{where} ({table.name})", environment)
        if secret and key == base64.b64decode(EMULATOR_KEY):
            raise ConfigurationError(
                f"{where} ({table.name}): with auth, the emulator's key is not accepted because it is "
                "public; create another: openssl rand -base64 64"
            )
        found.setdefault(table.name, []).append(key)
    if emulator:
        found.setdefault(EMULATOR_ACCOUNT, [base64.b64decode(EMULATOR_KEY)])
    return Accounts(found)


def principals_of(tables: Iterable[AccountSettings]) -> dict[str, str]:
    """Return the name of each account's principal.

    Raises `ConfigurationError` if two tables of one account differ in it.
    """
    found: dict[str, str] = {}
    for number, table in enumerate(tables, 1):
        name = table.name if table.principal is None else table.principal
        if found.setdefault(table.name, name) != name:
            raise ConfigurationError(
                f"azure_account {number} ({table.name}): principal: {name!r} here, but "
                f"{found[table.name]!r} in another table of this account; all its keys must have the same "
                "principal"
            )
    return found


def _read_key(table: AccountSettings, where: str, environment: Mapping[str, str]) -> bytes:
    given = [name for name in ("key", "key_file", "key_env") if getattr(table, name) is not None]
    if len(given) != 1:
        raise ConfigurationError(f"{where}: set exactly one of key, key_file and key_env")
    if table.key_file is not None:
        try:
            text = pathlib.Path(table.key_file).read_text(encoding="ascii")
        except UnicodeDecodeError:
            raise ConfigurationError(f"{where}: key_file: {table.key_file} does not contain a key in base64") from None
        except (OSError, ValueError) as error:  # the latter for what cannot be a path
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"{where}: key_file: cannot read {table.key_file!r}: {reason}") from None
        if exposed := open_to_all(table.key_file):
            log.warning("%s: key_file: %s", where, exposed)
    elif table.key_env is not None:
        if table.key_env not in environment:
            raise ConfigurationError(f"{where}: key_env: {table.key_env} is not set in the environment")
        text = environment[table.key_env]
    else:
        assert table.key is not None
        text = table.key
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(f"{where}: {given[0]}: a key must be base64") from None
    if len(key) < KEY_BYTES_MIN:
        raise ConfigurationError(
            f"{where}: {given[0]}: a key must have at least {KEY_BYTES_MIN} bytes; an account's has 64"
        )
    return key
