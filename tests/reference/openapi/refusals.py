"""The refusals of a reference: what each code means, and the answers that tell it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from queuebell.bridge.contract.calls import BOOT_HEADER, SERVICE_ABLE_HEADER
from queuebell.bridge.contract.errors import STATUS_BY_CODE
from queuebell.bridge.http.server.answer import PROBLEM_TYPE, Problem, reason
from tests.reference.openapi.schemas import Json, reference

MEANINGS: Final[dict[str, str]] = {
    "bad_json": "The body is not one JSON document in UTF-8.",
    "bad_trigger": "A field of a trigger is invalid.",
    "bad_queue_reference": "Account and queue are letters, digits, '_' and '-', 80 at most, no '_' or '-' first.",
    "bad_parameter": "A parameter, a header or a field is invalid; the detail names it.",
    "too_many_items": "A list has more items than one call accepts.",
    "unauthenticated": "The bridge requires a key or token, and the request has no valid one.",
    "forbidden": "The key does not permit this on this queue.",
    "forbidden_origin": "The request comes from a web page of another origin, or from a webhook.",
    "queue_not_found": "The queue does not exist. Its first put creates it.",
    "message_not_found": "The message no longer exists: it was deleted, expired or cleared.",
    "not_found": "There is nothing at this address.",
    "unknown_session": "The bridge does not know this session, for example after its restart: send hello again.",
    "method_not_allowed": "The method is not allowed at this address; the header Allow names those that are.",
    "request_timeout": "The headers or the body did not arrive in time.",
    "pop_receipt_mismatch": "The message was received again meanwhile: this receipt no longer settles it.",
    "store_mismatch": "The worker uses a different store than this bridge.",
    "message_conflict": "A different body was put under this id; nothing was changed.",
    "conflict": "The queue exists in this bridge's queue service, or a worker is connected to it.",
    "too_large": "The body, or one item of it, has too many bytes.",
    "message_too_large": "A message has too many bytes.",
    "uri_too_long": "The address of the request is too long.",
    "unsupported_media_type": "This call does not support the Content-Type or the coding of the body.",
    "unknown_host": "The Host of the request is unknown; the setting allowed_hosts adds names.",
    "too_many_requests": "The bridge is overloaded, or a limit is exceeded; try again after Retry-After seconds.",
    "headers_too_large": "The headers are too many, or too long.",
    "internal": "An internal error of the bridge. The outcome of a put or a settlement may be unknown.",
    "unsupported": "The store of these queues does not support that; nothing was done.",
    "draining": "The bridge is stopping; try again at another one, or after its restart.",
    "issuer_unavailable": "The issuer for sign-in returns no usable answer.",
    "too_many_queues": "The bridge has reached its maximum number of queues.",
    "storage_unavailable": "The data file is not available now; nothing was done.",
    "storage_full": "The storage is full; acknowledged messages are safe.",
}
"""In words, for everybody; the keys are those of `STATUS_BY_CODE`."""

EVERYWHERE: Final = (
    "bad_parameter", "forbidden_origin", "request_timeout", "uri_too_long", "unsupported_media_type", "unknown_host",
    "headers_too_large", "internal", "501 unsupported_media_type", "503 too_many_requests",
)  # fmt: skip
"""What any request may be told; a status before a code is another than the code's usual one."""

OF_QUEUE: Final = ("bad_queue_reference", "not_found", "too_many_requests")
"""What any call about a queue may be told besides."""

OF_VERB: Final = ("unauthenticated", "forbidden", "too_many_requests")
"""What any call that has to be granted may be told besides, by a bridge that asks for keys."""

_WAITS: Final = frozenset({429, 503, 507})


def by_status(codes: Iterable[str]) -> dict[int, list[str]]:
    """Return these codes and those of `EVERYWHERE` by the status that goes with each, sorted."""
    found: dict[int, set[str]] = {}
    for each in (*codes, *EVERYWHERE):
        status, code = _split(each)
        found.setdefault(status, set()).add(code)
    return {status: sorted(found[status]) for status in sorted(found)}


def name(status: int, *codes: str) -> str:
    """Name the answer, or the example, of these codes with this status."""
    return f"{status}-{'-'.join(codes)}"


def refusal(status: int, codes: list[str]) -> Json:
    """Return the answer that tells one of these codes with this status."""
    headers: Json = {each: {"$ref": f"#/components/headers/{each}"} for each in (BOOT_HEADER, SERVICE_ABLE_HEADER)}
    if status in _WAITS:
        headers["Retry-After"] = {"$ref": "#/components/headers/Retry-After"}
    if status == 401:
        headers["WWW-Authenticate"] = {"$ref": "#/components/headers/WWW-Authenticate"}
    told = {"properties": {"status": {"const": status}, "code": {"enum": codes}}}
    return {
        "description": " ".join(MEANINGS[code] for code in codes),
        "headers": headers,
        "content": {
            PROBLEM_TYPE: {
                "schema": {"allOf": [reference(Problem), told]},
                "examples": {code: {"$ref": f"#/components/examples/{name(status, code)}"} for code in codes},
            }
        },
    }


def examples() -> dict[str, Json]:
    """Return an example of each code."""
    return {
        name(*_split(each)): {"summary": MEANINGS[_split(each)[1]], "value": _example(*_split(each))}
        for each in (*STATUS_BY_CODE, *(each for each in EVERYWHERE if " " in each), "417 bad_parameter")
    }


def codes() -> Json:
    """Return the schema of a code: all that there are, and what each means."""
    lines = (f"- `{code}` ({status}): {MEANINGS[code]}" for code, status in STATUS_BY_CODE.items())
    return {
        "type": "string",
        "enum": list(STATUS_BY_CODE),
        "description": "A stable code for programs.\n\n" + "\n".join(lines) + "\n",
    }


def _split(each: str) -> tuple[int, str]:
    status, _, code = each.rpartition(" ")
    return int(status or STATUS_BY_CODE[code]), code


def _example(status: int, code: str) -> Json:
    detail = MEANINGS[code].partition(". ")[0].rstrip(".")
    made: Json = msgspec.to_builtins(Problem(reason(status), status, detail[0].lower() + detail[1:], code))
    return made
