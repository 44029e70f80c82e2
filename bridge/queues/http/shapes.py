"""Requests and answers of the queue service's JSON API, for the bridge and for the store that calls it."""

from __future__ import annotations

import msgspec

from queuebell.bridge.queues.base import NEVER, Claim, Counts, Depth, MessageState, PutReceipt


class PutItem(msgspec.Struct, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One message of a put, with exactly one of the two bodies."""

    body: str | None = None
    body_base64: bytes | None = None
    visible_after_ms: int = 0
    ttl_s: int = NEVER
    headers: dict[str, str] = {}


class PutRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A put of 1 to 32 messages."""

    messages: list[PutItem]


class ReceiveRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A receive; ``wake_source`` is its reason, for the metrics."""

    max: int = 1
    visibility_timeout_s: int = 30
    wake_source: str | None = None


class ReleaseItem(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Release one message; ``uncounted`` undoes the count of its receive, as no handler ran."""

    id: str
    pop_receipt: str
    after_ms: int = 0
    uncounted: bool = False


class ExtendItem(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Extend one lease, optionally with a new body."""

    id: str
    pop_receipt: str
    visibility_timeout_s: int
    body: str | None = None
    body_base64: bytes | None = None


class SettleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Leased messages to settle: at most 32 in each list."""

    delete: list[Claim] = []
    release: list[ReleaseItem] = []
    extend: list[ExtendItem] = []


class CreateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The optional body of a PUT of a queue."""

    metadata: dict[str, str] | None = None


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The optional body of a pause or a resume, without fields."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A received message, or a peeked one without a receipt; with one of the two forms of its body."""

    id: str
    pop_receipt: str | msgspec.UnsetType = msgspec.UNSET
    body: str | msgspec.UnsetType = msgspec.UNSET
    body_base64: bytes | msgspec.UnsetType = msgspec.UNSET
    dequeue_count: int
    inserted_at: str
    expires_at: str | None
    key: str | None = None
    headers: dict[str, str] = {}
    state: MessageState | msgspec.UnsetType = msgspec.UNSET
    visible_in_ms: int | msgspec.UnsetType = msgspec.UNSET
    """When its delay or its lease ends."""


class PutAnswer(msgspec.Struct, frozen=True):
    """The answer to a put."""

    messages: list[PutReceipt]


class ReceiveAnswer(msgspec.Struct, frozen=True):
    """The answer to a receive."""

    messages: list[Message]
    depth: Depth | None
    next_visible_in_ms: int | None
    next_delayed_in_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    blocked: bool | msgspec.UnsetType = msgspec.UNSET
    """Something other than emptiness limited this answer, so it proves nothing; only sent if true."""
    depth_is_least: bool | msgspec.UnsetType = msgspec.UNSET
    """There may be more than `depth`; only sent if true."""
    counts: Counts | msgspec.UnsetType = msgspec.UNSET
    """Further counts of the store with this receive, if any."""


class PeekAnswer(msgspec.Struct, frozen=True):
    """The answer to a peek."""

    messages: list[msgspec.Raw]
    next: str | msgspec.UnsetType = msgspec.UNSET
    """Where the next page begins, if there may be one and a state was named."""


class Messages(msgspec.Struct, frozen=True):
    """The answer to a peek, as a client decodes it."""

    messages: list[Message]
    next: str | msgspec.UnsetType = msgspec.UNSET


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of the answer to a settle."""

    ok: bool
    pop_receipt: str | None = None
    code: str | None = None


class SettleAnswer(msgspec.Struct, frozen=True):
    """The answer to a settle, list by list in the order asked."""

    delete: list[Outcome]
    release: list[Outcome]
    extend: list[Outcome]
