"""Comparing signatures, and refusing what is not proven."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

from bridge.http.azure.errors import AzureError

_SHOWN_MAX = 4096


def matches(keys: Sequence[bytes], text: str, signature: str) -> bool:
    """Say whether ``signature`` (base64) is that of ``text`` by one of the keys; the time taken tells nothing of it."""
    raw = text.encode("utf-8", "surrogateescape")
    given = signature.encode("utf-8", "surrogateescape")
    found = False
    for key in keys:
        found |= hmac.compare_digest(base64.b64encode(hmac.digest(key, raw, "sha256")), given)
    return found


def failed(detail: str) -> AzureError:
    """Return the refusal of a request whose sender is not proven, with what is wrong in words."""
    return AzureError("AuthenticationFailed", details={"AuthenticationErrorDetail": detail})


def shown(text: str) -> str:
    """Return a text as it may stand in an answer: characters that XML cannot hold are replaced, and its length bounded.

    A text to sign holds nothing but parts of the request, so that whoever sent it learns nothing new.
    """
    return "".join(char if char == "\n" or char.isprintable() else "?" for char in text[:_SHOWN_MAX])
