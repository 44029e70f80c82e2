"""Access lists and keys for tests: who may do what, in few words."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping

from queuebell.bridge.access import access_file
from queuebell.bridge.access.keys import AccessList, new_key

NOW = 1_000_000.0


def secret_of(number: int) -> bytes:
    """Return chance that is none: 32 bytes for each number."""
    return number.to_bytes(32, "big")


def listed(
    principals: Mapping[str, Mapping[str, Iterable[str]]], *, expires_at: float | None = None
) -> tuple[AccessList, dict[str, str]]:
    """Return a list with one key for each principal, and their secrets by name."""
    found, secrets = AccessList(), {}
    for number, (name, grants) in enumerate(principals.items()):
        found, secrets[name] = new_key(found, name, grants, chance=secret_of(number), now=NOW, expires_at=expires_at)
    return found, secrets


def written(path: pathlib.Path, principals: Mapping[str, Mapping[str, Iterable[str]]]) -> dict[str, str]:
    """Write an access file with one key for each principal, and return their secrets by name."""
    found, secrets = listed(principals)
    access_file.change(path, lambda _: found)
    return secrets
