"""A put that is carried out once, however often it is asked for: one call of one commit."""

from __future__ import annotations

from msgspec.structs import replace

from bridge.contract.errors import BadInput, QueueNotFound
from bridge.queues.base import NewMessage, PutReceipt
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.terms import Grant, Handed

# More than one for each that is put, so that what is over goes faster than new ones come.
_FORGOTTEN_PER_PUT = 4


def put_once(
    engine: Engine, name: str, key: str, digest: bytes, message: NewMessage, grant: Grant | None, create: bool
) -> PutReceipt | None:
    """Put a message under a key; None where this very one was put before, `BadInput` where another was.

    Raises `QueueNotFound` where the queue is missing and not to be made (``create``).
    """
    state, keys = engine.state, engine.state.keys
    queue = state.look(name)
    if queue is not None:
        known = keys.find(queue.id, key, state.now)
        if known == digest:
            if grant is not None:
                state.handed.append(Handed(name, grant.session, [], queue.visible))
            return None
        if known is not None:
            raise BadInput("message_conflict", "another body was put under this id; nothing was changed")
    elif not create:
        raise QueueNotFound("there is no such queue")
    number = state.ensure(name).id
    state.begin()
    due = keys.due
    state.note(setattr, keys, "count", keys.count)
    state.note(setattr, keys, "due", due)
    # Before the message, so that one that is handed over by this very put has its key as well.
    keys.insert(state.seq + 1, number, state.up + keys.window_ms, digest, key)
    (receipt,) = engine.put(name, (message,), grant)
    if grant is not None and state.handed[-1].messages:
        # Leased as it was written: only this call knows its key.
        handed = state.handed[-1]
        messages = [replace(each, key=key) if each.id == receipt.id else each for each in handed.messages]
        state.handed[-1] = replace(handed, messages=messages)
    if due is not None and due <= state.now:
        # Without a flush: what is due is older than the window, so that its message was written by an earlier commit.
        state.forget_keys(_FORGOTTEN_PER_PUT)
    return receipt
