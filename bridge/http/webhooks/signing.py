"""Signatures of Standard Webhooks v1: HMAC-SHA256 over ``id.timestamp.body`` (S28)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

SECRET_PREFIX = "whsec_"
KEY_BYTES = (24, 64)


def read_secret(text: str) -> bytes:
    """Return the key of a secret such as ``whsec_...`` (base64 of 24 to 64 bytes; the prefix may be left out).

    Raises `ValueError` that does not repeat the secret.
    """
    encoded = text.strip().removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a secret must be whsec_ and base64") from None
    low, high = KEY_BYTES
    if not low <= len(key) <= high:
        raise ValueError(f"a secret must be base64 of {low} to {high} random bytes")
    return key


def sign(keys: Sequence[bytes], id_: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers for one attempt; with several keys (rotation) there are as many signatures.

    ``timestamp`` is whole seconds since 1970 of this very attempt; ``id_`` is the same for every attempt and holds no
    dot, or two different messages could have the same signed text.
    """
    if "." in id_:
        raise ValueError("an id must not contain a dot")
    signed = f"{id_}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys)
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
