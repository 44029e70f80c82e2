"""The wires of a process: one to each bridge, for each event loop, key and TLS, counted by those who use it."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import weakref
from typing import TYPE_CHECKING, Final

from bridge.brokers.ending import why_unreachable
from bridge.brokers.wire.wire import NotSent, NoWire, Wire, WireSession
from bridge.contract.errors import Closed

if TYPE_CHECKING:
    from bridge.brokers.credential import Credential
    from bridge.contract.address import HttpAddress
    from bridge.contract.calls import AnswerFrame
    from bridge.contract.wire import Ready

WITHOUT_S: Final = 60.0
"""So long HTTP is used where no wire was opened."""
Key = tuple[str, str | None, ssl.SSLContext | None]


class _Opening:
    """A wire that is being opened, for those who wait for it; it ends with the last of them."""

    def __init__(self, task: asyncio.Task[Wire]) -> None:
        self.task = task
        self.waiting: dict[asyncio.Future[None], None] = {}
        """In the order in which they came."""
        task.add_done_callback(self._wake)

    def _wake(self, task: asyncio.Task[Wire]) -> None:
        # Whoever asked may be gone.
        if not task.cancelled():
            task.exception()
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


class _Wires:
    """The wires of one event loop."""

    def __init__(self) -> None:
        self.open: dict[Key, Wire] = {}
        self.opening: dict[Key, _Opening] = {}
        self.without: dict[str, float] = {}
        """Until when no wire is asked for, by address."""


# A wire that ends leaves it, and so its loop can go.
_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Wires] = weakref.WeakKeyDictionary()
_users: weakref.WeakSet[WireUser] = weakref.WeakSet()


def _forget_all() -> None:
    """Forget the connections of the parent process, and close none."""
    _of_loops.clear()
    for user in _users:
        user.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


class WireUser:
    """The part that one store, publisher or listener has in the wires to its bridges; ``credential`` goes with them."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._mine: set[Wire] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        """Its calls that wait for a wire to be opened."""
        self._closed = False
        _users.add(self)

    def forget(self) -> None:
        """Forget all wires, which are another process's."""
        self._mine = set()

    def worth_asking(self, where: HttpAddress) -> bool:
        """Say whether a wire to this address is open or may be asked for."""
        found = _of_loops.get(loop := asyncio.get_running_loop())
        until = 0.0 if found is None else found.without.get(where.url, 0.0)
        return not until or loop.time() >= until

    async def call(
        self,
        where: HttpAddress,
        method: str,
        target: str,
        body: bytes,
        media: str,
        *,
        within_s: float,
        connect_s: float | None = None,
    ) -> tuple[AnswerFrame, Ready]:
        """Make one call over the wire to ``where``, and return its answer, and what its bridge said first.

        Raises as `Wire.call` and `wire` do.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        wire = await self.wire(where, min(within_s, connect_s or within_s))
        answer = await wire.call(self, method, target, body, media, max(0.0, deadline - loop.time()))
        return answer, wire.ready.result()

    async def wire(self, where: HttpAddress, within_s: float) -> Wire:
        """Return the wire to this address, which is opened where there is none.

        Raises `NotSent` where it cannot be reached, and `NoWire` where what answers opens none; that is remembered for
        a minute, but for a key that is refused.
        """
        wires = _of_loops.setdefault(asyncio.get_running_loop(), _Wires())
        key = (where.url, self._credential.headers().get("Authorization"), self._tls(where))
        wire = wires.open.get(key)
        if wire is None or not wire.open:
            wire = await self._opened(wires, key, where, within_s)
        await self._use(wire)
        return wire

    async def link(self, where: HttpAddress, session: WireSession, within_s: float) -> Wire:
        """Return a wire that carries this session: the one there is, or one of its own where that has another."""
        wire = await self.wire(where, within_s)
        if wire.taken:
            try:
                async with asyncio.timeout(within_s):
                    wire = await _dial(where, self._credential.headers().get("Authorization"), self._tls(where))
            except TimeoutError:
                raise NotSent("time-out") from None
            except OSError as error:
                raise NotSent(why_unreachable(error)) from error
            await self._use(wire)
        if not wire.open:
            raise NotSent("it closed the connection")
        wire.attach(session)
        return wire

    def _tls(self, where: HttpAddress) -> ssl.SSLContext | None:
        return self._credential.tls() or (_default_tls() if where.scheme == "https" else None)

    async def _use(self, wire: Wire) -> None:
        if self._closed:
            if not wire.users:
                await wire.close()
            raise Closed("the store was closed")
        if self not in wire.users:
            wire.users.add(self)
            self._mine = {each for each in self._mine if each.open}
            self._mine.add(wire)

    async def _opened(self, wires: _Wires, key: Key, where: HttpAddress, within_s: float) -> Wire:
        loop = asyncio.get_running_loop()
        opening = wires.opening.get(key)
        if opening is None:
            opening = wires.opening[key] = _Opening(loop.create_task(_open(wires, key, where), name="opening a wire"))
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        opening.waiting[waiter] = None
        try:
            if not opening.task.done():
                async with asyncio.timeout(within_s):
                    await waiter
            return opening.task.result()
        except TimeoutError:
            # Perhaps something in between lets no WebSocket through, and says nothing of it.
            wires.without[where.url] = loop.time() + WITHOUT_S
            raise NotSent("time-out") from None
        except OSError as error:
            raise NotSent(why_unreachable(error)) from error
        except NoWire as error:
            if not error.refused:
                wires.without[where.url] = loop.time() + WITHOUT_S
            raise
        finally:
            self._waiters.discard(waiter)
            del opening.waiting[waiter]
            if not opening.waiting and not opening.task.done():
                wires.opening.pop(key, None)
                opening.task.cancel()

    async def close(self) -> None:
        """Fail this user's calls, and close the wires that nobody else uses; may be called twice."""
        self._closed = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Closed("the store was closed"))
        loop = asyncio.get_running_loop()
        # Those of a loop that has ended have ended with it.
        mine, self._mine = {wire for wire in self._mine if wire.loop is loop}, set()
        left = []
        for wire in mine:
            wire.forsake(self)
            if wire.leave(self):
                left.append(wire)
        if left:
            await asyncio.gather(*(wire.close() for wire in left))


async def _open(wires: _Wires, key: Key, where: HttpAddress) -> Wire:
    try:
        wire = await _dial(where, key[1], key[2])
    finally:
        mine = wires.opening.get(key)
        if mine is not None and mine.task is asyncio.current_task():
            del wires.opening[key]
    wires.open[key] = wire
    wire.gone = functools.partial(_forget, wires, key, wire)
    return wire


def _forget(wires: _Wires, key: Key, wire: Wire) -> None:
    if wires.open.get(key) is wire:
        del wires.open[key]


async def _dial(where: HttpAddress, authorization: str | None, tls: ssl.SSLContext | None) -> Wire:
    loop = asyncio.get_running_loop()
    # A name may have addresses that lead nowhere. (Cancelled meanwhile, asyncio may leave a socket to the collector.)
    delay = 0.25 if where.host.strip("0123456789.:[]") else None
    _, wire = await loop.create_connection(
        lambda: Wire(where, authorization), where.host, where.port, ssl=tls, happy_eyeballs_delay=delay
    )
    try:
        await wire.ready
    except BaseException:
        wire.end()
        raise
    wire.begin_idling()
    return wire


@functools.lru_cache(1)
def _default_tls() -> ssl.SSLContext:
    return ssl.create_default_context()
