"""Tasks of Celery, as `celery --workdir examples -A celery_app worker` does them; `BROKER` is the bridge.

`python examples/celery_app.py` puts them and prints their results.
"""

import os
from typing import Any

from celery import Celery

import queuebell.frameworks.celery  # noqa: F401 - registers queuebell://

app = Celery("celery_app", broker=os.environ.get("BROKER", "queuebell://127.0.0.1:8470"), backend="rpc://")
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1


@app.task
def charge(number: int) -> str:
    return f"charged order {number}"


@app.task(bind=True, max_retries=3)
def flaky(self: Any) -> str:
    if self.request.retries == 0:
        raise self.retry(countdown=0.5)
    return f"done after {self.request.retries} retry"


def main() -> None:
    now, later, retried = charge.delay(17), charge.apply_async((18,), countdown=1), flaky.delay()
    for result in (now, later, retried):
        print(result.get(timeout=60), flush=True)


if __name__ == "__main__":
    main()
