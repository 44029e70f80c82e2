"""Small worlds whose frames and calls take time: what an empty queue costs (I2), when it is swept, who gives way."""

from __future__ import annotations

import msgspec

from queuebell.bridge.contract.backoff import RandomExponential
from queuebell.bridge.contract.wire import More, Started
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.listeners.session.session import Liveness
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.timers import DeadMan
from tests.exploration.plan import Plan, Step, Violation, planned
from tests.exploration.store import TICK_S
from tests.exploration.world import World

HOUR_S = 3600.0
LATENCY_S = 0.05
AT_MOST = 67
"""Receives of an empty queue in an hour, however many listeners there are (I2)."""
AT_LEAST = 50
"""The sweep has somebody look about once a minute: a story with fewer was not told to its end."""


class TriesLikeTheShell(Controller):
    """Tries a broken store again as `queuebell.listeners.listener` has it: from 0.1 s to 30 s."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **{**named, "retries": RandomExponential(0.1, 30.0, 0.1)})  # type: ignore[arg-type]


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A queue elsewhere that is triggered, and that nothing was put on; all times in seconds."""

    name: str
    listeners: int = 2
    capacity: int = 1
    hints: bool = False
    receive_s: float = 0.01
    """How long the store takes for a receive."""
    fails_s: float = 0.0
    """For how long every receive fails, from the trigger on."""
    triggers: tuple[float, ...] = (0.0,)
    """When triggers come that no message stands behind."""
    loses_started: int = 0
    stops: int = 0
    """How many listeners are asked to stop in the middle of the last trigger's receive."""
    controller: type[Controller] = TriesLikeTheShell
    scheduler: type[WakeScheduler] = WakeScheduler


def receives(story: Story) -> list[float]:
    """Return when receives began, in seconds from the first trigger, until an hour after the last failure."""
    plan = planned(
        name=story.name, listeners=story.listeners, messages=0, capacity=story.capacity, hints=story.hints,
        error=10**6, lose_up=story.loses_started, stop=story.stops, controller=story.controller,
        scheduler=story.scheduler, liveness=Liveness, deadman=DeadMan, periods=Periods(sweep_s=60.0),
    )  # fmt: skip
    play = _Play(World(plan), story)
    play.until(play.world.now + 30.0)
    play.begins()
    for at in story.triggers:
        play.until(play.began + at)
        play.world.triggers.append(("a/one", 0.0))
    play.until(play.world.now + LATENCY_S + story.receive_s / 2)
    for number in range(story.stops):
        play.world.do(("stop", number))
    play.until(play.began + story.fails_s + HOUR_S)
    return play.seen


class _Play:
    """A world on its way: every frame takes the same time, every receive as long as the story says."""

    def __init__(self, world: World, story: Story) -> None:
        self.world = world
        self.story = story
        self.began = world.now
        self.fails = False
        self.seen: list[float] = []
        self.back = self.forward = 0
        """How often a dead-man deadline moved back, and on."""
        self._deadlines: dict[tuple[int, str], float] = {}
        world.calm = True

    def begins(self) -> None:
        self.began, self.fails, self.seen = self.world.now, True, []

    def until(self, end: float) -> None:
        world = self.world
        while world.now < end:
            # Each round what is on its way now arrives, unless something that arrived before has made it vain.
            arriving = self._arriving()
            at = min(end, world.now + LATENCY_S)
            while world.now < at and (arriving or not self._arriving()):
                self._step(at if arriving else end)
            for step in arriving:
                if step in world.steps(faults=False):
                    self._do(self._lose(step))

    def _arriving(self) -> list[Step]:
        return [step for step in self.world.steps(faults=False) if step[0] not in ("store", "answer")]

    def _lose(self, step: Step) -> Step:
        kind, what = step
        may = kind == "up" and self.fails and self.world.left["lose_up"]
        return ("lose_up", what) if may and isinstance(self.world.links[what].up[0], Started) else step

    def _step(self, end: float) -> None:
        """Let time pass until the next answer of the store, or until something becomes due."""
        world, story = self.world, self.story
        due = [request for request in world.requests if request.status == "sent"]
        at = min([end, *(request.began_at + story.receive_s for request in due)])
        if at > world.now:
            count = world.receives
            world.pass_time(at - world.now)
            self._look(count)
        for request in due:
            if request.began_at + story.receive_s <= world.now + TICK_S and request in world.requests:
                if self.fails and world.now < self.began + story.fails_s:
                    self._do(("error", request.id))
                else:
                    self._do(("store", request.id))
                    self._do(("answer", request.id))

    def _do(self, step: Step) -> None:
        count = self.world.receives
        self.world.do(step)
        self._look(count)

    def _look(self, before: int) -> None:
        world = self.world
        self.seen += [world.now - self.began] * (world.receives - before)
        for node in world.nodes:
            for queue, controller in node.controllers.items():
                if controller.deadman is not None:
                    at = controller.deadman.deadline
                    known = self._deadlines.get((node.number, queue), at)
                    self.back += at < known
                    self.forward += at > known
                    self._deadlines[node.number, queue] = at


STORIES = (
    Story(name="a quick store"),
    Story(name="a slow store", receive_s=3.0),
    Story(name="a trigger during a receive", receive_s=3.0, triggers=(0.0, 0.5)),
    Story(name="a trigger during the only listener's receive", listeners=1, receive_s=3.0, triggers=(0.0, 0.5)),
    Story(name="three triggers", listeners=4, receive_s=3.0, triggers=(0.0, 0.5, 0.6)),
    Story(name="a trigger during a receive, two slots", capacity=2, receive_s=3.0, triggers=(0.0, 0.5)),
    Story(name="a lost started", receive_s=3.0, loses_started=1),
    Story(name="a store that fails", fails_s=600.0),
    Story(name="a slow store that fails", fails_s=600.0, receive_s=3.0),
    Story(name="a slow store that fails four", listeners=4, fails_s=600.0, receive_s=3.0),
    Story(name="a stop", stops=1),
    Story(name="a stop of two", listeners=3, stops=2, receive_s=3.0),
)
GOES_ROUND = Story(name="a stop, a slow store and a trigger", stops=1, receive_s=3.0, triggers=(0.0, 0.5))
"""Where every `more` is a mark, this queue is received from for ever, once each time a receive ends."""

SWEEP_S = 60.0
FLEET = planned(
    name="sweep and dead-man on", listeners=3, messages=0, liveness=Liveness, deadman=DeadMan,
    periods=Periods(sweep_s=SWEEP_S),
)  # fmt: skip


def rounds(plan: Plan, hours: float) -> _Play:
    """Leave a fleet alone for some hours; every frame, call and answer takes `LATENCY_S`."""
    play = _Play(World(plan), Story(name=plan.name, receive_s=2 * LATENCY_S))
    play.until(play.world.now + hours * 3600)
    return play


HUNG_OWNER = planned(
    name="a lost more, and an owner whose receives all hang", listeners=2, hang=1, lose_up=1, settled=True,
    visibility_s=600.0,
)  # fmt: skip
FULL_OWNER = planned(
    name="a lost more, and an owner whose slots are all busy", listeners=2, messages=2, lose_up=1, settled=True,
    visibility_s=600.0, flush_steps=True,
)  # fmt: skip
PATIENCE_S = 1000.0


def met_after(plan: Plan) -> float:
    """Put what the plan has; lose the owner's first `more`; return the seconds until the other listener looks.

    With ``hangs`` the owner's store calls never return. Handlers never end.
    """
    world = World(plan)
    world.calm = True
    began = world.now
    for number in range(plan.messages):
        world.do(("put", number))
        world.do(("trigger", 0))
    owner = next(link.node for link in world.links if link.number == world.scheduler.pending.by_queue["a/one"].owner)
    if "hang" in plan.faults:
        world.do(("hang", owner))
    while world.now < began + PATIENCE_S:
        while steps := [step for step in world.steps(faults=False) if step[0] != "finish"]:
            kind, what = steps[0]
            from_owner = kind == "up" and world.links[what].node == owner
            if from_owner and world.left["lose_up"] and isinstance(world.links[what].up[0], More):
                world.do(("lose_up", what))
            else:
                world.do((kind, what))
        if not world.bad():
            if world.left["lose_up"]:
                raise Violation("world", "no `more` was said")
            return world.now - began
        world.pass_time()
    return PATIENCE_S
