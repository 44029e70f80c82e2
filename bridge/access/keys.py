"""Create, check and revoke API keys: random secrets of 256 bits, stored only as SHA-256; pure.

Random secrets need neither salt nor stretching (NIST SP 800-63B 5.1.2.2 requires stretching only below 112 bits).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from queuebell.bridge.access.certificates import Certificate, san
from queuebell.bridge.access.grants import Principal
from queuebell.bridge.access.limits import NO_LIMITS, Limits, limited
from queuebell.bridge.contract.errors import ConfigurationError

T = TypeVar("T")

PREFIX: Final = "qb_"
"""Lets scanners for leaked secrets recognize a key."""
CHANCE_BYTES: Final = 32
ID_DIGITS: Final = 12

_form = re.compile(PREFIX + "[0-9a-f]{64}").fullmatch
_hash = re.compile("[0-9a-f]{64}").fullmatch


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A stored key; times are seconds since 1970."""

    principal: str
    sha256: str
    """Hash of the secret with its prefix, as 64 lowercase hexadecimal digits."""
    created_at: float
    expires_at: float | None = None
    """When it expires; None means never."""

    @property
    def id(self) -> str:
        """The id for listing and revoking keys; it reveals nothing of the secret."""
        return self.sha256[:ID_DIGITS]


class AccessList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of an access file: principals with their grants, limits and credentials."""

    version: int = 1
    principals: dict[str, dict[str, list[str]]] = {}
    """By name: queue patterns by verb."""
    keys: list[Key] = []
    limits: dict[str, Limits] = {}
    """By principal."""
    certificates: dict[str, list[str]] = {}
    """By principal: names of its certificates, as `san` reads them."""


class Identity(msgspec.Struct, frozen=True):
    """A principal and the credential that proved it."""

    principal: Principal
    key: str | None = None
    """The hash of the key; None for a token or a certificate."""
    until: float = math.inf
    """When the credential expires."""
    certificate: Certificate | None = None
    """The certificate, if that is the credential."""


class Access:
    """Evaluates an access list. Raises `ConfigurationError` for an invalid one."""

    def __init__(self, listed: AccessList) -> None:
        if listed.version != 1:
            raise ConfigurationError(
                f"version: this release reads version 1, but the file has version {listed.version}"
            )
        self._principals = {
            name: Principal(name, grants, listed.limits.get(name, NO_LIMITS))
            for name, grants in listed.principals.items()
        }
        for what, names in (("limits", listed.limits), ("certificates", listed.certificates)):
            for name in names:
                if name not in self._principals:
                    raise ConfigurationError(f"{what}: they are for {name!r}, but there is no principal of that name")
        self._certified: dict[str, str] = {}
        for name, certificates in listed.certificates.items():
            for text in certificates:
                if self._certified.setdefault(san(text), name) != name:
                    raise ConfigurationError(f"certificates: {text} is listed for two principals")
        self._keys: dict[str, Key] = {}
        for key in listed.keys:
            if _hash(key.sha256) is None:
                raise ConfigurationError("keys: sha256 must be 64 lowercase hexadecimal digits")
            if key.principal not in self._principals:
                raise ConfigurationError(
                    f"keys: {key.id} belongs to {key.principal!r}, but there is no principal of that name"
                )
            if key.sha256 in self._keys:
                raise ConfigurationError(f"keys: {key.id} is listed twice")
            self._keys[key.sha256] = key

    def __len__(self) -> int:
        return len(self._keys)

    def identify(self, secret: str, now: float) -> Identity | None:
        """Return the identity that a secret proves at ``now``, or None.

        Timing reveals nothing of stored keys, as the lookup uses a hash that an attacker cannot choose.
        """
        if _form(secret) is None:
            return None
        return self._of(hashlib.sha256(secret.encode()).hexdigest(), now)

    def again(self, identity: Identity, now: float) -> Identity | None:
        """Return the identity by this list at ``now``; None if its credential was revoked or has expired."""
        if identity.certificate is not None:
            found = self.certified(identity.certificate, now)
            same = found is not None and found.principal.name == identity.principal.name
            return found if same else None
        if identity.key is None:
            return self.named(identity.principal.name, identity.until, now)
        return self._of(identity.key, now)

    def principal(self, name: str) -> Principal | None:
        """Return the principal with a name, or None."""
        return self._principals.get(name)

    def named(self, name: str, until: float, now: float) -> Identity | None:
        """Return the identity of a token that names ``name``; None for an unknown name or an expired token."""
        principal = self._principals.get(name)
        return None if principal is None or now >= until else Identity(principal, None, until)

    def certified(self, certificate: Certificate, now: float) -> Identity | None:
        """Return the identity that a verified certificate proves at ``now``.

        None if it has expired, none of its names is listed, or its names belong to several principals.
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
    """Return the list with a new key, and the key's secret, which is not stored.

    ``grants`` replace those of the principal; empty keeps them. ``chance`` is 32 random bytes. Raises
    `ConfigurationError` for invalid grants, and for a new principal without any.
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
    """Return the list with a principal's grants and limits changed and certificates added.

    ``grants`` replace all grants; empty keeps them. ``limits`` change one by one, as in `limited`. Raises
    `ConfigurationError` for invalid values, and for a principal without grants.
    """
    given = {verb: list(patterns) for verb, patterns in grants.items()}
    if not given and principal not in listed.principals:
        raise ConfigurationError(
            f"{principal}: it has no grants yet, so it could do nothing: grant something, such as put=billing/*"
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
    """Return the list without a key, a certificate, or all of a principal's, and the removed (credential, principal).

    Raises `ConfigurationError` if there are none, so that a typo does not look like a revocation.
    """
    keys = [key for key in listed.keys if id_or_name in {key.id, key.principal}]
    removed = [(key.id, key.principal) for key in keys]
    remaining: dict[str, list[str]] = {}
    for name, certificates in listed.certificates.items():
        dropped = [each for each in certificates if id_or_name in {each, name}]
        removed += [(each, name) for each in dropped]
        if kept := [each for each in certificates if each not in dropped]:
            remaining[name] = kept
    if not removed:
        raise ConfigurationError(
            f"no key has the id {id_or_name!r}, and no principal of that name has a key or a certificate"
        )
    made = msgspec.structs.replace(listed, keys=[key for key in listed.keys if key not in keys], certificates=remaining)
    return made, removed


def _with(known: Mapping[str, T], name: str, value: T | None) -> dict[str, T]:
    return {key: each for key, each in known.items() if key != name} | ({} if value is None else {name: value})
