"""The refusals of a reference: what each code means, and the answers that tell it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from bridge.contract.calls import BOOT_HEADER, SERVICE_ABLE_HEADER
from bridge.contract.errors import STATUS_BY_CODE
from bridge.http.api.openapi.schemas import Json, reference
from bridge.http.server.problem import PROBLEM_TYPE, Problem, reason

MEANINGS: Final[dict[str, str]] = {
    "bad_json": "The body is not one JSON document in UTF-8.",
    "bad_trigger": "A field of a trigger is not acceptable.",
    "bad_queue_reference": "Account and queue are letters, digits, '_' and '-', 80 at most, no '_' or '-' first.",
    "bad_parameter": "A parameter, a header or a field is not acceptable; the detail names it.",
    "too_many_items": "There are more items in a list than one call takes.",
    "unauthenticated": "The bridge asks who is there, and got no proof that it knows.",
    "forbidden": "The key grants no such thing on this queue.",
    "forbidden_origin": "The request comes from a web page elsewhere, or from a webhook.",
    "queue_not_found": "There is no such queue. Its first put makes it.",
    "message_not_found": "The message is gone: deleted, expired or cleared.",
    "not_found": "There is nothing at this address.",
    "unknown_session": "The bridge does not know this session, as after its restart: send hello again.",
    "method_not_allowed": "The method is not allowed at this address; the header Allow names those that are.",
    "request_timeout": "The headers or the body did not come in time.",
    "pop_receipt_mismatch": "The message was received by somebody else meanwhile: this receipt settles it no more.",
    "store_mismatch": "The listener takes from another store than this bridge's own.",
    "message_conflict": "Another body was put under this id; nothing was changed.",
    "conflict": "The queue stands in this bridge's queue service, or somebody listens to it.",
    "too_large": "The body, or one item of it, has too many bytes.",
    "message_too_large": "A message has too many bytes.",
    "uri_too_long": "The address of the request is too long.",
    "unsupported_media_type": "The Content-Type or the coding of the body is none that this call reads.",
    "unknown_host": "The bridge is not known by the name in Host; the setting allowed_hosts adds names.",
    "too_many_requests": "There is too much to do, or a limit is passed; try again after Retry-After seconds.",
    "headers_too_large": "The headers are too many, or too long.",
    "internal": "A fault of the bridge. Of a put or a settlement the outcome may be unknown.",
    "unsupported": "The engine that these queues are in cannot do that; nothing was done.",
    "draining": "The bridge is stopping; try again, at another one or when it is back.",
    "issuer_unavailable": "The issuer at which people sign in gives no answer that can be used.",
    "too_many_queues": "There are as many queues as the bridge keeps.",
    "storage_unavailable": "The data file cannot be used now; nothing was done.",
    "storage_full": "There is no room for more; what was acknowledged before is safe.",
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
        "description": "A stable word for programs.\n\n" + "\n".join(lines) + "\n",
    }


def _split(each: str) -> tuple[int, str]:
    status, _, code = each.rpartition(" ")
    return int(status or STATUS_BY_CODE[code]), code


def _example(status: int, code: str) -> Json:
    detail = MEANINGS[code].partition(". ")[0].rstrip(".")
    made: Json = msgspec.to_builtins(Problem(reason(status), status, detail[0].lower() + detail[1:], code))
    return made
