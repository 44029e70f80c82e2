"""Whom a wake reaches: the least recently used session with room, then more of them.

A scaler is asked only where no worker has room, and of several scalers one: each would start what is missing (Z5).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice

from bridge.core.slots import Seat

# Looking further would make every put cost more the more sessions do not take messages along.
CARRY_CANDIDATES = 16

# Most queues never have a session, and share what is empty: of 100,000 names each byte counts.
_NOBODY: dict[int, Seat] = {}
_NO_STORES: dict[str, int] = {}


class Seats:
    """The sessions subscribed to one queue; those with room in the order of their last use."""

    __slots__ = ("_all", "_barred", "_foreign", "_own", "_queue", "_ready", "_scalers", "_stirred", "_stores", "store")

    def __init__(self, queue: str = "", stirred: set[str] | None = None) -> None:
        self._queue = queue
        self._stirred = stirred
        self.store: str | None = None
        """The store that the sessions here say they use (B11)."""
        self._all = _NOBODY
        self._ready = _NOBODY
        self._scalers = _NOBODY
        """Those with room as well, who come after all others."""
        self._barred = _NOBODY
        """Scalers without room."""
        self._own = 0
        self._foreign = 0
        self._stores = _NO_STORES
        """How many seats name each store."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._all.values())

    @property
    def any_own(self) -> bool:
        """Whether a session says that this queue is in the bridge's own queue service."""
        return self._own > 0

    @property
    def any_foreign(self) -> bool:
        """Whether a session does not say so."""
        return self._foreign > 0

    @property
    def any_ready(self) -> bool:
        """Whether any session has room."""
        return bool(self._ready or self._scalers)

    @property
    def any_worker_ready(self) -> bool:
        """Whether any session has room that need start nothing for it."""
        return bool(self._ready)

    @property
    def any_starter(self) -> bool:
        """Whether a scaler could start somebody, or is about to."""
        return bool(self._scalers) or self.barred_scaler() is not None

    def workers_for(self, scaler: Seat) -> int:
        """Return how many workers a scaler need not start: those with sessions, and what other scalers start (Z5)."""
        starting = sum(seat.starting for seat in self._all.values() if seat.scaler and seat is not scaler)
        return starting + sum(seat.capacity > 0 for seat in self._all.values() if not seat.scaler)

    def barred_scaler(self) -> Seat | None:
        """Return a scaler that starts workers and is to hear of more work: one, and only where none has room (Z5)."""
        if not self._barred or self._scalers:
            return None
        return next((seat for seat in self._barred.values() if seat.starting and seat.capacity), None)

    def any_other_store(self, store: str | None, besides: Iterable[int]) -> bool:
        """Whether a session names another store than this one, of those not in ``besides``; where it names none, no.

        One that agrees with all of them, or with any where they differ, is fine (B11). It costs the number of stores,
        and not that of sessions.
        """
        if store is None or not self._stores:
            return False
        known = dict(self._stores)
        for session in besides:
            seat = self._all.get(session)
            if seat is not None and seat.store is not None:
                known[seat.store] -= 1
        return not known.get(store) and any(known.values())

    def get(self, session: int) -> Seat | None:
        """Return the seat of a session."""
        return self._all.get(session)

    def add(self, seat: Seat) -> None:
        """Seat a session."""
        self.remove(seat.session)
        if not self._all:
            # Nobody is in the others either.
            self._all, self._ready, self._scalers, self._barred = {}, {}, {}, {}
            self._stores = {}
        self._all[seat.session] = seat
        self.store = seat.store or self.store
        if seat.store is not None:
            self._stores[seat.store] = self._stores.get(seat.store, 0) + 1
        if seat.own:
            self._own += 1
        else:
            self._foreign += 1
        self.refresh(seat)

    def remove(self, session: int) -> Seat | None:
        """Take a session's seat away."""
        seat = self._all.pop(session, None)
        if seat is not None:
            self._order(seat).pop(session, None)
            self._barred.pop(session, None)
            if seat.own:
                self._own -= 1
            else:
                self._foreign -= 1
            if seat.store is not None:
                self._stores[seat.store] -= 1
                if not self._stores[seat.store]:
                    del self._stores[seat.store]
                    if seat.store == self.store:
                        self.store = next(iter(self._stores), None)
            if self._stirred is not None:
                self._stirred.add(self._queue)
        return seat

    def turns_own(self, seat: Seat) -> None:
        """Note that a seated session says `own` of this queue from now on."""
        if not seat.own:
            seat.own = True
            self._own += 1
            self._foreign -= 1

    def refresh(self, seat: Seat) -> None:
        """Note that a seat gained or lost room; its place in the order is kept."""
        order = self._order(seat)
        if seat.has_room:
            order.setdefault(seat.session, seat)
            self._barred.pop(seat.session, None)
        else:
            order.pop(seat.session, None)
            if seat.scaler:
                self._barred.setdefault(seat.session, seat)
        if self._stirred is not None:
            self._stirred.add(self._queue)

    def _order(self, seat: Seat) -> dict[int, Seat]:
        return self._scalers if seat.scaler else self._ready

    def used(self, seat: Seat) -> None:
        """Put a seat at the end of the order."""
        order = self._order(seat)
        if order.pop(seat.session, None) is not None:
            order[seat.session] = seat

    def pick_all(self, besides: Container[int] = ()) -> list[Seat]:
        """Return all workers with room, or else one scaler, without those in ``besides``."""
        return [seat for seat in self._ready.values() if seat.session not in besides] or self.pick(1, besides)

    def workers_besides(self, session: int) -> list[Seat]:
        """Return all workers with room but this one, who took the debt on: nobody need start one more."""
        return [seat for seat in self._ready.values() if seat.session != session]

    def pick(self, count: int, besides: Container[int] = ()) -> list[Seat]:
        """Return up to ``count`` seats with room, least recently used first, without those in ``besides``."""
        picked: list[Seat] = []
        for seat in chain(self._ready.values(), self._scalers.values()):
            if len(picked) >= count:
                break
            if seat.session not in besides:
                picked.append(seat)
        return picked

    def pick_for(self, size: int) -> list[Seat]:
        """Return the seats whose room together is enough for ``size`` messages, one at least if any has room."""
        picked: list[Seat] = []
        room = 0
        for seat in self._ready.values():
            picked.append(seat)
            # A free count of 0 without a `more` is a guess of ours: it still may take one.
            room += max(1, seat.spare)
            if room >= size:
                break
        return picked or list(islice(self._scalers.values(), 1))

    def pick_to_carry(self) -> Seat | None:
        """Return the least recently used seat that takes messages along with its wake and has a free slot (O7)."""
        for seat in islice(self._ready.values(), CARRY_CANDIDATES):
            if seat.accepts and seat.own and seat.spare > 0 and seat.slot is None and not seat.looking:
                return seat
        return None
