"""A claim: the short message body that replaces a body stored as a blob.

``queuebell-claim:1 {"blob": ..., "sha256": ..., "size": ..., "encoding": ...}``, in ASCII, so that it passes through
every store.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.names import TOKEN, parse_reference

MAGIC: Final = b"queuebell-claim:"
"""The begin of every claim of any version."""
LOST: Final = b"queuebell-claim-lost:"
"""The begin of a dead-lettered claim whose blob is missing, when it is delivered: not a valid claim."""
CLAIM_BYTES_MAX: Final = 1024
IDENTITY: Final = "identity"
ZLIB: Final = "zlib"

_VERSION_1: Final = MAGIC + b"1 "
_blob = re.compile(f"({TOKEN}/{TOKEN})/(never|[0-9]{{1,10}})-(?:([0-9a-f]{{16}})-)?[0-9a-f]{{32}}").fullmatch
_sha256 = re.compile("[0-9a-f]{64}").fullmatch


class Claim(msgspec.Struct, frozen=True):
    """The place of a body, with size and hash of the original body."""

    blob: str
    sha256: str
    size: int
    encoding: str


class BadClaim(BadInput):
    """A body begins like a claim but is not valid: damaged, of another version, or invented."""

    def __init__(self, detail: str) -> None:
        super().__init__("bad_parameter", detail)


def is_claim(body: bytes) -> bool:
    """Return whether a body has the begin of a claim."""
    return body.startswith(MAGIC)


def write_claim(claim: Claim) -> bytes:
    """Return the claim as a message body."""
    return _VERSION_1 + msgspec.json.encode(claim)


def read_claim(body: bytes) -> Claim:
    """Read a body that `is_claim`.

    Raises `BadClaim`, also for a name that `blob_name` cannot have made, as any producer can invent one.
    """
    if len(body) > CLAIM_BYTES_MAX or not body.startswith(_VERSION_1):
        raise BadClaim("a claim that is too long or of an unknown version; is this worker too old?")
    try:
        claim = msgspec.json.decode(body[len(_VERSION_1) :], type=Claim)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadClaim(f"a claim that cannot be read: {error}") from error
    if _blob(claim.blob) is None or _sha256(claim.sha256) is None or claim.size < 0:
        raise BadClaim("a claim whose blob, sha256 or size is malformed")
    if claim.encoding not in (IDENTITY, ZLIB):
        raise BadClaim("a claim of an unknown encoding; is this worker too old?")
    return claim


def lost_claim(body: bytes) -> bytes:
    """Return the text of a claim without a blob in a form that is not a claim."""
    return LOST + body.removeprefix(MAGIC)


def blob_name(queue: str, ttl_s: int, token: str, place: str = "") -> str:
    """Return the name of a message's blob: its queue, its time to live (-1 is never) and 32 hex digits.

    ``place``, 16 hex digits, identifies the message's store; older versions had none.
    """
    return f"{parse_reference(queue)}/{'never' if ttl_s < 0 else ttl_s}-{place and place + '-'}{token}"


def lives_for(blob: str) -> int | None:
    """Return the time to live in seconds in a blob's name, None for one that never expires.

    Raises `BadClaim` for a name that is not of `blob_name`'s making.
    """
    ttl = _parts(blob)[2]
    return None if ttl == "never" else int(ttl)


def place_of(blob: str) -> str | None:
    """Return the place in a blob's name, None without one. Raises as `lives_for` does."""
    place: str | None = _parts(blob)[3]
    return place


def _parts(blob: str) -> re.Match[str]:
    found = _blob(blob)
    if found is None:
        raise BadClaim("the name of a blob that no claim check has written")
    return found
