"""What stores of bodies refuse before anything is asked of a server, with the code that a caller goes by."""

from __future__ import annotations

import pytest

from bridge.contract.burial import Burial, write_burial
from bridge.contract.errors import BadInput, ConfigurationError
from bridge.contract.times import from_rfc3339
from bridge.queues.base import NewMessage
from bridge.storage.blobs.base import LIST_MAX, check_listing
from bridge.storage.blobs.memory import MemoryBlobs
from bridge.storage.blobs.s3 import S3Blobs
from bridge.storage.claim_check import ClaimCheck, claim_in

NOON = from_rfc3339("2026-11-21T12:00:00Z")


@pytest.mark.parametrize("limit", [0, LIST_MAX + 1, True, False, 2.0, "5", None])
def test_a_listing_has_a_whole_number_of_rows_within_bounds(limit: object) -> None:
    """Everything else is refused as a bad parameter."""
    with pytest.raises(BadInput) as refused:
        check_listing("", "", limit)
    assert refused.value.code == "bad_parameter"
    for good in (1, LIST_MAX):
        check_listing("", "", good)


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://files", "httpx://files"])
def test_an_endpoint_of_s3_is_an_address_of_http(endpoint: str) -> None:
    """Without one the region decides."""
    with pytest.raises(ConfigurationError, match="http:// or https://"):
        S3Blobs(f"s3://invoices?endpoint={endpoint}")
    for good in ("", "?endpoint=http://localhost:9000", "?endpoint=https://files.example", "?region=eu-central-1"):
        S3Blobs(f"s3://invoices{good}")


async def test_a_claim_is_found_behind_a_burial_and_nothing_else_is_one() -> None:
    """A body beyond the most that is put aside is refused with the code of a large one; no blob is written for it."""
    blobs = MemoryBlobs()
    check = ClaimCheck(blobs, body_max=2000)
    with pytest.raises(BadInput) as refused:
        await check.put_aside("a/b", NewMessage(b"x" * 2001), 1000)
    assert refused.value.code == "message_too_large" and (await blobs.blobs()) == []
    claim = (await check.put_aside("a/b", NewMessage(b"x" * 2000), 1000)).body
    burial = Burial("a/b", "1", NOON, NOON, "no price", 5)
    behind = write_burial(burial, claim, 65_536)
    plain = write_burial(burial, b"order", 65_536)
    assert behind is not None and plain is not None
    assert (claim_in(claim), claim_in(behind)) == (claim, claim)
    assert (claim_in(b"order"), claim_in(plain), claim_in(b"")) == (None, None, None)
