"""The ways to keep a blob store's promise, by scheme; each is loaded when it is first asked for."""

from __future__ import annotations

from typing import Final

from bridge.brokers.schemes import argument_of, class_for
from bridge.storage.blobs.base import BlobStore

BLOBS: Final[dict[str, tuple[str, str]]] = {
    "memory": ("bridge.storage.blobs.memory", "MemoryBlobs"),
    "file": ("bridge.storage.blobs.files", "FileBlobs"),
    "s3": ("bridge.storage.blobs.s3", "S3Blobs"),
    "azure": ("bridge.storage.blobs.azure", "AzureBlobs"),
}
"""Scheme to the module and the class that serve it."""


def open_blobs(url: str) -> BlobStore:
    """Return the blob store that ``url`` names, ready to be called.

    ``memory:NAME`` is shared within the process; ``file:///absolute/directory`` (``file:relative`` from the working
    directory) within all that see the directory; ``s3://BUCKET[/PREFIX]`` (`bridge.storage.blobs.s3`), ``azure:[NAME]``
    (`bridge.queues.azure.account`). Raises `ConfigurationError` for anything else, without repeating the
    URL, which may hold a secret.
    """
    made: BlobStore = class_for(url, BLOBS, "claim_check")(
        argument_of(url, "claim_check", "file", "/var/lib/queuebell/blobs")
    )
    return made
