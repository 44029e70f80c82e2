"""The store ``sqs://REGION``: standard queues of Amazon SQS, or of a compatible server.

A receive is a long poll of at least a second: a short poll asks only some of SQS's servers, so its empty answer would
prove nothing (L8). The SDK sends each request once (L6), and aiohttp's client repeats only GET, PUT and DELETE, while
SQS uses POST.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from queuebell.bridge.contract.errors import (
    BadQueueReference,
    ConfigurationError,
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.contract.headers import headers_in, readable_headers
from queuebell.bridge.contract.names import is_token, parse_reference, split_reference
from queuebell.bridge.queues.base import (
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
from queuebell.bridge.queues.side_by_side import apart, outcomes, side_by_side
from queuebell.bridge.queues.sqs.client import check_installed, client

DELAY_MS_MAX: Final = 900_000
VISIBILITY_S_MAX: Final = 11 * 3600
"""SQS rejects leases that end more than 12 hours after the receive; an hour remains for earlier extensions."""
RETENTION_S: Final = 14 * 86_400
"""The longest retention; SQS removes older messages."""
ANSWER_S: Final = 10
IN_FLIGHT_MAX: Final = 115_000
"""Below the 120,000 leased messages at which receives of a queue return nothing; the count is approximate."""
_KEY: Final = "store: sqs://"
_RECEIPT_GONE = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight"})
_COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class SqsStore(CheckedStore):
    """The queues of one region (`SqsAddress`); connects at the first call, with the credentials of the environment.

    Puts and settlements take ten messages a request; delays and leases are rounded up to whole seconds.
    """

    kind = "sqs"

    def __init__(self, url: str) -> None:
        self._where = SqsAddress(url)
        self.capabilities = Capabilities(
            exact_depth=False,
            next_visible=False,
            update_body=False,
            peek=False,
            time_to_live=False,
            metadata=False,
            pause=False,
            batch_max=BATCH_MAX,
            resolution_ms=1000,
            receive_s=float(self._where.wait_s),
            short_batch_ends=False,
            ordered=False,
            fenced=False,
            put_receipts=False,
            atomic_put=False,
            delay_ms_max=DELAY_MS_MAX,
            visibility_s_max=VISIBILITY_S_MAX,
            headers=True,
        )
        self._recount = Recount()
        self._urls: dict[str, str] = {}
        where = self._where
        self._client: LazyClient[Any] = LazyClient(
            partial(client, "sqs", _KEY, where.region, where.endpoint, where.wait_s + ANSWER_S)
        )
        self._accepted = False

    def check_client(self) -> None:
        """Raise `ConfigurationError` if the client library is not installed; needs no network."""
        check_installed(_KEY)

    def __str__(self) -> str:
        return self._where.text

    def fingerprint(self, queue: str) -> str:
        """Return 32 hex digits for this queue of this region or endpoint; does not distinguish Amazon accounts."""
        return digest_of("sqs", self._where.place, self._where.region, self._where.name(queue))

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        name = self._where.name(queue)
        self._recount.used(queue)
        ids: list[str] = []
        for entries in requests(messages):
            try:
                ids += await self._send(name, entries, create)
            except StoreError as error:
                if not ids:
                    raise
                raise UnknownOutcome(f"sqs: some of {len(messages)} messages were put, then: {error}") from error
        return [
            PutReceipt(id_, "", -(-message.visible_after_ms // 1000) * 1000)
            for id_, message in zip(ids, messages, strict=True)
        ]

    async def _receive(self, queue: str, limit: int, lease_ms: int) -> Received:
        """Receive up to ten messages; wait up to ``capabilities.receive_s`` for the first one.

        An empty answer is followed by a count if needed (`Recount`).
        """
        asked = {
            "MaxNumberOfMessages": min(limit, BATCH_MAX),
            "VisibilityTimeout": -(-lease_ms // 1000),
            "WaitTimeSeconds": self._where.wait_s,
            "MessageSystemAttributeNames": ["ApproximateReceiveCount", "SentTimestamp"],
            "MessageAttributeNames": ["All"],
        }
        try:
            answer = await self._call("receive_message", self._where.name(queue), **asked)
        except _OverLimit:
            return Received([], blocked=True)
        found = [stored(message) for message in answer.get("Messages", ())]
        if found:
            self._recount.used(queue)
            return Received(found)
        empty = await self._recount.after_empty(queue, self.counts)
        blocked = empty.depth is not None and empty.depth.invisible >= IN_FLIGHT_MAX
        return msgspec.structs.replace(empty, blocked=blocked)

    async def _settle(self, queue: str, settlement: Settlement) -> Settling:
        self._check_open()
        name = self._where.name(queue)
        if settlement.release:
            self._recount.used(queue)
        delete, release = len(settlement.delete), len(settlement.release)
        lists = await side_by_side(
            "sqs settle",
            (
                self._each(name, "delete_message_batch", [_handle(item) for item in settlement.delete]),
                self._each(
                    name,
                    "change_message_visibility_batch",
                    [{**_handle(item), "VisibilityTimeout": -(-item.after_ms // 1000)} for item in settlement.release],
                ),
                self._each(
                    name,
                    "change_message_visibility_batch",
                    [{**_handle(i), "VisibilityTimeout": _seconds(i.visibility_s)} for i in settlement.extend],
                ),
            ),
        )
        told = outcomes(list(chain(*lists)))
        kept = [
            Settled(True, item.pop_receipt) if outcome.ok else outcome
            for outcome, item in zip(told[delete + release :], settlement.extend, strict=True)
        ]
        return Settling(told[:delete], told[delete : delete + release], kept)

    async def depth(self, queue: str) -> Depth | None:
        """Count the messages, approximately and up to a minute late; None for a queue that does not exist."""
        counts = await self.counts(queue)
        if counts is None:
            return None
        self._recount.counted(queue, counts.visible + counts.invisible)
        return Depth(counts.visible, counts.invisible)

    async def counts(self, queue: str) -> Counts | None:
        """Count the messages, approximately; those released with a delay count as leased."""
        try:
            answer = await self._call("get_queue_attributes", self._where.name(queue), AttributeNames=list(_COUNTS))
        except QueueNotFound:
            return None
        visible, leased, delayed = (int(answer["Attributes"].get(key, 0)) for key in _COUNTS)
        return Counts(visible, leased + delayed, leased=leased, delayed=delayed)

    async def clear(self, queue: str) -> None:
        """Remove every message; SQS takes up to a minute, and rejects a second request within that minute."""
        await self._call("purge_queue", self._where.name(queue))

    async def _create(self, queue: str, metadata: dict[str, str] | None) -> bool:
        """Create a standard queue that keeps messages for 14 days."""
        name = self._where.name(queue)
        try:
            await self._url(name)
        except QueueNotFound:
            await self._make(name)
            return True
        return False

    async def delete(self, queue: str) -> None:
        """Delete a queue; its name can be used again after a minute."""
        name = self._where.name(queue)
        with contextlib.suppress(QueueNotFound):
            await self._call("delete_queue", name)
        self._urls.pop(name, None)

    async def _queues(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return references; SQS does not sort names, so all are read whatever ``limit`` is."""
        found: list[str] = []
        more: dict[str, Any] = {}
        while True:
            answer = await self._ask("list_queues", QueueNamePrefix=self._where.prefix, MaxResults=1000, **more)
            names = (str(url).rpartition("/")[2] for url in answer.get("QueueUrls", ()))
            found += [reference for name in names if (reference := self._where.reference(name)) is not None]
            if not answer.get("NextToken"):
                break
            more = {"NextToken": answer["NextToken"]}
        return sorted(reference for reference in found if reference > after and reference.startswith(prefix))[:limit]

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        self._closed = True
        await self._client.close()

    # Requests -------------------------------------------------------------------------------------------------------

    async def _send(self, name: str, entries: list[dict[str, Any]], create: bool) -> list[str]:
        try:
            answer = await self._call("send_message_batch", name, Entries=entries)
        except QueueNotFound:
            if not create:
                raise
            await self._make(name)
            answer = await self._call("send_message_batch", name, Entries=entries)
        put = {done["Id"]: str(done["MessageId"]) for done in answer.get("Successful", ())}
        failed = answer.get("Failed", ())
        if failed:
            codes = ", ".join(sorted({str(one["Code"]) for one in failed}))
            if put:
                raise UnknownOutcome(f"sqs: {len(put)} of {len(entries)} messages of a request were put: {codes}")
            if all(one.get("SenderFault") for one in failed):
                raise StoreError(f"sqs: a message was rejected: {codes}; nothing was put")
            raise StoreUnavailable(f"sqs: nothing was put: {codes}")
        return [put[entry["Id"]] for entry in entries]

    async def _each(self, name: str, operation: str, entries: list[dict[str, Any]]) -> list[Settled | QueuebellError]:
        # Each message is sent once: some servers reject a request that names one twice.
        unique = list({entry["ReceiptHandle"]: entry for entry in reversed(entries)}.values())
        parts = [
            [{**entry, "Id": str(number)} for number, entry in enumerate(unique[start : start + BATCH_MAX])]
            for start in range(0, len(unique), BATCH_MAX)
        ]
        calls = (partial(self._call, operation, name, Entries=part) for part in parts)
        told: dict[str, Settled | QueuebellError] = {}
        for part, answer in zip(parts, await apart(f"sqs {operation}", calls), strict=True):
            if isinstance(answer, QueuebellError):
                told.update((entry["ReceiptHandle"], answer) for entry in part)
                continue
            failed = {one["Id"]: one for one in answer.get("Failed", ())}
            told.update((entry["ReceiptHandle"], _outcome(failed.get(entry["Id"]))) for entry in part)
        return [told[entry["ReceiptHandle"]] for entry in entries]

    async def _make(self, name: str) -> None:
        attributes = {"MessageRetentionPeriod": str(RETENTION_S)}
        self._urls[name] = str((await self._ask("create_queue", QueueName=name, Attributes=attributes))["QueueUrl"])

    async def _url(self, name: str) -> str:
        return str((await self._ask("get_queue_url", QueueName=name))["QueueUrl"])

    async def _call(self, operation: str, name: str, **asked: Any) -> dict[str, Any]:
        """Make one request about a queue; the first one looks its URL up."""
        url = self._urls.get(name)
        if url is None:
            url = self._urls[name] = await self._url(name)
        try:
            return await self._ask(operation, QueueUrl=url, **asked)
        except QueueNotFound:
            self._urls.pop(name, None)
            raise

    async def _ask(self, operation: str, **asked: Any) -> dict[str, Any]:
        client = await self._client.client()
        from queuebell.bridge.queues.sqs.errors import FAILURES, OVER_LIMIT, code_of, queue_meaning

        try:
            answer: dict[str, Any] = await getattr(client, operation)(**asked)
        except FAILURES as error:
            self._check_open()
            if code_of(error) == OVER_LIMIT:
                raise _OverLimit("sqs: too many messages are leased; delete or release some") from error
            action = "sqs:" + operation.title().replace("_", "").removesuffix("Batch")
            queue = asked.get("QueueName") or str(asked.get("QueueUrl", "")).rpartition("/")[2]
            raise queue_meaning(error, f"{action} {queue}".rstrip(), accepted_before=self._accepted) from error
        except RuntimeError as error:
            self._check_open()  # aiohttp raises this if it is closed during a call
            raise UnknownOutcome("sqs: the connection was lost during a call") from error
        self._accepted = True
        return answer


class _OverLimit(StoreUnavailable):
    """The queue has as many leased messages as SQS allows."""


def _handle(item: Claim | Release | Extend) -> dict[str, Any]:
    # An empty handle would fail the whole request.
    return {"ReceiptHandle": item.pop_receipt or "-"}


def _seconds(lease_s: float) -> int:
    return -(-round(lease_s * 1000) // 1000)


def _outcome(failed: dict[str, Any] | None) -> Settled | UnknownOutcome:
    if failed is None:
        return Settled(True)
    code = str(failed["Code"]).rpartition(".")[2]
    if code in _RECEIPT_GONE:
        return Settled(False, code="pop_receipt_mismatch")
    if not failed.get("SenderFault"):
        return UnknownOutcome(f"sqs: a settlement failed at the service: {code}")
    return Settled(False, code="bad_parameter")


NAME_MAX: Final = 80
WAIT_S_MAX: Final = 20
OPTIONS: Final = ("account", "endpoint", "wait")

_region = re.compile(r"[a-z]{2}[a-z0-9-]{1,30}").fullmatch
_prefix = re.compile(r"[A-Za-z0-9_-]{0,60}").fullmatch
# Dashes of the account are doubled: the queue begins after the first run of dashes with odd length.
_joined = re.compile(r"((?:[A-Za-z0-9_]|--)+)-([A-Za-z0-9][A-Za-z0-9_-]*)").fullmatch


class SqsAddress:
    """A checked address ``sqs://REGION[/PREFIX]?...``, and the mapping of queue references to SQS names.

    ``account/queue`` is the SQS queue ``PREFIXaccount-queue``, with each dash of the account doubled, so that names are
    unique. With ``account=NAME`` the address is for that account alone, and its queues are named ``PREFIXqueue``, so
    that existing queues have references too. ``endpoint`` is a server other than Amazon's, ``wait`` the seconds of a
    long poll, 1 to 20. Raises `ConfigurationError`, without repeating the address.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            given = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise ConfigurationError("store: the address is malformed") from None
        if not _region(parts.netloc) or not _prefix(parts.path.removeprefix("/")) or parts.fragment:
            raise ConfigurationError("store: an address of SQS is sqs://REGION[/PREFIX], as in sqs://eu-central-1")
        if unknown := sorted(set(given) - set(OPTIONS)):
            raise ConfigurationError(f"store: {len(unknown)} unknown options; those of sqs:// are {', '.join(OPTIONS)}")
        wait, self.endpoint, self.account = given.get("wait", "1"), given.get("endpoint"), given.get("account")
        if not (wait.isascii() and wait.isdigit() and 1 <= int(wait) <= WAIT_S_MAX):
            raise ConfigurationError(f"store: wait is the seconds of a long poll, 1 to {WAIT_S_MAX}")
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigurationError("store: endpoint must start with http:// or https://")
        if self.account is not None and not is_token(self.account):
            raise ConfigurationError("store: account must be the account of a queue reference")
        self.region = parts.netloc
        self.prefix = parts.path.removeprefix("/")
        self.wait_s = int(wait)
        # An endpoint may carry a user and a password.
        self.place = re.sub("//[^/]*@", "//", self.endpoint or "")
        self.text = f"sqs://{self.region}{parts.path}" + (f" at {urlsplit(self.place).netloc}" if self.place else "")

    def name(self, reference: str) -> str:
        """Return the name of the SQS queue of a reference.

        Raises `BadQueueReference` for a name that is too long for SQS, and for an account other than the address's.
        """
        account, queue = split_reference(parse_reference(reference))
        if self.account is None:
            name = f"{self.prefix}{account.replace('-', '--')}-{queue}"
        elif account == self.account:
            name = self.prefix + queue
        else:
            raise BadQueueReference("the store's address is for one account, and the reference has another")
        if len(name) > NAME_MAX:
            raise BadQueueReference(
                f"the name of an SQS queue has at most {NAME_MAX} characters, including prefix and account"
            )
        return name

    def reference(self, name: str) -> str | None:
        """Return the reference of an SQS queue, None if it has none."""
        if not name.startswith(self.prefix):
            return None
        rest = name.removeprefix(self.prefix)
        if self.account is not None:
            return f"{self.account}/{rest}" if is_token(rest) else None
        found = _joined(rest)
        if found is None:
            return None
        account, queue = found[1].replace("--", "-"), found[2]
        return f"{account}/{queue}" if is_token(account) and is_token(queue) else None


BATCH_MAX: Final = 10
BATCH_BYTES_MAX: Final = 256 * 1024
"""Limit of all bodies of a request; Amazon accepts more now, other servers do not."""
ENCODING: Final = "queuebell-encoding"
HEADERS: Final = "queuebell-headers"
BASE64: Final = "base64"
EMPTY: Final = "empty"
_ATTRIBUTE_BYTES = 64


def requests(messages: Sequence[NewMessage]) -> list[list[dict[str, Any]]]:
    """Return the entries of messages by request, within the limits of SQS; delays are rounded up to seconds.

    Bodies are text of few control characters, and never empty. A message has ten attributes at most, and some names of
    headers are not valid names of attributes, so all headers are one JSON attribute.
    """
    made: list[list[dict[str, Any]]] = []
    size = 0
    for number, message in enumerate(messages):
        entry = _entry(number, message)
        attributes = entry.get("MessageAttributes", {})
        beside = sum(_ATTRIBUTE_BYTES + len(each["StringValue"]) for each in attributes.values())
        weight = len(entry["MessageBody"].encode()) + beside
        if not made or len(made[-1]) == BATCH_MAX or size + weight > BATCH_BYTES_MAX:
            made.append([])
            size = 0
        made[-1].append(entry)
        size += weight
    return made


def stored(message: Mapping[str, Any]) -> StoredMessage:
    """Return a received message; text attributes of other producers become headers."""
    told = message["Attributes"]
    sent = datetime.datetime.fromtimestamp(int(told["SentTimestamp"]) / 1000, datetime.UTC)
    count = int(told["ApproximateReceiveCount"])
    attributes = message.get("MessageAttributes", {})
    headers = _headers(attributes) if attributes else {}
    return StoredMessage(message["MessageId"], message["ReceiptHandle"], _body(message), count, sent, headers=headers)


def _entry(number: int, message: NewMessage) -> dict[str, Any]:
    text, encoding = _text(message.body)
    entry: dict[str, Any] = {"Id": str(number), "MessageBody": text}
    attributes = {} if encoding is None else {ENCODING: encoding}
    if message.headers:
        attributes[HEADERS] = json.dumps(message.headers)
    if attributes:
        entry["MessageAttributes"] = {
            name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
        }
    if message.visible_after_ms:
        entry["DelaySeconds"] = -(-message.visible_after_ms // 1000)
    return entry


def _headers(attributes: Mapping[str, Any]) -> dict[str, str]:
    said = {name: each["StringValue"] for name, each in attributes.items() if "StringValue" in each}
    return readable_headers([*headers_in(said.pop(HEADERS, "")).items(), *said.items()])


def _text(body: bytes) -> tuple[str, str | None]:
    """Return a body as text that any consumer can read, if possible, else in base64."""
    if not body:
        return "-", EMPTY
    text = xml_text(body)
    return (base64.b64encode(body).decode("ascii"), BASE64) if text is None else (text, None)


def _body(message: Mapping[str, Any]) -> bytes:
    text: str = message["Body"]
    encoding = message.get("MessageAttributes", {}).get(ENCODING, {}).get("StringValue")
    if encoding == EMPTY:
        return b""
    if encoding == BASE64:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return text.encode()  # Another producer's attribute: the handler gets the text.
    return text.encode()
