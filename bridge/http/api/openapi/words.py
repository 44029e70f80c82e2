"""What the fields of requests and answers mean, and their limits, for readers of the reference."""

from __future__ import annotations

from typing import Final

from bridge.contract.event import NOT_BEFORE_MS_MAX, PAYLOAD_SIZE_MAX, TEXT_MAX
from bridge.contract.headers import HEADERS_BYTES_MAX, HEADERS_MAX, RESERVED
from bridge.contract.jobs import BOUNDS_S, CLASSES_MAX, COUNT_MAX, OTHER, OUTCOMES
from bridge.contract.names import TOKEN
from bridge.contract.sources import WAKE_SOURCES
from bridge.contract.trace_context import TRACES_MAX
from bridge.http.api.openapi.schemas import Json, Words, reference, said
from bridge.queues.base import BATCH_MAX, BODY_BYTES_MAX, DELAY_MS_MAX, TTL_S_MAX, VISIBILITY_S_MAX
from bridge.queues.limits import METADATA_BYTES_MAX

REFERENCE: Final = f"^{TOKEN}/{TOKEN}$"
BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
INSTANCE: Final = "^[0-9a-f]{32}$"
MOMENT: Final = "An RFC 3339 time in UTC with milliseconds."

_TEXT: Final = {"type": "string"}
_NONE: Final = {"type": "null"}
_RECEIPT: Final = "The receipt of the receive or the extension that was answered last."
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
HEADERS: Final = "Names and values that were put with it; names are in lower case."
_CASELESS: Final = "|".join("".join(f"[{c.upper()}{c}]" if c.isalpha() else c for c in name) for name in RESERVED)
_HEADERS: Final = said(
    f"Names and values beside the body, at most {HEADERS_BYTES_MAX} bytes in all; names are kept in lower case.",
    maxProperties=HEADERS_MAX,
    propertyNames={"pattern": f"^(?!{_CASELESS})[A-Za-z0-9][A-Za-z0-9._-]{{0,127}}$"},
    additionalProperties={
        "type": "string",
        "maxLength": HEADERS_BYTES_MAX,
        "pattern": "^[^\\u0000-\\u0008\\u000a-\\u001f\\u007f-\\u009f]*$",
    },
)
_QUEUE: Final = said("The queue, as account/queue.")
_GEN: Final = said("The number of the newest reason to look at this queue; it grows with each.")
_DIRTY: Final = said("Whether there is a reason to look that no worker has answered yet.")
_UNATTENDED: Final = said("In words, that work waits and nobody will look at it; null where all is well.")
_FREE: Final = said("Messages that it could take now.")
_FAILING: Final = said("For how many seconds its receives have failed; null where the last was answered.")
_CHANNEL: Final = said("How it is connected: websocket, nats, mqtt, local, sse or webhook.")
_INSTANCE: Final = said("The worker process, 32 hexadecimal digits drawn at its start.")
_LISTENER: Final = said("The name that it gave itself.")
_EXISTS: Final = said("Whether the queue exists; null while nobody has told (a queue in another store).")
_DEPTH: Final = said("What is in the queue; null while nobody has told (a queue in another store).")
_AGE: Final = said("How old the depth is, where it was told by a worker; null where it is of now.")
_OLDEST: Final = said("For how long the message that has been visible longest has waited; null where none is.")
_COUNT: Final = {"minimum": 0, "maximum": COUNT_MAX}
_LEASED: Final = said("How many of those invisible a worker holds; null where the store does not tell it apart.")
_DELAYED: Final = said("How many of those invisible were put, or given back, for later; null likewise.")
_BURIED: Final = said("How many messages lie in its poison queue; null where nobody has counted it.")
_BURIED_AGE: Final = said("How old that number is; null where it is of now.")
_UNTOLD: Final = said("By field, why a number is null, or less than it seems.")
_AT_LEAST: Final = said("Whether there may be more than the depth says.")

WORDS: Final[Words] = {
    "PutRequest": {
        "messages": said("They go in together or not at all.", minItems=1, maxItems=BATCH_MAX),
    },
    "PutItem": {
        "": said("One message, with exactly one of the two bodies.", oneOf=_ONE_BODY),
        "body": _BODY,
        "body_base64": _BYTES,
        "visible_after_ms": said("For how long nobody can receive it.", minimum=0, maximum=DELAY_MS_MAX),
        "ttl_s": said(
            "After how many seconds it expires; -1 is never.",
            anyOf=[{"const": -1}, {"minimum": 1, "maximum": TTL_S_MAX}],
        ),
        "headers": _HEADERS,
    },
    "PutAnswer": {"messages": said("One for each message, in the order given.")},
    "PutReceipt": {
        "": said("What a put gives for each message."),
        "id": said("The message's name, made by the service."),
        "pop_receipt": said("Settles the message, as long as nobody has received it."),
        "visible_in_ms": said("When it can be received.", minimum=0),
    },
    "ReceiveRequest": {
        "": said("How much to take, and for how long."),
        "max": said("The most messages to take.", minimum=1, maximum=BATCH_MAX),
        "visibility_timeout_s": said(
            "For how long nobody else receives them; settle or extend each before that.",
            minimum=1,
            maximum=VISIBILITY_S_MAX,
        ),
        "wake_source": said("Why this receive is made, for the metrics.", enum=list(WAKE_SOURCES)),
    },
    "ReceiveAnswer": {
        "messages": said("The messages taken, those that have waited longest first; none where nothing waits."),
        "depth": said("What is in the queue after this receive."),
        "next_visible_in_ms": said("When the next message can be received; null where there is none to come."),
        "next_delayed_in_ms": said("The same without those that somebody has received: delays only."),
        "blocked": said("Something else than emptiness limited this answer, so that it proves nothing; said where so."),
        "depth_is_least": said("There may be more than depth says; said where it is so."),
        "counts": said("What else the store told beside this receive; said where it did."),
    },
    "PeekAnswer": {
        "messages": {
            "description": "The first messages that could be received; fewer than asked for where they are long.",
            "items": reference("Message"),
        }
    },
    "Message": {
        "": said("A message. Its body is text where it is UTF-8, else base64; a peek gives no receipt."),
        "id": said("The message's name."),
        "pop_receipt": said("What settles it; each receive and each extension gives a new one."),
        "body": said("The message as text."),
        "body_base64": said("The message as bytes, in base64."),
        "dequeue_count": said("How often it was received, this time included.", minimum=0),
        "inserted_at": said(f"When it was put. {MOMENT}", format="date-time"),
        "expires_at": said(f"When it expires; null is never. {MOMENT}", format="date-time"),
        "key": said("The id that it was put under, where it was."),
        "headers": said(f"{HEADERS} Absent where there are none."),
    },
    "Depth": {
        "": said("How many messages there are."),
        "visible": said("Those that a receive could take now.", minimum=0),
        "invisible": said("Those that somebody has received, or that are put for later.", minimum=0),
    },
    "Counts": {
        "": said("All that a store tells of a queue; null is not told."),
        "visible": said("Those that a receive could take now.", minimum=0),
        "invisible": said("The others.", minimum=0),
        "at_least": said("Whether there may be more, and the oldest have waited longer."),
        "leased": said("How many of those invisible a worker holds."),
        "delayed": said("How many of those invisible were put, or given back, for later."),
        "oldest_ms": said("For how long the message that has been visible longest has waited."),
    },
    "SettleRequest": {
        "": said("What to do with messages received; each list is optional."),
        "delete": said("Done: remove them.", maxItems=BATCH_MAX),
        "release": said("Give them back.", maxItems=BATCH_MAX),
        "extend": said("Keep them longer.", maxItems=BATCH_MAX),
    },
    "Claim": {
        "": said("A message and the receipt that shows it is yours."),
        "id": said("The message's name."),
        "pop_receipt": said(_RECEIPT),
    },
    "ReleaseItem": {
        "": said("A message to give back."),
        "id": said("The message's name."),
        "pop_receipt": said(_RECEIPT),
        "after_ms": said("For how long nobody can receive it.", minimum=0, maximum=DELAY_MS_MAX),
        "uncounted": said("Nobody has worked on it: this receive is taken off its dequeue_count."),
    },
    "ExtendItem": {
        "": said("A message to keep longer, perhaps with another body.", oneOf=[*_ONE_BODY, _NO_BODY]),
        "id": said("The message's name."),
        "pop_receipt": said(_RECEIPT),
        "visibility_timeout_s": said(
            "For how long from now nobody else receives it.", minimum=1, maximum=VISIBILITY_S_MAX
        ),
        "body": _BODY,
        "body_base64": _BYTES,
    },
    "SettleAnswer": {
        "": said("An outcome for each item, list by list in the order given."),
        "delete": said("Of those to delete."),
        "release": said("Of those to give back."),
        "extend": said("Of those to keep longer."),
    },
    "Outcome": {
        "": said("What became of one item."),
        "ok": said("Whether it was done."),
        "pop_receipt": said("The new receipt, of an extension or a release."),
        "code": said(
            "Why not: the message is gone, or somebody else has received it.",
            enum=["message_not_found", "pop_receipt_mismatch"],
        ),
    },
    "CreateRequest": {
        "": said("What may be said of a queue when it is made."),
        "metadata": said(f"Text by name, at most {METADATA_BYTES_MAX} bytes; replaces what is there."),
    },
    "PauseRequest": {"": said("Has no fields.")},
    "CloudQueueWorkDetected": {
        "": said("Says that work was put on a queue in another store."),
        "storage_account": said("The first part of the queue's name.", pattern=f"^{TOKEN}$"),
        "queue_name": said("The second part of the queue's name.", pattern=f"^{TOKEN}$"),
        "payload_size": said("How many messages were put, not their bytes.", minimum=1, maximum=PAYLOAD_SIZE_MAX),
        "id": said("With source: the same two are the same trigger, on whatever bus.", maxLength=TEXT_MAX),
        "source": said("Who tells, for the id.", maxLength=TEXT_MAX),
        "time": said("When it happened; passed on.", maxLength=TEXT_MAX),
        "not_before_ms": said(
            "In how long the work can be received, counted from now.", minimum=0, maximum=NOT_BEFORE_MS_MAX
        ),
        "traceparent": said("W3C Trace Context; passed on.", maxLength=TEXT_MAX),
        "traces": said("Where several publishes were merged into this one: the trace contexts of all of them."),
    },
    "Traces": {
        "": said("The trace contexts of triggers that were merged into one."),
        "parents": said(f"Each as W3C Trace Context has its traceparent: the newest {TRACES_MAX}, oldest first."),
        "dropped": said("How many more there were, before those."),
    },
    "QueueNames": {
        "": said("One page of queues."),
        "queues": said("Queues as account/queue, in ascending order."),
        "next": said("What to pass as after for the next page; null on the last."),
    },
    "QueueState": {
        "": said("How a queue stands; counters since the bridge started."),
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
        "untold": _UNTOLD,
        "paused": said("Whether it gives nothing out."),
        "gen": _GEN,
        "dirty": _DIRTY,
        "sessions": said("Workers that listen to it."),
        "unattended": _UNATTENDED,
        "wakes": said("Wakes sent, by reason."),
        "receives": said("Receives answered, those of workers on another store included."),
        "wake_sources": said("Receives answered, by why they were made."),
        "triggers": said("Triggers taken."),
        "jobs": said("By handler: what became of its messages, as workers of this bridge told."),
        "unannounced": said("Receives that found new work that nobody had announced: a publish was lost."),
    },
    "Jobs": {
        "": said("What became of the messages that one handler was given; a number that is absent is 0."),
        "outcomes": said(
            f"Ended attempts, each in one: {', '.join(OUTCOMES)}.",
            additionalProperties={"type": "integer", **_COUNT},
        ),
        "failures": said(
            f"Attempts that failed, by class: the type of the exception, or a word such as timeout; {CLASSES_MAX} of "
            f"them, then {OTHER}.",
            maxProperties=CLASSES_MAX + 1,
            additionalProperties={"type": "integer", **_COUNT},
        ),
        "in_flight": said("Calls that run.", **_COUNT),
        "leases_lost": said("Messages whose lease ended before they were settled.", **_COUNT),
        "handling": said("The time of the handler; in a batch that of all, for each."),
        "waiting": said("From the put of a message to the start of its first attempt."),
        "resumed": said("In a heartbeat: this run of the bridge has heard of earlier ones."),
    },
    "Spread": {
        "": said("How long something took."),
        "counts": said(
            f"How many took up to {', '.join(f'{bound:g}' for bound in BOUNDS_S)} seconds, and longer; those "
            "at the end that are 0 may be absent.",
            maxItems=len(BOUNDS_S) + 1,
            items={"type": "integer", **_COUNT},
        ),
        "total_ms": said("All together, in milliseconds.", **_COUNT),
    },
    "Receives": {
        "": said("Receives answered since the bridge started."),
        "total": said("All of them."),
        "empty": said("Those that found nothing."),
    },
    "Cluster": {
        "": said("The bridges that take turns, as one of them sees it."),
        "name": said("The cluster's name; null for a bridge that takes turns with nobody."),
        "alone": said("Acts as if there were no other: it hears nobody, or not even itself."),
        "members": said("The bridges that are heard, the one that answers first."),
        "refused": said("Bridges on the cluster's subjects that are none of its members."),
        "went": said("By address or boot, how often a member went within the last five minutes."),
        "deferred": said("Queues that wait for the look of another bridge."),
        "left_out": said("Waiting queues beyond 1000."),
    },
    "ClusterMember": {
        "": said("One bridge of a cluster."),
        "boot": said("Which start of which bridge."),
        "address": said("Where it listens, as it says."),
        "version": said("Its version."),
        "me": said("The one that answers."),
        "leaving": said("It is stopping, and the last in every order."),
        "silent_ms": said("Since when nothing was heard of it."),
        "queues": said("For how many queues it has sessions."),
        "able": said("For how many of them one has room."),
    },
    "RefusedMember": {
        "": said("A bridge that speaks on the cluster's subjects and is none of its members."),
        "boot": said("Which start of which bridge."),
        "address": said("Where it listens, as it says."),
        "why": said("Why it is none."),
    },
    "Deferred": {
        "": said("A queue that waits for the look of another bridge."),
        "queue": said("The queue."),
        "acts_in_ms": said("In how long this bridge looks itself, if it hears nothing."),
    },
    "Listeners": {"": said("Who listens."), "listeners": said("Workers first, plain subscribers after them.")},
    "ListenerState": {
        "": said("A worker's session, an event stream or a webhook; fields that it cannot have are left out."),
        "listener": _LISTENER,
        "channel": _CHANNEL,
        "queues": said("What it listens to."),
        "kind": said("Of a session: whether it handles messages or starts workers.", enum=["listener", "scaler"]),
        "instance": _INSTANCE,
        "connected_s": said("Since when it is connected."),
        "silent_s": said("Since when nothing came from it."),
        "state": said("Of a webhook.", enum=["ok", "failing", "disabled"]),
        "detail": said("Of a webhook: its state in words."),
        "delivered": said("Of a webhook: wakes delivered."),
        "failures": said("Of a webhook: failures in a row."),
        "dropped": said("Of a webhook: wakes given up."),
        "pending": said("Of a webhook: whether a wake is on its way."),
    },
    "Subscribed": {
        "": said("A queue of a listener; all but its name is of workers only."),
        "queue": _QUEUE,
        "capacity": said("Messages that it handles at once."),
        "free": _FREE,
        "has_room": said("Whether a wake may be sent to it now."),
        "owns": said("Whether it is the one that was told of the queue's work."),
        "failing_s": _FAILING,
        "hung": said("Of its slots, those held by handlers that ran past their time-out and have not returned."),
        "processes": said("Of a scaler: its workers, as its newest heartbeat said."),
    },
    "Processes": {
        "": said("The workers that a scaler has started for one queue."),
        "wanted": said("How many the queue is worth, on all machines."),
        "ready": said("Those whose listener has a session."),
        "starting": said("Those that are asked for, and not ready."),
        "failure": said("Why the newest count, or else the newest worker, failed; null where neither did."),
        "running": said("All that live, those that start or end among them."),
        "held": said(
            "Why no more are started now: starting, maximum, backoff, uncounted, elsewhere or stopping; null where "
            "none is missing."
        ),
        "pause_ms": said("How much of a back-off after a failure was left."),
        "counts": said("Whether a count of 0 proves the queue empty: exact, rough, or trusted where somebody says so."),
        "idle_ms": said("For how long a worker is idle before it ends."),
        "tally": said(
            "Workers that were started, have failed, and have ended by reason (idle, stopping, late, left, broke), "
            "since the scaler met this bridge."
        ),
    },
    "Findings": {
        "": said("What a person should know of this bridge; all empty where all is well."),
        "unattended": said("Queues with work and nobody to look."),
        "buried": said("Poison queues with messages and no listener: what was buried waits for a person."),
        "sessions": said("Listeners in trouble."),
        "rejected": said("Workers that the bridge rejected within the last 90 s."),
        "audit_found": said("How often work was found that nobody had been told of, since the start."),
        "notices_suspend": said("Whether a suspend of the machine would be noticed."),
        "crowded": said("In words, that there were more queue names than are kept; else null."),
        "left_out": said("Rows left out beyond 1000 of a kind."),
        "numbers": said("The numbers the bridge goes by, one row a rule of the configuration."),
    },
    "Unattended": {
        "": said("A queue with work and nobody to look."),
        "queue": _QUEUE,
        "detail": said("The same in words."),
        "exists": said("Whether it stands in the bridge's own queue service."),
        "visible": said("Messages that a receive could take now."),
        "invisible": said("Messages received by somebody, or put for later."),
        "dirty": _DIRTY,
        "stranded": said("Whether its workers take from another store."),
        "after_gap": said("Nothing is known to wait; triggers may have been missed while a bus was away."),
    },
    "Troubled": {
        "": said("A listener in trouble."),
        "state": said(
            "silent, failing, hung, starved, stuck, deaf or behind of a worker; workers of a scaler whose newest "
            "worker failed; unreached or disabled of a webhook."
        ),
        "detail": said("The same in words."),
        "listener": _LISTENER,
        "instance": _INSTANCE,
        "channel": _CHANNEL,
        "queue": said("The queue it is in trouble with; null where it is all of them."),
    },
    "Rejected": {
        "": said("A worker that the bridge rejected; it polls its store, and tries again by itself."),
        "queue": said("The queue; empty where the bridge could not read which queues the worker asked for."),
        "listener": _LISTENER,
        "code": said("store_mismatch, forbidden, or the code of a frame that cannot be read."),
        "detail": said("The reason as a sentence."),
        "count": said("How often it was rejected since the first time."),
        "first_ms": said("How many milliseconds ago it was rejected first."),
        "last_ms": said("How many milliseconds ago it was rejected last."),
    },
    "RuleNumbers": {
        "": said("The numbers for the queues that match; seconds. They are explained in configuration.md."),
        "match": said("The queues: account/queue, where a token may end in *."),
        "heartbeat_s": said("How often workers and bridge tell each other that they live, at the least."),
        "start_ack_s": said("How long a worker has to say that it started, before another is woken."),
        "store_call_s": said("How long one call of a store may take."),
        "sweep_s": said("How often a queue in another store is looked at unasked; 0 is never."),
        "slack_s": said("How much longer than that a worker waits before it looks by itself."),
        "spread_s": said("Over how long the workers' own looks are spread, at the least."),
        "wake": said("Whether a wake goes to as many workers as its work needs, or to all."),
    },
    "Explained": {
        "": said("Who would get a trigger now, and why another would not."),
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
        "untold": _UNTOLD,
        "asked": said("What is explained; a put where that is what tells of work.", enum=["trigger", "put"]),
        "outcome": said(
            "What would happen.",
            enum=["wakes", "joins", "waits", "no_session", "told", "paused", "draining"],
        ),
        "summary": said("The same in words."),
        "paused": said("Whether the queue gives nothing out."),
        "dirty": _DIRTY,
        "gen": _GEN,
        "unattended": _UNATTENDED,
        "trigger_adds": said("Whether a trigger that is no put changes anything."),
        "sessions": said("Workers, in the order in which they would be woken."),
        "subscribers": said("Plain subscribers."),
        "waits_for_a_person": said("In words, that messages were buried here and wait for a person; else null."),
        "rejected": said("Workers of this queue that the bridge rejected within the last 90 s."),
    },
    "ExplainedSession": {
        "processes": said("Of a scaler: its workers, as its newest heartbeat said."),
        "": said("A worker that a trigger may reach."),
        "listener": _LISTENER,
        "instance": _INSTANCE,
        "channel": _CHANNEL,
        "gets": said("Whether a wake would leave for it."),
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
        "detail": said("The same in words."),
        "free": _FREE,
        "capacity": said("Messages that it handles at once."),
        "owns": said("Whether it is the one that was told of the queue's work."),
        "delayed": said("Whether its connection takes nothing just now."),
        "failing_s": _FAILING,
    },
    "ExplainedSubscriber": {
        "": said("A plain subscriber that a trigger may reach, or a subject on which wakes are published."),
        "listener": _LISTENER,
        "channel": _CHANNEL,
        "hears": said("Whether it would be told."),
        "detail": said("The same in words."),
        "topic": said("The subject or topic."),
    },
    "Readiness": {
        "": said("Whether all that is required works."),
        "ready": said("All of it does."),
        "checks": said("By name: the data file, each bus, and more."),
    },
    "Check": {
        "": said("One check."),
        "ok": said("Whether it works."),
        "detail": said("How it stands, in words."),
    },
    "Problem": {
        "": said("A refusal (RFC 9457). Nothing of the request is repeated in it."),
        "title": said("The status in words."),
        "status": said("The status."),
        "detail": said("What is wrong, for a person; the text may change."),
        "code": reference("ErrorCode"),
    },
    "Chosen": {
        "ids": said("Only these messages; empty is all.", maxItems=1000),
        "reason": said("Only those in whose reason this text stands.", maxLength=1000),
        "max": said("At most so many."),
    },
    "Graves": {
        "messages": said("Some of them, of those that are visible."),
        "looked": said("How many were looked at for it."),
        "next": said("What to pass as `after` for those that follow; null where none do."),
        "whole": said("False where there may be more that this store cannot show here."),
    },
    "SignIn": {
        "code": said("What the issuer sent the browser back with; good once."),
        "verifier": said("That of the sign-in, which the tab kept."),
        "iss": said("Which issuer sent the browser back, where it says so (RFC 9207)."),
    },
    "Begun": {
        "issuer": said("Where one signs in."),
        "page": said("The page's address that the issuer sends the browser back to."),
        "address": said("Where the browser goes."),
        "state": said("What it has to come back with; drawn anew for each answer."),
        "verifier": said("What ends the sign-in, for the tab that began it alone."),
    },
    "SignedIn": {
        "token": said("What to send as `Authorization: Bearer` from now on."),
        "principal": said("Whose grants it has."),
    },
    "Grave": {
        "id": said("The message in this queue."),
        "age_ms": said("How long ago it was buried, or put where nothing is known of a burial."),
        "dequeue_count": said("How often it was handed out here."),
        "burial": said("The facts that it carries; null where it says nothing of itself."),
        "body": said("The beginning of the body that was buried, as text."),
        "size": said("All bytes of that body."),
        "headers": said(HEADERS),
    },
    "Burial": {
        "queue": said("Where it failed, as account/queue."),
        "id": said("The message there."),
        "inserted_at": said("When it was put there."),
        "buried_at": said("When a worker buried it, by that worker's clock."),
        "reason": said("What was wrong, as the last attempt said."),
        "attempts": said("How often it was handed out there."),
        "failure": said("Why it was buried: poisoned, permanent, exhausted, undecodable, body-lost or no-outcome."),
        "error": said("The type of what the handler raised."),
        "trace": said("The newest frames of its traceback."),
        "traceparent": said("Its own trace context, else that of the wake that brought it."),
        "listener": said("The worker that buried it."),
        "burials": said("How often it was buried in all."),
        "history": said("The failed attempts that this worker saw."),
        "earlier": said("The burials before this one, oldest first."),
    },
    "Attempt": {
        "attempt": said("Its number, from 1."),
        "at": said("When it failed."),
        "reason": said("What was wrong."),
    },
    "Earlier": {
        "queue": said("Where it had failed."),
        "id": said("The message there."),
        "inserted_at": said("When it was put there."),
        "buried_at": said("When it was buried."),
        "reason": said("What was wrong."),
        "attempts": said("How often it was handed out."),
        "failure": said("Why it was buried."),
    },
    "Run": {
        "what": said("What is done with the messages.", enum=["replayed", "discarded"]),
        "running": said("Whether it goes on."),
        "moved": said("Messages that were put back or deleted."),
        "stay": said("Messages that were chosen and stay: where they go is not known, or not granted."),
        "twice": said("Messages that were put and could not be deleted here: they may be handled twice."),
        "error": said("In words, why it ended early; empty where it did not."),
    },
}
