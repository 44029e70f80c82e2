"""The operations on accounts and queues: list, create, delete, metadata, properties, statistics, access policies."""

from __future__ import annotations

from queuebell.bridge.access.grants import EVERYTHING
from queuebell.bridge.access.quota_guard import Row, listed
from queuebell.bridge.contract.names import is_token
from queuebell.bridge.http.azure import xml
from queuebell.bridge.http.azure.auth import AccountPrincipals
from queuebell.bridge.http.azure.errors import AzureError
from queuebell.bridge.http.azure.exchange import Reply, Request, is_queue_name, metadata_of, metadata_shown
from queuebell.bridge.http.azure.records import (
    JsonRecords,
    parse_policies,
    render_policies,
    render_properties,
    update_properties,
)
from queuebell.bridge.queues.served import ServedStore

PAGE_MAX = 5000
SETTINGS_BYTES_MAX = 64 * 1024


class QueueOperations:
    """The operations on accounts and queues; each returns a `Reply` or raises `AzureError` or an error of the store."""

    def __init__(self, store: ServedStore, records: JsonRecords, principals: AccountPrincipals | None = None) -> None:
        self._store = store
        self._principals = principals
        self._records = records

    # -- the account -----------------------------------------------------------------------------------------------

    async def list_queues(self, call: Request) -> Reply:
        """List one page of an account's queues, without those that it could not address or may not see."""
        query, account = call.query, call.account
        prefix, marker = query.get("prefix", ""), query.get("marker", "")
        size = call.number("maxresults", 1, PAGE_MAX, PAGE_MAX)
        include = {word.strip() for word in query.get("include", "").split(",")} - {""}
        if include - {"metadata"}:
            raise AzureError("InvalidQueryParameterValue", details={"QueryParameterName": "include"})
        head = f"/{account}/"
        if marker and not (marker.startswith(head) and is_token(marker[len(head) :])):
            raise AzureError("InvalidMarker")
        found: list[Row] = []
        following: str | None = None
        if _is_prefix(prefix):
            found, following = await self._page(account, prefix, marker[1:], size, bool(include))
        shown = [
            (queue.removeprefix(head[1:]), metadata_shown(metadata) if include else None) for queue, metadata in found
        ]
        given = [(name, query[key]) for key, name in _ECHOED if query.get(key)]
        scheme = "https" if call.secure else "http"
        endpoint = f"{scheme}://{call.authority}/"
        if call.path_style:
            endpoint += call.path.split("/")[1]
        return Reply(200, xml.queues(endpoint, given, shown, f"/{following}" if following else ""))

    async def _page(
        self, account: str, prefix: str, after: str, count: int, with_metadata: bool
    ) -> tuple[list[Row], str | None]:
        async def read(prefix: str, after: str, limit: int) -> list[Row]:
            if with_metadata:
                return await self._store.listing(prefix, after, limit)
            return [(name, {}) for name in await self._store.queues(prefix, after, limit)]

        def fits(queue: str) -> bool:
            return is_queue_name(queue[len(account) + 1 :])

        reach = EVERYTHING if self._principals is None else self._principals.visible(account)
        return await listed(read, reach, f"{account}/{prefix}", after, count, fits)

    async def get_properties(self, call: Request) -> Reply:
        """Return the service properties of an account."""
        return Reply(200, render_properties(self._records.properties(call.account)))

    async def set_properties(self, call: Request) -> Reply:
        """Set the properties that the body names."""
        raw = await call.body(SETTINGS_BYTES_MAX)
        await self._records.change_properties(call.account, lambda before: update_properties(before, raw))
        return Reply(202)

    async def get_stats(self, call: Request) -> Reply:
        """Return the statistics; only at the secondary endpoint."""
        if not call.secondary:
            raise AzureError("InvalidQueryParameterValue", details={"QueryParameterName": "comp"})
        return Reply(200, xml.stats(call.now_ms))

    # -- a queue ---------------------------------------------------------------------------------------------------

    async def create(self, call: Request) -> Reply:
        """Create a queue: 201, or 204 if it exists with the same metadata."""
        made = await self._store.create_alike(call.reference, metadata_of(call.headers.items()))
        if made is None:
            raise AzureError("QueueAlreadyExists")
        return Reply(201 if made else 204)

    async def delete(self, call: Request) -> Reply:
        """Delete a queue with its messages; its policies end with it."""
        await self._store.remove(call.reference)
        return Reply(204)

    async def get_metadata(self, call: Request) -> Reply:
        """Return metadata and the number of messages, visible or not."""
        metadata, depth = await self._store.metadata_and_depth(call.reference)
        headers = {f"x-ms-meta-{name}": value for name, value in metadata_shown(metadata).items()}
        headers["x-ms-approximate-messages-count"] = str(depth.visible + depth.invisible)
        headers["Cache-Control"] = "no-cache"
        return Reply(200, b"", headers)

    async def set_metadata(self, call: Request) -> Reply:
        """Replace the metadata by that of the request."""
        await self._store.replace_metadata(call.reference, metadata_of(call.headers.items()))
        return Reply(204)

    async def get_acl(self, call: Request) -> Reply:
        """Return the stored access policies."""
        await self._store.metadata_and_depth(call.reference)
        return Reply(200, render_policies(self._records.policies(call.reference)), {"Cache-Control": "no-cache"})

    async def set_acl(self, call: Request) -> Reply:
        """Replace the stored access policies by those of the body."""
        given = parse_policies(await call.body(SETTINGS_BYTES_MAX))
        await self._store.metadata_and_depth(call.reference)
        await self._records.set_policies(call.reference, given)
        return Reply(204)


_ECHOED = (("prefix", "Prefix"), ("marker", "Marker"), ("maxresults", "MaxResults"))


def _is_prefix(text: str) -> bool:
    return len(text) <= 63 and not set(text) - _NAME_LETTERS


_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
