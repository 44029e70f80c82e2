"""Names as the Queue service has them: stricter than a queue reference, and only at this endpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from bridge.http.azure.errors import AzureError

METADATA_BYTES_MAX = 8192
METADATA_PREFIX = "x-ms-meta-"

_queue_name = re.compile("[a-z0-9](?:[a-z0-9]|-(?=[a-z0-9])){2,62}").fullmatch
_metadata_name = re.compile("[A-Za-z_][A-Za-z0-9_]*").fullmatch
_header_text = re.compile("[\x20-\x7e]*").fullmatch
_message_id = re.compile("00000000-0000-0000-([0-9a-f]{4})-([0-9a-f]{12})", re.IGNORECASE).fullmatch

# Names come back again and again: remember those that passed, and forget all when strangers fill the memory.
_known: set[str] = set()
_KNOWN_MAX = 10_000


def is_queue_name(name: str) -> bool:
    """Say whether a name has 3 to 63 of ``a-z0-9-``, with no hyphen at an end or beside another."""
    return _queue_name(name) is not None


def check_queue_name(name: str) -> None:
    """Raise `AzureError` for a name that `is_queue_name` denies: ``OutOfRangeInput`` or ``InvalidResourceName``."""
    if name in _known:
        return
    if not is_queue_name(name):
        if 3 <= len(name) <= 63:
            raise AzureError("InvalidResourceName")
        raise AzureError("OutOfRangeInput", "The specified resource name length is not within the permissible limits.")
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known.add(name)


def message_id(stored: str) -> str:
    """Write a message's id, 16 hex digits in the store, in the form of a GUID, as clients of the service expect."""
    return f"00000000-0000-0000-{stored[:4]}-{stored[4:]}"


def stored_id(given: str) -> str:
    """Return the store's id of what `message_id` wrote; raises `AzureError` (``MessageNotFound``) for all else."""
    match = _message_id(given)
    if match is None:
        raise AzureError("MessageNotFound")
    return (match[1] + match[2]).lower()


def metadata_of(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Collect the metadata of a request's headers.

    Values of equal names, whatever their case, are joined by commas. Raises `AzureError`: ``InvalidMetadata`` or
    ``MetadataTooLarge``.
    """
    found: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for header, value in headers:
        if header[: len(METADATA_PREFIX)].lower() != METADATA_PREFIX:
            continue
        name = header[len(METADATA_PREFIX) :]
        if _metadata_name(name) is None or _header_text(value) is None:
            raise AzureError("InvalidMetadata")
        name = spelled.setdefault(name.lower(), name)
        found[name] = f"{found[name]},{value}" if name in found else value
    if sum(len(name) + len(value) for name, value in found.items()) > METADATA_BYTES_MAX:
        raise AzureError("MetadataTooLarge")
    return found


def metadata_shown(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return what of a queue's metadata can stand in headers; the native interface allows more than that."""
    return {
        name: value
        for name, value in metadata.items()
        if _metadata_name(name) is not None and _header_text(value) is not None
    }
