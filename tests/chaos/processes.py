"""Faults of processes: killed at the worst moment, stopped for a while, of two versions, with handlers that fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

import aiohttp

from tests.chaos import pace
from tests.chaos.row import Row, Story
from tests.chaos.site import INSIDE, QUEUE, Site
from tests.support.processes import until

SPIN = "while True: pass"
ATTEMPTS = 3
RETRY_S = 0.5


async def producer_killed(site: Site) -> None:
    """F1."""
    await site.elsewhere()
    await site.worker()
    producer = await site.producer(hesitate=True)
    bodies = site.tally.names(3)
    producer.tell(f"put {' '.join(bodies)}")
    await producer.line('"hesitating"')
    site.tally.acknowledge(bodies, time.monotonic())
    await producer.kill()
    await site.wakes(bodies)
    state = await site.bridge.queue(QUEUE)
    assert state["triggers"] == 0
    site.figures["found by"] = ", ".join(sorted({event["source"] for event in site.workers[0].events["start"]}))


async def put_cancelled(site: Site) -> None:
    """F3: sweep off, so that only a publish finds what landed."""
    await site.elsewhere(sweep_s="0")
    await site.worker()
    producer = await site.producer()
    for turns in range(0, 40, 2):
        producer.tell(f"cancel {turns} {site.tally.names(1)[0]}")
    producer.tell(f"put {site.tally.names(1)[0]}")
    await producer.line('"acknowledged"', f'"m{len(site.tally.attempted) - 1}"')
    producer.tell("close")
    await producer.ended()
    last = [body for event in producer.events["acknowledged"] for body in event["bodies"]][-1:]
    await site.wakes(last)
    site.figures["cancelled at"] = f"{len(producer.events['cancelled'])} points"


async def bridge_killed_idle(site: Site) -> None:
    """F10, idle."""
    await site.elsewhere()
    await site.worker()
    asked = await site.receives()
    await site.bridge.kill()
    ready = await site.again()
    bodies = await site.put(2, tell=False)
    await site.wakes(bodies, ready)
    site.figures["receives"] = str(await site.receives() - asked)


def bridge_killed_at(point: str, **settings: str) -> Story:
    """F10, at a failpoint."""

    async def inject(site: Site) -> None:
        await site.elsewhere(launcher=(*INSIDE, "exit", point), **settings)
        await site.worker()
        await site.worker()
        site.bridge.signal(signal.SIGUSR1)
        bodies = await site.put(2, tell=False)
        with contextlib.suppress(OSError, aiohttp.ServerDisconnectedError):  # its answer may die with it
            await site.trigger()
        assert await site.bridge.ended() == 9
        ready = await site.again(**settings)
        await site.wakes(bodies, ready)

    return inject


async def bridge_crash_loop(site: Site) -> None:
    """F11."""
    await site.elsewhere(sweep_s="0")
    await site.worker()
    for _ in range(3):
        await site.bridge.kill()
        bodies = await site.put(2, tell=False)
        await site.again(sweep_s="0")
        await site.lasts(0.2)
        await site.bridge.kill()
        await site.again(sweep_s="0")
        await site.wakes(bodies)


async def bridge_gone(site: Site) -> None:
    """F11, for good."""
    await site.elsewhere()
    await site.worker()
    await site.bridge.kill()
    bodies = await site.put(2, tell=False)
    await site.wakes(bodies)


async def bridge_stopped(site: Site) -> None:
    """F12, SIGSTOP."""
    await site.elsewhere()
    worker = await site.worker()
    site.bridge.signal(signal.SIGSTOP)
    bodies = await site.put(2, tell=False)
    await site.wakes(bodies)
    await worker.complains("no bridge answers at")
    site.bridge.signal(signal.SIGCONT)
    resumed = time.monotonic()
    await site.bridge.has_listeners(1)
    # The same boot: what it believed when it was stopped must not settle what came meanwhile.
    bodies = await site.put(2, tell=False)
    await site.wakes(bodies, resumed)


async def bridge_starved(site: Site) -> None:
    """F12, CPU."""
    await site.own()
    await site.worker()
    os.setpriority(os.PRIO_PROCESS, site.bridge.process.pid, 10)
    spinners = [await site.processes.start(sys.executable, "-c", SPIN, name="spin") for _ in range(4)]
    for _ in range(3):
        await site.wakes(await site.put(4))
    for spinner in spinners:
        await spinner.kill()


async def listener_killed_before_receive(site: Site) -> None:
    """F14."""
    await site.elsewhere(sweep_s="0")
    launcher = (*INSIDE, "exit", "queuebell.bridge.queues.http.store:HttpStore.receive/1")
    victim = await site.worker(launcher=launcher)
    await site.worker()
    victim.signal(signal.SIGUSR1)
    while victim.code is None:
        await site.wakes(await site.put(1))
    assert await victim.ended() == 9


async def listener_killed_with_leases(site: Site) -> None:
    """F15."""
    await site.own()
    victim = await site.worker(hold=True)
    bodies = await site.put(32)
    await site.tally.all_started(bodies)
    await site.worker(settled=False)
    await site.bridge.has_listeners(2)
    await victim.kill()
    await site.wakes_again(bodies, time.monotonic())


async def listener_and_bridge_killed(site: Site) -> None:
    """F15 and F16: a store elsewhere, and nobody left who knows of the leases."""
    await site.elsewhere()
    victim = await site.worker(hold=True)
    bodies = await site.put(32)
    await site.tally.all_started(bodies)
    await site.worker(settled=False)
    await site.bridge.has_listeners(2)
    await asyncio.gather(victim.kill(), site.bridge.kill())
    killed = time.monotonic()
    ready = await site.again()
    # On a busy machine the leases end, and the other polls, before the bridge is back: then nobody waited for it.
    await site.tally.all_started(bodies, killed)
    site.tally.measure(bodies, ready)


async def listener_stopped(site: Site) -> None:
    """F17."""
    await site.own()
    frozen = await site.worker(hold=True)
    bodies = await site.put(4)
    await site.tally.all_started(bodies)
    frozen.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    await site.worker(settled=False)
    await site.wakes_again(bodies, stopped)
    await site.tally.all_done(bodies)
    frozen.signal(signal.SIGCONT)
    frozen.tell("go")

    async def counted() -> tuple[int, float] | None:
        since = len(frozen.lines)
        frozen.tell("state")
        await frozen.line('"event": "state"', since=since)
        (listener,) = frozen.events["state"][-1]["listeners"]
        figures = listener["queues"][QUEUE]
        return (int(figures["lost_leases"]), float(figures["visibility_s"])) if figures["lost_leases"] else None

    # The late deletes fail cleanly: the leases are known to be lost, and nobody deletes what another holds.
    late, visibility_s = await until(counted, "the late settlements are counted")
    site.figures["leases lost, and counted"] = str(late)
    assert visibility_s == 1.5 * site.pace.visibility_s, "one pause lengthens the leases that follow once"
    assert "Traceback" not in frozen.errors


async def everything_stopped(site: Site) -> None:
    """F32."""
    await site.elsewhere()
    await site.worker()
    delayed = await site.put(2, after_ms=500)
    bodies = await site.put(2, tell=False)
    everybody = [site.store, site.bridge, *site.workers]
    for one in everybody:
        one.signal(signal.SIGSTOP)
    await site.lasts(2 * site.pace.death_s)
    for one in everybody:
        one.signal(signal.SIGCONT)
    await site.wakes([*delayed, *bodies], time.monotonic())


async def rolling_upgrade(site: Site) -> None:
    """F40."""
    launcher = (*INSIDE, "tomorrow", "-")
    await site.elsewhere()
    await site.worker(launcher=launcher)
    await site.worker()
    for _ in range(2):
        await site.wakes(await site.put(4))
    await site.bridge.kill()
    await site.again(launcher=launcher)
    await site.bridge.has_listeners(2)
    await site.wakes(await site.put(8, batch=1))
    url = f"{site.bridge.url}/v1/triggers"
    event = {"storage_account": "billing", "queue_name": "orders", "of_tomorrow": {"list": [1, None]}}
    bodies = await site.put(1, tell=False)
    async with site.bridge.asking.post(url, json=event) as answer:
        assert answer.status == 202
    await site.wakes(bodies)
    for one in (site.bridge, *site.workers):
        assert "Traceback" not in one.errors, one.errors


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
    Row("F1", "producer killed between put and publish", "kill -9 while it hesitates there", pace.sweep,
        producer_killed),
    Row("F3", "put cancelled at every await", "task.cancel() after 0, 2, 4 ... turns; sweep off", pace.healthy,
        put_cancelled),
    Row("F10a", "bridge killed while idle", "kill -9, started again", pace.reconnect, bridge_killed_idle),
    Row("F10b", "bridge killed between mark and fan-out", "failpoint before the first wake leaves", pace.reconnect,
        bridge_killed_at("queuebell.bridge.service.sessions:Flushes._all/1")),
    Row("F10c", "bridge killed in the middle of a broadcast", 'failpoint before the second of two wakes, wake = "all"',
        pace.reconnect, bridge_killed_at("queuebell.bridge.service.sessions:Flushes.now/2", wake="all")),
    Row("F11a", "bridge in a crash loop", "kill -9 six times, sweep off", pace.without_bridge, bridge_crash_loop),
    Row("F11b", "bridge gone for good", "kill -9", pace.without_bridge, bridge_gone),
    Row("F12a", "bridge stopped and resumed", "SIGSTOP until it is found dead, SIGCONT", pace.without_bridge,
        bridge_stopped),
    Row("F12b", "bridge starved of CPU", "nice 10 beside four spinning processes", pace.healthy, bridge_starved),
    Row("F14", "listener killed after its wake, before its receive", "failpoint in the receive; sweep off",
        pace.redispatch, listener_killed_before_receive),
    Row("F15", "listener killed holding 32 leases", "kill -9", pace.lease, listener_killed_with_leases),
    Row("F16", "listener with 32 leases and bridge killed together", "kill -9 of both, store elsewhere",
        pace.lease_and_sweep, listener_and_bridge_killed),
    Row("F17", "listener stopped for longer than its leases", "SIGSTOP, SIGCONT", pace.lease, listener_stopped),
    Row("F32", "everything suspended", "SIGSTOP of all for 2 D", pace.sweep, everything_stopped),
    Row("F40", "rolling upgrade", "fields and frame types of tomorrow, both ways", pace.reconnect, rolling_upgrade),
    Row("F28", "ten poison messages in a batch", f"handlers that always raise, {ATTEMPTS} attempts", pace.healthy,
        poison),
    Row("F37", "event loop blocked by a handler", "2 D without a turn of the loop", pace.death, loop_blocked),
    Row("F38a", "tasks collected as garbage", "gc.collect() every 2 ms; sweep off", pace.healthy, collected),
    Row("F38b", "handler raises MemoryError", "once", pace.later(pace.healthy, RETRY_S, "retry 0.5 s"),
        odd_exception("memory")),
    Row("F38c", "handler raises a BaseException", "once", pace.later(pace.healthy, RETRY_S, "retry 0.5 s"),
        odd_exception("base")),
    Row("F38d", "handler raises KeyboardInterrupt", "once", pace.lease, odd_exception("interrupt")),
    Row("F38e", "handler raises SystemExit", "once", pace.lease, odd_exception("exit")),
)  # fmt: skip
