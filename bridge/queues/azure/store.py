"""The store ``azure:``: Azure Queue Storage, or a compatible service.

Each request is sent once (L6): by default aiohttp would repeat GET, PUT and DELETE if the connection drops before the
answer, and a receive is a GET.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from queuebell.bridge.contract.errors import (
    BadInput,
    BadQueueReference,
    Closed,
    ConfigurationError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.contract.names import is_token, parse_reference, split_reference
from queuebell.bridge.queues.azure.account import AzureUrl
from queuebell.bridge.queues.base import (
    NEVER,
    Capabilities,
    Claim,
    Counts,
    Depth,
    Extend,
    NewMessage,
    PutReceipt,
    Received,
    Release,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
    digest_of,
)
from queuebell.bridge.queues.checked import CheckedStore, xml_text
from queuebell.bridge.queues.connections import LazyClient
from queuebell.bridge.queues.recount import Recount
from queuebell.bridge.queues.side_by_side import apart, outcomes

if TYPE_CHECKING:
    from azure.storage.queue import QueueMessage
    from azure.storage.queue.aio import QueueClient, QueueServiceClient

ANSWER_S: Final = 10
YEAR_NEVER: Final = 9999
NEVER_TOLD: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
CLIENTS_MAX: Final = 10_000
_id = re.compile(r"[A-Za-z0-9-]{1,64}").fullmatch
_receipt = re.compile(r"[!-~]{1,1024}").fullmatch
_word = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch

T = TypeVar("T")


class AzureStore(CheckedStore):
    """The queues of one storage account (`AzureAddress`); connects at the first call.

    Puts and settlements make a request for each message; delays and leases are rounded up to whole seconds.
    """

    kind = "azure"

    def __init__(self, url: str) -> None:
        self._where = AzureAddress(url)
        self._encoding = Encoding(self._where.encoding)
        self.capabilities = Capabilities(
            exact_depth=False,
            zero_depth=True,  # Azure documents that its count is never lower than the number of messages
            next_visible=False,
            pause=False,
            body_bytes_max=self._encoding.bytes_max,
            resolution_ms=1000,
            ordered=False,
            atomic_put=False,
        )
        self._recount = Recount()
        self._clients: dict[str, QueueClient] = {}
        self._service: LazyClient[QueueServiceClient] = LazyClient(partial(self._where.client, _sdk, ANSWER_S))
        self._accepted = False

    def check_client(self) -> None:
        """Raise `ConfigurationError` if the client library is not installed; needs no network."""
        self._where.sdk(_sdk)

    def __str__(self) -> str:
        return f"azure account {self._where.account}"

    def fingerprint(self, queue: str) -> str:
        """Return 32 hex digits that identify this queue at this endpoint."""
        return digest_of("azure", self._where.endpoint, self._where.name(queue))

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        for message in messages:
            self._encoding.check(message.body)
            if message.ttl_s != NEVER and -(-message.visible_after_ms // 1000) >= message.ttl_s:
                raise BadInput("bad_parameter", "azure: a message must become visible before it expires")
        client = await self._client(queue)
        self._recount.used(queue)
        receipts: list[PutReceipt] = []
        for message in messages:
            try:
                receipts.append(await self._send(client, message, create))
            except StoreError as error:
                if not receipts:
                    raise
                raise UnknownOutcome(f"azure: {len(receipts)} of {len(messages)} messages were put: {error}") from error
        return receipts

    async def _receive(self, queue: str, limit: int, lease_ms: int) -> Received:
        """Receive messages; an empty answer is followed by a count if needed (`Recount`)."""
        lease_s = -(-lease_ms // 1000)
        client = await self._client(queue)

        async def first_page() -> list[QueueMessage]:
            # By page, because the SDK's plain iteration sends a second request after a batch that is not full.
            asked = client.receive_messages(messages_per_page=limit, max_messages=limit, visibility_timeout=lease_s)
            async for page in asked.by_page():
                return [message async for message in page]
            return []

        found = [self._stored(message) for message in await self._call(first_page())]
        if found:
            self._recount.used(queue)
            return Received(found)
        return await self._recount.after_empty(queue, self.counts)

    async def _settle(self, queue: str, settlement: Settlement) -> Settling:
        """Settle all items concurrently, a request for each."""
        for item in settlement.extend:
            if item.body is not None:
                self._encoding.check(item.body)
        client = await self._client(queue)
        if settlement.release:
            self._recount.used(queue)
        delete, release = len(settlement.delete), len(settlement.release)
        calls = (
            *(partial(self._item, i, partial(client.delete_message, i.id, i.pop_receipt)) for i in settlement.delete),
            *(partial(self._update, client, i, i.after_ms) for i in settlement.release),
            *(partial(self._update, client, i, round(i.visibility_s * 1000)) for i in settlement.extend),
        )
        told = outcomes(await apart("azure settle", calls))
        if any(one.code == "message_not_found" for one in told) and not any(one.ok for one in told):
            # The queue itself may be missing; if that is unknown, the items keep their outcomes.
            with contextlib.suppress(StoreUnavailable):
                await self._call(client.get_queue_properties())
        return Settling(told[:delete], told[delete : delete + release], told[delete + release :])

    async def _peek(self, queue: str, limit: int) -> list[StoredMessage]:
        client = await self._client(queue)
        return [self._stored(message) for message in await self._call(client.peek_messages(max_messages=limit))]

    async def depth(self, queue: str) -> Depth | None:
        """Count the messages, approximately; Azure counts leased and delayed messages as visible."""
        counts = await self.counts(queue)
        if counts is None:
            return None
        self._recount.counted(queue, counts.visible)
        return Depth(counts.visible, 0)

    async def counts(self, queue: str) -> Counts | None:
        """Count the messages, approximately; Azure provides no other counts."""
        client = await self._client(queue)
        try:
            found = int((await self._call(client.get_queue_properties())).approximate_message_count or 0)
        except QueueNotFound:
            return None
        return Counts(found, 0)

    async def clear(self, queue: str) -> None:
        """Remove every message."""
        client = await self._client(queue)
        await self._call(client.clear_messages())

    async def _create(self, queue: str, metadata: dict[str, str] | None) -> bool:
        """Create a queue. Metadata is sent as headers, so its names are words and its values ASCII."""
        if metadata and not all(_word(key) and value.isascii() for key, value in metadata.items()):
            raise BadInput("bad_parameter", "azure: metadata is ASCII, its names letters, digits and '_'")
        client = await self._client(queue)
        if await self._make(client, metadata):
            return True
        if metadata is not None:
            await self._call(client.set_queue_metadata(metadata))
        return False

    async def delete(self, queue: str) -> None:
        """Delete a queue; its name can be used again after some 30 s."""
        client = await self._client(queue)
        with contextlib.suppress(QueueNotFound):
            await self._call(client.delete_queue())

    async def _queues(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return references in the service's order, which is ascending."""
        service = await self._service.client()
        account = f"{self._where.account}/"
        if not (account.startswith(prefix) or prefix.startswith(account)):
            return []
        start = prefix.removeprefix(account) if prefix.startswith(account) else ""

        async def listed() -> list[str]:
            found: list[str] = []
            async for queue in service.list_queues(name_starts_with=start or None):
                reference = account + str(queue.name)
                if reference > after:
                    found.append(reference)
                if len(found) == limit:
                    break
            return found

        return await self._call(listed())

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        self._closed = True
        await self._service.close()
        self._clients.clear()

    # Requests -------------------------------------------------------------------------------------------------------

    async def _client(self, queue: str) -> QueueClient:
        name = self._where.name(queue)
        service = await self._service.client()
        client = self._clients.get(name)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                self._clients.clear()
            client = self._clients[name] = service.get_queue_client(name)
        return client

    async def _call(self, call: Awaitable[T]) -> T:
        from queuebell.bridge.queues.azure.errors import FAILURES, queue_meaning

        try:
            answer = await call
        except (FAILURES, RuntimeError) as error:
            if self._closed:  # aiohttp raises a RuntimeError if its session is closed during a call
                raise Closed("the store was closed") from error
            if isinstance(error, FAILURES):
                raise queue_meaning(error, accepted_before=self._accepted) from error
            raise
        self._accepted = True
        return answer

    async def _send(self, client: QueueClient, message: NewMessage, create: bool) -> PutReceipt:
        delay_s = -(-message.visible_after_ms // 1000)
        text = self._encoding.written(message.body)
        for again in (create, False):
            try:
                sent = await self._call(
                    client.send_message(text, visibility_timeout=delay_s, time_to_live=message.ttl_s)
                )
            except QueueNotFound:
                if not again:
                    raise
                await self._make(client, None)
                continue
            return PutReceipt(str(sent.id), str(sent.pop_receipt), delay_s * 1000)
        raise AssertionError("unreachable")

    async def _make(self, client: QueueClient, metadata: dict[str, str] | None) -> bool:
        from azure.core.exceptions import ResourceExistsError

        from queuebell.bridge.queues.azure.errors import code_of

        status: list[int] = []
        made = client.create_queue(
            metadata=metadata, raw_response_hook=lambda r: status.append(r.http_response.status_code)
        )

        async def unless_there() -> bool:
            try:
                await made
            except ResourceExistsError as error:
                if code_of(error) == "QueueAlreadyExists":
                    return False
                raise
            return status[-1:] != [204]

        return await self._call(unless_there())

    async def _update(self, client: QueueClient, item: Release | Extend, hidden_ms: int) -> Settled:
        body = item.body if isinstance(item, Extend) else None
        text = None if body is None else self._encoding.written(body)
        seconds = -(-hidden_ms // 1000)
        outcome = await self._item(
            item, partial(client.update_message, item.id, item.pop_receipt, text, visibility_timeout=seconds)
        )
        return outcome if isinstance(item, Extend) or not outcome.ok else Settled(True)

    async def _item(
        self,
        item: Claim | Release | Extend,
        call: Callable[[], Awaitable[QueueMessage]] | Callable[[], Awaitable[None]],
    ) -> Settled:
        """Settle one item. An invalid id is never sent: without an id, a delete would clear the queue."""
        from queuebell.bridge.queues.azure.errors import FAILURES, settled_code

        wrong = _wrong(item)
        if wrong is not None:
            return Settled(False, code=wrong)

        async def settled() -> Settled:
            try:
                updated = await call()
            except FAILURES as error:
                code = settled_code(error)
                if code is None:
                    raise
                return Settled(False, code=code)
            return Settled(True, None if updated is None else str(updated.pop_receipt))

        return await self._call(settled())

    def _stored(self, message: QueueMessage) -> StoredMessage:
        expires = message.expires_on
        return StoredMessage(
            str(message.id),
            str(message.pop_receipt or ""),
            self._encoding.read(message.content or "", str(message.id)),
            int(message.dequeue_count or 0),
            message.inserted_on or NEVER_TOLD,
            None if expires is None or expires.year >= YEAR_NEVER else expires,
        )


def _wrong(item: Claim | Release | Extend) -> str | None:
    if not _id(item.id):
        return "message_not_found"
    return None if _receipt(item.pop_receipt) else "pop_receipt_mismatch"


def _sdk() -> Any:
    from azure.storage.queue.aio import QueueServiceClient

    return QueueServiceClient


OPTIONS: Final = ("account", "api_version", "encoding")
ENCODINGS: Final = ("base64", "text", "auto")
_queue = re.compile(r"[a-z0-9](-?[a-z0-9]+)*").fullmatch


class AzureAddress(AzureUrl):
    """A storage account for queues.

    The account of queue references is the storage account's name, or the option ``account``. ``encoding`` is that of
    bodies (`Encoding`), ``api_version`` the version of the service's API. Raises `ConfigurationError`.
    """

    def __init__(self, url: str, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(url, "store", OPTIONS, environment)
        self.encoding = self.given.get("encoding", "base64")
        if self.encoding not in ENCODINGS:
            raise ConfigurationError(f"store: encoding is one of {', '.join(ENCODINGS)}")
        self.endpoint = _endpoint(self.fields, self.variable)
        self.account = self.given.get("account") or self.fields.get("accountname") or _account_in(self.endpoint)
        if not is_token(self.account):
            raise ConfigurationError(f"store: {self.variable} has no AccountName; add ?account=NAME to the address")

    def name(self, reference: str) -> str:
        """Return the queue's name. Raises `BadQueueReference` for another account, and for names invalid in Azure."""
        account, queue = split_reference(parse_reference(reference))
        if account != self.account:
            raise BadQueueReference(
                "the reference has another account than the store's address; azure:?account=NAME sets the account"
            )
        if not 3 <= len(queue) <= 63 or not _queue(queue):
            raise BadQueueReference(
                "an Azure queue's name has 3 to 63 lower-case letters, digits, and single dashes between them"
            )
        return queue


def _endpoint(fields: Mapping[str, str], variable: str) -> str:
    if given := fields.get("queueendpoint"):
        return given.rstrip("/")
    account = fields.get("accountname")
    if not account:
        raise ConfigurationError(f"store: {variable} has neither AccountName nor QueueEndpoint")
    scheme = fields.get("defaultendpointsprotocol", "https")
    return f"{scheme}://{account}.queue.{fields.get('endpointsuffix', 'core.windows.net')}"


def _account_in(endpoint: str) -> str:
    return (urlsplit(endpoint).hostname or "").partition(".")[0]


TEXT_BYTES_MAX: Final = 64 * 1024
BYTES_MAX: Final = {"base64": TEXT_BYTES_MAX // 4 * 3, "auto": TEXT_BYTES_MAX // 4 * 3, "text": TEXT_BYTES_MAX}
"""The longest body by encoding; the service's limit applies to the encoded text."""

log = logging.getLogger("queuebell.store")


class Encoding:
    """The encoding of bodies in the service's XML: ``base64``, ``text``, or ``auto``.

    ``base64`` and ``auto`` write base64, and read anything else as text, so that messages of other producers reach a
    handler; ``base64`` logs those, ``auto`` expects them. Decoding is strict, unlike the SDK's, which skips unknown
    characters and so turns plain text into meaningless bytes.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.bytes_max = BYTES_MAX[kind]

    def check(self, body: bytes) -> None:
        """Raise `BadInput` for a body that is too long, or not valid as text."""
        if len(body) > self.bytes_max:
            raise BadInput("message_too_large", f"a message body is at most {self.bytes_max} bytes here")
        if self._kind == "text" and xml_text(body) is None:
            raise BadInput(
                "bad_parameter", "with encoding=text a body must be UTF-8 text that is valid in XML; use base64"
            )

    def written(self, body: bytes) -> str:
        """Return the text for a checked body."""
        if self._kind == "text":
            return xml_text(body) or ""
        return base64.b64encode(body).decode("ascii")

    def read(self, text: str, message_id: str) -> bytes:
        """Return the body of a text."""
        if self._kind == "text":
            return text.encode()
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            if self._kind == "base64":
                log.warning(
                    "message %s is not base64 and is read as text; see the option encoding of the store's address",
                    message_id,
                )
            return text.encode()
