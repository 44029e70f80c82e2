"""Two faults at once that no story of chance meets often: a `more` that is lost, and an owner that cannot pay."""

from __future__ import annotations

from queuebell.bridge.contract.wire import More
from tests.exploration.plan import Plan, Violation
from tests.exploration.world import World

HUNG_OWNER = Plan(
    name="a lost more, and an owner whose receives all hang", listeners=2, hangs=1, lost_frames=1, settled=True,
    visibility_s=600.0,
)  # fmt: skip
FULL_OWNER = Plan(
    name="a lost more, and an owner whose slots are all busy", listeners=2, messages=2, lost_frames=1, settled=True,
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
    if plan.hangs:
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
