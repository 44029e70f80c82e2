"""What listeners say to a bridge whose queue service works on an engine: no queue is its own (O0)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bridge.contract.wire import Cover, Hello, Subscription, UpFrame


def elsewhere(frame: UpFrame, engine: Callable[[str], str]) -> UpFrame:
    """Return a frame without `own` and without an offer to take messages along with a wake.

    Who says `own` goes by the bridge's address, or by an answer of another time. Were it believed, no sweep would be
    made and every dead-man timer be told that all is covered. What it names by that address is the queue of the
    ``engine``, which has one fingerprint by whichever bridge it is reached (B11).
    """
    if isinstance(frame, Hello):
        queues = [_subscription(sub, engine) for sub in frame.queues]
        return msgspec.structs.replace(frame, queues=queues, accept=[])
    if isinstance(frame, Cover) and frame.own:
        return msgspec.structs.replace(frame, own=False, store=engine(frame.queue))
    return frame


def _subscription(sub: Subscription, engine: Callable[[str], str]) -> Subscription:
    return msgspec.structs.replace(sub, own=False, store=engine(sub.queue)) if sub.own else sub
