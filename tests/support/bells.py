"""A bell with its sessions played by hand: what it would send is collected, its clock is set by the test."""

from __future__ import annotations

from queuebell.bridge.contract.cluster import ClusterMessage
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import (
    LISTENER,
    Bye,
    DownFrame,
    EmptyReceive,
    Hello,
    ListenerHeartbeat,
    More,
    QueueBeat,
    Room,
    Started,
    Subscription,
    UpFrame,
    Wake,
    Welcome,
)
from queuebell.bridge.core.commands import Announce, Broadcast, End, Flush, Reclaim, Refresh, Send
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.facts import Fact

BOOT = "b" * 32
QUEUE = "billing/orders"


class Rig:
    """Drives a real `WakeScheduler`; `wakes` and `frames` are what reached each session."""

    def __init__(
        self, *, sweep_s: float = 0.0, scheduler: type[WakeScheduler] = WakeScheduler, **periods: float | str
    ) -> None:
        self.now = 100.0
        self.scheduler = scheduler(BOOT, Periods(sweep_s=sweep_s, **periods), lambda: 0.5)  # type: ignore[arg-type]
        self.frames: dict[int, list[DownFrame]] = {}
        self.ended: dict[int, tuple[int, str]] = {}
        self.rereads: list[str] = []
        self.reclaims: list[Reclaim] = []
        self.announced: list[str] = []
        self.rung: list[Announce] = []
        self.facts: list[Fact] = []
        self.words: list[ClusterMessage] = []
        self.deaf: set[int] = set()
        self._names = 0

    def drive(self) -> None:
        """Do what the bell says."""
        while commands := self.scheduler.commands():
            for command in commands:
                if isinstance(command, Flush):
                    if command.session not in self.deaf:
                        self.frames[command.session].extend(self.scheduler.take(self.now, command.session))
                elif isinstance(command, Send):
                    self.frames[command.session].append(command.frame)
                elif isinstance(command, End):
                    self.ended[command.session] = (command.code, command.reason)
                elif isinstance(command, Refresh):
                    self.rereads.append(command.queue)
                elif isinstance(command, Announce):
                    self.announced.append(command.reason)
                    self.rung.append(command)
                elif isinstance(command, Broadcast):
                    self.words.append(command.message)
                else:
                    self.reclaims.append(command)
        self.facts.extend(self.scheduler.facts())

    def join(
        self, *queues: str, capacity: int = 32, own: bool = False, accept: bool = False, store: str | None = None,
        instance: str | None = None, visibility_ms: int = 30_000, kind: str = LISTENER,
    ) -> int:  # fmt: skip
        """Open a session and say hello; return its number."""
        number = self.scheduler.open(self.now, "test")
        self.frames[number] = []
        self._names += 1
        self.say(
            number,
            Hello(
                instance=instance or f"{self._names:032x}",
                listener=f"listener {self._names}",
                queues=[
                    Subscription(queue, capacity, visibility_ms=visibility_ms, own=own, store=store)
                    for queue in queues or (QUEUE,)
                ],
                accept=["messages"] if accept else [],
                kind=kind,
            ),
        )
        return number

    def say(self, number: int, frame: UpFrame) -> None:
        """Have a session say something."""
        self.scheduler.frame(self.now, number, frame)
        self.drive()

    def trigger(self, queue: str = QUEUE, size: int = 1, bus: str = "http", **fields: object) -> None:
        """Have a trigger come in."""
        account, name = queue.split("/")
        event = CloudQueueWorkDetected(account, name, payload_size=size, **fields)  # type: ignore[arg-type]
        self.scheduler.trigger(self.now, event, bus)
        self.drive()

    def started(self, number: int, gen: int, queue: str = QUEUE) -> None:
        """A receive begins."""
        self.say(number, Started(queue, BOOT, gen))

    def cover(self, number: int, gen: int, queue: str = QUEUE, *, boot: str = BOOT, next_ms: int | None = None) -> None:
        """An empty receive is reported."""
        self.say(number, EmptyReceive(queue, boot, gen, 0, next_visible_in_ms=next_ms))

    def more(
        self, number: int, queue: str = QUEUE, depth: int | None = None, *, unannounced: bool | None = None
    ) -> None:
        """A session stops with more left."""
        self.say(number, More(queue, depth, unannounced))

    def room(self, number: int, free: int, queue: str = QUEUE, gen: int | None = None) -> None:
        """A session has room again."""
        self.say(number, Room(queue, free, gen))

    def beat(self, number: int, queue: str = QUEUE, leases: list[int] | None = None, **levels: object) -> None:
        """A session's heartbeat."""
        self.say(
            number,
            ListenerHeartbeat(7, {queue: QueueBeat(**levels)}, {queue: leases} if leases else {}),
        )

    def bye(self, number: int) -> None:
        """A session says bye."""
        self.say(number, Bye())

    def lose(self, number: int) -> None:
        """A session's connection breaks."""
        self.scheduler.lost(self.now, number, "lost")
        self.drive()

    def level(
        self, visible: int, *, queue: str = QUEUE, rose: bool = False, put: int = 0, exists: bool = True,
        next_s: float | None = None, invisible: int = 0,
    ) -> None:  # fmt: skip
        """The own store committed something."""
        self.scheduler.embedded.on_commit(
            self.now, queue, exists=exists, visible=visible, invisible=invisible, rose=rose, put=put, receives=0,
            empty=0, next_visible_s=next_s,
        )  # fmt: skip
        self.drive()

    def wait(self, seconds: float) -> None:
        """Let time pass, stopping at every deadline."""
        until = self.now + seconds
        while (deadline := self.scheduler.deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.scheduler.tick(self.now)
            self.drive()
        self.now = until

    def wakes(self, number: int) -> list[Wake]:
        """Return and forget the wakes a session heard."""
        heard = [frame for frame in self.frames[number] if isinstance(frame, Wake)]
        self.frames[number] = [frame for frame in self.frames[number] if not isinstance(frame, Wake)]
        return heard

    def gens(self, number: int) -> list[int]:
        """Return and forget the generations of the wakes a session heard."""
        return [wake.gen for wake in self.wakes(number)]

    def welcome(self, number: int) -> Welcome:
        """Return a session's first frame, which is its welcome."""
        first = self.frames[number][0]
        assert isinstance(first, Welcome)
        return first

    def work(self, queue: str = QUEUE):  # type: ignore[no-untyped-def]
        """Return what the bell knows of a queue."""
        return self.scheduler.pending.by_queue[queue]

    def settle_hello(self, number: int, queue: str = QUEUE) -> None:
        """Answer the wake that a queue never heard of is born with."""
        for gen in self.gens(number):
            self.started(number, gen, queue)
            self.cover(number, gen, queue)
        assert not self.work(queue).dirty
