"""A claim: the short text that travels on a queue in place of a body that was put aside as a blob.

``queuebell-claim:1 {"blob": ..., "sha256": ..., "size": ..., "encoding": ...}``. It is plain ASCII, so that it passes
through every store, those that take only text included.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from bridge.contract.errors import BadInput
from bridge.contract.names import TOKEN, parse_reference

MAGIC: Final = b"queuebell-claim:"
"""What every claim begins with, whatever its version."""
LOST: Final = b"queuebell-claim-lost:"
"""What a buried claim whose blob is gone begins with where it is handed out: no handler takes it for a claim."""
CLAIM_BYTES_MAX: Final = 1024
IDENTITY: Final = "identity"
ZLIB: Final = "zlib"

_VERSION_1: Final = MAGIC + b"1 "
_blob = re.compile(f"({TOKEN}/{TOKEN})/(never|[0-9]{{1,10}})-(?:([0-9a-f]{{16}})-)?[0-9a-f]{{32}}").fullmatch
_sha256 = re.compile("[0-9a-f]{64}").fullmatch


class Claim(msgspec.Struct, frozen=True):
    """Where a body is, and how to tell that it is the one: ``size`` and ``sha256`` are of the body as it was put."""

    blob: str
    sha256: str
    size: int
    encoding: str


class BadClaim(BadInput):
    """A body begins as a claim does and is none: damaged, of another version, or made by a stranger."""

    def __init__(self, detail: str) -> None:
        super().__init__("bad_parameter", detail)


def is_claim(body: bytes) -> bool:
    """Say whether a body is, or pretends to be, a claim."""
    return body.startswith(MAGIC)


def write_claim(claim: Claim) -> bytes:
    """Return the body that travels."""
    return _VERSION_1 + msgspec.json.encode(claim)


def read_claim(body: bytes) -> Claim:
    """Read a body that `is_claim`.

    Raises `BadClaim`, also for a blob's name that `blob_name` does not make: it comes from whoever may put here.
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
    """Return what a supervisor is handed in place of a claim that leads nowhere: the same text, which is no claim."""
    return LOST + body.removeprefix(MAGIC)


def blob_name(queue: str, ttl_s: int, token: str, place: str = "") -> str:
    """Return the name of a message's blob: below its queue, with its time to live (-1 = never) and 32 hex digits.

    ``place``, 16 hex digits, tells the queue store that its message is put to; older versions did not name it.
    """
    return f"{parse_reference(queue)}/{'never' if ttl_s < 0 else ttl_s}-{place and place + '-'}{token}"


def lives_for(blob: str) -> int | None:
    """Return the time to live in seconds that a blob's name tells, None for one that never expires.

    Raises `BadClaim` for a name that is not of `blob_name`'s making.
    """
    ttl = _parts(blob)[2]
    return None if ttl == "never" else int(ttl)


def place_of(blob: str) -> str | None:
    """Return the place that a blob's name tells, None where it tells none. Raises as `lives_for` does."""
    place: str | None = _parts(blob)[3]
    return place


def _parts(blob: str) -> re.Match[str]:
    found = _blob(blob)
    if found is None:
        raise BadClaim("the name of a blob that no claim check has written")
    return found
