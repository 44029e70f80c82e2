"""What a kind of store cannot tell of a queue, in words for people; pure.

The keys are those of `bridge.service.state.answers.Content`. A kind that is not named here tells all, or is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_RETURNED: Final = "counts what was given back for later among the leased"

UNTOLD: Final[Mapping[str, Mapping[str, str]]] = {
    "sqs": {
        "oldest_ms": "SQS does not tell the age of its oldest message; CloudWatch does",
        "delayed": f"SQS {_RETURNED}",
    },
    "azure": {
        "oldest_ms": "Azure Queue Storage does not tell the age of its oldest message",
        "visible": "Azure Queue Storage has one count for all: what is leased or delayed is among the visible",
        "leased": "Azure Queue Storage has one count for all",
        "delayed": "Azure Queue Storage has one count for all",
    },
    "jetstream": {
        "oldest_ms": "NATS JetStream tells it of messages that were never handed out, not of those that came back",
        "delayed": f"NATS JetStream {_RETURNED}",
    },
}
