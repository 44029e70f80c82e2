"""arq with Redis. Worker: ``arq bench.programs.arq_redis.WorkerSettings``."""

import os

from arq import create_pool
from arq.connections import RedisSettings

from bench.programs.sample import sample

SETTINGS = RedisSettings.from_dsn(os.environ["SERVER"])


async def handle(ctx, stamp):
    sample(stamp)


class WorkerSettings:
    functions = (handle,)
    redis_settings = SETTINGS


async def producing():
    redis = await create_pool(SETTINGS)
    yield lambda stamp: redis.enqueue_job("handle", stamp)
    await redis.aclose()
