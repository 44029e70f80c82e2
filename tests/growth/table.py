"""Which operation is counted beside which things: one line an operation, the things that it might depend on behind it.

A new operation is a method of a world and a line here; a new thing is a ``fill_...`` of that world and a word here.
"""

from __future__ import annotations

from tests.growth.worlds import Cluster, Plain, Rules, Store

World = type[Rules] | type[Store] | type[Plain] | type[Cluster]

TABLE: dict[World, dict[str, str]] = {
    Rules: {
        "trigger": "queues listeners sessions leased delayed",
        "wake_and_cover": "queues listeners sessions leased delayed",
        "hello": "queues listeners sessions leased delayed",
        "heartbeat": "queues listeners sessions leased delayed",
        "hello_by_queue": "subscribed",
        "session_end": "queues listeners sessions leased delayed",
    },
    Store: {
        "put": "messages queues delayed leased expiring dead_letters",
        "receive": "messages queues delayed leased expiring dead_letters",
        "delete": "messages queues delayed leased expiring dead_letters",
        "replay": "messages queues leased dead_letters",
        "pass_over_one": "unmatched",
    },
    Plain: {
        "publish": "subscribers queues",
    },
    Cluster: {
        "cluster_word": "queues",
    },
}
