"""Operations on an engine for a server that makes no queue unasked and tells exact times.

Each is one call of one commit, so that no other call comes between its look and its change.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridge.contract.errors import QueueNotFound
from bridge.queues.base import Claim, Depth, Extend, NewMessage, PutReceipt, Received, Release, Settled, Settlement
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.terms import Grant, ReadRoom, Stamped


def put_existing(
    engine: Engine, name: str, messages: Sequence[NewMessage], grant: Grant | None
) -> Stamped[list[PutReceipt]]:
    """Put on a queue that exists."""
    _require(engine, name)
    return Stamped(engine.put(name, messages, grant), engine.state.now, engine.state.up)


def receive_stamped(
    engine: Engine, name: str, limit: int, lease: int, source: str | None, room: ReadRoom | None = None
) -> Stamped[Received]:
    """Receive, and say at what time."""
    return Stamped(engine.receive(name, limit, lease, source, room), engine.state.now, engine.state.up)


def update(engine: Engine, name: str, claim: Claim, visibility_s: float, body: bytes | None) -> Stamped[Settled]:
    """Move a message's visibility, to now where it is 0, and perhaps give it another body."""
    if visibility_s > 0 or body is not None:
        # With a body and 0 seconds two steps of one commit: nobody sees what is between them.
        extend = Extend(claim.id, claim.pop_receipt, visibility_s or 1.0, body)
        settled = engine.settle(name, Settlement(extend=(extend,))).extend[0]
        if visibility_s > 0 or settled.pop_receipt is None:
            return Stamped(settled, engine.state.now, engine.state.up)
        claim = Claim(claim.id, settled.pop_receipt)
    settled = engine.settle(name, Settlement(release=(Release(claim.id, claim.pop_receipt),))).release[0]
    return Stamped(settled, engine.state.now, engine.state.up)


def create_alike(engine: Engine, name: str, metadata: dict[str, str]) -> bool | None:
    """Make a queue; False where it stands with the same metadata, None where it stands with other."""
    if name not in engine.state.queues:
        return engine.create(name, metadata)
    return False if engine.metadata(name) == metadata else None


def replace_metadata(engine: Engine, name: str, metadata: dict[str, str]) -> None:
    """Set the metadata of a queue that exists."""
    _require(engine, name)
    engine.create(name, metadata)


def remove(engine: Engine, name: str) -> None:
    """Delete a queue that exists."""
    _require(engine, name)
    engine.delete(name)


def standing(engine: Engine, name: str) -> tuple[dict[str, str], Depth]:
    """Return metadata and depth of a queue that exists."""
    metadata, depth = engine.metadata(name), engine.depth(name)
    assert depth is not None
    return metadata, depth


def _require(engine: Engine, name: str) -> None:
    if name not in engine.state.queues:
        raise QueueNotFound("there is no such queue")
