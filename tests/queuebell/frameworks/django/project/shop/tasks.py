"""What the shop has done in the background; each tells in a file what became of it."""

import json
import os
import pathlib
import threading

from asgiref.sync import sync_to_async
from django.db import connection
from django.db.models import F
from django.dispatch import receiver

from queuebell import Bury, Retry
from queuebell.frameworks.django.interface import signals, tasks
from shop.models import Order

task = tasks.task
NAMES = {signals.task_enqueued: "enqueued", signals.task_started: "started", signals.task_finished: "finished"}


def tell(event, **facts):
    """Write a line that is whole whoever else writes."""
    handle = os.open(os.environ["SHOP_TOLD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, json.dumps({"event": event, **facts}).encode() + b"\n")
    os.close(handle)


@receiver(list(NAMES))
def hear(signal, task_result, **_):
    """Tell of every signal, and then break, as a receiver may."""
    if "SHOP_SIGNALS" in os.environ:
        errors = [each.exception_class_path for each in task_result.errors]
        more = {"value": task_result.return_value} if task_result.status == "SUCCESSFUL" else {}
        facts = {"task": task_result.task.name, "status": task_result.status, "attempts": task_result.attempts}
        tell(NAMES[signal], id=task_result.id, errors=errors, **facts, **more)
        raise RuntimeError("a receiver that breaks")


@task
def charge(number, *, times=1):
    """Count what an order is charged, on a connection that no task before has left open."""
    fresh = connection.connection is None
    Order.objects.filter(number=number).update(charged=F("charged") + times)
    tell("charged", number=number, fresh=fresh, thread=threading.current_thread().name)
    return {"number": number}


@task
async def charge_async(number):
    """Do so on the event loop."""
    fresh = await sync_to_async(lambda: connection.connection is None)()
    await Order.objects.filter(number=number).aupdate(charged=F("charged") + 1)
    tell("charged", number=number, fresh=fresh, thread=threading.current_thread().name)


@task(queue_name="mail")
def send(to):
    """Be on another queue."""
    tell("sent", to=to)


@task(takes_context=True)
def attempts(context, needed):
    """Fail until enough attempts were made."""
    result = context.task_result
    tell("attempt", number=context.attempt, id=result.id, workers=result.worker_ids, status=result.status)
    if context.attempt < needed:
        raise ValueError(f"attempt {context.attempt}")


@task
async def refuse(how):
    """Say what is to become of the message."""
    tell("refused", how=how)
    raise Bury("not this one") if how == "bury" else Retry(0.01)


@task
def hold(until):
    """Go on once a file is there."""
    tell("held")
    while not pathlib.Path(until).exists():
        threading.Event().wait(0.02)
    tell("let go")


@task
def again(number):
    """Enqueue from within a task."""
    charge.enqueue(number)


if "SHOP_OLD" not in os.environ:

    @task
    def new():
        """Be unknown to an older worker."""


if "SHOP_OLD" in os.environ:

    @task
    def changed():
        """Take less than the newer one."""

else:

    @task
    def changed(more):
        """Take more than the older one."""


def plain():
    """Be no task."""
    tell("called")


renamed = task(plain)
