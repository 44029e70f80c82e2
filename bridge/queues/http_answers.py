"""What the queue service's JSON means to a store: answers read, refusals as errors, and messages as they travel."""

from __future__ import annotations

import math
from typing import Final, TypeVar

import msgspec

from bridge.contract.errors import (
    STATUS_BY_CODE,
    BadInput,
    BadQueueReference,
    NoQueueService,
    NotAllowed,
    Overloaded,
    QueueNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from bridge.contract.failover import Outcome
from bridge.contract.times import from_rfc3339
from bridge.contract.wire import Depth
from bridge.queues.base import VISIBILITY_S_MAX, Extend, NewMessage, Settling, StoredMessage
from bridge.queues.http_shapes import ExtendItem, Message, Messages, PutAnswer, PutItem, ReceiveAnswer

T = TypeVar("T")


class Describe(msgspec.Struct):
    """How a queue stands, as far as a store asks for it; older services tell less."""

    depth: Depth | None = None
    depth_at_least: bool = False
    leased: int | None = None
    delayed: int | None = None
    oldest_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    paused: bool = False


class Listing(msgspec.Struct):
    """One page of names, and where the next begins."""

    queues: list[str]
    next: str | None = None


class Problem(msgspec.Struct):
    """What a refusal says; empty where it is no answer of a queue service."""

    code: str = ""
    detail: str = ""


PUT: Final = msgspec.json.Decoder(PutAnswer)
RECEIVE: Final = msgspec.json.Decoder(ReceiveAnswer)
PEEK: Final = msgspec.json.Decoder(Messages)
SETTLE: Final = msgspec.json.Decoder(Settling)
DESCRIBE: Final = msgspec.json.Decoder(Describe)
LIST: Final = msgspec.json.Decoder(Listing)
_problem = msgspec.json.Decoder(Problem)
encode = msgspec.json.Encoder().encode


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Read an answer. Raises `UnknownOutcome` where it is not one of a queue service."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownOutcome("the answer is not one of a queue service") from error


def problem_in(body: bytes) -> Problem:
    """Read a refusal."""
    try:
        return _problem.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Problem()


def refusal(status: int, problem: Problem, retry_after: float | None) -> Exception:
    """Return the error that a refusal stands for; ``retry_after`` in seconds, where it said so."""
    code, detail = problem.code, problem.detail or f"the queue service answered {status}"
    if code == "queue_not_found":
        return QueueNotFound(detail)
    if code == "bad_queue_reference":
        return BadQueueReference(detail)
    if code in STATUS_BY_CODE and (status in (400, 413) or code == "message_conflict"):
        return BadInput(code, detail)
    if code == "unsupported":
        return Unsupported(detail)
    if status == 507:
        return StoreFull(detail)
    if status in (500, 502, 504):
        return UnknownOutcome(detail)
    if status == 429:
        return Overloaded(detail, retry_after)
    if status in (408, 503):
        return StoreUnavailable(detail, retry_after)
    if code in ("unauthenticated", "forbidden"):
        return NotAllowed(code, detail)
    # 403, 421: it is the queue service, and does not want us.
    return StoreError(f"{detail} (status {status})")


def outcome_of(error: Exception) -> Outcome:
    """Return what an error means for which of several bridges is asked next."""
    if isinstance(error, UnknownOutcome):
        return Outcome.UNKNOWN
    if isinstance(error, StoreUnavailable | NoQueueService):
        return Outcome.NOT_DONE
    if isinstance(error, NotAllowed) or type(error) is StoreError:
        return Outcome.REFUSED
    return Outcome.ANSWERED


def weightier(told: Exception | None, error: Exception) -> Exception:
    """Return which error of several bridges the caller is told.

    First that it may have been done. Then that it was refused, whoever was asked before: an equal bridge that is away
    would refuse it too. Then to try again.
    """
    order = (StoreUnavailable, NotAllowed, UnknownOutcome)
    weights = [sum(isinstance(each, kind) << place for place, kind in enumerate(order)) for each in (told, error)]
    return error if told is None or weights[1] > weights[0] else told


def stored(message: Message) -> StoredMessage:
    """Return a message as stores give it. Raises `UnknownOutcome` where its times are none."""
    try:
        inserted = from_rfc3339(message.inserted_at)
        expires = None if message.expires_at is None else from_rfc3339(message.expires_at)
    except ValueError as error:
        raise UnknownOutcome("the answer is not one of a queue service") from error
    body = message.body.encode() if message.body else message.body_base64 or b""
    return StoredMessage(
        message.id,
        message.pop_receipt or "",
        body,
        message.dequeue_count,
        inserted,
        expires,
        message.key,
        message.headers,
    )


def put_item(message: NewMessage) -> PutItem:
    """Return what a put says of a message. Raises `BadInput` for what JSON would change on its way."""
    delay, ttl = whole(message.visible_after_ms, "visible_after_ms"), whole(message.ttl_s, "ttl_s")
    return PutItem(*body_fields(message.body), delay, ttl, message.headers)


def body_fields(body: object) -> tuple[str | None, bytes | None]:
    """Return a body as text, or else as bytes, which travel as base64. Raises `BadInput` where it is no bytes."""
    if not isinstance(body, bytes):
        raise BadInput("bad_parameter", "a body is bytes")
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, body


def extend_item(item: Extend) -> ExtendItem:
    """Return what a settlement says of a lease to be lengthened. Raises `BadInput` as `whole_seconds` does."""
    seconds = whole_seconds(item.visibility_s)
    return ExtendItem(
        item.id, item.pop_receipt, seconds, *((None, None) if item.body is None else body_fields(item.body))
    )


def whole(value: object, name: str) -> int:
    """Return a whole number as it is. Raises `BadInput` for all else."""
    # JSON would carry True as a word and 1.5 as a fraction; both are mistakes of the caller.
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadInput("bad_parameter", f"{name} is a whole number")
    return value


def whole_seconds(seconds: float) -> int:
    """Round a lease up to what the wire can say: whole seconds, at least 1; never early (B2). Raises `BadInput`."""
    if type(seconds) not in (int, float) or not 0 < seconds <= VISIBILITY_S_MAX:
        raise BadInput("bad_parameter", f"a visibility timeout is above 0 and at most {VISIBILITY_S_MAX} seconds")
    return max(1, math.ceil(seconds - 1e-9))
