"""What a queue that stays empty costs, with stores that are slow, broken or left to listeners that stop (I2)."""

from __future__ import annotations

import msgspec

from queuebell.bridge.contract.backoff import RandomExponential
from queuebell.bridge.contract.wire import Started
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.listeners.session.session import Liveness
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.timers import DeadMan
from tests.exploration.plan import Plan, Step
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
    """How many `started` are lost."""
    stops: int = 0
    """How many listeners are asked to stop in the middle of the last trigger's receive."""
    controller: type[Controller] = TriesLikeTheShell
    scheduler: type[WakeScheduler] = WakeScheduler


def receives(story: Story) -> list[float]:
    """Return when receives began, in seconds from the first trigger, until an hour after the last failure."""
    plan = Plan(
        name=story.name, listeners=story.listeners, messages=0, capacity=story.capacity, hints=story.hints,
        errors=10**6, lost_frames=story.loses_started, stops=story.stops, controller=story.controller,
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
        world.calm = True

    def begins(self) -> None:
        """Count from here."""
        self.began, self.fails, self.seen = self.world.now, True, []

    def until(self, end: float) -> None:
        """Play until a moment."""
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
            self.seen += [world.now - self.began] * (world.receives - count)
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
        self.seen += [self.world.now - self.began] * (self.world.receives - count)


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
