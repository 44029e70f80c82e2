"""The calls of a bridge: one entry each, for the reference (`tests.reference.openapi.document`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final, get_args

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.sign_in import Begun
from queuebell.bridge.contract.cloudevents import BATCH_TYPE, SPEC_VERSION, STRUCTURED_TYPE
from queuebell.bridge.contract.event import (
    EVENT_TYPE,
    EVENTS_MAX,
    PAYLOAD_SIZE_MAX,
    CloudQueueWorkDetected,
)
from queuebell.bridge.contract.wire import SUBPROTOCOL
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.api.event_stream import EVENT_STREAM
from queuebell.bridge.http.api.queues import CONTAINS_MAX, PAGE_MAX, PEEK_BYTES_MAX, QueueRoutes
from queuebell.bridge.http.api.sse import QUEUES_MAX, EventStreams
from queuebell.bridge.http.api.state import StateRoutes
from queuebell.bridge.http.api.triggers import TriggerRoutes
from queuebell.bridge.http.page.assets import FILES, PageRoutes
from queuebell.bridge.http.page.dead_letters import Chosen, DeadLetterRoutes, Graves
from queuebell.bridge.http.page.feed import Feed
from queuebell.bridge.http.page.login import LoginRoutes, SignedIn, SignIn
from queuebell.bridge.http.server.answer import JSON_TYPE
from queuebell.bridge.http.wire import Wires
from queuebell.bridge.observe.history import SPANS, QueueHistory
from queuebell.bridge.queues.base import BATCH_MAX, BODY_BYTES_MAX, DELAY_MS_MAX, TTL_S_MAX, MessageState
from queuebell.bridge.queues.http.shapes import (
    CreateRequest,
    Message,
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
from queuebell.bridge.queues.http.store import MESSAGE_TYPE
from queuebell.bridge.queues.limits import KEY_FORM
from queuebell.bridge.service.message_events import Events
from queuebell.bridge.service.state.answers import (
    Cluster,
    Explained,
    Findings,
    Listeners,
    QueueNames,
    QueueState,
    Readiness,
)
from queuebell.bridge.service.state.overview import Run, Sort
from tests.reference.openapi.schemas import Json, reference, said
from tests.reference.openapi.words import REFERENCE

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
    QueueHistory, Events,
    Readiness, Graves, Run, Begun, SignedIn,
)  # fmt: skip

QUEUE: Final = "/v1/queues/{account}/{queue}"
_ID: Final[Json] = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": KEY_FORM[0].upper() + KEY_FORM[1:] + ".",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._~:@=+-]{0,127}$"},
    "example": "order-17",
}
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
    route: Callable[..., object]
    """The function that serves it: its docstring is the text of the call."""
    summary: str | None = None
    """Instead of its first line, where one route serves several files."""
    description: str | None = None
    """Instead of the rest, where several routes have it in common."""
    parameters: tuple[Json, ...] = ()
    body: Json = {}
    answers: dict[int, Json]
    codes: tuple[str, ...] = ()

    def words(self) -> tuple[str, str]:
        """Return the summary and the description."""
        first, _, rest = (inspect.getdoc(self.route) or "").partition("\n\n")
        return self.summary or first.removesuffix("."), self.description or " ".join(rest.split())


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
    "Whether to create the queue if it does not exist; false returns 404 instead.",
    {"type": "string", "enum": ["true", "false"], "default": "true"},
)
_LIST: Final = (
    _query("filter", "Text that the names must contain.", {"type": "string", "maxLength": 200}),
    _query("sort", "What is shown first.", {"type": "string", "enum": list(get_args(Sort)), "default": "trouble"}),
    _query("first", "The number of the first row, from 0.", _whole(0, 10_000_000, 0)),
)
_ONLY: Final = _query("only", "Only these queues.", {"enum": ["all", "trouble", "buried", "paused"], "default": "all"})
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
        "id": said("Identifies the trigger together with source, on every bus.", type="string", minLength=1),
        "source": said("The sender, which makes the id unique.", type="string", minLength=1),
        "subject": said("The queue, as account/queue.", type=["string", "null"], pattern=REFERENCE),
        "time": said("When it happened; forwarded.", type=["string", "null"]),
        "traceparent": said("W3C Trace Context; forwarded.", type=["string", "null"]),
        "datacontenttype": said("The media type of the data; JSON if absent.", type=["string", "null"]),
        "data": said("Any data; as JSON it may be a trigger, whose payload_size and not_before_ms are used."),
        "data_base64": said("The data as bytes, in place of data.", type=["string", "null"], format="byte"),
    },
}
EVENT_SCHEMAS: Final[dict[str, Json]] = {
    "CloudEvent": _EVENT,
    "Accepted": {
        "type": "object",
        "description": "How many triggers were accepted, including repeated ones.",
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
    "description": "Accepted; workers are woken.",
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
        route=TriggerRoutes.triggers,
        parameters=tuple(
            _header(f"ce-{name}", text, {"type": "string"})
            for name, text in (
                ("specversion", f"CloudEvents in binary mode: {SPEC_VERSION}."),
                ("type", f"In binary mode: {EVENT_TYPE}."),
                ("id", "In binary mode: the event's id."),
                ("source", "In binary mode: the sender."),
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
        route=TriggerRoutes.one,
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
        route=QueueRoutes.put,
        parameters=(_CREATE,),
        body={
            "content": {
                JSON_TYPE: {"schema": reference(PutRequest), "example": {"messages": [{"body": "order 17"}]}},
                **_AS_IT_IS,
            }
        },
        answers={201: _json("Put: on disk if the bridge has a data file.", PutAnswer, _PUT_ANSWER)},
        codes=("queue_not_found", "too_many_items", "message_too_large", "too_many_queues", *_CHANGES, *_BODY),
    ),
    Operation(
        method="PUT",
        path=QUEUE + "/messages/{id}",
        id="putMessageOnce",
        verb=Verb.PUT,
        tag="queues",
        route=QueueRoutes.put_once,
        parameters=(
            _ID,
            _CREATE,
            _query("visible_after_ms", "For how long it cannot be received.", _whole(0, DELAY_MS_MAX, 0)),
            _query(
                "ttl_s",
                "After how many seconds it expires; -1 means never.",
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
                **_json("Put: on disk if the bridge has a data file.", PutAnswer, _PUT_ANSWER),
                "headers": {"Location": {"$ref": "#/components/headers/Location"}},
            },
            204: {"description": "It was already put; nothing was changed."},
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
        route=QueueRoutes.receive,
        body={"content": {JSON_TYPE: {"schema": reference(ReceiveRequest), "example": {"max": 10}}}},
        answers={
            200: _json(
                "The received messages; empty if the queue has none.",
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
        route=QueueRoutes.settle,
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
        route=QueueRoutes.peek,
        parameters=(
            _query(
                "max",
                f"The maximum number to show; fewer if the answer would exceed {PEEK_BYTES_MAX} bytes.",
                _whole(1, BATCH_MAX, BATCH_MAX),
            ),
            _query(
                "state", "Where they are.", {"enum": list(get_args(MessageState)), "default": "waiting"}
            ),
            _query("after", "`next` of an earlier answer.", {"type": "string", "pattern": r"^(\d{1,18}\.\d{1,18})?$"}),
            _query("newest", "In reverse: the newest first.", {"type": "boolean", "default": False}),
            _query(
                "contains", "Text in the body, id, key or headers.", {"type": "string", "maxLength": CONTAINS_MAX}
            ),
        ),
        answers={
            200: _json(
                "Messages of one state.", PeekAnswer, {"messages": [{"id": _CLAIM["id"], **_MESSAGE}]}
            )
        },
        codes=("queue_not_found", *_STORE),
    ),
    Operation(
        method="GET",
        path=QUEUE + "/messages/{id}",
        id="showMessage",
        verb=Verb.LOOK,
        tag="queues",
        route=QueueRoutes.look,
        parameters=(_ID,),
        answers={
            200: _json("The message.", Message, {"id": _CLAIM["id"], **_MESSAGE, "state": "waiting"})
        },
        codes=("queue_not_found", "message_not_found", *_STORE),
    ),
    Operation(
        method="DELETE",
        path=QUEUE + "/messages/{id}",
        id="discardMessage",
        verb=Verb.TAKE,
        tag="queues",
        route=QueueRoutes.discard,
        parameters=(_ID, _query("by", "What the name may be.", {"enum": ["any", "id"], "default": "any"})),
        answers={204: _DONE},
        codes=("queue_not_found", "message_not_found", "conflict", *_CHANGES),
    ),
    Operation(
        method="DELETE",
        path=QUEUE + "/messages",
        id="clearQueue",
        verb=Verb.MANAGE,
        tag="queues",
        route=QueueRoutes.clear,
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
        route=QueueRoutes.list,
        parameters=(
            _query("prefix", "The beginning of their names.", {"type": "string", "pattern": "^[A-Za-z0-9_/-]{0,161}$"}),
            _query(
                "after", "The `next` of the previous page.", {"type": "string", "pattern": "^[A-Za-z0-9_/-]{0,161}$"}
            ),
            _query("limit", "The maximum number to list; a page may be shorter.", _whole(1, PAGE_MAX, PAGE_MAX)),
            _query("metadata", "Whether to return the metadata of each queue.", {"type": "boolean", "default": False}),
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
        route=QueueRoutes.describe,
        answers={200: _json("Its state.", QueueState)},
        codes=("queue_not_found",),
    ),
    Operation(
        method="PUT",
        path=QUEUE,
        id="createQueue",
        verb=Verb.MANAGE,
        tag="queues",
        route=QueueRoutes.create,
        body={
            "content": {JSON_TYPE: {"schema": reference(CreateRequest), "example": {"metadata": {"team": "billing"}}}}
        },
        answers={201: _MADE, 204: {"description": "It already exists; given metadata was replaced."}},
        codes=("too_many_queues", *_CHANGES, *_BODY),
    ),
    Operation(
        method="DELETE",
        path=QUEUE,
        id="deleteQueue",
        verb=Verb.MANAGE,
        tag="queues",
        route=QueueRoutes.delete,
        answers={204: {"description": "It no longer exists, or did not exist."}},
        codes=_CHANGES,
    ),
    *(
        Operation(
            method="POST",
            path=f"{QUEUE}/{action}",
            id=f"{action}Queue",
            verb=Verb.MANAGE,
            tag="queues",
            route=route,
            body={"content": {JSON_TYPE: {"schema": reference(PauseRequest)}}},
            answers={204: _DONE},
            codes=("queue_not_found", *_CHANGES, *_BODY),
        )
        for action, route in (("pause", QueueRoutes.pause), ("resume", QueueRoutes.resume))
    ),
    Operation(
        method="POST",
        path=QUEUE + "/forget",
        id="forgetQueue",
        verb=Verb.OPERATE,
        tag="state",
        route=StateRoutes.forget,
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
        route=DeadLetterRoutes.show,
        parameters=(
            _query("after", "The `next` of an earlier answer.", {"type": "string", "pattern": _PLACE}),
            _query("reason", "Only messages with this text in their reason.", {"type": "string", "maxLength": 1000}),
            _query(
                "id", "Only messages with this id, here or where they failed.", {"type": "string", "maxLength": 200}
            ),
            _query("newest", "The newest first.", {"type": "boolean", "default": False}),
        ),
        answers={200: _json("The messages; none is received.", Graves)},
        codes=(*_STORE, "queue_not_found"),
    ),
    *(
        Operation(
            method="POST",
            path=QUEUE + "/" + path,
            id=name,
            verb=Verb.TAKE,
            tag="queues",
            route=route,
            body={"content": {JSON_TYPE: {"schema": reference(Chosen), "example": {"reason": "ValueError"}}}},
            answers={202: _json("It has started. `run` of `GET .../buried` shows progress and result.", Run)},
            codes=(*_STORE, *_BODY, "queue_not_found", "conflict"),
        )
        for path, name, route in (
            ("replay", "replayBuried", DeadLetterRoutes.replay),
            ("discard", "discardBuried", DeadLetterRoutes.discard),
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
            route=PageRoutes.file,
            summary=f"Return the page's {name}",
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
            route=route,
            description=(
                "Server-sent events without a name; each is a complete view as the page shows it, at "
                "most once a second. The content of a view belongs to the page, and changes with it."
            ),
            parameters=parameters,
            answers={
                200: {
                    "description": "The stream; it ends immediately if the bridge is stopping or has too many.",
                    "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
                }
            },
        )
        for path, name, verb, route, parameters in (
            ("/v1/watch", "watchQueues", Verb.LOOK, Feed.queues, (*_LIST, _ONLY)),
            ("/v1/watch/listeners", "watchListeners", Verb.OPERATE, Feed.listeners, _LIST),
            ("/v1/watch/bridge", "watchBridge", Verb.OPERATE, Feed.about, ()),
            (QUEUE + "/watch", "watchQueue", Verb.LOOK, Feed.queue, ()),
        )
    ),
)

_LOGIN: Final = (
    Operation(
        method="GET",
        path="/v1/login",
        id="beginSignIn",
        tag="page",
        route=LoginRoutes.begin,
        answers={200: _json("What the tab needs for the sign-in.", Begun)},
        codes=("not_found", "issuer_unavailable"),
    ),
    Operation(
        method="POST",
        path="/v1/login",
        id="endSignIn",
        tag="page",
        route=LoginRoutes.finish,
        body={"required": True, "content": {JSON_TYPE: {"schema": reference(SignIn)}}},
        answers={200: _json("The user who signed in.", SignedIn)},
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
        route=StateRoutes.explain,
        answers={200: _json("For each worker, whether it would be woken and why.", Explained)},
        codes=("queue_not_found",),
    ),
    Operation(
        method="GET",
        path=QUEUE + "/history",
        id="showHistory",
        verb=Verb.LOOK,
        tag="state",
        route=StateRoutes.history,
        parameters=(_query("span", "How far back.", {"enum": list(SPANS), "default": "1h"}),),
        answers={200: _json("The steps with any event, oldest first.", QueueHistory)},
        codes=("queue_not_found",),
    ),
    Operation(
        method="GET",
        path=QUEUE + "/events",
        id="watchMessages",
        verb=Verb.LOOK,
        tag="state",
        route=StateRoutes.events,
        parameters=(
            _query("after", "`last` of an earlier answer.", _whole(0, 9_999_999_999, 0)),
            _query("id", "Only of this message.", {"type": "string"}),
        ),
        answers={200: _json("The events, oldest first.", Events)},
        codes=("queue_not_found",),
    ),
    Operation(
        method="GET",
        path="/v1/listeners",
        id="listListeners",
        verb=Verb.OPERATE,
        tag="state",
        route=StateRoutes.listeners,
        answers={200: _json("The workers, event streams and webhooks.", Listeners)},
    ),
    Operation(
        method="POST",
        path="/v1/listeners/drain",
        id="drainListener",
        verb=Verb.OPERATE,
        tag="state",
        route=StateRoutes.drain,
        parameters=(_query("instance", "The worker's instance.", {"type": "string"}),),
        answers={204: _DONE},
        codes=("not_found", "conflict"),
    ),
    Operation(
        method="GET",
        path="/v1/cluster",
        id="describeCluster",
        verb=Verb.OPERATE,
        tag="state",
        route=StateRoutes.cluster,
        answers={200: _json("The cluster as this bridge sees it.", Cluster)},
    ),
    Operation(
        method="GET",
        path="/v1/findings",
        id="listFindings",
        verb=Verb.OPERATE,
        tag="state",
        route=StateRoutes.findings,
        answers={200: _json("Work that no worker will check, and workers in trouble.", Findings)},
    ),
)

_CHANNELS: Final = (
    Operation(
        method="GET",
        path="/v1/wakes",
        id="streamWakes",
        verb=Verb.LOOK,
        tag="channels",
        route=EventStreams.wakes,
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
            _query("last_event_id", "Like Last-Event-ID, for clients that cannot send it.", {"type": "string"}),
            _query("lastEventId", "The same under the name that browsers' polyfills use.", {"type": "string"}),
            _header("Last-Event-ID", "The id of the last received event.", {"type": "string"}),
        ),
        answers={
            200: {
                "description": "The stream; it ends immediately if the bridge is stopping or has too many.",
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
        route=Wires.serve,
        parameters=(
            _header(
                "Sec-WebSocket-Protocol",
                f"Contains {SUBPROTOCOL} in its list.",
                {"type": "string", "const": SUBPROTOCOL},
            ),
        ),
        answers={101: {"description": "The connection is open."}},
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
            route=StateRoutes.alive,
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
        route=StateRoutes.ready,
        answers={
            200: _json(
                "All required parts work.",
                Readiness,
                {"ready": True, "checks": {"store": {"ok": True, "detail": "ok"}}},
            ),
            503: {
                **_json("Some part does not work; all other calls still do.", Readiness),
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
        route=StateRoutes.metrics,
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
        route=WebServer.describe,
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
