"""API keys: secrets of 256 bits, of which only the SHA-256 is kept; pure.

A hash without salt and without stretching is enough for a secret that nobody chose: there is nothing to guess it from
(NIST SP 800-63B 5.1.2.2 asks for stretching of secrets below 112 bits only).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from bridge.contract.errors import ConfigurationError
from bridge.core.grants import Principal

PREFIX: Final = "qb_"
"""So that a scanner for leaked secrets knows one when it sees it."""
CHANCE_BYTES: Final = 32
ID_DIGITS: Final = 12

_form = re.compile(PREFIX + "[0-9a-f]{64}").fullmatch
_hash = re.compile("[0-9a-f]{64}").fullmatch


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One key as it is kept; times are seconds since 1970."""

    principal: str
    sha256: str
    """Of the whole secret with its prefix, 64 small hexadecimal digits."""
    created_at: float
    expires_at: float | None = None
    """From then on it proves nothing; None is never."""

    @property
    def id(self) -> str:
        """What it is called where keys are listed and revoked; it says nothing about the secret."""
        return self.sha256[:ID_DIGITS]


class AccessList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may do what, and the keys they prove it by: the content of an access file."""

    version: int = 1
    principals: dict[str, dict[str, list[str]]] = {}
    """By name: patterns of queues by verb."""
    keys: list[Key] = []


class Identity(msgspec.Struct, frozen=True):
    """Who proved to be who, and by which key."""

    principal: Principal
    key: str | None = None
    """The whole hash of the key; None where it was no key, but a token."""
    until: float = math.inf
    """When it ends by itself."""


class Access:
    """What an access list allows. Raises `ConfigurationError` that says what is wrong with it."""

    def __init__(self, listed: AccessList) -> None:
        if listed.version != 1:
            raise ConfigurationError(f"version: this release reads version 1, and this is {listed.version}")
        self._principals = {name: Principal(name, grants) for name, grants in listed.principals.items()}
        self._keys: dict[str, Key] = {}
        for key in listed.keys:
            if _hash(key.sha256) is None:
                raise ConfigurationError("keys: sha256 is 64 small hexadecimal digits")
            if key.principal not in self._principals:
                raise ConfigurationError(f"keys: {key.id} is for {key.principal!r}, and no principal is called so")
            if key.sha256 in self._keys:
                raise ConfigurationError(f"keys: {key.id} stands there twice")
            self._keys[key.sha256] = key

    def __len__(self) -> int:
        return len(self._keys)

    def identify(self, secret: str, now: float) -> Identity | None:
        """Return who a secret proves somebody to be at ``now``, None where it proves nothing.

        The time it takes tells nothing of any key that is kept: what is looked up is a hash, and whoever could choose
        one with a given beginning could as well guess the key.
        """
        if _form(secret) is None:
            return None
        return self._of(hashlib.sha256(secret.encode()).hexdigest(), now)

    def again(self, identity: Identity, now: float) -> Identity | None:
        """Return the same somebody as of this list at ``now``, None where the key was revoked or has expired."""
        if identity.key is None:
            return self.named(identity.principal.name, identity.until, now)
        return self._of(identity.key, now)

    def principal(self, name: str) -> Principal | None:
        """Return who is called so, None where nobody is."""
        return self._principals.get(name)

    def named(self, name: str, until: float, now: float) -> Identity | None:
        """Return who somebody is whom a token names ``until`` then, None where nobody is called so or it is over."""
        principal = self._principals.get(name)
        return None if principal is None or now >= until else Identity(principal, None, until)

    def _of(self, sha256: str, now: float) -> Identity | None:
        key = self._keys.get(sha256)
        if key is None or (key.expires_at is not None and now >= key.expires_at):
            return None
        return Identity(self._principals[key.principal], sha256, math.inf if key.expires_at is None else key.expires_at)


def new_key(
    listed: AccessList,
    principal: str,
    grants: Mapping[str, Iterable[str]],
    *,
    chance: bytes,
    now: float,
    expires_at: float | None = None,
) -> tuple[AccessList, str]:
    """Return the list with one more key, and the key's secret, which nothing keeps.

    ``grants`` are what the principal has from now on; none leaves a known one as it is. ``chance`` is 32 random bytes.
    Raises `ConfigurationError` for grants that are wrong, and for a new principal without any.
    """
    assert len(chance) == CHANCE_BYTES
    given = {verb: list(patterns) for verb, patterns in grants.items()}
    if not given and principal not in listed.principals:
        raise ConfigurationError(
            f"{principal}: nothing is granted to it yet, so its key could do nothing: say what it may, as put=billing/*"
        )
    if given:
        Principal(principal, given)
    secret = PREFIX + chance.hex()
    key = Key(
        principal=principal,
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        created_at=now,
        expires_at=expires_at,
    )
    principals = {**listed.principals, principal: given} if given else listed.principals
    made = msgspec.structs.replace(listed, principals=principals, keys=[*listed.keys, key])
    Access(made)
    return made, secret


def without(listed: AccessList, id_or_name: str) -> tuple[AccessList, list[Key]]:
    """Return the list without a key, or without all keys of a principal, and those that it had.

    Raises `ConfigurationError` where there is none: a typo must not look like a revocation.
    """
    gone = [key for key in listed.keys if id_or_name in {key.id, key.principal}]
    if not gone:
        raise ConfigurationError(f"no key has the id {id_or_name!r}, and no principal of that name has a key")
    return msgspec.structs.replace(listed, keys=[key for key in listed.keys if key not in gone]), gone
