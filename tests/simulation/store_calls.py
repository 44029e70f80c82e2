"""A queue store behind a network: the caller's half keeps the promise of `bridge.queues.base`, the other half answers.

One connection a call. What fails before the store can have heard of it is `StoreUnavailable`; what was sent and not
answered is `UnknownOutcome`, as of a store behind HTTP.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.contract.errors import (
    Closed,
    NotAllowed,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from queuebell.bridge.contract.failover import Failover, Outcome
from queuebell.bridge.queues.base import (
    AsyncConnection,
    Body,
    Capabilities,
    Depth,
    PutReceipt,
    Received,
    Settlement,
    Settling,
    VisibleQueues,
    new_messages,
    refuse_connection,
)
from tests.simulation.process import Lost

if TYPE_CHECKING:
    from queuebell.bridge.service.bridge import Bridge
    from tests.simulation.access import WatchedFile
    from tests.simulation.process import End, Process
    from tests.simulation.world import World

CALL_S: Final = 10.0
PORT: Final = "store"
_VERBS: Final = {"put": Verb.PUT, "receive": Verb.TAKE, "settle": Verb.TAKE, "depth": Verb.LOOK}


class StoreServer:
    """The server's half, in one process; ``boot`` is told with every answer where the store is a bridge's own.

    Of the ``store`` only put, receive, settle and depth are called.
    """

    def __init__(
        self, world: World, process: Process, store: Any, boot: str | None = None, access: WatchedFile | None = None
    ) -> None:
        self.draining = False
        self._access = access
        self._world = world
        self._process = process
        self._operations: dict[str, Callable[..., Awaitable[object]]] = {
            "put": store.put,
            "receive": store.receive,
            "settle": store.settle,
            "depth": store.depth,
        }
        if hasattr(store, "visible_queues"):
            self._operations |= {"visible_queues": store.visible_queues, "place": store.place}
        self._boot = boot
        self._draw = process.kernel.chance(f"{process.name}/store").random
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        self._process.ports[PORT] = self._accept

    def refuse(self) -> None:
        self._process.ports.pop(PORT, None)

    def _accept(self, end: End) -> None:
        end.hear = lambda request: self._begin(end, request)

    def _begin(self, end: End, request: tuple[str, str, tuple[Any, ...], str | None]) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(end, *request), name=f"store {request[0]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, end: End, operation: str, queue: str, arguments: tuple[Any, ...], key: str | None) -> None:
        trouble, draw = self._world.trouble, self._draw
        if self._access is not None:
            verb = _VERBS[operation]
            refusal = await self._access.refusal(key, verb, [queue])
            if refusal:
                end.send((NotAllowed(refusal, "the key is not known, or does not grant this"), self._boot))
                end.close()
                return
        slow = trouble["store_slow"]
        before = slow > 0 and draw() < 0.5
        if before:
            await asyncio.sleep(slow)
        errors = trouble["store_errors"]
        if (errors and draw() < errors) or (self.draining and operation == "put"):
            end.send(StoreUnavailable("the store is in trouble"))
            end.close()
            return
        try:
            answer: object = await self._operations[operation](queue, *arguments)
        except StoreError as error:
            answer = error
        self._tell(queue, answer)
        if slow > 0 and not before:
            await asyncio.sleep(slow)
        unknown = trouble[f"{operation}_unknown"]
        if not (unknown and draw() < unknown):
            end.send((answer, self._boot))
        end.close()

    def _tell(self, queue: str, answer: object) -> None:
        world = self._world
        if isinstance(answer, Received):
            world.emit("store_received", queue, len(answer.messages))
        elif isinstance(answer, Settling):
            deleted = sum(1 for each in answer.delete if each.ok)
            if deleted:
                world.emit("deleted", queue, deleted)


class DoorServer(StoreServer):
    """The queue API of one of several bridges: what it is asked it asks the store that all of them share (C8)."""

    def __init__(self, world: World, process: Process, bridge: Bridge) -> None:
        super().__init__(world, process, bridge.store)
        self._bridge = bridge

    async def _serve(self, end: End, operation: str, queue: str, arguments: tuple[Any, ...], key: str | None) -> None:
        try:
            if self.draining:
                raise StoreUnavailable("the bridge is stopping")
            answer: object = await self._operations[operation](queue, *arguments)
        except StoreError as error:
            answer = error
        except Closed:
            answer = StoreUnavailable("the bridge has stopped")
        except Exception as error:
            answer = UnknownOutcome(repr(error))
        end.send((answer, self._bridge.named_boot))
        end.close()


class RemoteStore:
    """The caller's half (`queuebell.bridge.queues.base.QueueStore`)."""

    def __init__(self, world: World, process: Process, host: str | Sequence[str], capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.boot: str | None = None
        """The boot that the newest answer came from."""
        self.emptied: dict[str, float] = {}
        """By queue: when the newest receive began that left nothing behind, in true time."""
        self._world = world
        self._process = process
        self._hosts = [host] if isinstance(host, str) else list(host)
        self._failover = Failover(self._hosts, process.chance.random) if len(self._hosts) > 1 else None
        self._credential = (
            None if world.desk is None or world.plan.store != "own" else world.desk.credential(process.host.name)
        )
        self._closed = False

    def fingerprint(self, queue: str) -> str:
        where = self._hosts[0] if self._failover is None else self._world.store_host
        return f"{where}/{queue}".encode().hex()[:64]

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None
    ) -> list[PutReceipt]:
        refuse_connection(connection)
        return cast("list[PutReceipt]", await self._call("put", queue, tuple(new_messages(bodies))))

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Take up to ``limit`` messages; leases are rounded up to whole seconds."""
        world = self._world
        world.receives += 1
        worker, began = self._process.host.name, world.kernel.now
        world.emit("receive_began", worker, queue, limit)
        outcome, count = "unknown", 0
        try:
            answer = cast(Received, await self._call("receive", queue, limit, _whole(visibility_s)))
            count = len(answer.messages)
            outcome = "found" if count else "empty"
            if count < limit or (answer.depth is not None and not answer.depth.visible):
                self._left_nothing(queue, began)
        except QueueNotFound:
            outcome = "empty"
            self._left_nothing(queue, began)
            raise
        except UnknownOutcome:
            raise
        except StoreError:
            outcome = "failed"
            raise
        finally:
            if self._process.up:
                world.emit("receive_answered", worker, queue, outcome, count, source or "none")
        return answer

    def _left_nothing(self, queue: str, began: float) -> None:
        for emptied in (self.emptied, self._world.emptied):
            emptied[queue] = max(emptied.get(queue, began), began)

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Delete, release and extend; leases are rounded up to whole seconds."""
        return cast(Settling, await self._call("settle", queue, settlement))

    async def depth(self, queue: str) -> Depth | None:
        world = self._world
        world.receives += 1
        began = world.kernel.now
        world.emit("count_began", self._process.host.name, queue)
        found = cast("Depth | None", await self._call("depth", queue))
        if found is None or not found.visible:
            self._left_nothing(queue, began)
        return found

    async def _unasked(self, *_: object, **__: object) -> Any:
        """Neither a listener nor a producer asks for the rest of what a store promises."""
        raise Unsupported("a simulated store only puts, receives, settles and counts")

    peek = clear = pause = create = delete = queues = _unasked

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True

    async def _call(self, operation: str, queue: str, *arguments: object) -> object:
        if self._closed:
            raise Closed("the store is closed")
        if self._failover is None:
            return await self._ask(self._hosts[0], operation, queue, arguments)
        loop = asyncio.get_running_loop()
        told: StoreError | None = None
        for host in self._failover.round(loop.time()):
            try:
                answer = await self._ask(host, operation, queue, arguments)
            except (StoreUnavailable, UnknownOutcome) as error:
                told = error
                done = Outcome.UNKNOWN if isinstance(error, UnknownOutcome) else Outcome.NOT_DONE
                if not self._failover.record(host, done, loop.time()):
                    break
            except StoreError:
                self._failover.record(host, Outcome.ANSWERED, loop.time())
                raise
            else:
                self._failover.record(host, Outcome.ANSWERED, loop.time())
                return answer
        raise told or StoreUnavailable("nobody could be asked")

    async def _ask(self, host: str, operation: str, queue: str, arguments: tuple[object, ...]) -> object:
        end = self._world.network.open(self._process, host, PORT)
        end.send((operation, queue, arguments, self._credential and self._credential.secret()))
        try:
            async with asyncio.timeout(CALL_S):
                answer = await end.receive()
        except TimeoutError as error:
            raise UnknownOutcome("the store did not answer") from error
        except Lost as lost:
            if lost.refused:
                raise StoreUnavailable("the store cannot be reached") from lost
            raise UnknownOutcome("the store did not answer") from lost
        finally:
            end.close()
        if isinstance(answer, StoreError):
            raise type(answer)(str(answer))
        result, boot = answer
        if boot is not None:
            self.boot = boot  # told with refusals too, as the header of each answer is
        if isinstance(result, NotAllowed):
            raise NotAllowed(result.code, str(result))
        if isinstance(result, StoreError):
            raise type(result)(str(result))
        return cast(object, result)


class EngineStore(RemoteStore):
    """The store as the bridges in front of it reach it: what a receive is, only a worker's own asking says."""

    def put(self, queue: str, bodies: Sequence[Body], **_: object) -> Awaitable[Any]:
        """As `queuebell.bridge.queues.base.QueueStore.put`; queues of this store need no making."""
        return _Asked(self._call, "put", queue, tuple(new_messages(bodies)))

    def receive(self, queue: str, limit: int = 1, visibility_s: float = 30.0, **_: object) -> Awaitable[Any]:
        return _Asked(self._call, "receive", queue, limit, _whole(visibility_s))

    def settle(self, queue: str, settlement: Settlement) -> Awaitable[Any]:
        return _Asked(self._call, "settle", queue, settlement)

    def depth(self, queue: str) -> Awaitable[Any]:
        return _Asked(self._call, "depth", queue)

    async def queues(self, *_: object, **__: object) -> list[str]:
        """Return none: it is asked only whether it is there."""
        return []


class AskedStore(EngineStore):
    """The store as bridges and scalers reach it that ask about all queues at once (`bridge.queues.base.RoundStore`)."""

    kind, scope = "", "5c"

    async def visible_queues(self) -> VisibleQueues:
        return cast("VisibleQueues", await self._call("visible_queues", ""))

    async def place(self) -> str | None:
        return cast("str | None", await self._call("place", ""))


class _Asked:
    """A call that is made when it is awaited: that of a bridge which died before is no coroutine that nobody awaits."""

    def __init__(self, call: Callable[..., Awaitable[Any]], *given: object) -> None:
        self._call = functools.partial(call, *given)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._call().__await__()


def _whole(seconds: float) -> float:
    return float(max(1, math.ceil(seconds - 1e-9)))
