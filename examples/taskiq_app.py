"""Tasks of taskiq, as `taskiq worker --app-dir examples taskiq_app:broker` does them; `BRIDGE` is the bridge's address.

`python examples/taskiq_app.py` puts one, `taskiq scheduler --app-dir examples taskiq_app:scheduler` one each minute.
"""

import asyncio
import os

from pydantic import BaseModel
from taskiq import SimpleRetryMiddleware, TaskiqScheduler
from taskiq.schedule_sources import LabelScheduleSource

from queuebell.frameworks.taskiq import QueuebellBroker

broker = QueuebellBroker(os.environ.get("BRIDGE", "http://127.0.0.1:8470"), "billing/orders")
broker.add_middlewares(SimpleRetryMiddleware())
scheduler = TaskiqScheduler(broker, [LabelScheduleSource(broker)])


class Order(BaseModel):  # noqa: D101
    number: int


@broker.task("charge", retry_on_error=True)
async def charge(order: Order) -> None:
    print(f"charged order {order.number}", flush=True)


@broker.task("remind", schedule=[{"cron": "* * * * *"}])
async def remind() -> None:
    print("reminded", flush=True)


async def main() -> None:
    await charge.kicker().with_labels(delay=0.5).kiq(Order(number=17))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
