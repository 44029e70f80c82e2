"""A put that is carried out once, however often it is asked for: one call of one commit."""

from __future__ import annotations

import msgspec

from bridge.contract.errors import BadInput
from bridge.queue import NewMessage, PutReceipt
from bridge.queues.own import Grant, Handed
from bridge.queues.sqlite_engine import Engine

# More than one for each that is put, so that what is over goes faster than new ones come.
_FORGOTTEN_PER_PUT = 4


def put_once(
    engine: Engine, name: str, key: str, digest: bytes, message: NewMessage, grant: Grant | None
) -> PutReceipt | None:
    """Put a message under a key; None where this very one was put before, `BadInput` where another was."""
    queue = engine.look(name)
    if queue is not None:
        known = engine.keys.find(queue.id, key, engine.now)
        if known == digest:
            if grant is not None:
                engine.handed.append(Handed(name, grant.session, [], queue.visible))
            return None
        if known is not None:
            raise BadInput("message_conflict", "another body was put under this id; nothing was changed")
    number = engine.ensure(name).id
    engine.begin()
    count, due = engine.keys.count, engine.keys.due
    engine.note(setattr, engine.keys, "count", count)
    engine.note(setattr, engine.keys, "due", due)
    # Before the message, so that one that is handed over by this very put has its key as well.
    engine.keys.insert(engine.seq + 1, number, engine.up + engine.put_window_ms, digest, key)
    (receipt,) = engine.put(name, (message,), grant)
    if grant is not None and engine.handed[-1].messages:
        _name_key(engine, receipt.id, key)
    if due is not None and due <= engine.now:
        engine.forget_keys(_FORGOTTEN_PER_PUT)
    return receipt


def _name_key(engine: Engine, id_: str, key: str) -> None:
    """Give the message that was leased as it was written its key, which only this call knows."""
    handed = engine.handed[-1]
    messages = [
        msgspec.structs.replace(message, key=key) if message.id == id_ else message for message in handed.messages
    ]
    engine.handed[-1] = msgspec.structs.replace(handed, messages=messages)
