"""What the fields of requests and answers mean, and their limits, for readers of the reference."""

from __future__ import annotations

from typing import Final

from queuebell.bridge.contract.event import NOT_BEFORE_MS_MAX, PAYLOAD_SIZE_MAX, TEXT_MAX
from queuebell.bridge.contract.headers import HEADERS_BYTES_MAX, HEADERS_MAX, RESERVED
from queuebell.bridge.contract.jobs import BOUNDS_S, CLASSES_MAX, COUNT_MAX, OTHER, OUTCOMES
from queuebell.bridge.contract.names import TOKEN
from queuebell.bridge.contract.sources import WAKE_SOURCES
from queuebell.bridge.contract.trace_context import TRACES_MAX
from queuebell.bridge.queues.base import BATCH_MAX, BODY_BYTES_MAX, DELAY_MS_MAX, TTL_S_MAX, VISIBILITY_S_MAX
from queuebell.bridge.queues.limits import METADATA_BYTES_MAX
from tests.reference.openapi.schemas import Json, Words, reference, said

REFERENCE: Final = f"^{TOKEN}/{TOKEN}$"
BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
INSTANCE: Final = "^[0-9a-f]{32}$"
MOMENT: Final = "An RFC 3339 time in UTC with milliseconds."

_TEXT: Final = {"type": "string"}
_NONE: Final = {"type": "null"}
_RECEIPT: Final = "The receipt of the latest receive or extension."
_BODY: Final = said(f"The message as text; at most {BODY_BYTES_MAX} bytes in UTF-8.", maxLength=BODY_BYTES_MAX)
_BYTES: Final = said(
    f"The message as bytes, in base64; at most {BODY_BYTES_MAX} of them.",
    maxLength=(BODY_BYTES_MAX + 2) // 3 * 4,
    pattern=BASE64,
    format="byte",
)
_ONE_BODY: Final[list[Json]] = [
    {"required": ["body"], "properties": {"body": _TEXT, "body_base64": _NONE}},
    {"required": ["body_base64"], "properties": {"body_base64": _TEXT, "body": _NONE}},
]
_NO_BODY: Final[Json] = {"properties": {"body": _NONE, "body_base64": _NONE}}
HEADERS: Final = "Names and values that were put with it; names are in lowercase."
_CASELESS: Final = "|".join("".join(f"[{c.upper()}{c}]" if c.isalpha() else c for c in name) for name in RESERVED)
_HEADERS: Final = said(
    f"Names and values next to the body, at most {HEADERS_BYTES_MAX} bytes in total; names are stored in lowercase.",
    maxProperties=HEADERS_MAX,
    propertyNames={"pattern": f"^(?!{_CASELESS})[A-Za-z0-9][A-Za-z0-9._-]{{0,127}}$"},
    additionalProperties={
        "type": "string",
        "maxLength": HEADERS_BYTES_MAX,
        "pattern": "^[^\\u0000-\\u0008\\u000a-\\u001f\\u007f-\\u009f]*$",
    },
)
_QUEUE: Final = said("The queue, as account/queue.")
_GEN: Final = said("The number of the newest reason to check this queue; it grows with each.")
_DIRTY: Final = said("Whether the queue needs a check that no worker has answered yet.")
_UNATTENDED: Final = said("A sentence if work waits and nothing will check it; null if all is well.")
_FREE: Final = said("How many more messages it could receive now.")
_FAILING: Final = said("For how many seconds its receives have failed; null if the last one succeeded.")
_CHANNEL: Final = said("How it is connected: websocket, nats, mqtt, local, sse or webhook.")
_INSTANCE: Final = said("The worker process: 32 hexadecimal digits, generated at its start.")
_LISTENER: Final = said("The name that the worker gave itself.")
_EXISTS: Final = said(
    "Whether the queue exists; null if unknown (a queue in an external store that no worker has reported)."
)
_DEPTH: Final = said(
    "The messages in the queue; null if unknown (a queue in an external store that no worker has reported)."
)
_AGE: Final = said("The age of the depth if a worker reported it; null if it is current.")
_OLDEST: Final = said("For how long the oldest visible message has waited; null if there is none.")
_COUNT: Final = {"minimum": 0, "maximum": COUNT_MAX}
_LEASED: Final = said("How many of the invisible messages are in flight; null if the store does not report it.")
_DELAYED: Final = said(
    "How many of the invisible messages were put or returned with a delay; null if the store does not report it."
)
_BURIED: Final = said("How many messages are in its poison queue; null if unknown.")
_BURIED_IN: Final = said("The poison queue, if it has another name than QUEUE-poison; otherwise null.")
_BURIED_AGE: Final = said("The age of that number; null if it is current.")
_UNTOLD: Final = said("By field, why a number is null or lower than expected.")
_AT_LEAST: Final = said("Whether there may be more messages than the depth shows.")

WORDS: Final[Words] = {
    "PutRequest": {
        "messages": said("All of them are put, or none.", minItems=1, maxItems=BATCH_MAX),
    },
    "PutItem": {
        "": said("One message, with exactly one of the two bodies.", oneOf=_ONE_BODY),
        "body": _BODY,
        "body_base64": _BYTES,
        "visible_after_ms": said("For how long it cannot be received.", minimum=0, maximum=DELAY_MS_MAX),
        "ttl_s": said(
            "After how many seconds it expires; -1 means never.",
            anyOf=[{"const": -1}, {"minimum": 1, "maximum": TTL_S_MAX}],
        ),
        "headers": _HEADERS,
    },
    "PutAnswer": {"messages": said("One for each message, in the order of the request.")},
    "PutReceipt": {
        "": said("The result of a put for each message."),
        "id": said("The message's id, assigned by the service."),
        "pop_receipt": said("Settles the message until it is received."),
        "visible_in_ms": said("When it can be received.", minimum=0),
    },
    "ReceiveRequest": {
        "": said("How many messages to receive, and for how long."),
        "max": said("The maximum number of messages to receive.", minimum=1, maximum=BATCH_MAX),
        "visibility_timeout_s": said(
            "For how long no other receive returns them; settle or extend each before that.",
            minimum=1,
            maximum=VISIBILITY_S_MAX,
        ),
        "wake_source": said("The reason for this receive, for the metrics.", enum=list(WAKE_SOURCES)),
    },
    "ReceiveAnswer": {
        "messages": said("The received messages, longest-waiting first; empty if the queue has none."),
        "depth": said("What is in the queue after this receive."),
        "next_visible_in_ms": said("When the next message can be received; null if there is none."),
        "next_delayed_in_ms": said("The same without messages in flight: delays only."),
        "blocked": said(
            "Present if something other than an empty queue limited this answer, so that it does not prove "
            "the queue empty."
        ),
        "depth_is_least": said("Present if there may be more messages than depth shows."),
        "counts": said("Other counts that the store returned with this receive, if any."),
    },
    "PeekAnswer": {
        "messages": {
            "description": "Messages of one state; fewer than requested if they are large.",
            "items": reference("Message"),
        },
        "next": said("What to pass as `after`; only sent where more may follow and a state was asked for."),
    },
    "Message": {
        "": said("A message. Its body is text if it is UTF-8, else base64; a peek returns no receipt."),
        "id": said("The message's id."),
        "pop_receipt": said("Settles the message; each receive and each extension returns a new one."),
        "body": said("The message as text."),
        "body_base64": said("The message as bytes, in base64."),
        "dequeue_count": said("How often it was received, including this time.", minimum=0),
        "inserted_at": said(f"When it was put. {MOMENT}", format="date-time"),
        "expires_at": said(f"When it expires; null means never. {MOMENT}", format="date-time"),
        "key": said("The id under which it was put, if any."),
        "headers": said(f"{HEADERS} Absent if there are none."),
        "state": said("Where it is: only where that was asked for, or of one message."),
        "visible_in_ms": said("In how many ms its delay or its lease ends.", minimum=0),
    },
    "Depth": {
        "": said("How many messages there are."),
        "visible": said("Messages that a receive could return now.", minimum=0),
        "invisible": said("Messages that are in flight or delayed.", minimum=0),
    },
    "Counts": {
        "": said("All counts that a store reports for a queue; null means not reported."),
        "visible": said("Messages that a receive could return now.", minimum=0),
        "invisible": said("The others.", minimum=0),
        "at_least": said("Whether there may be more messages, and older ones."),
        "leased": said("How many of the invisible messages are in flight."),
        "delayed": said("How many of the invisible messages were put or returned with a delay."),
        "oldest_ms": said("For how long the oldest visible message has waited."),
    },
    "SettleRequest": {
        "": said("What to do with received messages; each list is optional."),
        "delete": said("Done: remove them.", maxItems=BATCH_MAX),
        "release": said("Return them to the queue.", maxItems=BATCH_MAX),
        "extend": said("Extend their visibility timeouts.", maxItems=BATCH_MAX),
    },
    "Claim": {
        "": said("A message and the receipt of your receive."),
        "id": said("The message's id."),
        "pop_receipt": said(_RECEIPT),
    },
    "ReleaseItem": {
        "": said("A message to return to the queue."),
        "id": said("The message's id."),
        "pop_receipt": said(_RECEIPT),
        "after_ms": said("For how long it cannot be received.", minimum=0, maximum=DELAY_MS_MAX),
        "uncounted": said("The attempt does not count: this receive is subtracted from its dequeue_count."),
    },
    "ExtendItem": {
        "": said("A message to extend, optionally with a new body.", oneOf=[*_ONE_BODY, _NO_BODY]),
        "id": said("The message's id."),
        "pop_receipt": said(_RECEIPT),
        "visibility_timeout_s": said(
            "For how long from now no other receive returns it.", minimum=1, maximum=VISIBILITY_S_MAX
        ),
        "body": _BODY,
        "body_base64": _BYTES,
    },
    "SettleAnswer": {
        "": said("An outcome for each item, list by list in the order of the request."),
        "delete": said("Outcomes of the messages to delete."),
        "release": said("Outcomes of the messages to return."),
        "extend": said("Outcomes of the messages to extend."),
    },
    "Outcome": {
        "": said("The outcome of one item."),
        "ok": said("Whether it succeeded."),
        "pop_receipt": said("The new receipt after an extension or a release."),
        "code": said(
            "Why it failed: the message no longer exists, or it was received again by another worker.",
            enum=["message_not_found", "pop_receipt_mismatch"],
        ),
    },
    "CreateRequest": {
        "": said("Options for a new queue."),
        "metadata": said(f"Text by name, at most {METADATA_BYTES_MAX} bytes; replaces existing metadata."),
    },
    "PauseRequest": {"": said("It has no fields.")},
    "CloudQueueWorkDetected": {
        "": said("Reports that work was put on a queue in an external store."),
        "storage_account": said("The first part of the queue's name.", pattern=f"^{TOKEN}$"),
        "queue_name": said("The second part of the queue's name.", pattern=f"^{TOKEN}$"),
        "payload_size": said(
            "How many messages were put, not their size in bytes.", minimum=1, maximum=PAYLOAD_SIZE_MAX
        ),
        "id": said("Identifies the trigger together with source, on every bus.", maxLength=TEXT_MAX),
        "source": said("The sender, which makes the id unique.", maxLength=TEXT_MAX),
        "time": said("When it happened; forwarded.", maxLength=TEXT_MAX),
        "not_before_ms": said(
            "After how many milliseconds the work can be received, counted from now.",
            minimum=0,
            maximum=NOT_BEFORE_MS_MAX,
        ),
        "traceparent": said("W3C Trace Context; forwarded.", maxLength=TEXT_MAX),
        "traces": said("The trace contexts of all publishes that were merged into this one."),
    },
    "Traces": {
        "": said("The trace contexts of triggers that were merged into one trigger."),
        "parents": said(f"Each as a traceparent of W3C Trace Context: the newest {TRACES_MAX}, oldest first."),
        "dropped": said("How many earlier ones were dropped."),
    },
    "QueueNames": {
        "": said("One page of queues."),
        "queues": said("Queues as account/queue, in ascending order."),
        "next": said("The value of after for the next page; null on the last one."),
        "metadata": said("The metadata of each queue, in the same order, if it was asked for."),
    },
    "QueueState": {
        "": said("The state of a queue; its counters start with the bridge."),
        "queue": _QUEUE,
        "exists": _EXISTS,
        "depth": _DEPTH,
        "depth_age_ms": _AGE,
        "depth_at_least": _AT_LEAST,
        "oldest_ms": _OLDEST,
        "leased": _LEASED,
        "delayed": _DELAYED,
        "buried": _BURIED,
        "buried_age_ms": _BURIED_AGE,
        "buried_in": _BURIED_IN,
        "untold": _UNTOLD,
        "paused": said("Whether the queue is paused, so that no messages are delivered."),
        "gen": _GEN,
        "dirty": _DIRTY,
        "sessions": said("Workers of this queue."),
        "unattended": _UNATTENDED,
        "wakes": said("Wakes sent, by reason."),
        "receives": said("Answered receives, including those of workers with an external store."),
        "wake_sources": said("Answered receives, by their reason."),
        "triggers": said("Accepted triggers."),
        "jobs": said("By handler: the outcomes of its messages, as workers of this bridge reported them."),
        "unannounced": said("Receives that found new messages without a trigger: a publish was lost."),
    },
    "Jobs": {
        "": said("The outcomes of one handler's messages; an absent number is 0."),
        "outcomes": said(
            f"Ended attempts, each counted once: {', '.join(OUTCOMES)}.",
            additionalProperties={"type": "integer", **_COUNT},
        ),
        "failures": said(
            "Failed attempts by class: the type of the exception, or a word such as timeout; "
            f"{CLASSES_MAX} of them, then {OTHER}.",
            maxProperties=CLASSES_MAX + 1,
            additionalProperties={"type": "integer", **_COUNT},
        ),
        "in_flight": said("Calls in progress.", **_COUNT),
        "leases_lost": said("Messages whose lease ended before they were settled.", **_COUNT),
        "handling": said("The duration of the handler's calls; in a batch, each message counts the whole call."),
        "waiting": said("The time from the put of a message to the start of its first attempt."),
        "resumed": said("In a heartbeat: this run of the bridge already has the earlier attempts."),
    },
    "Spread": {
        "": said("A distribution of durations."),
        "counts": said(
            f"How many took up to {', '.join(f'{bound:g}' for bound in BOUNDS_S)} seconds, and longer; "
            "trailing zeros may be absent.",
            maxItems=len(BOUNDS_S) + 1,
            items={"type": "integer", **_COUNT},
        ),
        "total_ms": said("The sum, in milliseconds.", **_COUNT),
    },
    "Receives": {
        "": said("Answered receives since the bridge started."),
        "total": said("All of them."),
        "empty": said("Receives that found nothing."),
    },
    "Cluster": {
        "": said("The bridges of the cluster, as seen by one of them."),
        "name": said("The cluster's name; null for a bridge without a cluster."),
        "alone": said("Whether it acts alone: it receives nothing from other bridges, or not even its own messages."),
        "members": said("The reachable bridges, starting with the one that answers."),
        "refused": said("Bridges on the cluster's subjects that are not members."),
        "went": said("By address or boot, how often a member left within the last five minutes."),
        "deferred": said("Queues that wait for another bridge's check."),
        "left_out": said("How many more waiting queues there are, beyond 1000."),
    },
    "ClusterMember": {
        "": said("One bridge of a cluster."),
        "boot": said("Identifies one start of one bridge."),
        "address": said("The address where it listens, as it reports it."),
        "version": said("Its version."),
        "me": said("Whether it is the bridge that answers."),
        "leaving": said("Whether it is stopping, and therefore last in every order."),
        "silent_ms": said("For how long nothing was received from it."),
        "queues": said("For how many queues it has sessions."),
        "able": said("For how many of them a session has free capacity."),
    },
    "RefusedMember": {
        "": said("A bridge that sends on the cluster's subjects but is not a member."),
        "boot": said("Identifies one start of one bridge."),
        "address": said("The address where it listens, as it reports it."),
        "why": said("Why it is not a member."),
    },
    "Deferred": {
        "": said("A queue that waits for another bridge's check."),
        "queue": said("The queue."),
        "acts_in_ms": said("After how long this bridge checks the queue itself if the other one stays silent."),
    },
    "Listeners": {
        "": said("Workers and subscribers."),
        "listeners": said("Workers first, plain subscribers after them."),
    },
    "ListenerState": {
        "": said("A worker's session, an event stream or a webhook; fields that do not apply are absent."),
        "listener": _LISTENER,
        "channel": _CHANNEL,
        "queues": said("Its queues."),
        "kind": said("Of a session: whether it handles messages or starts workers.", enum=["listener", "scaler"]),
        "instance": _INSTANCE,
        "connected_s": said("For how long it has been connected."),
        "silent_s": said("For how long nothing was received from it."),
        "state": said("Of a webhook.", enum=["ok", "failing", "disabled"]),
        "detail": said("Of a webhook: a description of its state."),
        "delivered": said("Of a webhook: delivered wakes."),
        "failures": said("Of a webhook: consecutive failures."),
        "dropped": said("Of a webhook: dropped wakes."),
        "pending": said("Of a webhook: whether a wake is being delivered."),
    },
    "Subscribed": {
        "": said("A queue of a worker or subscriber; all fields but its name apply to workers only."),
        "queue": _QUEUE,
        "capacity": said("How many messages it handles concurrently."),
        "free": _FREE,
        "has_room": said("Whether a wake may be sent to it now."),
        "owns": said("Whether it is the worker that was woken for the queue's work."),
        "failing_s": _FAILING,
        "hung": said("How many of its slots are held by handlers that exceeded their time-out and have not returned."),
        "processes": said("Of a scaler: its workers, as reported in its latest heartbeat."),
    },
    "Processes": {
        "": said("The workers that a scaler has started for one queue."),
        "wanted": said("How many workers the queue needs, on all machines."),
        "ready": said("Workers with a session."),
        "starting": said("Workers that were requested but are not ready."),
        "failure": said("Why the latest count or, failing that, the latest worker failed; null if neither did."),
        "running": said("All live workers, including those that are starting or stopping."),
        "held": said(
            "Why no more are started now: starting, maximum, backoff, uncounted, elsewhere or stopping; "
            "null if none is missing."
        ),
        "pause_ms": said("The remaining back-off after a failure."),
        "counts": said(
            "Whether a count of 0 proves the queue empty: exact, rough, or trusted if the configuration says so."
        ),
        "tally": said(
            "How many workers were started, failed, and ended by reason (idle, stopping, late, left, "
            "broke), since the scaler connected to this bridge."
        ),
    },
    "Findings": {
        "": said("Findings that need attention; all empty if all is well."),
        "unattended": said("Queues with work that no worker will check."),
        "buried": said("Poison queues with messages and no worker: dead letters that need a decision."),
        "sessions": said("Workers and subscribers in trouble."),
        "rejected": said("Workers that the bridge rejected within the last 90 s."),
        "audit_found": said("How often visible messages without a wake were found since the start."),
        "notices_suspend": said("Whether the bridge would notice a suspend of the machine."),
        "crowded": said("A sentence if there were more queue names than the bridge stores; else null."),
        "left_out": said("Rows omitted beyond 1000 of a kind."),
        "numbers": said("The bridge's timing values, one row per rule of the configuration."),
    },
    "Unattended": {
        "": said("A queue with work that no worker will check."),
        "queue": _QUEUE,
        "detail": said("A description."),
        "exists": said("Whether it is an embedded queue of the bridge."),
        "visible": said("Messages that a receive could return now."),
        "invisible": said("Messages that are in flight or delayed."),
        "dirty": _DIRTY,
        "stranded": said("Whether its workers use a different store."),
        "after_gap": said("No work is known; triggers may have been missed while a bus was disconnected."),
    },
    "Troubled": {
        "": said("A worker or subscriber in trouble."),
        "state": said(
            "silent, failing, hung, starved, stuck, deaf or behind for a worker; workers for a scaler "
            "whose newest worker failed; unreached or disabled for a webhook."
        ),
        "detail": said("A description."),
        "listener": _LISTENER,
        "instance": _INSTANCE,
        "channel": _CHANNEL,
        "queue": said("The affected queue; null if all are affected."),
    },
    "Rejected": {
        "": said("A worker that the bridge rejected; it polls its store and retries by itself."),
        "queue": said("The queue; empty if the bridge could not read the worker's queues."),
        "listener": _LISTENER,
        "code": said("store_mismatch, forbidden, or the code of a frame that cannot be read."),
        "detail": said("The reason as a sentence."),
        "count": said("How often it was rejected since the first time."),
        "first_ms": said("How many milliseconds ago it was rejected first."),
        "last_ms": said("How many milliseconds ago it was rejected last."),
    },
    "RuleNumbers": {
        "": said("The timing values, in seconds, for the queues that match. See configuration.md."),
        "match": said("The queues: account/queue, where a token may end in *."),
        "heartbeat_s": said("The minimum interval of heartbeats between workers and bridge."),
        "start_ack_s": said("How long a worker has to report a start before another one is woken."),
        "store_call_s": said("How long one call of a store may take."),
        "sweep_s": said("How often a queue in an external store is checked without a trigger; 0 means never."),
        "slack_s": said("How much longer a worker waits before it checks by itself."),
        "spread_s": said("The minimum period over which the workers' own checks are spread."),
        "wake": said("Whether a wake goes to as many workers as the work needs, or to all of them."),
    },
    "Explained": {
        "": said("Which workers a trigger would wake now, and why it would not wake the others."),
        "queue": _QUEUE,
        "exists": _EXISTS,
        "depth": _DEPTH,
        "depth_age_ms": _AGE,
        "depth_at_least": _AT_LEAST,
        "oldest_ms": _OLDEST,
        "leased": _LEASED,
        "delayed": _DELAYED,
        "buried": _BURIED,
        "buried_age_ms": _BURIED_AGE,
        "buried_in": _BURIED_IN,
        "untold": _UNTOLD,
        "asked": said(
            "The explained event: a put for the bridge's own queues, otherwise a trigger.", enum=["trigger", "put"]
        ),
        "outcome": said(
            "The expected result.",
            enum=["wakes", "joins", "waits", "no_session", "told", "paused", "draining"],
        ),
        "summary": said("A summary."),
        "paused": said("Whether the queue is paused, so that no messages are delivered."),
        "dirty": _DIRTY,
        "gen": _GEN,
        "unattended": _UNATTENDED,
        "trigger_adds": said("Whether a trigger without a put changes anything."),
        "sessions": said("Workers, in the order in which they would be woken."),
        "subscribers": said("Plain subscribers."),
        "waits_for_a_person": said("A sentence if the queue has dead letters that need a decision; else null."),
        "rejected": said("Workers of this queue that the bridge rejected within the last 90 s."),
    },
    "ExplainedSession": {
        "processes": said("Of a scaler: its workers, as reported in its latest heartbeat."),
        "": said("A worker that a trigger may wake."),
        "listener": _LISTENER,
        "instance": _INSTANCE,
        "channel": _CHANNEL,
        "gets": said("Whether it would be woken."),
        "why": said(
            "The reason.",
            enum=[
                "woken",
                "owner",
                "capacity_0",
                "failing",
                "full",
                "stuck",
                "deaf",
                "owned",
                "later",
                "told",
                "nothing",
                "draining",
                "hears",
            ],
        ),
        "detail": said("A description."),
        "free": _FREE,
        "capacity": said("How many messages it handles concurrently."),
        "owns": said("Whether it is the worker that was woken for the queue's work."),
        "delayed": said("Whether its connection is not accepting data now."),
        "failing_s": _FAILING,
    },
    "ExplainedSubscriber": {
        "": said("A plain subscriber that a trigger may notify, or a subject on which wakes are published."),
        "listener": _LISTENER,
        "channel": _CHANNEL,
        "hears": said("Whether it would be notified."),
        "detail": said("A description."),
        "topic": said("The subject or topic."),
    },
    "Readiness": {
        "": said("Whether all required parts work."),
        "ready": said("Whether all of them work."),
        "checks": said("By name: the data file, each bus and other parts."),
    },
    "Check": {
        "": said("One check."),
        "ok": said("Whether it works."),
        "detail": said("A description of its state."),
    },
    "Problem": {
        "": said("An error (RFC 9457). It does not repeat any part of the request."),
        "title": said("The status as text."),
        "status": said("The status."),
        "detail": said("An explanation for people; the text may change."),
        "code": reference("ErrorCode"),
    },
    "Chosen": {
        "ids": said("Only these messages; empty means all.", maxItems=1000),
        "reason": said("Only messages with this text in their reason.", maxLength=1000),
        "max": said("The maximum number of messages."),
    },
    "Graves": {
        "messages": said("Some of the visible messages."),
        "looked": said("How many messages were checked to find these."),
        "next": said("The value of `after` for the following messages; null if there are none."),
        "whole": said("False if there may be more that this store cannot show here."),
    },
    "QueueHistory": {
        "": said("What happened on a queue in steps of `step_s`."),
        "span": said("How far back it goes."),
        "step_s": said("The length of a step in seconds."),
        "now": said(MOMENT),
        "kept": said("False where no history is kept of this queue: others are busier, or nothing has happened."),
        "since": said("When this history began; before, nothing is known."),
        "rows": said("The steps with any event, oldest first."),
        "failures": said("Failed attempts by class in steps of five minutes; of the last day at most."),
        "marks": said("What was done to the queue, and when the bridge started."),
    },
    "HistoryRow": {
        "": said("What happened in one step; a count of 0 is left out."),
        "at": said("When the step began."),
        "put": said("Messages put; known for queues of the bridge only."),
        "receives": said("Receives, the empty ones among them, and wakes that carried messages."),
        "empty": said("Empty receives."),
        "done": said("Attempts that ended with the message deleted."),
        "failed": said("Failed attempts."),
        "dead": said("Attempts after which the message became a dead letter."),
        "started": said("First attempts."),
        "waited_ms": said("The sum of their times from put to first attempt."),
        "handling_ms": said("The sum of the handlers' times."),
        "waiting": said("The most messages that were visible; known for queues of the bridge only."),
        "left": said("How many of them were left at the end of the step, and until the next one."),
        "longest_ms": said("An upper bound of the longest time from put to first attempt; -1 above half an hour."),
    },
    "FailureRow": {
        "at": said("When the five minutes began."),
        "failure": said("The class of the failure."),
        "count": said("Failed attempts."),
    },
    "Mark": {
        "at": said("When it was done."),
        "what": said("What was done, such as `paused` or `bridge started`."),
        "by": said("The principal; empty without an access file."),
    },
    "Events": {
        "": said("What happened to the messages of a watched queue."),
        "since": said("When the watch began; before, nothing was recorded."),
        "events": said("Some of the events, oldest first."),
        "last": said("The number of the newest event."),
        "dropped": said("How many events are no longer kept."),
    },
    "Event": {
        "n": said("Its number, from 1."),
        "at": said(MOMENT),
        "what": said("What happened, such as `put`, `wake`, `received`, `deleted`, `returned` or `dead letter`."),
        "id": said("The message; left out where the event concerns the queue."),
        "detail": said("More about it, for people."),
    },
    "SignIn": {
        "code": said("The code with which the issuer sent the browser back; valid once."),
        "verifier": said("The verifier of this sign-in, kept by the tab."),
        "iss": said("The issuer that sent the browser back, if it identifies itself (RFC 9207)."),
    },
    "Begun": {
        "issuer": said("The issuer for the sign-in."),
        "page": said("The page's address that the issuer sends the browser back to."),
        "address": said("The address to which the browser goes."),
        "state": said("The value that must come back; generated for each answer."),
        "verifier": said("The secret that completes the sign-in, for this tab only."),
    },
    "SignedIn": {
        "token": said("The token to send as `Authorization: Bearer` from now on."),
        "principal": said("The principal whose permissions apply."),
    },
    "Grave": {
        "id": said("The message in this queue."),
        "age_ms": said("How long ago it was dead-lettered, or put if nothing is known about that."),
        "dequeue_count": said("How often it was received from this queue."),
        "burial": said("The facts stored with it; null if it has none."),
        "body": said("The beginning of the dead letter's body, as text."),
        "size": said("The size of that body in bytes."),
        "headers": said(HEADERS),
    },
    "Burial": {
        "queue": said("The queue where it failed, as account/queue."),
        "id": said("The id of the message in that queue."),
        "inserted_at": said("When it was put in that queue."),
        "buried_at": said("When a worker dead-lettered it, by that worker's clock."),
        "reason": said("The error of the last attempt."),
        "attempts": said("How often it was received from that queue."),
        "failure": said(
            "Why it was dead-lettered: poisoned, permanent, exhausted, undecodable, body-lost or no-outcome."
        ),
        "error": said("The type of the exception that the handler raised."),
        "trace": said("The newest frames of its traceback."),
        "traceparent": said("Its own trace context, or that of the wake that delivered it."),
        "listener": said("The worker that dead-lettered it."),
        "burials": said("How often it was dead-lettered in total."),
        "history": said("The failed attempts that this worker saw."),
        "earlier": said("The earlier dead-letterings, oldest first."),
        "key": said("The id under which it was put, if any."),
    },
    "Attempt": {
        "attempt": said("Its number, from 1."),
        "at": said("When it failed."),
        "reason": said("The error."),
    },
    "Earlier": {
        "queue": said("The queue where it failed."),
        "id": said("The id of the message in that queue."),
        "inserted_at": said("When it was put in that queue."),
        "buried_at": said("When it was dead-lettered."),
        "reason": said("The error."),
        "attempts": said("How often it was received."),
        "failure": said("Why it was dead-lettered."),
    },
    "Run": {
        "what": said("What is done with the messages.", enum=["replayed", "discarded"]),
        "running": said("Whether it is still running."),
        "moved": said("Messages that were replayed or deleted."),
        "stay": said("Selected messages that stay: their target is unknown, or its permission is missing."),
        "why": said("Why the newest of them stays; empty if none does."),
        "twice": said("Messages that were put but could not be deleted here: they may be handled twice."),
        "error": said("Why it ended early; empty if it did not."),
    },
}
