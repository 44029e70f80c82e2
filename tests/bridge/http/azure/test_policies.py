"""Stored access policies belong to a queue, not to its name: they end with it by whatever door it goes."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from azure.storage.queue import generate_queue_sas

from bridge.queues.base import NewMessage
from bridge.service.bridge import Bridge
from tests.support.azure import ACCOUNT, KEY, Front, serving_azure

QUEUE = f"{ACCOUNT}/jobs"
POLICY = (
    b"<SignedIdentifiers><SignedIdentifier><Id>guest</Id><AccessPolicy><Expiry>2100-01-01</Expiry>"
    b"<Permission>raup</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>"
)


async def as_guest(front: Front) -> int:
    """Peek with a signature that names the policy, and return the status."""
    token = generate_queue_sas(ACCOUNT, "jobs", KEY, policy_id="guest")
    return (await front.ask("GET", f"/jobs/messages?peekonly=true&{token}", sign=False)).status


@pytest.mark.parametrize("data", [True, False], ids=["file", "memory"])
async def test_a_queue_made_again_has_no_policies(data: bool, tmp_path: pathlib.Path) -> None:
    """Deleted natively and made anew by a put, it refuses who was let in before; a clear changes nothing."""
    async with Bridge(data=tmp_path if data else None) as bridge, serving_azure(bridge) as front:
        await front.ask("PUT", "/jobs")
        assert (await front.ask("PUT", "/jobs?comp=acl", POLICY)).status == 204
        assert await as_guest(front) == 200
        await bridge.store.put(QUEUE, [NewMessage(b"x")])
        await bridge.store.clear(QUEUE)
        assert await as_guest(front) == 200
        await bridge.store.delete(QUEUE)
        assert await as_guest(front) == 403
        assert (await front.ask("PUT", "/jobs?comp=acl", POLICY)).status == 404
        await bridge.store.put(QUEUE, [NewMessage(b"of another tenant")])
        assert await as_guest(front) == 403
        assert b"guest" not in (await front.ask("GET", "/jobs?comp=acl")).body
        assert (await front.ask("PUT", "/jobs?comp=acl", POLICY)).status == 204
        assert await as_guest(front) == 200


async def test_properties_set_at_once_are_all_kept() -> None:
    """Two requests that name different properties: what each was promised stands."""
    logging = (
        b"<StorageServiceProperties><Logging><Version>1.0</Version><Delete>true</Delete><Read>true</Read>"
        b"<Write>true</Write><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy></Logging>"
        b"</StorageServiceProperties>"
    )
    metrics = (
        b"<StorageServiceProperties><HourMetrics><Version>1.0</Version><Enabled>true</Enabled>"
        b"<IncludeAPIs>true</IncludeAPIs><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy></HourMetrics>"
        b"</StorageServiceProperties>"
    )
    where = "/?restype=service&comp=properties"
    async with serving_azure() as front:
        replies = await asyncio.gather(front.ask("PUT", where, logging), front.ask("PUT", where, metrics))
        assert [reply.status for reply in replies] == [202, 202]
        found = (await front.ask("GET", where)).body
        assert b"<Delete>true" in found
        assert b"<IncludeAPIs>true" in found
