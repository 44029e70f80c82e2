"""An operator, an account and a user of NATS, for tests of credentials files."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import nkeys

NO_LIMITS = {"subs": -1, "data": -1, "payload": -1}


def new_key(kind: int) -> tuple[str, nkeys.KeyPair]:
    """Return a new key's seed and the key; kinds are nkeys.PREFIX_BYTE_*."""
    seed = nkeys.encode_seed(os.urandom(32), kind)
    return seed.decode(), nkeys.from_seed(bytearray(seed))


def operator_mode() -> tuple[str, str]:
    """Return what goes into a server's configuration, and the text of a user's credentials file."""
    _, operator = new_key(nkeys.PREFIX_BYTE_OPERATOR)
    _, account = new_key(nkeys.PREFIX_BYTE_ACCOUNT)
    seed, user = new_key(nkeys.PREFIX_BYTE_USER)
    limits = {**NO_LIMITS, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    of_operator = _jwt(operator, operator, {"type": "operator"})
    of_account = _jwt(operator, account, {"type": "account", "limits": limits})
    of_user = _jwt(account, user, {"type": "user", "pub": {}, "sub": {}, **NO_LIMITS})
    config = f"operator: {of_operator}\nresolver: MEMORY\nresolver_preload {{ {_public(account)}: {of_account} }}\n"
    return config, (
        f"-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def _public(key: nkeys.KeyPair) -> str:
    return key.public_key.decode()


def _jwt(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, nats: dict[str, Any]) -> str:
    claims = {
        "jti": _public(subject),
        "iat": 1_700_000_000,
        "iss": _public(issuer),
        "sub": _public(subject),
        "name": nats["type"],
        "nats": {**nats, "version": 2},
    }
    said = ".".join(_encoded(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims))
    return f"{said}.{_encoded(issuer.sign(said.encode()))}"


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
