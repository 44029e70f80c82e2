"""Counts that a kind of store does not report, with reasons for people; pure.

Keys are fields of `queuebell.bridge.service.state.answers.Content`. Kinds not listed report all, or are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_RETURNED: Final = "counts messages returned for later as in flight"

UNTOLD: Final[Mapping[str, Mapping[str, str]]] = {
    "sqs": {
        "oldest_ms": "SQS does not report the age of its oldest message; CloudWatch does",
        "delayed": f"SQS {_RETURNED}",
    },
    "azure": {
        "oldest_ms": "Azure Queue Storage does not report the age of its oldest message",
        "visible": "Azure Queue Storage has one count for all: messages in flight or delayed count as visible",
        "leased": "Azure Queue Storage has one count for all",
        "delayed": "Azure Queue Storage has one count for all",
    },
    "pgmq": dict.fromkeys(("leased", "delayed"), "PGMQ does not tell leased messages from delayed ones"),
    "jetstream": {
        "oldest_ms": "NATS JetStream reports it for messages that were never delivered, not for returned ones",
        "delayed": f"NATS JetStream {_RETURNED}",
    },
}
