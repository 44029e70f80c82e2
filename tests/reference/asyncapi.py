"""The description of buses, sessions and channels of wakes in AsyncAPI 3.0, made from the frames and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec

from queuebell.bridge.brokers.postgres.broker import INBOX, PAYLOAD_BYTES_MAX
from queuebell.bridge.contract import cluster, framing
from queuebell.bridge.contract.cloudevents import SPEC_VERSION, STRUCTURED_TYPE, WAKE_TYPE, encode_wake
from queuebell.bridge.contract.errors import STATUS_BY_CODE
from queuebell.bridge.contract.event import EVENT_BYTES_MAX, EVENT_TYPE, TEXT_MAX, CloudQueueWorkDetected
from queuebell.bridge.contract.framing import Stamp
from queuebell.bridge.contract.jobs import HANDLER_CHARS_MAX, HANDLERS_MAX
from queuebell.bridge.contract.names import DEFAULT_PREFIX, TOKEN
from queuebell.bridge.contract.wire import (
    CAPACITY_MAX,
    FAILURE_CHARS_MAX,
    FRAME_BYTES_MAX,
    HELD_CHARS_MAX,
    LEASES_MAX,
    MS_MAX,
    PLACE_CHARS_MAX,
    RUNNING_CHARS_MAX,
    RUNNING_MAX,
    RUNNING_MS,
    STARVED_BY_MAX,
    SUBPROTOCOL,
    SUBSCRIPTIONS_MAX,
    DownFrame,
    Hello,
    UpFrame,
    Wake,
    Welcome,
    WireFrame,
)
from queuebell.bridge.http.api.event_stream import EVENT_STREAM
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.triggers.intake import Bridged
from tests.reference.openapi.document import VERSION
from tests.reference.openapi.operations import EVENT_SCHEMAS
from tests.reference.openapi.schemas import Json, Words, components, reference, said
from tests.reference.openapi.words import BASE64, HEADERS, INSTANCE, MOMENT, REFERENCE, WORDS

BOOT: Final = "0f" * 16
WORKER: Final = "a1" * 16
QUEUE: Final = "billing/orders"

_MS: Final = {"minimum": 0, "maximum": MS_MAX}
_QUEUE: Final = said("The queue, as account/queue.", pattern=REFERENCE)
_SENT_QUEUE: Final = said("The queue, as account/queue.")
_BOOT: Final = said("Which run of the bridge: generated at each start.", pattern=INSTANCE)
_GEN: Final = said("The number of the newest reason to check this queue; it grows with each.", **_MS)
_SENT_GEN: Final = said("The number of the newest reason to check this queue; it grows with each.")
_INSTANCE: Final = said("The worker process: generated at each start. Over brokers in every frame.")
_SEQ: Final = said("Over brokers: grows over the life of its sender, so that late and repeated frames are detected.")
_CREDENTIAL: Final = said(
    "In a hello, if the bridge requires it: a key of `queuebell key create`, or a token of an issuer "
    "that the bridge trusts. Sent over TLS or within one machine only."
)
_TICKET: Final = said(
    "A secret of the worker. If the bridge requires keys, each frame must carry it, and the instance is "
    "the first 32 hexadecimal digits of its SHA-256."
)
_STAMPED: Final = {"instance": _INSTANCE, "seq": _SEQ}
_STORE: Final = said("A fingerprint of the store's address and the queue.", pattern="^[0-9A-Fa-f]{1,128}$")
_OWN: Final = said("Whether the worker takes from this bridge's own queue service.")
_LEASES: Final = said(
    f"By queue: in how many milliseconds each of the worker's leases ends; {LEASES_MAX} in total.",
    propertyNames={"pattern": REFERENCE},
    additionalProperties={"type": "array", "items": {"type": "integer", **_MS}},
)

_TOLD_BY: Final = said("The bridge that sends it: boot of that run.", pattern=INSTANCE)
_HEARD: Final = said(
    "By boot: the number of the newest member message of each other bridge, and for how many "
    "milliseconds it has been known, rounded down.",
    maxProperties=cluster.MEMBERS_MAX, propertyNames={"pattern": INSTANCE},
    additionalProperties={
        "type": "array", "prefixItems": [{"type": "integer", **_MS}] * 2, "items": False, "minItems": 2, "maxItems": 2,
    },
)  # fmt: skip
_PRINTABLE: Final = {"maxLength": TEXT_MAX}

FRAME_WORDS: Final[Words] = {
    "Hello": {
        "": said("First frame of a worker: its name and its queues. A later one replaces the subscriptions."),
        **_STAMPED,
        "instance": said("The worker process: generated at each start.", pattern=INSTANCE),
        "listener": said("A name for people: printable.", maxLength=256),
        "queues": said("Each queue once.", maxItems=SUBSCRIPTIONS_MAX),
        "accept": said("What else it supports: messages, for wakes that carry a message."),
        "store": said("The kind of store of its queues, such as sqs; empty if unknown.", pattern="^[a-z]{0,20}$"),
        "drains": said("Whether it stops at a `drain` with `worker`."),
        "kind": said("scaler if it starts workers instead of handling messages; any other value is a worker."),
    },
    "Subscription": {
        "": said("A queue of a worker."),
        "queue": _QUEUE,
        "capacity": said("How many messages it handles concurrently; 0 for none.", minimum=0, maximum=CAPACITY_MAX),
        "visibility_ms": said("For how long it receives messages.", minimum=1, maximum=MS_MAX),
        "store": _STORE,
        "own": _OWN,
        "seen": said("The newest number that it received, in an earlier session."),
        "free": said(
            "How many more messages it could receive now; all of capacity if absent.", minimum=0, maximum=CAPACITY_MAX
        ),
    },
    "Seen": {"": said("A number of one run of the bridge."), "boot": _BOOT, "gen": _GEN},
    "Started": {
        "": said("The worker has begun to receive after a wake, or has accepted the messages that it carried."),
        **_STAMPED, "queue": _QUEUE, "boot": _BOOT, "gen": _GEN,
    },
    "EmptyReceive": {
        "": said("A receive found the queue empty: everything announced before it began is done."),
        **_STAMPED, "queue": _QUEUE, "boot": _BOOT, "gen": _GEN,
        "age_ms": said("How long ago that receive began.", **_MS),
        "next_visible_in_ms": said("When the next message can be received, as the store reports.", **_MS),
        "after_ms": said("How long after the worker received `gen` that receive began; rounded down.", **_MS),
        "store": _STORE,
        "place": said("Which tables of which server that receive read; absent if the store does not say.",
                      maxLength=PLACE_CHARS_MAX),
        "own": _OWN,
    },
    "More": {
        "": said("The worker has stopped receiving although there may be more: another should check the queue."),
        **_STAMPED, "queue": _QUEUE,
        "depth": said("How many messages there are, as far as it knows.", **_MS),
        "unannounced": said("Whether there is a reason to check that no wake announced; absent means yes."),
        "starting": said("How many workers a scaler is starting for it.", minimum=0, maximum=CAPACITY_MAX),
    },
    "Room": {
        "": said("The worker can receive messages again."),
        **_STAMPED, "queue": _QUEUE,
        "free": said("How many.", minimum=0, maximum=CAPACITY_MAX),
        "gen": said("Wakes up to this number are already included.", **_MS),
    },
    "ListenerHeartbeat": {
        "": said("The state of the worker, repeated: it makes up for every lost frame before it."),
        **_STAMPED,
        "stamp": said("Any number; the bridge sends it back.", minimum=0, maximum=2**63 - 1),
        "queues": said("By queue.", propertyNames={"pattern": REFERENCE}),
        "leases": _LEASES,
        "running": said(
            f"By queue, if a handler has run for at least {RUNNING_MS} ms; {RUNNING_MAX} queues at most.",
            propertyNames={"pattern": REFERENCE}, maxProperties=RUNNING_MAX,
        ),
    },
    "Running": {
        "": said("The message of a queue whose handler has run longest."),
        "id": said("The message.", minLength=1, maxLength=RUNNING_CHARS_MAX),
        "ms": said("For how long.", **_MS),
        "attempt": said("Its attempt, from 1.", **_MS),
    },
    "Starved": {
        "": said(
            "Calls of other queues of the pool that exceeded their time-out hold every slot that the queue "
            "can get."
        ),
        "slots": said("How many they hold.", minimum=1),
        "by": said("The queues that hold most of them, the most first.", minItems=1, maxItems=STARVED_BY_MAX),
    },
    "QueueBeat": {
        "": said("The state of one queue of a worker; every field may be absent."),
        "gen": said("The newest number that it received.", **_MS),
        "covered": said("The newest number up to which a receive found the queue empty.", **_MS),
        "receiving_ms": said("How long ago its newest receive began.", **_MS),
        "free": said("How many more messages it could receive now.", **_MS),
        "receives": said("By reason: receives that found messages, and receives that did not."),
        "failing_ms": said("How long ago the first receive failed since the last one that succeeded.", **_MS),
        "hung": said("Its handler slots held by calls that exceeded their time-out and have not returned.", minimum=0),
        "starved": said("Why it gets no slot of its pool; absent if it can get one."),
        "depth": said("The store's count at the newest receive."),
        "processes": said("The workers of a scaler, on its own machine."),
        "jobs": said(
            "By handler: the outcomes of messages since the worker connected to this run of the bridge; "
            "only those that changed since the bridge confirmed them.",
            maxProperties=HANDLERS_MAX,
            propertyNames={"minLength": 1, "maxLength": HANDLER_CHARS_MAX},
        ),
        "unannounced": said("How many of its receives found new messages without a trigger.", **_MS),
        "buried": said("The number of messages in the poison queue, as counted by its worker."),
    },
    "Jobs": WORDS["Jobs"],
    "Spread": WORDS["Spread"],
    "Processes": {
        "": said("The workers that a scaler has started for one queue."),
        "wanted": said("How many workers the queue needs, on all machines.", minimum=0, maximum=CAPACITY_MAX),
        "ready": said("Workers with a session.", minimum=0, maximum=CAPACITY_MAX),
        "starting": said("Workers that were requested but are not ready.", minimum=0, maximum=CAPACITY_MAX),
        "failure": said(
            "Why the latest count or, failing that, the latest worker failed.", maxLength=FAILURE_CHARS_MAX
        ),
        "running": said(
            "All live workers, including those that are starting or stopping.", minimum=0, maximum=CAPACITY_MAX
        ),
        "held": said(
            "Why no more are started now: starting, maximum, backoff, uncounted, elsewhere or stopping; "
            "null if none is missing.",
            maxLength=HELD_CHARS_MAX,
        ),
        "pause_ms": said("The remaining back-off after a failure.", **_MS),
        "counts": said(
            "Whether a count of 0 proves the queue empty: exact, rough, or trusted if the configuration says so.",
            maxLength=HELD_CHARS_MAX,
        ),
        "tally": said(
            "How many workers were started, failed, and ended by reason (idle, stopping, late, left, "
            "broke), since the scaler connected to this bridge.",
            additionalProperties={"type": "integer", **_MS},
        ),
    },
    "StoreDepth": {
        "": said("The counts of a store."),
        "visible": said("Messages that a receive could take.", **_MS),
        "invisible": said("Messages that are in flight or delayed.", **_MS),
        "age_ms": said("How long ago they were taken.", **_MS),
        "at_least": said("Whether there may be more messages."),
        "leased": said(
            "How many of the invisible messages are in flight; absent if the store does not report it.", **_MS
        ),
        "delayed": said(
            "How many of the invisible messages were put or returned with a delay; absent if the store does "
            "not report it.",
            **_MS,
        ),
        "oldest_ms": said(
            "For how long the oldest visible message had waited then; absent if the store does not report it.", **_MS
        ),
    },
    "BuriedCount": {
        "": said("The number of messages in the poison queue."),
        "messages": said("How many.", **_MS),
        "age_ms": said("How long ago it was counted.", **_MS),
        "queue": said("The poison queue, if it is not named like the queue with -poison."),
    },
    "Bye": {
        "": said(
            "The session ends. A worker includes the leases that it leaves; the bridge confirms with its own "
            "bye."
        ),
        **_STAMPED, "leases": _LEASES,
    },
    "Welcome": {
        "": said("First frame of the bridge: its periods, and the state of the queues."),
        "boot": _BOOT,
        "heartbeat_ms": said("How often to send a heartbeat. After three missed ones the session counts as dead."),
        "sweep_ms": said("How often a queue in an external store is checked without a trigger; 0 means never."),
        "sessions": said("How many sessions there are."),
        "queues": said("The queues of the hello."),
    },
    "WelcomedQueue": {
        "": said("The state of a queue, and its periods if they differ."),
        "queue": _SENT_QUEUE, "gen": _SENT_GEN,
        "clean": said("Whether a receive found it empty since the newest reason to check."),
        "covered_age_ms": said("How long ago that receive began; null if there was none."),
        "sweep_ms": said("As in the welcome, for this queue."),
        "slack_ms": said("How much longer than a sweep a worker waits before it checks by itself."),
        "spread_ms": said("The period over which the workers' own checks are spread."),
        "store_call_ms": said("How long one call of the store may take."),
    },
    "Wake": {
        "": said("This queue has work, or should be checked."),
        "queue": _SENT_QUEUE, "boot": _BOOT, "gen": _SENT_GEN,
        "reason": said("The reason. All except trigger, due and lease only request a check."),
        "size": said("How many messages wait: a hint. Exact if the wake carries messages, which are included."),
        "age_ms": said("How long ago the oldest reason came up."),
        "traceparent": said("W3C Trace Context, of the trigger."),
        "messages": said("The first messages, already received for this worker; only if its hello accepts them."),
        "workers": said("To a scaler: how many workers have sessions, or are being started by other scalers."),
        "traces": said("The trace contexts of all triggers that were merged into this wake."),
    },
    "CarriedMessage": {
        "": said("A message inside a wake, received for a short time only: send started, and extend it."),
        "id": said("The message's id."),
        "pop_receipt": said("Settles the message."),
        "dequeue_count": said("How often it was received, including this time."),
        "inserted_at": said(f"When it was put. {MOMENT}", format="date-time"),
        "expires_at": said(f"When it expires; absent means never. {MOMENT}", format="date-time"),
        "body": said("The message as text."),
        "body_base64": said("The message as bytes, in base64.", pattern=BASE64),
        "visible_in_ms": said("For how long it is received; 2000 if absent."),
        "key": said("The id under which it was put, if any."),
        "headers": said(f"{HEADERS} Absent if there are none."),
    },
    "BridgeHeartbeat": {
        "": said("The answer to a worker's heartbeat. It proves that the connection works in both directions."),
        "boot": _BOOT,
        "echo": said("The stamp of the worker's newest heartbeat; null before the first one."),
        "since_ms": said("How long ago that heartbeat arrived."),
        "sessions": said("How many sessions there are."),
        "queues": said("By queue: all queues of the session."),
    },
    "LastEmptyReceive": {
        "": said("The state of a queue."),
        "gen": _SENT_GEN,
        "covered_age_ms": said("How long ago a receive began that found it empty; null if there was none."),
        "workers": said("To a scaler: as in a wake."),
        "due_ms": said("To a scaler: when a delayed message is due, or a lease ends, as far as the bridge knows."),
    },
    "Drain": {
        "": said("The bridge is stopping: send `bye` unless a receive is in flight, and then connect again."),
        "worker": said("Instead, this worker is to stop: it receives nothing more, finishes what runs, and leaves."),
    },
    "Ready": {
        "": said("First on every WebSocket: calls and a session may follow."),
        "window": said("How many calls may be unanswered; settlements are not counted."),
        "boot": said("The run of the bridge, if it has embedded queues; null if they are in a shared store."),
        "able": said("What this bridge supports and older ones do not, by name: `headers` of messages are stored."),
    },
    "Ended": {
        "": said("The session has ended; the WebSocket stays open for its calls. A new hello starts another one."),
        "code": said("Why, as a WebSocket close code."),
        "reason": said("The same as text."),
    },
    "Goaway": {
        "": said("The bridge is stopping: calls with greater numbers were not carried out; the others are answered."),
        "last": said("The number of the last call that is carried out; -1 if there is none."),
    },
    "ErrorFrame": {
        "": said("The error in a frame; the session ends, unless it only sent too much."),
        "code": said("A stable code for programs.", enum=list(STATUS_BY_CODE)),
        "message": said("The same as text."),
        "retry_after_s": said("For how many seconds not to repeat it; null if unknown."),
    },
    "Stamp": {
        "": said("Fields that every frame also has over a broker, where many sessions share one connection."),
        "instance": _INSTANCE,
        "seq": _SEQ,
        "boot": said("From the bridge: the run of the bridge that sends it."),
        "to": said("From a worker: the bridge that it addresses, which others ignore; absent before its welcome."),
        "credential": _CREDENTIAL,
        "ticket": _TICKET,
        "version": said(
            "In a hello and a welcome: the version of the protocol, 2. Peers of another version are refused."
        ),
    },
    "Traces": WORDS["Traces"],
    "Bridged": {
        **WORDS["CloudQueueWorkDetected"],
        "": said("A trigger that one bridge forwards to others."),
        "via": said("The bridge that forwards it: boot of that run."),
    },
    "Member": {
        "": said(
            "Presence of a bridge in a cluster: sent once a second, and immediately when it changes or a new "
            "bridge appears."
        ),
        "boot": _TOLD_BY,
        "seq": said("Grows by one with each such message.", **_MS),
        "cluster": said("The cluster's name; bridges of other clusters on these subjects are refused.", **_PRINTABLE),
        "address": said("The address of its web server, for people.", **_PRINTABLE),
        "version": said("Its version, for people.", **_PRINTABLE),
        "store": said(
            "A fingerprint of the store behind its own queues; a bridge with another one is refused.",
            pattern="^[0-9A-Fa-f]{1,128}$",
        ),
        "engine": said("The identity that the store of its own queue API reports, whatever its address."),
        "webhooks": said(
            "A hash of the webhooks that it sends; bridges with the same hash take turns at them.", **_PRINTABLE
        ),
        "full": said(
            "Queues with pending work and no worker with free capacity here.",
            maxItems=cluster.QUEUES_MAX, items={"type": "string", "pattern": REFERENCE},
        ),
        "leaving": said("It is stopping and therefore last in every order from now on."),
        "told": said("With leaving: the other bridges have received everything that it hands over."),
    },
    "Ability": {
        "": said("The state of one queue for which a bridge has sessions."),
        "room": said("Whether one of them can receive a message."),
        "starts": said("Whether none can, but a scaler could start a worker that can, or is doing so."),
        "visibility_ms": said("The longest time for which one of them receives messages.", **_MS),
        "store": _STORE,
    },
    "Able": {
        "": said("The queues for which a bridge could wake a worker now. Messages of one bridge add up."),
        "boot": _TOLD_BY,
        "seq": said("The number of its newest member message.", **_MS),
        "queues": said(
            "By queue; null if it no longer has a session.",
            maxProperties=cluster.QUEUES_MAX, propertyNames={"pattern": REFERENCE},
        ),
        "whole": said("Earlier messages are void: a queue that is not in this one has no session."),
        "asks": said("It may have missed messages of others: they send everything again."),
    },
    "Covered": {
        "": said("A receive of one of its workers found a queue empty: others need not check what that proves."),
        "boot": _TOLD_BY, "queue": _QUEUE, "store": _STORE,
        "begun_age_ms": said("How long ago at most that receive began; absent if unknown.", **_MS),
        "heard": _HEARD,
        "ids": said(
            "Source and id of triggers that existed before that receive began.",
            maxItems=cluster.NAMES_MAX,
            items={
                "type": "array", "prefixItems": [{"type": "string", "minLength": 1, **_PRINTABLE}] * 2, "items": False,
                "minItems": 2, "maxItems": 2,
            },
        ),
        "next_visible_in_ms": said("When the next message can be received, as the store reports.", **_MS),
    },
    "Asked": {
        "": said("It asked a store about all of its queues: others need not, if they would ask the same."),
        "boot": _TOLD_BY,
        "store": said("A fingerprint of the store's address, of all its queues.", pattern="^[0-9A-Fa-f]{1,128}$"),
        "place": said("Which tables the store read."),
        "begun_age_ms": said("How long ago it asked.", **_MS),
        "heard": _HEARD,
        "queues": said(
            "The queues that have messages; all others have none.",
            maxItems=cluster.ROUND_QUEUES_MAX, items={"type": "string", "pattern": REFERENCE},
        ),
    },
    "Sent": {
        "": said("It has notified plain subscribers of a queue: the others need not."),
        "boot": _TOLD_BY, "queue": _QUEUE,
        "hook": said("The webhook, by a name derived from its settings; absent for the subjects of wakes.",
                     pattern=INSTANCE),
        "age_ms": said("How long ago it last notified them.", **_MS),
        "heard": _HEARD,
    },
    "Past": {
        "": said("What happened at it since it last said so, for the histories of the others."),
        "boot": _TOLD_BY,
        "step": said("The number of the current 5 seconds since 1970."),
        "queues": said("What happened on each queue.", propertyNames=_QUEUE),
    },
    "PastRow": {
        "": said("What happened on a queue at one bridge."),
        "put": said("Messages put."),
        "receives": said("Receives, and wakes that carried messages."),
        "empty": said("Receives that found nothing."),
        "done": said("Attempts that succeeded."),
        "failed": said("Attempts that failed."),
        "dead": said("Attempts whose message became a dead letter."),
        "started": said("First attempts."),
        "waited_ms": said("The sum of their times from put to start."),
        "handling_ms": said("The sum of the handlers' times."),
        "longest_ms": said("An upper bound of the longest time from put to first attempt; -1 above half an hour."),
        "failures": said("Failed attempts by class."),
        "marks": said("What was done to the queue, and by whom."),
        "workers": said("Which workers came and went."),
    },
}  # fmt: skip
"""As `tests.reference.openapi.words`, for frames."""

UP: Final[tuple[type[msgspec.Struct], ...]] = get_args(UpFrame)
DOWN: Final[tuple[type[msgspec.Struct], ...]] = get_args(DownFrame)
WIRE: Final[tuple[type[msgspec.Struct], ...]] = get_args(WireFrame)
"""Those about a WebSocket itself: over brokers they do not go."""
CLUSTER: Final[tuple[type[msgspec.Struct], ...]] = get_args(cluster.ClusterMessage)

_MESSAGE: Final = {
    "id": "0000000000000017", "pop_receipt": "66f307dd0867019e", "dequeue_count": 1,
    "inserted_at": "2026-11-20T17:31:00.123Z", "body": "order 17",
}  # fmt: skip
_WAKE: Final = {"type": "wake", "queue": QUEUE, "boot": BOOT, "gen": 7, "reason": "trigger", "size": 3, "age_ms": 1}
EXAMPLES: Final[dict[str, list[Json]]] = {
    "Hello": [
        {"type": "hello", "instance": WORKER, "listener": "shop", "queues": [{"queue": QUEUE, "capacity": 32}]},
        {
            "type": "hello", "instance": WORKER, "listener": "shop", "accept": ["messages"],
            "queues": [{"queue": QUEUE, "capacity": 32, "own": True, "seen": {"boot": BOOT, "gen": 6}}],
        },
    ],
    "Started": [{"type": "started", "queue": QUEUE, "boot": BOOT, "gen": 7}],
    "EmptyReceive": [
        {"type": "cover", "queue": QUEUE, "boot": BOOT, "gen": 7, "age_ms": 3, "next_visible_in_ms": 30_000},
    ],
    "More": [{"type": "more", "queue": QUEUE, "depth": 12}],
    "Room": [{"type": "room", "queue": QUEUE, "free": 4, "gen": 7}],
    "ListenerHeartbeat": [
        {
            "type": "heartbeat", "stamp": 5000, "leases": {QUEUE: [29_000, 12_000]},
            "queues": {QUEUE: {"gen": 7, "covered": 6, "free": 30, "receives": {"trigger": [3, 1]}}},
        }
    ],
    "Bye": [{"type": "bye"}, {"type": "bye", "leases": {QUEUE: [29_000]}}],
    "Welcome": [
        {
            "type": "welcome", "boot": BOOT, "heartbeat_ms": 5000, "sweep_ms": 60_000, "sessions": 1,
            "queues": [{"queue": QUEUE, "gen": 6, "clean": True, "covered_age_ms": 12}],
        }
    ],
    "Wake": [_WAKE, {**_WAKE, "size": 1, "messages": [_MESSAGE]}],
    "BridgeHeartbeat": [
        {
            "type": "heartbeat", "boot": BOOT, "echo": 5000, "since_ms": 0, "sessions": 1,
            "queues": {QUEUE: {"gen": 7, "covered_age_ms": None}},
        }
    ],
    "Drain": [{"type": "drain"}, {"type": "drain", "worker": True}],
    "Ready": [{"type": "ready", "window": 32, "boot": BOOT, "able": ["headers"]}],
    "Ended": [{"type": "ended", "code": 1012, "reason": "the bridge is stopping"}],
    "Goaway": [{"type": "goaway", "last": 17}],
    "ErrorFrame": [{"type": "error", "code": "bad_json", "message": "a frame must be one JSON object in UTF-8"}],
    "Member": [
        {
            "type": "member", "boot": BOOT, "seq": 17, "cluster": "shop", "address": "http://127.0.0.1:8470",
            "version": "1.0", "store": "5eed", "full": [QUEUE],
        },
        {"type": "member", "boot": BOOT, "seq": 18, "cluster": "shop", "leaving": True, "told": True},
    ],
    "Able": [
        {
            "type": "able", "boot": BOOT, "seq": 17, "whole": True,
            "queues": {QUEUE: {"room": True, "visibility_ms": 30_000, "store": "5eed"}, "billing/refunds": None},
        },
        {"type": "able", "boot": BOOT, "seq": 17, "asks": True},
    ],
    "Covered": [
        {
            "type": "covered", "boot": BOOT, "queue": QUEUE, "store": "5eed", "begun_age_ms": 12,
            "heard": {WORKER: [9, 250]}, "ids": [["/shop", "17"]], "next_visible_in_ms": 30_000,
        }
    ],
    "Asked": [
        {
            "type": "asked", "boot": BOOT, "store": "5eed", "place": "0123456789abcdef0123456789abcdef",
            "begun_age_ms": 12, "heard": {WORKER: [9, 250]}, "queues": ["billing/refunds"],
        }
    ],
    "Sent": [{"type": "sent", "boot": BOOT, "queue": QUEUE, "age_ms": 3, "heard": {WORKER: [9, 250]}}],
    "Past": [
        {
            "type": "past", "boot": BOOT, "step": 361_000_000,
            "queues": {QUEUE: {"receives": 2, "done": 1, "failed": 1, "failures": {"OSError": 1}, "longest_ms": 250}},
        }
    ],
}  # fmt: skip
"""Frames as they are on a WebSocket, and words between bridges, by struct."""
TRIGGER: Final = {"storage_account": "billing", "queue_name": "orders", "payload_size": 3}
EVENT: Final = {
    "specversion": SPEC_VERSION, "type": EVENT_TYPE, "id": "17", "source": "/shop", "subject": QUEUE,
}  # fmt: skip
_BRIDGED: Final = {**TRIGGER, "id": "1", "source": f"queuebell:bridge:{BOOT}", "via": BOOT}
GAP: Final = {"type": "gap", "boot": BOOT, "queues": [QUEUE]}

_UNSTAMPED: Final = {"Bye": "Goodbye"}
"""The bridge's own, where a frame goes both ways."""


def described() -> Json:
    messages = _messages()
    made = WebSettings()
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Queuebell: buses, sessions and wakes",
            "version": VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "websocket": {"host": f"{made.host}:{made.port}", "protocol": "ws", "description": "A bridge's sessions."},
            "http": {
                "host": f"{made.host}:{made.port}",
                "protocol": "http",
                "description": "A bridge's event streams.",
            },
            "nats": {"host": "127.0.0.1:4222", "protocol": "nats", "description": "A NATS server."},
            "mqtt": {"host": "127.0.0.1:1883", "protocol": "mqtt", "description": "An MQTT broker, 5 or 3.1.1."},
            "postgres": {"host": "127.0.0.1:5432", "protocol": "postgres", "description": "A PostgreSQL database."},
            "webhook": {"host": "hooks.example.com", "protocol": "https", "description": "An endpoint of yours."},
        },
        "channels": _channels(messages),
        "operations": _operations(),
        "components": {"messages": messages, "schemas": _schemas()},
    }


_DESCRIPTION: Final = f"""\
How a bridge is told of work, how it talks with workers, and how it tells others. The calls over HTTP are in
openapi.yaml.

Operations are those of the bridge: it receives triggers and sends wakes. Times are milliseconds from now. Unknown
types of frames and unknown fields are ignored. Frames, triggers and events are at most {FRAME_BYTES_MAX} bytes each.

`{{prefix}}` is `{DEFAULT_PREFIX}` unless the setting `prefix` says otherwise; bridge, producers and workers need the
same. Subjects of NATS are joined by dots, topics of MQTT by slashes. Frames over brokers are sent at most once (QoS 0,
not retained).
"""


def _schemas() -> dict[str, Json]:
    up = components(UP, _words(components(UP, {})))
    down = components(DOWN + WIRE, _words(components(DOWN + WIRE, {})), sent=True)
    ours = {"CloudQueueWorkDetected": WORDS["CloudQueueWorkDetected"], "Bridged": FRAME_WORDS["Bridged"]}
    ours["Traces"] = WORDS["Traces"]
    schemas = {
        **down,
        **up,
        **components([CloudQueueWorkDetected, Bridged], ours),
        **components([Stamp], {"Stamp": FRAME_WORDS["Stamp"]}),
        **components(CLUSTER, _words(components(CLUSTER, {}))),
        "CloudEvent": EVENT_SCHEMAS["CloudEvent"],
        "CloudEventWake": {
            "type": "object",
            "description": "A CloudEvent whose data is a wake.",
            "required": ["specversion", "type", "source", "id", "subject", "datacontenttype", "data"],
            "properties": {
                "specversion": {"const": SPEC_VERSION},
                "type": {"const": WAKE_TYPE},
                "source": {"type": "string"},
                "id": said("The wake's id: boot and number; the same for every attempt.", type="string"),
                "subject": said("The queue, as account/queue.", type="string", pattern=REFERENCE),
                "time": {"type": "string"},
                "datacontenttype": {"const": "application/json"},
                "traceparent": {"type": "string"},
                "data": reference(Wake),
            },
        },
        "Gap": {
            "type": "object",
            "description": "The bridge cannot know what this client has missed: check the queues.",
            "required": ["type", "boot", "queues"],
            "properties": {
                "type": {"const": "gap"},
                "boot": {"type": "string", "pattern": INSTANCE},
                "queues": {"type": "array", "items": {"type": "string", "pattern": REFERENCE}},
            },
        },
    }
    return dict(sorted(schemas.items()))


def _words(found: dict[str, Json]) -> Words:
    return {name: words for name, words in FRAME_WORDS.items() if name in found}


def _messages() -> dict[str, Json]:
    found: dict[str, Json] = {}
    for frames, all_ways in (
        (UP, {"instance": WORKER, "seq": 1}),
        (DOWN, {"instance": WORKER, "seq": 1, "boot": BOOT}),
    ):
        for frame in frames:
            ways = all_ways | ({"version": framing.VERSION} if frame in (Hello, Welcome) else {})
            schema, name = reference(frame), frame.__name__
            found[name] = _message(name, schema, EXAMPLES[name])
            stamped = {"allOf": [schema, reference(Stamp), {"required": list(ways)}]}
            examples = [{**example, **ways} for example in EXAMPLES[name]]
            over_broker = f"{_UNSTAMPED[name] if frames is DOWN and name in _UNSTAMPED else name}OverBroker"
            found[over_broker] = _message(over_broker, stamped, examples)
    for frame in WIRE:
        found[frame.__name__] = _message(frame.__name__, reference(frame), EXAMPLES[frame.__name__])
    for word in CLUSTER:
        found[word.__name__] = _message(word.__name__, reference(word), EXAMPLES[word.__name__])
    headers = {f"ce-{name}": {"type": "string"} for name in ("specversion", "type", "id", "source", "subject", "time")}
    wake = msgspec.convert(_WAKE, Wake)
    found |= {
        "Trigger": _message("Trigger", reference(CloudQueueWorkDetected), [TRIGGER]),
        "BridgedTrigger": _message("BridgedTrigger", reference(Bridged), [_BRIDGED]),
        "EmptyTrigger": {
            **_message("EmptyTrigger", {"const": ""}, [""]),
            "summary": "No payload: one trigger for one message.",
            "contentType": "application/octet-stream",
        },
        "CloudEventTrigger": {
            **_message("CloudEventTrigger", reference("CloudEvent"), [EVENT]), "contentType": STRUCTURED_TYPE,
        },
        "BinaryCloudEventTrigger": {
            **_message("BinaryCloudEventTrigger", {}, ["order 17"]),
            "summary": (
                "A CloudEvent whose attributes are headers of NATS, or user properties of MQTT 5 (without ce-), and "
                "whose data is the payload."
            ),
            "contentType": "text/plain",
            "headers": {
                "type": "object",
                "required": [f"ce-{name}" for name in ("specversion", "type", "id", "source")],
                "properties": headers,
            },
        },
        "QueueName": {
            **_message("QueueName", {"type": "string", "pattern": REFERENCE}, [QUEUE]),
            "summary": "The queue alone: one trigger for one message.",
            "contentType": "text/plain",
        },
        "AskedTrigger": _message(
            "AskedTrigger",
            {
                "allOf": [
                    reference(CloudQueueWorkDetected),
                    {
                        "properties": {
                            "reply": said(
                                "The payload that is notified once the trigger is accepted.",
                                type="string", pattern=f"^{INBOX}",
                            ),
                            "ask": said("The channel on which it is notified.", type="integer"),
                        }
                    },
                ]
            },
            [{**TRIGGER, "reply": f"{INBOX}17", "ask": 4}],
        ),
        "Promised": {
            **_message(
                "Promised",
                {
                    "allOf": [
                        reference(CloudQueueWorkDetected),
                        {
                            "properties": {
                                "promised": said("Whether it continues to check the queue.", type="boolean"),
                                "by": _BOOT,
                            }
                        },
                    ]
                },
                [{"storage_account": "billing", "queue_name": "orders", "promised": True, "by": "1f" * 16}],
            ),
            "summary": "The trigger of a bridge that checks a queue, so that its puts need no notification meanwhile.",
        },
        "Taken": {
            **_message("Taken", {"type": "string"}, ["4"]),
            "summary": "The `ask` of the trigger, once it is accepted.",
            "contentType": "text/plain",
        },
        "StreamedWake": {
            **_message("StreamedWake", reference(Wake), EXAMPLES["Wake"][:1]),
            "summary": "event: wake, id: <boot>:<gen>, data: the wake.",
        },
        "StreamedGap": {
            **_message("StreamedGap", reference("Gap"), [GAP]),
            "summary": (
                "event: gap, id: <boot>:<gen>, data: this. The bridge does not know what the client "
                "received last."
            ),
        },
        "WebhookWake": {
            **_message("WebhookWake", reference("CloudEventWake"), [msgspec.json.decode(encode_wake(wake).body)]),
            "contentType": STRUCTURED_TYPE,
            "headers": {
                "type": "object",
                "description": "Signed by the Standard Webhooks scheme.",
                "required": ["webhook-id", "webhook-timestamp", "webhook-signature"],
                "properties": {
                    "webhook-id": said("The wake's id; the same for every attempt.", type="string"),
                    "webhook-timestamp": said("Seconds since 1970, of this attempt.", type="string"),
                    "webhook-signature": said("v1, and base64 of an HMAC-SHA256; one for each secret.", type="string"),
                },
            },
        },
    }  # fmt: skip
    return found


def _message(name: str, payload: Json, examples: Sequence[Any]) -> Json:
    return {
        "name": name,
        "contentType": "application/json",
        "payload": payload,
        "examples": [{"payload": example} for example in examples],
    }


_QUEUE_TOKENS: Final = {
    "account": {"description": f"The first part of the queue's name: {TOKEN}.", "examples": ["billing"]},
    "queue": {"description": f"The second part of the queue's name: {TOKEN}.", "examples": ["orders"]},
}
_PREFIX: Final = {"prefix": {"description": "The setting `prefix`.", "default": DEFAULT_PREFIX}}
_WORKER_TOKEN: Final = {"instance": {"description": "The worker process, 32 hexadecimal digits.", "examples": [WORKER]}}
_TRIGGER_MESSAGES: Final = (
    "Trigger", "EmptyTrigger", "CloudEventTrigger", "BinaryCloudEventTrigger", "BridgedTrigger",
)  # fmt: skip
_UP_MESSAGES: Final = tuple(frame.__name__ for frame in UP)
_DOWN_MESSAGES: Final = tuple(frame.__name__ for frame in DOWN)
_WIRE_MESSAGES: Final = (*_DOWN_MESSAGES, *(frame.__name__ for frame in WIRE))
_DOWN_OVER_BROKER: Final = tuple(f"{_UNSTAMPED.get(name, name)}OverBroker" for name in _DOWN_MESSAGES)
_UP_OVER_BROKER: Final = tuple(f"{name}OverBroker" for name in _UP_MESSAGES if name != "Hello")

CHANNELS: Final[dict[str, tuple[str, str, str, tuple[str, ...]]]] = {
    **{
        f"{bus}{name}": (bus, separator.join(("{prefix}", *tokens)), text, messages)
        for bus, separator in (("nats", "."), ("mqtt", "/"))
        for name, tokens, text, messages in (
            (
                "Triggers", ("trigger", "{account}", "{queue}"),
                (f"Work was put on this queue, in an external store. At most {EVENT_BYTES_MAX} bytes; a "
                "payload that names another queue is refused and counted."), _TRIGGER_MESSAGES,
            ),
            ("Hello", ("hello",), "Where workers send hello.", ("HelloOverBroker",)),
            ("SessionUp", ("session", "{instance}", "up"), "From one worker.", _UP_OVER_BROKER),
            ("SessionDown", ("session", "{instance}", "down"), "To one worker.", _DOWN_OVER_BROKER),
            (
                "Wakes", ("wake", "{account}", "{queue}"),
                "For plain subscribers: this queue has work. Repeated while the work stays.", ("Wake",),
            ),
        )
    },
    "natsCluster": (
        "nats", "{prefix}.cluster.{word}",
        (
            f"Messages between the bridges of a cluster (setting cluster), at most {cluster.WORD_BYTES_MAX} "
            "bytes. One that is lost, late or repeated costs only a check; an invalid one is refused and "
            "counted."
        ),
        tuple(word.__name__ for word in CLUSTER),
    ),
    "sessionUp": (
        "websocket", "/v1/sessions",
        (f"A WebSocket that offers the subprotocol {SUBPROTOCOL}. Text messages are the frames of one session, each "
        "one JSON object; binary messages are calls and their answers (docs/reference/clients.md). A session that "
        "ends is told so in a frame with the codes 1008 and 1009 after an error, 4403 once less is granted than it "
        "takes, 1013 to come again later, and 1012 when the bridge stops; the WebSocket goes on. It is closed with "
        "1007 for text that is not UTF-8, 1008 for a call without a readable head or too many at once, 1009 for what "
        "is too large, 4401 once its key is revoked or has expired, 1000 after 90 s in which nothing came, and 1012 "
        "when the bridge stops. From a worker."), _UP_MESSAGES,
    ),
    "sessionDown": ("websocket", "/v1/sessions", "The same WebSocket, to a worker.", _WIRE_MESSAGES),
    "eventStream": (
        "http", "/v1/wakes",
        (f"Server-sent events ({EVENT_STREAM}), asked for by GET with ?queue=account/queue; resumed by Last-Event-ID. "
        "See streamWakes in openapi.yaml."), ("StreamedWake", "StreamedGap"),
    ),
    "webhook": (
        "webhook", "/",
        ("POST to the address of a [[webhook]] in the configuration file; each attempt is signed. The target is asked "
        "for its consent by OPTIONS before the first."), ("WebhookWake",),
    ),
    "notifications": (
        "postgres", "{prefix}",
        f"NOTIFY on this channel of a database that the bridge listens to; at most {PAYLOAD_BYTES_MAX} bytes.",
        ("QueueName", "Trigger", "AskedTrigger", "Promised"),
    ),
    "inbox": ("postgres", INBOX + "{id}", "Where a producer receives that its trigger was accepted.", ("Taken",)),
}  # fmt: skip
"""By name: the server, the address, what it is for, and what goes over it."""
SENT: Final = frozenset({"SessionDown", "Wakes", "sessionDown", "eventStream", "webhook", "inbox"})
"""Those on which the bridge speaks; it hears the others. A bridge also tells others of triggers that it was told."""


def _channels(messages: dict[str, Json]) -> dict[str, Json]:
    tokens = {
        **_PREFIX, **_QUEUE_TOKENS, **_WORKER_TOKEN, "id": {"description": "32 hexadecimal digits."},
        "word": {"description": "The type of the message.", "enum": [word.__name__.lower() for word in CLUSTER]},
    }  # fmt: skip
    found: dict[str, Json] = {}
    for name, (server, address, text, carried) in CHANNELS.items():
        channel: Json = {
            "address": address,
            "description": text,
            "servers": [{"$ref": f"#/servers/{server}"}],
            "messages": {each: {"$ref": f"#/components/messages/{each}"} for each in carried},
        }
        if named := {token: tokens[token] for token in tokens if f"{{{token}}}" in address}:
            channel["parameters"] = named
        if server == "websocket":
            channel["bindings"] = {"ws": {"method": "GET"}}
        found[name] = channel
    return found


def _operations() -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name in CHANNELS:
        sends = name.removeprefix("nats").removeprefix("mqtt") in SENT
        operation: Json = {"action": "send" if sends else "receive", "channel": {"$ref": f"#/channels/{name}"}}
        if name.startswith("mqtt"):
            operation["bindings"] = {"mqtt": {"qos": 1 if name == "mqttTriggers" else 0, "retain": False}}
        found[f"{'send' if sends else 'receive'}{name[0].upper()}{name[1:]}"] = operation
        if name == "natsCluster":
            found["sendNatsCluster"] = {**operation, "action": "send"}
        if name in {"natsTriggers", "mqttTriggers"}:
            found[f"republish{name[0].upper()}{name[1:]}"] = {
                "action": "send",
                "channel": {"$ref": f"#/channels/{name}"},
                "summary": "Triggers that arrived over HTTP, or within the process, are forwarded to other bridges "
                "on the broker.",
                "messages": [{"$ref": f"#/channels/{name}/messages/BridgedTrigger"}],
            }
    return found
