"""Celery with Redis. Worker: ``celery -A bench.programs.celery_redis worker``."""

import os

from celery import Celery

from bench.programs.sample import sample

app = Celery("bench", broker=os.environ["SERVER"])


@app.task
def handle(stamp):
    sample(stamp)


async def producing():
    yield handle.delay
