"""taskiq with JetStream. Worker: ``taskiq worker bench.programs.taskiq_jetstream:broker``."""

import os

from taskiq_nats import PullBasedJetStreamBroker

from bench.programs.sample import sample

broker = PullBasedJetStreamBroker(servers=[os.environ["SERVER"]], durable="bench")


@broker.task
async def handle(stamp: str) -> None:
    sample(stamp)


async def producing():
    await broker.startup()
    yield handle.kiq
    await broker.shutdown()
