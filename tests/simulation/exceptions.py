"""The fault "an exception at any call to something else": what a process calls raises, now and then, whatever it is.

A store, a channel, a line to other bridges, an actuator, an observer, a hook. Some calls fail before they did anything,
some after it; of those that are awaited some end with a cancellation that nobody asked for.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queuebell.bridge.contract.wire import DownFrame
    from queuebell.bridge.service.bridge import Bridge
    from queuebell.bridge.service.channels.base import Outlet
    from tests.simulation.process import Process
    from tests.simulation.world import World

CANCELLED: Final = 0.2
"""Share of the failures of awaited calls that are cancellations."""
AFTER: Final = 0.5
"""Share of the failures of awaited calls that come after the call was carried out."""


def knob(host: str) -> str:
    return f"exceptions of {host}"


class Exceptions:
    """Raises in what one process calls, as the faults that last say."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._knob = knob(process.host.name)
        self._draw = process.kernel.chance(f"{process.name}/exceptions").random

    def may_raise(self, what: str) -> None:
        share = self._world.trouble[self._knob]
        if share and self._draw() < share:
            self._world.reached(f"exception in {what}")
            raise RuntimeError(f"{what} is broken")

    def hear(self, what: str) -> Callable[..., None]:
        return lambda *_: self.may_raise(what)

    def spoil(self, thing: Any, *names: str, before: bool = False) -> Any:
        """Have these calls of a thing raise, with ``before`` only before they do anything; return it."""
        what = type(thing).__name__
        for name in names:
            call = getattr(thing, name)
            awaited = self._awaited if inspect.iscoroutinefunction(call) else self._called
            setattr(thing, name, awaited(f"{what}.{name}", call, before))
        return thing

    def _called(self, what: str, call: Callable[..., Any], before: bool) -> Callable[..., Any]:
        @functools.wraps(call)
        def spoiled(*given: Any, **named: Any) -> Any:
            self.may_raise(what)
            return call(*given, **named)

        return spoiled

    def _awaited(self, what: str, call: Callable[..., Any], before: bool) -> Callable[..., Any]:
        @functools.wraps(call)
        async def spoiled(*given: Any, **named: Any) -> Any:
            try:
                self.may_raise(what)
            except RuntimeError:
                if not before and self._draw() < AFTER:
                    await call(*given, **named)
                if self._draw() < CANCELLED:
                    raise asyncio.CancelledError(what) from None
                raise
            return await call(*given, **named)

        return spoiled

    def spoil_channel(self, channel: Any) -> Any:
        """Have connections of a worker or a scaler to its bridge raise, and the links they open."""
        if hasattr(channel, "local_channel"):
            local = channel.local_channel
            channel.local_channel = lambda: self.spoil_channel(local())
            return channel
        connect = channel.connect

        async def spoiled() -> Any:
            self.may_raise("connect")
            return self.spoil(await connect(), "send", "receive", "close")

        channel.connect = spoiled
        return channel

    def spoil_bridge(self, bridge: Bridge) -> None:
        """Have what a bridge calls raise: the channels of its sessions, observers, subscribers, and its own store."""
        connect = bridge.connect
        bridge.connect = lambda outlet: connect(_Outlet(self, outlet))  # type: ignore[method-assign]
        bridge.observe(self.hear("an observer"))
        bridge.forward(self.hear("a forward"))
        bridge.callbacks.session_watchers.append(self.hear("a watcher of sessions"))
        if bridge.own is not None:
            self.spoil(bridge.own, "refresh", "reclaim")


class _Outlet:
    """The bridge's end of a session, which raises."""

    def __init__(self, exceptions: Exceptions, outlet: Outlet) -> None:
        self._exceptions = exceptions
        self._outlet = outlet
        self.kind = outlet.kind

    def writable(self) -> bool:
        self._exceptions.may_raise("Outlet.writable")
        return self._outlet.writable()

    def send(self, frame: DownFrame) -> None:
        self._exceptions.may_raise("Outlet.send")
        self._outlet.send(frame)

    def close(self, code: int, reason: str) -> None:
        self._exceptions.may_raise("Outlet.close")
        self._outlet.close(code, reason)
