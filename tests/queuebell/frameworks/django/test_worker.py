"""Django's tasks carried out by `manage.py queuebell_worker`: real programs, stopped and killed.

Crossed: function and coroutine, each of two queues, a delay, context, attempts, burial for each reason, an enqueue
within a task and a message of a stranger (the first two tests); a killed worker, a stop in order with work under way
and work not begun, one slot for all (the others). What producers do is in `test_backend.py`.
"""

from __future__ import annotations

import json
import signal

from tests.queuebell.frameworks.django.shop import Shop

AT_ONCE = ("--retry-first", "0.01", "--retry-factor", "1", "--max-attempts", "3")
OURS = "django/default"


async def test_tasks_of_every_kind_are_done_once(shop: Shop) -> None:
    """The signals say how each ended, once, although receivers break; connections are left to nobody."""
    worker = await shop.worker(*AT_ONCE, "--concurrency", "1", SHOP_SIGNALS="1")
    enqueued = await shop.run(
        """
import datetime
from django.utils import timezone
soon = timezone.now() + datetime.timedelta(seconds=0.2)
results = [
    charge.enqueue(1), charge.enqueue(2, times=3), charge_async.enqueue(1), charge_async.enqueue(3),
    charge.using(run_after=soon).enqueue(4), send.enqueue(to="ada"), charge.using(queue_name="mail").enqueue(5),
    attempts.enqueue(3), again.enqueue(6),
]
print(json.dumps([result.id for result in results]))
""",
        SHOP_SIGNALS="1",
    )
    ended = await shop.tells("finished", 10)
    assert {each["id"] for each in ended} >= set(enqueued) and len(ended) == 10
    assert [each["id"] for each in shop.told("enqueued")][:9] == enqueued
    assert {(each["status"], each["attempts"]) for each in ended if each["task"] != "attempts"} == {("SUCCESSFUL", 1)}
    assert [each["value"] for each in ended if each["task"] == "send"] == [None]
    assert {"number": 1} in [each["value"] for each in ended if each["task"] == "charge"]
    tried = shop.told("attempt")
    assert [each["number"] for each in tried] == [1, 2, 3]
    assert {(each["id"], each["status"]) for each in tried} == {(enqueued[7], "RUNNING")}
    assert tried[2]["workers"][:2] == ["unknown", "unknown"]
    assert [each["attempts"] for each in ended if each["task"] == "attempts"] == [3]
    assert len(shop.told("started")) == 12
    charged = shop.told("charged")
    assert sorted(each["number"] for each in charged) == [1, 1, 2, 3, 4, 5, 6]
    assert {each["fresh"] for each in charged} == {True}
    assert {each["thread"] == "MainThread" for each in charged if each["number"] == 3} == {True}
    for queue in (OURS, "django/mail"):
        await shop.bridge.is_drained(queue)
    assert await worker.stop() == 0, worker.errors
    rows = await shop.run("print(json.dumps(dict(Order.objects.values_list('number', 'charged'))))")
    assert rows == {"1": 2, "2": 3, "3": 1, "4": 1, "5": 1, "6": 1, "7": 0, "8": 0, "9": 0}
    assert "a receiver that breaks" in worker.errors


async def test_what_cannot_be_carried_out_is_buried_with_its_reason(shop: Shop) -> None:
    """A task that this worker does not know, arguments that do not fit, a stranger's words, and failures."""
    await shop.run("new.enqueue(); changed.enqueue(1); attempts.enqueue(99); refuse.enqueue('bury')")
    await shop.run("refuse.enqueue('retry'); charge.enqueue(1)")
    asks = {"id": "1", "args": [], "kwargs": {}, "enqueued_at": "2026-11-22T12:00:00Z"}
    strange = ["no JSON", "[1]", "[" * 50_000, json.dumps({**asks, "task": 7}), json.dumps({**asks, "args": None})]
    paths = ["shop.tasks.plain", "os.getcwd", "no.such", "charge", "shop.tasks"]
    assert await shop.bridge.put(OURS, *strange, *(json.dumps({**asks, "task": path}) for path in paths)) == 201
    worker = await shop.worker(*AT_ONCE, SHOP_OLD="1", SHOP_SIGNALS="1")
    reasons = await shop.buried(15)
    for words, count in {
        "this message asks for no task: ": 5,
        "this program has no task shop.tasks.new: ": 1,
        "this program has no task no.such: No module named 'no'": 1,
        "this program has no task charge: ": 1,
        "shop.tasks.plain is no task in this program": 1,
        "os.getcwd is no task in this program": 1,
        "shop.tasks is no task in this program": 1,
        "shop.tasks.changed: the arguments of the message do not fit it: too many positional arguments": 1,
        "attempt 3 of 3: ValueError: attempt 3": 1,
        "attempt 3 of 3: asked for another attempt": 1,
        "not this one": 1,
    }.items():
        assert len([reason for reason in reasons if reason.startswith(words)]) == count, (words, reasons)
    await shop.bridge.is_drained(OURS)
    assert shop.told("called") == []
    ended = [(each["task"], each["status"], each["attempts"], *each["errors"]) for each in shop.told("finished")]
    assert sorted(ended) == [
        ("attempts", "FAILED", 3, "builtins.ValueError"),
        ("charge", "SUCCESSFUL", 1),
        ("refuse", "FAILED", 1, "queuebell.Bury"),
        ("refuse", "FAILED", 3, "queuebell.Retry"),
    ]
    assert await worker.stop() == 0


async def test_a_killed_worker_s_task_is_done_by_another(shop: Shop) -> None:
    """Killed half-way its message comes back when the lease ends, and is another attempt."""
    go = shop.told_in.with_name("go")
    await shop.run(f"hold.enqueue({str(go)!r})")
    first = await shop.worker("--visibility-timeout", "5", SHOP_SIGNALS="1")
    await shop.tells("held")
    await first.kill()
    go.touch()
    second = await shop.worker(SHOP_SIGNALS="1")
    (ended,) = await shop.tells("finished")
    assert ended["status"] == "SUCCESSFUL" and ended["attempts"] >= 2
    await shop.bridge.is_drained(OURS)
    assert len(shop.told("held")) >= 2 and len(shop.told("let go")) == 1
    assert await second.stop() == 0


async def test_a_signal_stops_it_in_order(shop: Shop) -> None:
    """Ctrl-C lets the task under way end; what has not begun stays for the next worker, as its first attempt."""
    go = shop.told_in.with_name("go")
    worker = await shop.worker("--concurrency", "1", "--grace", "300")
    await shop.run(f"hold.enqueue({str(go)!r})")
    await shop.tells("held")
    await shop.run("attempts.enqueue(1)")
    worker.signal(signal.SIGINT)
    await worker.complains("stopping")
    go.touch()
    assert await worker.ended() == 0, worker.errors
    assert len(shop.told("let go")) == 1 and not shop.told("attempt")
    assert await shop.depth() == 1
    another = await shop.worker()
    assert [each["number"] for each in await shop.tells("attempt")] == [1]
    assert await another.stop() == 0
