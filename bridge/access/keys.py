"""API keys: secrets of 256 bits, of which only the SHA-256 is kept; pure.

A hash without salt and without stretching is enough for a secret that nobody chose: there is nothing to guess it from
(NIST SP 800-63B 5.1.2.2 asks for stretching of secrets below 112 bits only).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from bridge.access.certificates import Certificate, san
from bridge.access.grants import Principal
from bridge.access.limits import NO_LIMITS, Limits, limited
from bridge.contract.errors import ConfigurationError

T = TypeVar("T")

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
    limits: dict[str, Limits] = {}
    """By the name of a principal: what it may use at most."""
    certificates: dict[str, list[str]] = {}
    """By the name of a principal: names of certificates that prove somebody to be it, as `san` reads them."""


class Identity(msgspec.Struct, frozen=True):
    """Who proved to be who, and by what."""

    principal: Principal
    key: str | None = None
    """The whole hash of the key; None where it was no key, but a token or a certificate."""
    until: float = math.inf
    """When it ends by itself."""
    certificate: Certificate | None = None
    """The certificate, where it was one."""


class Access:
    """What an access list allows. Raises `ConfigurationError` that says what is wrong with it."""

    def __init__(self, listed: AccessList) -> None:
        if listed.version != 1:
            raise ConfigurationError(f"version: this release reads version 1, and this is {listed.version}")
        self._principals = {
            name: Principal(name, grants, listed.limits.get(name, NO_LIMITS))
            for name, grants in listed.principals.items()
        }
        for what, names in (("limits", listed.limits), ("certificates", listed.certificates)):
            for name in names:
                if name not in self._principals:
                    raise ConfigurationError(f"{what}: they are for {name!r}, and no principal is called so")
        self._certified: dict[str, str] = {}
        for name, certificates in listed.certificates.items():
            for text in certificates:
                if self._certified.setdefault(san(text), name) != name:
                    raise ConfigurationError(f"certificates: {text} stands there for two principals")
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
        if identity.certificate is not None:
            found = self.certified(identity.certificate, now)
            same = found is not None and found.principal.name == identity.principal.name
            return found if same else None
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

    def certified(self, certificate: Certificate, now: float) -> Identity | None:
        """Return whom a verified certificate proves somebody to be at ``now``.

        None where none of its names is listed, those that are belong to several principals, or it has expired.
        """
        names = {self._certified[name] for name in certificate.names if name in self._certified}
        if len(names) != 1 or now >= certificate.until:
            return None
        return Identity(self._principals[names.pop()], None, certificate.until, certificate)

    def _of(self, sha256: str, now: float) -> Identity | None:
        key = self._keys.get(sha256)
        if key is None or (key.expires_at is not None and now >= key.expires_at):
            return None
        return Identity(self._principals[key.principal], sha256, math.inf if key.expires_at is None else key.expires_at)


def new_key(
    listed: AccessList,
    principal: str,
    grants: Mapping[str, Iterable[str]] = {},
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
    listed = with_terms(listed, principal, grants, limits={})
    secret = PREFIX + chance.hex()
    key = Key(
        principal=principal,
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        created_at=now,
        expires_at=expires_at,
    )
    made = msgspec.structs.replace(listed, keys=[*listed.keys, key])
    Access(made)
    return made, secret


def with_terms(
    listed: AccessList,
    principal: str,
    grants: Mapping[str, Iterable[str]],
    *,
    limits: Mapping[str, str],
    certificates: Iterable[str] = (),
) -> AccessList:
    """Return the list with what a principal may from now on, and with more certificates that prove it.

    ``grants`` are whole, none leaves them as they are; ``limits`` are changed one by one, as `limited` does. Raises
    `ConfigurationError` for what is wrong, and for a principal that nothing is granted to.
    """
    given = {verb: list(patterns) for verb, patterns in grants.items()}
    if not given and principal not in listed.principals:
        raise ConfigurationError(
            f"{principal}: nothing is granted to it yet, so it could do nothing: say what it may, as put=billing/*"
        )
    if given:
        Principal(principal, given)
    names = list(dict.fromkeys([*listed.certificates.get(principal, []), *map(san, certificates)]))
    terms = limited(listed.limits.get(principal, NO_LIMITS), limits)
    made = msgspec.structs.replace(
        listed,
        principals={**listed.principals, principal: given} if given else listed.principals,
        limits=_with(listed.limits, principal, None if terms == NO_LIMITS else terms),
        certificates=_with(listed.certificates, principal, names or None),
    )
    Access(made)
    return made


def without(listed: AccessList, id_or_name: str) -> tuple[AccessList, list[tuple[str, str]]]:
    """Return the list without a key or a certificate, or without all of a principal, and (what, whose) these were.

    Raises `ConfigurationError` where there is none: a typo must not look like a revocation.
    """
    keys = [key for key in listed.keys if id_or_name in {key.id, key.principal}]
    gone = [(key.id, key.principal) for key in keys]
    left: dict[str, list[str]] = {}
    for name, certificates in listed.certificates.items():
        going = [each for each in certificates if id_or_name in {each, name}]
        gone += [(each, name) for each in going]
        if kept := [each for each in certificates if each not in going]:
            left[name] = kept
    if not gone:
        raise ConfigurationError(
            f"no key has the id {id_or_name!r}, and no principal of that name has a key or a certificate"
        )
    made = msgspec.structs.replace(listed, keys=[key for key in listed.keys if key not in keys], certificates=left)
    return made, gone


def _with(known: Mapping[str, T], name: str, value: T | None) -> dict[str, T]:
    return {key: each for key, each in known.items() if key != name} | ({} if value is None else {name: value})
