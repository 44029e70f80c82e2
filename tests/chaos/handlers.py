"""Faults of handlers: messages that always fail, loops that are blocked, exceptions that none should raise."""

from __future__ import annotations

import time

from tests.chaos import pace
from tests.chaos.row import Row, Story
from tests.chaos.site import QUEUE, Site

ATTEMPTS = 3
RETRY_S = 0.5


async def poison(site: Site) -> None:
    """F28: ten of a batch of 32 always fail; they are buried, announced and handled there."""
    await site.elsewhere(sweep_s="0")
    worker = await site.worker(queue=[QUEUE, f"{QUEUE}-poison"], max_attempts=ATTEMPTS, settled=False)
    await site.bridge.has_listeners(1)
    bad = [f"bad{number}" for number in range(10)]
    good = site.tally.names(22)
    site.tally.attempted.update(dict.fromkeys(bad))
    asked = await site.receives()
    assert await site.store.put(QUEUE, *bad, *good) == 201
    site.tally.acknowledge([*bad, *good], time.monotonic())
    assert await site.trigger() == 202
    await site.wakes(good)
    await site.tally.all_done(bad)
    site.tally.measure(bad)
    attempts = [event["attempt"] for event in worker.events["start"] if event["body"] in bad and not event["poison"]]
    assert len(attempts) == ATTEMPTS * len(bad), attempts
    buried = max(max(site.tally.starts[body]) - site.tally.visible_at[body] for body in bad)
    site.figures["buried and handled after"] = f"{buried:.1f} s"
    site.figures["receives"] = str(await site.receives() - asked)


async def loop_blocked(site: Site) -> None:
    """F37: a handler blocks its event loop for longer than D; others take over."""
    await site.own()
    blocked = await site.worker(concurrency=4)
    await site.worker(concurrency=4)
    blocked.tell(f"block {2 * site.pace.death_s}")
    for _ in range(4):
        bodies = await site.put(2, batch=1)
        await site.tally.all_started(bodies)
        site.tally.measure(bodies)
        if any(event["body"] in bodies for event in blocked.events["start"]):
            break
    began = time.monotonic()
    bodies = await site.put(4, batch=1)
    await site.wakes(bodies, began)


def odd_exception(kind: str) -> Story:
    """F38: a handler raises what none should."""

    async def inject(site: Site) -> None:
        await site.own()
        odd = await site.worker(odd=kind)
        bodies = await site.put(1)
        await site.tally.all_started(bodies)
        began = time.monotonic()
        await site.worker(settled=False)
        await site.wakes_again(bodies, began)
        await site.tally.all_done(bodies)
        await site.wakes(await site.put(8, batch=1))
        site.figures["its worker"] = "lives" if odd.code is None else f"ended with {odd.code}"

    return inject


async def collected(site: Site) -> None:
    """F38: garbage is collected in every turn of the loop, so that a task that nobody holds is gone."""
    await site.elsewhere(sweep_s="0")
    await site.worker(collects=True)
    for _ in range(10):
        await site.wakes(await site.put(2))


ROWS = (
    Row(
        "F28",
        "ten poison messages in a batch",
        f"handlers that always raise, {ATTEMPTS} attempts",
        pace.healthy,
        poison,
    ),
    Row("F37", "event loop blocked by a handler", "2 D without a turn of the loop", pace.death, loop_blocked),
    Row("F38a", "tasks collected as garbage", "gc.collect() every 2 ms; sweep off", pace.healthy, collected),
    Row(
        "F38b",
        "handler raises MemoryError",
        "once",
        pace.later(pace.healthy, RETRY_S, "retry 0.5 s"),
        odd_exception("memory"),
    ),
    Row(
        "F38c",
        "handler raises a BaseException",
        "once",
        pace.later(pace.healthy, RETRY_S, "retry 0.5 s"),
        odd_exception("base"),
    ),
    Row("F38d", "handler raises KeyboardInterrupt", "once", pace.lease, odd_exception("interrupt")),
    Row("F38e", "handler raises SystemExit", "once", pace.lease, odd_exception("exit")),
)
