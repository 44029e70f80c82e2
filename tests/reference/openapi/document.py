"""The description of a bridge's HTTP interface in OpenAPI 3.1: made from its structs, limits and codes.

``python -m tests.reference`` writes it to ``docs/reference`` and to ``bridge/http/api/openapi.json``, which a bridge
serves. Tests compare it with the routes, the answers of a running bridge, and the requests of our own client.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from queuebell.bridge.contract.calls import ABLE_HEADER, BOOT_HEADER, CARRIES, SERVICE_ABLE_HEADER, STORE_HEADER
from queuebell.bridge.contract.names import TOKEN
from queuebell.bridge.http.server.answer import Problem
from queuebell.bridge.http.server.settings import WebSettings
from tests.reference.openapi.operations import ANSWERS, EVENT_SCHEMAS, OPERATIONS, QUEUE, REQUESTS, Operation
from tests.reference.openapi.refusals import OF_QUEUE, OF_VERB, by_status, codes, examples, name, refusal
from tests.reference.openapi.schemas import Json, components
from tests.reference.openapi.words import WORDS

VERSION: Final = "1"
"""Of the interface, as in ``/v1`` and in the sessions' subprotocol; not of a release."""
_DESCRIPTION: Final = """\
Queues of a bridge, triggers for queues in external stores, and the state of workers.

Times are milliseconds from now, unless a name shows another unit. Whole numbers have no fraction. A body with an
unknown field is refused; unknown fields of triggers and events are ignored. So are unknown parameters, except in a put.
Errors are `application/problem+json` with a stable `code`. Every GET is also available as HEAD. An address that is not
listed here returns 404 `not_found`; another method returns 405 `method_not_allowed` with the header Allow. The endpoint
for Azure's SDKs is a separate server with Azure's interface.

By default a bridge listens on loopback only, where everything is permitted without a key. With `--auth` each call
except the probes and this description requires a key or a token, and the permission that its description names. A
bridge accepts only its own names (Host), and rejects web pages of another origin (Origin). An address may have at most
{uri_bytes} bytes; the headers of a request at most {headers} in number and {header_bytes} bytes.
"""
_TAGS: Final = {
    "queues": "Messages in the bridge's own queues.",
    "triggers": "Work that was put on queues in external stores.",
    "channels": "Ways to receive wakes.",
    "state": "Workers, subscribers and problems.",
    "health": "For supervisors and scrapers.",
    "page": "The files and views of the page in the browser.",
}
_TOKENS: Final = {"account": "billing", "queue": "orders"}
_LINKS: Final[dict[tuple[str, str], tuple[str, Json]]] = {
    ("putMessages", "201"): ("receiveMessages", {}),
    ("putMessageOnce", "201"): ("receiveMessages", {}),
    ("receiveMessages", "200"): (
        "settleMessages",
        {
            "requestBody": {
                "delete": [
                    {
                        "id": "$response.body#/messages/0/id",
                        "pop_receipt": "$response.body#/messages/0/pop_receipt",
                    }
                ]
            }
        },
    ),
}
"""What comes after what: the operation and the status, and the operation that takes its answer."""


def described() -> Json:
    """Return the description."""
    settings = WebSettings()
    paths: dict[str, Json] = {}
    responses: dict[str, Json] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, _parameters_of(each.path))[each.method.lower()] = _operation(each, responses)
    schemas = {
        **EVENT_SCHEMAS,
        **components(REQUESTS, _WORDS_OF_REQUESTS),
        **components((*ANSWERS, Problem), _WORDS_OF_ANSWERS, sent=True),
        "ErrorCode": codes(),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Queuebell bridge",
            "version": VERSION,
            "summary": "Queues that wake their workers",
            "description": _DESCRIPTION.format_map(msgspec.structs.asdict(settings)),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": f"http://{settings.host}:{settings.port}", "description": "The default address."}],
        "security": [{}],
        "tags": [{"name": tag, "description": text} for tag, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": dict(sorted(responses.items())),
            "examples": examples(),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of `queuebell key create`, or a token of an issuer that the bridge trusts.",
                }
            },
            "headers": {
                BOOT_HEADER: {
                    "description": "Identifies the run of the bridge that answers: generated at each start. It is "
                    "absent if the queues are in a shared store, which other bridges may serve too.",
                    "required": False,
                    "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
                },
                SERVICE_ABLE_HEADER: {
                    "description": "What this bridge supports and older ones do not, as names separated by commas. "
                    f"`{CARRIES}`: it stores the headers of messages, which an older bridge drops. "
                    "Clients ignore unknown names.",
                    "required": False,
                    "schema": {"type": "string", "pattern": "^[a-z-]+(, ?[a-z-]+)*$"},
                },
                STORE_HEADER: {
                    "description": "Identifies the queue in its shared store, the same from every bridge; absent "
                    "without a shared store.",
                    "required": False,
                    "schema": {"type": "string", "pattern": "^[0-9a-f]{1,128}$"},
                },
                ABLE_HEADER: {
                    "description": "Limits of that store compared with the queue service, as a JSON object; absent if "
                    "there are none.",
                    "required": False,
                    "schema": {"type": "string", "pattern": r"^\{.*\}$"},
                },
                "Retry-After": {
                    "description": "After how many seconds to try again.",
                    "required": True,
                    "schema": {"type": "integer", "minimum": 1},
                },
                "WWW-Authenticate": {
                    "description": "The required authentication (RFC 6750).",
                    "required": True,
                    "schema": {"type": "string", "pattern": "^Bearer "},
                },
                "Location": {
                    "description": "The address of the message that was put.",
                    "required": True,
                    "schema": {"type": "string"},
                },
            },
        },
    }


_WORDS_OF_REQUESTS: Final = {struct: words for struct, words in WORDS.items() if struct in components(REQUESTS, {})}
_WORDS_OF_ANSWERS: Final = {struct: words for struct, words in WORDS.items() if struct not in _WORDS_OF_REQUESTS}


def _operation(each: Operation, responses: dict[str, Json]) -> Json:
    answers: dict[str, Json] = {}
    for status, answer in each.answers.items():
        names: tuple[str, ...] = (BOOT_HEADER, SERVICE_ABLE_HEADER)
        if each.path.startswith(QUEUE):
            names += (STORE_HEADER, ABLE_HEADER)
        headers = {name: {"$ref": f"#/components/headers/{name}"} for name in names} | answer.get("headers", {})
        answers[str(status)] = dict(answer) if status == 101 else {**answer, "headers": headers}
        if link := _LINKS.get((each.id, str(status))):
            target, given = link
            parameters = {token: f"$request.path.{token}" for token in _TOKENS}
            answers[str(status)]["links"] = {target: {"operationId": target, "parameters": parameters, **given}}
    more = (*(OF_QUEUE if each.path.startswith(QUEUE) else ()), *(OF_VERB if each.verb else ()))
    for status, refused in by_status((*more, *each.codes)).items():
        if (told := answers.get(str(status))) is not None:
            told["content"] = {**told["content"], **refusal(status, refused)["content"]}
        else:
            answers[str(status)] = {"$ref": f"#/components/responses/{name(status, *refused)}"}
            responses[name(status, *refused)] = refusal(status, refused)
    summary, description = each.words()
    operation: Json = {"operationId": each.id, "tags": [each.tag], "summary": summary}
    granted = f"With `--auth` it requires the permission `{each.verb.value}`." if each.verb else ""
    if text := f"{description} {granted}".strip():
        operation["description"] = text
    if each.verb or each.keyed:
        operation["security"] = [{}, {"key": []}]
    if each.parameters:
        operation["parameters"] = list(each.parameters)
    if each.body:
        operation["requestBody"] = each.body
    operation["responses"] = dict(sorted(answers.items()))
    return operation


def _parameters_of(path: str) -> Json:
    named = [token for token in re.findall(r"\{(\w+)\}", path) if token != "id"]
    parameters = [
        {
            "name": token,
            "in": "path",
            "required": True,
            "description": f"The {'first' if token == 'account' else 'second'} part of the queue's name.",
            "schema": {"type": "string", "pattern": f"^{TOKEN}$"},
            "example": _TOKENS[token],
        }
        for token in named
    ]
    return {"parameters": parameters} if parameters else {}
