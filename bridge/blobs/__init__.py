"""The ways to keep a blob store's promise, by scheme; each is loaded when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote, urlsplit

from bridge.blob import BlobStore
from bridge.contract.errors import ConfigurationError

BLOBS: Final[dict[str, str]] = {
    "memory": "bridge.blobs.memory:MemoryBlobs",
    "file": "bridge.blobs.files:FileBlobs",
    "s3": "bridge.blobs.s3:S3Blobs",
    "azure": "bridge.blobs.azure:AzureBlobs",
}
"""Scheme to the class that serves it, by dotted name."""


def open_blobs(url: str) -> BlobStore:
    """Return the blob store that ``url`` names, ready to be called.

    ``memory:NAME`` is shared within the process; ``file:///absolute/directory`` (``file:relative`` from the working
    directory) within all that see the directory; ``s3://BUCKET[/PREFIX]`` (`bridge.blobs.s3`), ``azure:[NAME]``
    (`bridge.azure_account`). Raises `ConfigurationError` for anything else, without repeating the
    URL, which may hold a secret.
    """
    scheme, colon, rest = url.partition(":")
    name = BLOBS.get(scheme.lower()) if colon else None
    if name is None:
        known = ", ".join(f"{scheme}:" for scheme in BLOBS)
        raise ConfigurationError(f"claim_check: the scheme of a blob store's URL is one of {known}")
    module, _, attribute = name.partition(":")
    make: Callable[[str], BlobStore] = getattr(importlib.import_module(module), attribute)
    return make(_argument(scheme.lower(), url, rest))


def _argument(scheme: str, url: str, rest: str) -> str:
    """Return what the class of a scheme takes: a name, a path, or the whole URL."""
    if scheme == "memory":
        return rest.strip("/") or "default"
    if scheme != "file":
        return url
    parts = urlsplit(url)
    if parts.netloc or not parts.path.strip("/"):
        raise ConfigurationError(
            "claim_check: file takes a directory and no host, as in file:///var/lib/queuebell/blobs"
        )
    return unquote(parts.path)
