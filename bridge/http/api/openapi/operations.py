"""The calls of a bridge: one entry each, for the reference (`bridge.http.api.openapi.document`)."""

from __future__ import annotations

from typing import Final, get_args

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from bridge.access.grants import Verb
from bridge.access.sign_in import Begun
from bridge.contract.cloudevents import BATCH_TYPE, SPEC_VERSION, STRUCTURED_TYPE
from bridge.contract.event import (
    EVENT_BYTES_MAX,
    EVENT_TYPE,
    EVENTS_MAX,
    PAYLOAD_SIZE_MAX,
    REQUEST_BYTES_MAX,
    CloudQueueWorkDetected,
)
from bridge.contract.wire import FRAME_BYTES_MAX, SUBPROTOCOL
from bridge.http.api.lasting import EVENT_STREAM
from bridge.http.api.native import PAGE_MAX, PEEK_BYTES_MAX
from bridge.http.api.openapi.schemas import Json, reference, said
from bridge.http.api.openapi.words import REFERENCE
from bridge.http.api.queues import BULK_BYTES_MAX
from bridge.http.api.sse import QUEUES_MAX
from bridge.http.page.graves import Chosen, Graves
from bridge.http.page.login import SignedIn, SignIn
from bridge.http.page.shown import FILES
from bridge.http.server.answer import JSON_TYPE
from bridge.queues.base import BATCH_MAX, BODY_BYTES_MAX, DELAY_MS_MAX, TTL_S_MAX
from bridge.queues.http import MESSAGE_TYPE
from bridge.queues.http_shapes import (
    CreateRequest,
    PauseRequest,
    PeekAnswer,
    PutAnswer,
    PutItem,
    PutRequest,
    ReceiveAnswer,
    ReceiveRequest,
    SettleAnswer,
    SettleRequest,
)
from bridge.queues.limits import KEY_FORM
from bridge.service.state.answers import (
    Cluster,
    Explained,
    Findings,
    Listeners,
    QueueNames,
    QueueState,
    Readiness,
)
from bridge.service.state.overview import Run, Sort

REQUESTS: Final = (
    PutRequest,
    ReceiveRequest,
    SettleRequest,
    CreateRequest,
    PauseRequest,
    Chosen,
    SignIn,
    CloudQueueWorkDetected,
)
ANSWERS: Final = (
    PutAnswer, ReceiveAnswer, PeekAnswer, SettleAnswer, QueueNames, QueueState, Listeners, Findings, Cluster, Explained,
    Readiness, Graves, Run, Begun, SignedIn,
)  # fmt: skip

QUEUE: Final = "/v1/queues/{account}/{queue}"
_AS_IT_IS: Final[Json] = {"application/octet-stream": {"schema": {}}, "text/plain": {"schema": {"type": "string"}}}
"""Two for an example: there may be any, or none."""
_STORE: Final = ("storage_unavailable", "draining", "unsupported")
_CHANGES: Final = (*_STORE, "storage_full")
_BODY: Final = ("bad_json", "too_large", "417 bad_parameter")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One call. ``answers`` are those that are no refusals, ``codes`` the refusals beyond those of every call."""

    method: str
    path: str
    id: str
    verb: Verb | None = None
    """What has to be granted where the bridge asks for keys; None where everybody may."""
    keyed: bool = False
    """Whether it asks for a key and for no grant."""
    tag: str
    summary: str
    description: str = ""
    parameters: tuple[Json, ...] = ()
    body: Json = {}
    answers: dict[int, Json]
    codes: tuple[str, ...] = ()


def _query(name: str, text: str, schema: Json, **more: object) -> Json:
    return {"name": name, "in": "query", "description": text, "schema": schema, **more}


def _header(name: str, text: str, schema: Json) -> Json:
    return {"name": name, "in": "header", "description": text, "schema": schema}


def _whole(low: int, high: int, default: int | None = None) -> Json:
    limits: Json = {"type": "integer", "minimum": low, "maximum": high}
    return limits if default is None else {**limits, "default": default}


def _json(text: str, struct: type[msgspec.Struct], example: object = None) -> Json:
    content: Json = {"schema": reference(struct)}
    if example is not None:
        content["example"] = example
    return {"description": text, "content": {JSON_TYPE: content}}


_CREATE: Final = _query(
    "create",
    "Whether to make the queue where there is none; false answers 404 instead.",
    {"type": "string", "enum": ["true", "false"], "default": "true"},
)
_LIST: Final = (
    _query("filter", "A text that the names have in them.", {"type": "string", "maxLength": 200}),
    _query("sort", "What stands first.", {"type": "string", "enum": list(get_args(Sort)), "default": "trouble"}),
    _query("first", "The number of the first row, from 0.", _whole(0, 10_000_000, 0)),
)
_PLACE: Final = "^([0-9]{1,18}[.][0-9]{1,18})?$"
_CLAIM: Final = {"id": "0000000000000017", "pop_receipt": "66f307dd0867019e"}
_PUT_ANSWER: Final = {"messages": [{**_CLAIM, "visible_in_ms": 0}]}
_MESSAGE: Final = {
    "body": "order 17",
    "dequeue_count": 1,
    "inserted_at": "2026-11-20T17:31:00.123Z",
    "expires_at": None,
}
_DONE: Final = {"description": "Done."}
_MADE: Final = {"description": "Made."}

_EVENT: Final[Json] = {
    "type": "object",
    "description": "A CloudEvent in its JSON format; other attributes are ignored.",
    "required": ["specversion", "type", "id", "source"],
    "properties": {
        "specversion": said("The version of CloudEvents.", const=SPEC_VERSION),
        "type": said("Events of other types are refused.", const=EVENT_TYPE),
        "id": said("With source: the same two are the same trigger, on whatever bus.", type="string", minLength=1),
        "source": said("Who tells, for the id.", type="string", minLength=1),
        "subject": said("The queue, as account/queue.", type=["string", "null"], pattern=REFERENCE),
        "time": said("When it happened; passed on.", type=["string", "null"]),
        "traceparent": said("W3C Trace Context; passed on.", type=["string", "null"]),
        "datacontenttype": said("What the data is; JSON where nothing is said.", type=["string", "null"]),
        "data": said("Anything; as JSON it may be a trigger, whose payload_size and not_before_ms are used."),
        "data_base64": said("The data as bytes, in place of data.", type=["string", "null"], format="byte"),
    },
}
EVENT_SCHEMAS: Final[dict[str, Json]] = {
    "CloudEvent": _EVENT,
    "Accepted": {
        "type": "object",
        "description": "How many triggers were taken; a repeated one counts as taken.",
        "required": ["accepted"],
        "properties": {"accepted": {"type": "integer", "minimum": 0, "maximum": EVENTS_MAX}},
    },
    "Alive": {
        "type": "object",
        "description": "The bridge answers.",
        "required": ["alive"],
        "properties": {"alive": {"const": True}},
    },
}
"""Those of which there is no struct."""
_EVENT_EXAMPLE: Final = {
    "specversion": SPEC_VERSION, "type": EVENT_TYPE, "id": "17", "source": "/shop", "subject": "billing/orders",
}  # fmt: skip
_TRIGGER_EXAMPLE: Final = {"storage_account": "billing", "queue_name": "orders", "payload_size": 3}
_ACCEPTED: Final = {
    "description": "Taken; workers are woken.",
    "content": {JSON_TYPE: {"schema": reference("Accepted"), "example": {"accepted": 1}}},
}
_TRIGGER_CODES: Final = ("bad_trigger", "bad_queue_reference", "too_many_requests", "draining", "417 bad_parameter")

_TRIGGERS: Final = (
    Operation(
        method="POST",
        path="/v1/triggers",
        id="publishTriggers",
        verb=Verb.RING,
        tag="triggers",
        summary="Say that work was put on queues in other stores",
        description=(
            "One trigger, a list of them, or CloudEvents; all are taken or none. A put to this bridge's own queues "
            f"needs no trigger. At most {REQUEST_BYTES_MAX} bytes, and {EVENT_BYTES_MAX} for one trigger. With the "
            "header ce-specversion the request is one CloudEvent in binary mode, whatever its Content-Type: its "
            "attributes are the headers ce-*, its data is the body."
        ),
        parameters=tuple(
            _header(f"ce-{name}", text, {"type": "string"})
            for name, text in (
                ("specversion", f"CloudEvents in binary mode: {SPEC_VERSION}."),
                ("type", f"In binary mode: {EVENT_TYPE}."),
                ("id", "In binary mode: the event's id."),
                ("source", "In binary mode: who tells."),
                ("subject", "In binary mode: the queue, as account/queue."),
                ("time", "In binary mode: when it happened."),
                ("traceparent", "In binary mode: W3C Trace Context."),
            )
        ),
        body={
            "required": True,
            "content": {
                JSON_TYPE: {
                    "schema": {
                        "anyOf": [
                            reference(CloudQueueWorkDetected),
                            {"type": "array", "maxItems": EVENTS_MAX, "items": reference(CloudQueueWorkDetected)},
                        ]
                    },
                    "example": _TRIGGER_EXAMPLE,
                },
                STRUCTURED_TYPE: {"schema": reference("CloudEvent"), "example": _EVENT_EXAMPLE},
                BATCH_TYPE: {
                    "schema": {"type": "array", "maxItems": EVENTS_MAX, "items": reference("CloudEvent")},
                    "example": [_EVENT_EXAMPLE],
                },
            },
        },
        answers={202: _ACCEPTED},
        codes=("bad_json", "too_many_items", "too_large", *_TRIGGER_CODES),
    ),
    Operation(
        method="POST",
        path="/v1/triggers/{account}/{queue}",
        id="publishTrigger",
        verb=Verb.RING,
        tag="triggers",
        summary="Say that work was put on one queue in another store",
        description="For use by hand: the address says everything, and a body is refused.",
        parameters=(_query("size", "How many messages were put.", _whole(1, PAYLOAD_SIZE_MAX, 1)),),
        answers={202: _ACCEPTED},
        codes=("not_found", "too_large", *_TRIGGER_CODES),
    ),
)

_PUTS: Final = (
    Operation(
        method="POST",
        path=QUEUE + "/messages",
        id="putMessages",
        verb=Verb.PUT,
        tag="queues",
        summary="Put messages on a queue",
        description=(
            f"As JSON 1 to {BATCH_MAX} messages, all or none; with any other Content-Type, or none, one message: the "
            f"body as it is. Makes the queue where there is none, and wakes its workers. At most {BULK_BYTES_MAX} "
            "bytes. Unknown parameters of the address are refused."
        ),
        parameters=(_CREATE,),
        body={
            "content": {
                JSON_TYPE: {"schema": reference(PutRequest), "example": {"messages": [{"body": "order 17"}]}},
                **_AS_IT_IS,
            }
        },
        answers={201: _json("Put: on disk, where the bridge has one.", PutAnswer, _PUT_ANSWER)},
        codes=("queue_not_found", "too_many_items", "message_too_large", "too_many_queues", *_CHANGES, *_BODY),
    ),
    Operation(
        method="PUT",
        path=QUEUE + "/messages/{id}",
        id="putMessageOnce",
        verb=Verb.PUT,
        tag="queues",
        summary="Put one message under an id of yours, once",
        description=(
            "Send it as often as you like: the same body under the same id is put once, as long as the message is "
            "there and for a while after it. The body is the message as it is, whatever its Content-Type, but for "
            f"{MESSAGE_TYPE}: that is a message in JSON as a put of several has it, with headers. Unknown "
            "parameters of the address are refused."
        ),
        parameters=(
            {
                "name": "id",
                "in": "path",
                "required": True,
                "description": KEY_FORM[0].upper() + KEY_FORM[1:] + ".",
                "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._~:@=+-]{0,127}$"},
                "example": "order-17",
            },
            _CREATE,
            _query("visible_after_ms", "For how long nobody can receive it.", _whole(0, DELAY_MS_MAX, 0)),
            _query(
                "ttl_s",
                "After how many seconds it expires; -1 is never.",
                {"type": "integer", "anyOf": [{"const": -1}, {"minimum": 1, "maximum": TTL_S_MAX}], "default": -1},
            ),
        ),
        body={
            "description": f"The message; its body is at most {BODY_BYTES_MAX} bytes.",
            "content": {
                MESSAGE_TYPE: {
                    "schema": reference(PutItem),
                    "example": {"body": "order 17", "headers": {"content-type": "text/plain"}},
                },
                **_AS_IT_IS,
            },
        },
        answers={
            201: {
                **_json("Put: on disk, where the bridge has one.", PutAnswer, _PUT_ANSWER),
                "headers": {"Location": {"$ref": "#/components/headers/Location"}},
            },
            204: {"description": "It was put before; nothing was changed."},
        },
        codes=(
            "queue_not_found", "message_conflict", "message_too_large", "too_many_queues", *_CHANGES, *_BODY,
        ),
    ),
)  # fmt: skip

_HANDLING: Final = (
    Operation(
        method="POST",
        path=QUEUE + "/receive",
        id="receiveMessages",
        verb=Verb.TAKE,
        tag="queues",
        summary="Take messages from a queue",
        description=(
            "Returns at once, with what there is. Each message is yours until its visibility timeout ends: delete it "
            "when it is done. Without a body one message is taken for 30 seconds."
        ),
        body={"content": {JSON_TYPE: {"schema": reference(ReceiveRequest), "example": {"max": 10}}}},
        answers={
            200: _json(
                "What was taken; none where nothing waits.",
                ReceiveAnswer,
                {
                    "messages": [{**_CLAIM, **_MESSAGE}],
                    "depth": {"visible": 0, "invisible": 1},
                    "next_visible_in_ms": 30_000,
                    "next_delayed_in_ms": None,
                },
            )
        },
        codes=("queue_not_found", *_CHANGES, *_BODY),
    ),
    Operation(
        method="POST",
        path=QUEUE + "/settle",
        id="settleMessages",
        verb=Verb.TAKE,
        tag="queues",
        summary="Delete messages, give them back, or keep them longer",
        description=f"At most {BATCH_MAX} in each list, and {BULK_BYTES_MAX} bytes. Each item has its own outcome.",
        body={
            "required": True,
            "content": {JSON_TYPE: {"schema": reference(SettleRequest), "example": {"delete": [_CLAIM]}}},
        },
        answers={
            200: _json(
                "An outcome for each item.", SettleAnswer, {"delete": [{"ok": True}], "release": [], "extend": []}
            )
        },
        codes=("queue_not_found", "too_many_items", "message_too_large", *_CHANGES, *_BODY),
    ),
    Operation(
        method="GET",
        path=QUEUE + "/peek",
        id="peekMessages",
        verb=Verb.LOOK,
        tag="queues",
        summary="Look at messages without taking them",
        parameters=(
            _query(
                "max",
                f"The most to show; fewer where the answer would be over {PEEK_BYTES_MAX} bytes.",
                _whole(1, BATCH_MAX, BATCH_MAX),
            ),
        ),
        answers={
            200: _json(
                "What could be received now.", PeekAnswer, {"messages": [{"id": _CLAIM["id"], **_MESSAGE}]}
            )
        },
        codes=("queue_not_found", *_STORE),
    ),
    Operation(
        method="DELETE",
        path=QUEUE + "/messages",
        id="clearQueue",
        verb=Verb.MANAGE,
        tag="queues",
        summary="Remove all messages of a queue",
        answers={204: _DONE},
        codes=("queue_not_found", *_CHANGES),
    ),
)  # fmt: skip

_QUEUES: Final = (
    Operation(
        method="GET",
        path="/v1/queues",
        id="listQueues",
        verb=Verb.LOOK,
        tag="queues",
        summary="List the queues of this bridge's queue service",
        parameters=(
            _query("prefix", "What their names begin with.", {"type": "string", "pattern": "^[A-Za-z0-9_/-]{0,161}$"}),
            _query("after", "The `next` of the page before.", {"type": "string", "pattern": "^[A-Za-z0-9_/-]{0,161}$"}),
            _query("limit", "The most to list; a page may be shorter.", _whole(1, PAGE_MAX, PAGE_MAX)),
        ),
        answers={200: _json("One page.", QueueNames, {"queues": ["billing/orders"], "next": None})},
        codes=("too_many_requests", *_STORE),
    ),
    Operation(
        method="GET",
        path=QUEUE,
        id="describeQueue",
        verb=Verb.LOOK,
        tag="queues",
        summary="Say how a queue stands",
        description="Also for a queue in another store that was heard of.",
        answers={200: _json("How it stands.", QueueState)},
        codes=("queue_not_found",),
    ),
    Operation(
        method="PUT",
        path=QUEUE,
        id="createQueue",
        verb=Verb.MANAGE,
        tag="queues",
        summary="Make a queue, or replace its metadata",
        description="Not needed before a put, which makes it.",
        body={
            "content": {JSON_TYPE: {"schema": reference(CreateRequest), "example": {"metadata": {"team": "billing"}}}}
        },
        answers={201: _MADE, 204: {"description": "It is there already; metadata given was replaced."}},
        codes=("too_many_queues", *_CHANGES, *_BODY),
    ),
    Operation(
        method="DELETE",
        path=QUEUE,
        id="deleteQueue",
        verb=Verb.MANAGE,
        tag="queues",
        summary="Remove a queue and its messages",
        answers={204: {"description": "It is gone, or was not there."}},
        codes=_CHANGES,
    ),
    *(
        Operation(
            method="POST",
            path=f"{QUEUE}/{action}",
            id=f"{action}Queue",
            verb=Verb.MANAGE,
            tag="queues",
            summary=summary,
            description="Doing it again changes nothing; it outlives a restart.",
            body={"content": {JSON_TYPE: {"schema": reference(PauseRequest)}}},
            answers={204: _DONE},
            codes=("queue_not_found", *_CHANGES, *_BODY),
        )
        for action, summary in (
            ("pause", "Give nothing out; puts are still taken"),
            ("resume", "Give messages out again, and wake workers"),
        )
    ),
    Operation(
        method="POST",
        path=QUEUE + "/forget",
        id="forgetQueue",
        verb=Verb.OPERATE,
        tag="state",
        summary="Forget a queue of another store that is gone",
        answers={204: _DONE},
        codes=("queue_not_found", "conflict"),
    ),
)

_GRAVES: Final = (
    Operation(
        method="GET",
        path=QUEUE + "/buried",
        id="showBuried",
        verb=Verb.LOOK,
        tag="queues",
        summary="Show what was buried, and why",
        description=(
            f"Visible messages of a poison queue with the facts of their burials, {BATCH_MAX} at a time. With `reason` "
            "an answer may have fewer, or none, and tell where to go on. Only the bridge's own queue service knows "
            "places: of an engine's queue the first are shown."
        ),
        parameters=(
            _query("after", "What an earlier answer gave as `next`.", {"type": "string", "pattern": _PLACE}),
            _query("reason", "Only those with this text in their reason.", {"type": "string", "maxLength": 1000}),
            _query("newest", "The newest first.", {"type": "boolean", "default": False}),
        ),
        answers={200: _json("The messages; nothing is taken.", Graves)},
        codes=(*_STORE, "queue_not_found"),
    ),
    *(
        Operation(
            method="POST",
            path=QUEUE + "/" + path,
            id=name,
            verb=Verb.TAKE,
            tag="queues",
            summary=summary,
            description=text,
            body={"content": {JSON_TYPE: {"schema": reference(Chosen), "example": {"reason": "ValueError"}}}},
            answers={202: _json("It has begun; the page shows how far it is.", Run)},
            codes=(*_STORE, *_BODY, "queue_not_found", "conflict"),
        )
        for path, name, summary, text in (
            (
                "replay",
                "replayBuried",
                "Put buried messages back to where they failed",
                "Each is put before it is deleted here. One whose queue is not granted for `put`, or not known, stays.",
            ),
            ("discard", "discardBuried", "Delete buried messages", "They are gone for good."),
        )
    ),
)

_PAGE: Final = (
    *(
        Operation(
            method="GET",
            path=path,
            id=name.replace(".", "_"),
            tag="page",
            summary=f"Give the page's {name}",
            answers={200: {"description": "The file.", "content": {media: {"schema": {"type": "string"}}}}},
        )
        for path, (name, media) in FILES.items()
    ),
    *(
        Operation(
            method="GET",
            path=path,
            id=name,
            verb=verb,
            tag="page",
            summary=summary,
            description=(
                "Server-sent events without a name; each is a whole view as the page shows it, once a second at most. "
                "What is in a view belongs to the page, and changes with it."
            ),
            parameters=parameters,
            answers={
                200: {
                    "description": "The stream; while the bridge stops, or has too many, one that ends at once.",
                    "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
                }
            },
        )
        for path, name, verb, summary, parameters in (
            ("/v1/watch", "watchQueues", Verb.LOOK, "Follow the list of queues", _LIST),
            ("/v1/watch/listeners", "watchListeners", Verb.OPERATE, "Follow the list of listeners", _LIST),
            ("/v1/watch/bridge", "watchBridge", Verb.OPERATE, "Follow the bridge itself", ()),
            (QUEUE + "/watch", "watchQueue", Verb.LOOK, "Follow one queue", ()),
        )
    ),
)

_LOGIN: Final = (
    Operation(
        method="GET",
        path="/v1/login",
        id="beginSignIn",
        tag="page",
        summary="Begin to sign in at the issuer of this bridge's configuration",
        description="404 where there is none. Nothing is kept here of it.",
        answers={200: _json("What the tab needs to go there.", Begun)},
        codes=("not_found", "issuer_unavailable"),
    ),
    Operation(
        method="POST",
        path="/v1/login",
        id="endSignIn",
        tag="page",
        summary="Exchange what the issuer sent the browser back with for a token",
        body={"required": True, "content": {JSON_TYPE: {"schema": reference(SignIn)}}},
        answers={200: _json("Who signed in.", SignedIn)},
        codes=("not_found", "issuer_unavailable", "forbidden", "too_many_requests", *_BODY),
    ),
)

_STATE: Final = (
    Operation(
        method="GET",
        path=QUEUE + "/explain",
        id="explainQueue",
        verb=Verb.LOOK,
        tag="state",
        summary="Say who would get a trigger now, and why another would not",
        answers={200: _json("For each listener, whether and why.", Explained)},
        codes=("queue_not_found",),
    ),
    Operation(
        method="GET",
        path="/v1/listeners",
        id="listListeners",
        verb=Verb.OPERATE,
        tag="state",
        summary="List workers, event streams and webhooks",
        description="Webhooks are added in the configuration file only, never over HTTP.",
        answers={200: _json("Who listens.", Listeners)},
    ),
    Operation(
        method="GET",
        path="/v1/cluster",
        id="describeCluster",
        verb=Verb.OPERATE,
        tag="state",
        summary="Show the bridges that take turns with this one",
        answers={200: _json("The cluster as this bridge sees it.", Cluster)},
    ),
    Operation(
        method="GET",
        path="/v1/findings",
        id="listFindings",
        verb=Verb.OPERATE,
        tag="state",
        summary="Say what a person should know of this bridge",
        answers={200: _json("Work that nobody looks at, and listeners in trouble.", Findings)},
    ),
)

_CHANNELS: Final = (
    Operation(
        method="GET",
        path="/v1/wakes",
        id="streamWakes",
        verb=Verb.LOOK,
        tag="channels",
        summary="Hear when queues have work, as server-sent events",
        description=(
            "The stream stays open; each event `wake` says that a queue has work. Its id, sent back in Last-Event-ID, "
            "has the bridge tell what was missed; an event `gap` says that it cannot know. The events are described "
            "in asyncapi.yaml."
        ),
        parameters=(
            _query(
                "queue",
                "A queue as account/queue; repeat it for several.",
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": QUEUES_MAX,
                    "items": {"type": "string", "pattern": REFERENCE},
                },
                required=True,
                style="form",
                explode=True,
                example=["billing/orders"],
            ),
            _query("last_event_id", "As Last-Event-ID, for clients that cannot send it.", {"type": "string"}),
            _query("lastEventId", "The same by the name that browsers' polyfills use.", {"type": "string"}),
            _header("Last-Event-ID", "The id of the last event that was heard.", {"type": "string"}),
        ),
        answers={
            200: {
                "description": "The stream; while the bridge stops, or has too many, one that ends at once.",
                "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
            }
        },
        codes=("bad_queue_reference", "too_many_items"),
    ),
    Operation(
        method="GET",
        path="/v1/sessions",
        id="openSession",
        keyed=True,
        tag="channels",
        summary="Open a wire, as a WebSocket",
        description=(
            f"A WebSocket handshake (RFC 6455) that offers the subprotocol {SUBPROTOCOL}; any other request is "
            "refused. Binary messages are calls, with the paths and bodies of this document (docs/channels.md). Text "
            f"messages are the frames of a worker's session, JSON of at most {FRAME_BYTES_MAX} bytes, described in "
            "asyncapi.yaml. With `--auth` it asks for a key; each call and each session has to be granted its own."
        ),
        parameters=(
            _header(
                "Sec-WebSocket-Protocol", f"Has {SUBPROTOCOL} in its list.", {"type": "string", "const": SUBPROTOCOL}
            ),
        ),
        answers={101: {"description": "The wire is open."}},
        codes=("draining", "unauthenticated", "too_many_requests"),
    ),
)

_HEALTH: Final = (
    *(
        Operation(
            method="GET",
            path=path,
            id=name,
            tag="health",
            summary="Say that the bridge answers",
            answers={
                200: {
                    "description": "It does.",
                    "content": {JSON_TYPE: {"schema": reference("Alive"), "example": {"alive": True}}},
                }
            },
        )
        for path, name in (("/livez", "livez"), ("/healthz", "healthz"))
    ),
    Operation(
        method="GET",
        path="/readyz",
        id="readyz",
        tag="health",
        summary="Say whether all that is required works",
        description="The data file and each configured bus; which of them are required is a setting.",
        answers={
            200: _json(
                "All of it works.", Readiness, {"ready": True, "checks": {"store": {"ok": True, "detail": "ok"}}}
            ),
            503: {
                **_json("Something does not; all other calls go on.", Readiness),
                "headers": {"Retry-After": {"$ref": "#/components/headers/Retry-After"}},
            },
        },
    ),
    Operation(
        method="GET",
        path="/metrics",
        id="metrics",
        verb=Verb.OPERATE,
        tag="health",
        summary="Give the metrics",
        answers={
            200: {
                "description": "In Prometheus's text format.",
                "content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}},
            }
        },
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        id="openapi",
        tag="health",
        summary="Give this description",
        answers={
            200: {
                "description": "The description, as OpenAPI 3.1.",
                "content": {JSON_TYPE: {"schema": {"type": "object", "required": ["openapi", "paths"]}}},
            }
        },
    ),
)

OPERATIONS: Final = (
    *_TRIGGERS, *_PUTS, *_HANDLING, *_GRAVES, *_QUEUES, *_STATE, *_CHANNELS, *_HEALTH, *_PAGE, *_LOGIN,
)  # fmt: skip
