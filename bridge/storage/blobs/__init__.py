"""Blob stores by the scheme of their address. Each module is imported when its scheme is first opened."""

from __future__ import annotations

from typing import Final

from queuebell.bridge.brokers.address import argument_of, class_for
from queuebell.bridge.storage.blobs.base import BlobStore

BLOBS: Final[dict[str, tuple[str, str]]] = {
    "memory": ("queuebell.bridge.storage.blobs.memory", "MemoryBlobs"),
    "file": ("queuebell.bridge.storage.blobs.files", "FileBlobs"),
    "s3": ("queuebell.bridge.storage.blobs.s3", "S3Blobs"),
    "azure": ("queuebell.bridge.storage.blobs.azure", "AzureBlobs"),
}


def open_blobs(url: str) -> BlobStore:
    """Return the blob store at ``url``, which connects at its first call.

    ``memory:NAME`` is shared within the process, ``file:///absolute/directory`` (``file:relative`` to the working
    directory) by all that see the directory; ``s3://BUCKET[/PREFIX]``: `S3Blobs`; ``azure:[NAME]``: `AzureAccount`.
    Raises `ConfigurationError` for any other address, without repeating it: it may hold a secret.
    """
    argument = argument_of(url, "claim_check", "file", "/var/lib/queuebell/blobs")
    made: BlobStore = class_for(url, BLOBS, "claim_check")(argument)
    return made
