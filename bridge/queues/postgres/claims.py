"""One settlement on its way to a PostgreSQL database and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from bridge.contract.errors import QueuebellError, QueueNotFound
from bridge.queues.base import Claim, Extend, Release, Settled, Settlement, Settling
from bridge.queues.limits import lease_ms
from bridge.queues.side_by_side import outcomes

_hex16 = re.compile("[0-9a-f]{16}").fullmatch
_hex32 = re.compile("[0-9a-f]{32}").fullmatch
_ID_MAX = 2**63 - 1
_NOBODY = "0" * 32
"""A receipt that no message has: random ones carry their version."""

FREED: Final = 2
"""Of a move: nobody holds the message then. Beside it 1 where the receive that it undoes does not count."""

_OK = Settled(True)
_MISMATCH = Settled(False, code="pop_receipt_mismatch")
_NOT_FOUND = Settled(False, code="message_not_found")

Held = tuple[int, str]


class PostgresClaims:
    """The items of a settlement; no claim may go twice into the statement that carries them out."""

    def __init__(self, settlement: Settlement) -> None:
        self._settlement = settlement
        self._deletes = dict.fromkeys(_known(settlement.delete))
        self._gone: set[Held] = set()
        self._moves: dict[Held, tuple[int, bytes | None, int]] = {}
        for release in settlement.release:
            self._move(release, release.after_ms, None, FREED | release.uncounted)
        for extend in settlement.extend:
            self._move(extend, lease_ms(extend.visibility_s), extend.body)

    def deletes(self) -> tuple[str, str] | None:
        """Return ids and receipts, each joined by commas, where all items are deletes of different messages."""
        asked = self._settlement
        if asked.release or asked.extend or not self._deletes:
            return None
        ids = dict(list(self._deletes))
        if len(ids) < len(self._deletes):
            return None
        return ",".join(map(str, ids)), ",".join(ids.values())

    def deleted(self, ids: Iterable[int]) -> None:
        """Note which messages of `deletes` are gone."""
        gone = set(ids)
        self._gone = {held for held in self._deletes if held[0] in gone}

    def all_deleted(self) -> Settling:
        """Return the outcome where every item was a delete and is done."""
        return Settling([_OK] * len(self._settlement.delete), [], [])

    def deleted_before(self, error: QueuebellError) -> Settling:
        """Return the outcome where every item was a delete and the second statement failed."""
        return Settling(outcomes([_OK if _held(i) in self._gone else error for i in self._settlement.delete]), [], [])

    def arguments(self) -> tuple[object, ...]:
        """Return what the statement takes after the queue."""
        # In one order for everybody: two settlements of the same messages wait for each other, and not in a circle.
        deletes, moves = sorted(self._deletes), sorted(self._moves)
        return (
            [id_ for id_, _ in deletes],
            [receipt for _, receipt in deletes],
            [id_ for id_, _ in moves],
            [receipt for _, receipt in moves],
            [self._moves[held][0] for held in moves],
            [self._moves[held][1] for held in moves],
            sorted({id_ for id_, _ in (*deletes, *moves)}),
            [self._moves[held][2] for held in moves],
        )

    def outcome(self, queue: str, rows: Sequence[Any]) -> Settling:
        """Return what became of each item, as if they had been settled one after the other.

        Raises `QueueNotFound` where the rows say that there is no such queue.
        """
        done: dict[Held, Settled] = dict.fromkeys(self._gone, _OK)
        there: set[int] = set()
        exists = bool(done)
        for row in rows:
            match row["what"]:
                case "deleted":
                    done[row["id"], row["held"].hex] = _OK
                case "moved":
                    done[row["id"], row["held"].hex] = Settled(True, pop_receipt=row["receipt"].hex)
                case "there":
                    there.add(row["id"])
                case "queue":
                    exists = True
        if not exists:
            raise QueueNotFound(f"there is no queue {queue}")

        def settled(item: Claim | Release | Extend) -> Settled:
            held = _held(item)
            if held is None:
                return _NOT_FOUND
            outcome = done.pop(held, None)
            if outcome is None:
                return _MISMATCH if held[0] in there else _NOT_FOUND
            if outcome is _OK:
                there.discard(held[0])
            return outcome

        asked = self._settlement
        return Settling(
            [settled(item) for item in asked.delete],
            [settled(item) for item in asked.release],
            [settled(item) for item in asked.extend],
        )

    def _move(self, item: Release | Extend, ms: int, body: bytes | None, how: int = 0) -> None:
        held = _held(item)
        # Of claims that name the same lease the first counts.
        if held is not None and held not in self._deletes:
            self._moves.setdefault(held, (ms, body, how))


def _known(items: Iterable[Claim]) -> list[Held]:
    return [held for item in items if (held := _held(item)) is not None]


def _held(item: Claim | Release | Extend) -> Held | None:
    """Return message and receipt of a claim; None for an id that this store cannot have given out."""
    # Both come from the caller, who may have made them up.
    id_: object = item.id
    receipt: object = item.pop_receipt
    if not isinstance(id_, str) or _hex16(id_) is None or (number := int(id_, 16)) > _ID_MAX:
        return None
    if not isinstance(receipt, str) or _hex32(receipt) is None:
        return number, _NOBODY
    return number, receipt
